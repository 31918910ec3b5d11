"""Recomputes the losses of outputs that imitate a teacher, and their gradients, in float64 from their formulas.

    python scripts/reference/check_distillation.py

Compares with crates/tealight-train/tests/golden/text_tasks/distillation.{json,safetensors}; needs torch and safetensors.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

FOLDER = Path(__file__).parents[2] / "crates/tealight-train/tests/golden/text_tasks"


def divergence(student, teacher, temperature):
    """T² Σ q (ln q − ln p), mean over rows (arXiv 1503.02531, section 2)."""
    log_p = (student / temperature).log_softmax(-1)
    log_q = (teacher / temperature).log_softmax(-1)
    return temperature**2 * (log_q.exp() * (log_q - log_p)).sum(-1).mean()


def relation(x, y, mask):
    """ln softmax of x yᵀ/√d (batch, heads, positions, positions), without padded keys."""
    scores = x @ y.transpose(-1, -2) / x.shape[-1] ** 0.5
    return scores.masked_fill(~mask[:, None, None, :], -torch.inf).log_softmax(-1)


def relation_loss(student, teacher, mask):
    """Mean over heads and real positions of KL(teacher ‖ student) (arXiv 2002.10957, equations 6 and 10)."""
    pairs = torch.where(mask[:, None, None, :], teacher.exp() * (teacher - student), 0.0).sum(-1)
    return pairs.masked_fill(~mask[:, None, :], 0.0).sum() / (mask.sum() * pairs.shape[1])


def loss(name, case, expected):
    student, teacher = case.get("s"), case.get("t")
    if name.startswith("minilm"):
        mask = case["mask"].bool()
        heads = expected.get("relation_heads")

        def split(x):
            if heads is None:
                return x
            return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

        pairs = {"minilm_attention": ["qk"], "minilm_values": ["vv"], "minilm_v2": ["qq", "kk", "vv"]}
        total = 0.0
        for x, y in pairs[name]:
            of = [relation(split(case[x + end]), split(case[y + end]), mask) for end in ("", "t")]
            total = total + relation_loss(*of, mask)
        return total
    if name == "embedding_cosine":
        return (1 - torch.nn.functional.cosine_similarity(student, teacher)).mean()
    if name == "embedding_mse_projected":
        student = student @ case["W"].T + case["b"]
    if name in ("logits_mse", "embedding_mse", "embedding_mse_projected"):
        return (student - teacher).square().mean()
    if "m" in case:
        rows = case["m"].bool()
        student, teacher = student[rows], teacher[rows]
    of_teacher = divergence(student, teacher, expected.get("temperature", 2.0))
    if "alpha" not in expected:
        return of_teacher
    of_labels = torch.nn.functional.cross_entropy(student, case["y"].long())
    return expected["alpha"] * of_teacher + (1 - expected["alpha"]) * of_labels


def main():
    record = json.loads((FOLDER / "distillation.json").read_text())
    tensors = load_file(FOLDER / "distillation.safetensors")
    n_bad = 0
    for name, expected in record.items():
        if name == "notes":
            continue
        case = {key.split("/")[1]: x for key, x in tensors.items() if key.split("/")[0] == name}
        inputs = {key: case[key].clone().requires_grad_() for key in expected["inputs"]}
        value = loss(name, {**case, **inputs}, expected)
        value.backward()
        off = abs(value.item() - expected["loss"]) / abs(expected["loss"])
        for key, x in inputs.items():
            right = case[f"grad_{key}"]
            off = max(off, ((x.grad - right).abs().max() / right.abs().max()).item())
        n_bad += off > 1e-9
        print(f"{name:<26}{off:.1e}")
    print(f"{n_bad} differ")
    raise SystemExit(n_bad > 0)


if __name__ == "__main__":
    main()
