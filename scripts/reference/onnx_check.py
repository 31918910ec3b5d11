"""Runs models that Tealight wrote as ONNX with onnxruntime; onnx.checker must accept every file.

Models of the tests, compared with what Tealight computes:

    TEALIGHT_ONNX_DIR=/tmp/onnx cargo nextest run -p tealight-model --test onnx --run-ignored only
    python scripts/reference/onnx_check.py /tmp/onnx

Models of transformers, compared with what transformers computes:

    for name in bert roberta gpt2; do
        tealight export crates/tealight-train/tests/golden/models/$name --to /tmp/exported/$name --format onnx
    done
    python scripts/reference/onnx_check.py crates/tealight-train/tests/golden/models /tmp/exported

Needs onnx, onnxruntime and safetensors; 1.23, 1.32 and 0.8 were used.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file

TOLERANCE = 1e-4
DTYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32}


def array(value, dtype):
    """An array from its shape and flat data."""
    return np.array(value["data"], dtype=dtype).reshape(value["shape"])


def open_session(path):
    """A session with a graph that onnx.checker accepts."""
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(session, steps):
    """The first output, of all steps together. Keys and values of one step are inputs of the next."""
    past = [value for value in session.get_inputs() if value.name.startswith("past_key_values.")]
    batch = len(next(iter(steps[0].values())))
    cache = {v.name: np.zeros((batch, v.shape[1], 0, v.shape[3]), np.float32) for v in past}
    names = [value.name for value in session.get_outputs()]
    joined = []
    for inputs in steps:
        outputs = dict(zip(names, session.run(None, inputs | cache)))
        joined.append(outputs[names[0]])
        cache = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
    return np.concatenate(joined, axis=1) if len(joined) > 1 else joined[0]


def largest(actual, expected):
    """The largest difference; infinite where a number is not finite."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    difference = np.abs(actual - expected).max()
    return difference if np.isfinite(difference) else np.inf


def check_calls(folder):
    """The largest difference from the outputs in calls.json: lists of steps, with the output of all of them."""
    session = open_session(folder / "model.onnx")
    types = {value.name: value.type for value in session.get_inputs()}
    worst = 0.0
    for call in json.loads((folder / "calls.json").read_text()):
        assert session.get_outputs()[0].name == call["output"]
        steps = [{k: array(v, DTYPES[types[k]]) for k, v in step.items()} for step in call["steps"]]
        worst = max(worst, largest(run(session, steps), array(call["expected"], np.float32)))
    return worst


def check_record(recorded, folder):
    """The largest difference from recorded logits, where the input is no padding."""
    session = open_session(folder / "onnx" / "model.onnx")
    other = json.loads((recorded / "expected.json").read_text()).get("same_expected_as", ".")
    tensors = load_file(recorded / other / "expected.safetensors")
    wanted = [v.name for v in session.get_inputs() if not v.name.startswith("past_key_values.")]
    defaults = {
        "attention_mask": np.ones_like,
        "token_type_ids": np.zeros_like,
        "position_ids": lambda ids: np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
    }
    worst = 0.0
    for name in [name for name in tensors if name.endswith("/logits")]:
        case = name.removesuffix("logits")
        if wanted == ["pixel_values"]:
            inputs = {"pixel_values": tensors[case + "pixel_values"]}
            if list(inputs["pixel_values"].shape[1:]) != session.get_inputs()[0].shape[1:]:
                continue  # Pictures of another size, for which transformers interpolates positions.
        else:
            ids = tensors[case + "input_ids"]
            inputs = {k: tensors.get(case + k, defaults.get(k, np.copy)(ids)) for k in wanted}
        actual, expected = run(session, [inputs]), tensors[name]
        if expected.ndim == 3:
            real = inputs["attention_mask"] == 1
            actual, expected = actual[real], expected[real]
        worst = max(worst, largest(actual, expected))
    return worst


def main():
    """Checks all models, and prints their largest differences."""
    roots = [Path(argument) for argument in sys.argv[1:]]
    if len(roots) == 1:
        folders = sorted(path.parent for path in roots[0].glob("*/model.onnx"))
        checks = {folder.name: (check_calls, folder) for folder in folders}
    else:
        folders = sorted(path.parent.parent for path in roots[1].glob("*/onnx/model.onnx"))
        checks = {folder.name: (check_record, roots[0] / folder.name, folder) for folder in folders}
    n_bad = 0
    for name, (check, *arguments) in checks.items():
        try:
            worst = check(*arguments)
            is_bad, text = worst > TOLERANCE, f"{worst:.1e}"
        except Exception as error:  # One bad file must not hide the others.
            is_bad, text = True, f"{type(error).__name__}: {error}"
        n_bad += is_bad
        print(f"{'bad ' if is_bad else 'good'} {name}: {text}")
    print(f"{len(checks)} models, {n_bad} bad")
    sys.exit(n_bad > 0 or not checks)


if __name__ == "__main__":
    main()
