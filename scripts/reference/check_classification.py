"""Losses, class weights, calibration and thresholds of classifiers, from their formulas.

    python3 scripts/reference/check_classification.py [FILE]

reads the inputs in crates/tealight-train/tests/golden/classification.json, computes all other values again, and says by
how much they differ at most. The inputs were drawn, and the values first recorded, with PyTorch, SciPy and scikit-learn
in f64. Needs no package.
"""

import json
import math
import sys
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "crates/tealight-train/tests/golden/classification.json"
N_BINS = 15


def log_softmax(row):
    most = max(row)
    normaliser = most + math.log(sum(math.exp(x - most) for x in row))
    return [x - normaliser for x in row]


def weighted(case, smoothing):
    """[(1 - e) sum_i w_y l_y + e/C sum_i sum_c w_c l_c] / sum_i w_y"""
    total, classes = 0.0, len(case["w"])
    for row, y in zip(case["z"], case["y"]):
        losses = [-x for x in log_softmax(row)]
        spread = sum(w * x for w, x in zip(case["w"], losses))
        total += (1 - smoothing) * case["w"][y] * losses[y] + smoothing / classes * spread
    return total / sum(case["w"][y] for y in case["y"])


def focal(case, gamma):
    """mean of w_y (1 - p_y)^gamma l_y"""
    total = 0.0
    for row, y in zip(case["z"], case["y"]):
        log_p = log_softmax(row)[y]
        total -= case.get("w", [1.0] * len(row))[y] * (1 - math.exp(log_p)) ** gamma * log_p
    return total / len(case["y"])


def pos_weight(case):
    """mean over rows and labels of -(w_c y ln s + (1 - y) ln(1 - s))"""
    log_sigmoid = lambda x: min(x, 0) - math.log1p(math.exp(-abs(x)))
    values = [
        -(w * y * log_sigmoid(x) + (1 - y) * log_sigmoid(-x))
        for row, has in zip(case["z"], case["y"])
        for x, y, w in zip(row, has, case["w"])
    ]
    return sum(values) / len(values)


LOSSES = {
    "weighted": lambda case: weighted(case, 0.0),
    "smoothing_0.1_weighted": lambda case: weighted(case, 0.1),
    "focal_2": lambda case: focal(case, 2.0),
    "focal_0": lambda case: focal(case, 0.0),
    "focal_2_alpha": lambda case: focal(case, 2.0),
    "bce_pos_weight": pos_weight,
}


def gradient(loss, case, step=1e-5):
    """Central differences."""
    result = []
    for row in case["z"]:
        result.append([])
        for at, x in enumerate(row):
            sides = []
            for moved in (x + step, x - step):
                row[at] = moved
                sides.append(loss(case))
            row[at] = x
            result[-1].append((sides[0] - sides[1]) / (2 * step))
    return result


def class_weights(counts):
    n, classes = sum(counts), len(counts)
    scaled = lambda values: [value * classes / sum(values) for value in values]
    return {
        "balanced": [n / (classes * n_c) for n_c in counts],
        "inverse_square_root": scaled([n_c**-0.5 for n_c in counts]),
        "effective_number_0_999": scaled([0.001 / (1 - 0.999**n_c) for n_c in counts]),
    }


def measures(logits, labels, temperature):
    nll = brier = right = 0.0
    bins = [[] for _ in range(N_BINS)]
    for row, y in zip(logits, labels):
        log_p = log_softmax([x / temperature for x in row])
        p = [math.exp(x) for x in log_p]
        hit = float(p.index(max(p)) == y)
        nll, right = nll - log_p[y], right + hit
        brier += sum((q - (c == y)) ** 2 for c, q in enumerate(p))
        bins[max(math.ceil(max(p) * N_BINS), 1) - 1].append((hit, max(p)))
    n, filled = len(labels), [bin for bin in bins if bin]
    means = [[len(bin), sum(h for h, _ in bin) / len(bin), sum(c for _, c in bin) / len(bin)] for bin in filled]
    ece = sum(n_b * abs(accuracy - confidence) for n_b, accuracy, confidence in means) / n
    return {"nll": nll / n, "ece15": ece, "brier": brier / n, "accuracy": right / n}, means


def temperature(logits, labels):
    """Bisection on the slope of the loss by 1 / T."""
    def slope(beta):
        total = 0.0
        for row, y in zip(logits, labels):
            p = [math.exp(x) for x in log_softmax([x * beta for x in row])]
            total += sum(q * x for q, x in zip(p, row)) - row[y]
        return total
    low, high = 0.05, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 1 / low


def f1(pairs, threshold):
    found = sum(has and p >= threshold for p, has in pairs)
    others = sum(has != (p >= threshold) for p, has in pairs)
    return 2 * found / (2 * found + others) if found else 0.0


def thresholds(probabilities, labels):
    result = []
    for pairs in ([(p[c], bool(y[c])) for p, y in zip(probabilities, labels)] for c in range(len(labels[0]))):
        best = max((f1(pairs, p), -p) for p, _ in pairs)
        result.append({"f1": best[0], "threshold": -best[1], "f1_at_half": f1(pairs, 0.5)})
    return result


def numbers(value):
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    return [x for item in value for x in numbers(item)] if isinstance(value, list) else [value]


def main():
    golden = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else GOLDEN).read_text())
    checks = {}
    for name, loss in LOSSES.items():
        case = golden["losses"][name]
        checks[name] = (loss(case), case["loss"])
        checks[f"{name}, gradient"] = (gradient(loss, case), case["grad_z"])
    record = golden["class_weights"]
    for name, weights in class_weights(record["counts"]).items():
        checks[name] = (weights, record[name])
    record = golden["temperature"]
    fitted = temperature(record["logits"], record["labels"])
    checks["temperature"] = (fitted, record["temperature"])
    for name, at in (("before", 1.0), ("after", fitted)):
        found, bins = measures(record["logits"], record["labels"], at)
        checks[name] = (found, record[name])
        if name == "before":
            checks["bins"] = (bins, record["bins_before"])
    record = golden["threshold"]
    checks["threshold"] = (thresholds(record["probabilities"], record["labels"]), record["per_label"])
    for name, (found, recorded) in checks.items():
        pairs = list(zip(numbers(found), numbers(recorded), strict=True))
        print(f"{name:34}{max(abs(a - b) for a, b in pairs):.1e}")


if __name__ == "__main__":
    main()
