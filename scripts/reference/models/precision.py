"""Copies of models in other precisions, and what is needed to run them."""

import contextlib
import copy

import torch

from .weights import patch_nystrom


def double(model):
    """A float64 copy. `deepcopy` keeps a patched forward bound to the old module, so it is patched again."""
    copied = copy.deepcopy(model)
    if "nystromformer" in copied._modules:
        copied.nystromformer.__dict__.pop("forward", None)
        patch_nystrom(copied)
    return copied.double()


def float_copy(model):
    """An f32 copy, to be trained."""
    return double(model).float()


@contextlib.contextmanager
def all_f64():
    """Makes float64 of the casts to f32 that transformers has in RMSNorm, softmax, rotary embedding and losses."""
    Tensor, functional = torch.Tensor, torch.nn.functional
    to, to_float, softmax = Tensor.to, Tensor.float, functional.softmax

    def widened(value):
        """The dtype float64 in the place of f32; other arguments as they are."""
        return torch.float64 if value is torch.float32 else value

    def wide_to(tensor, *arguments, **options):
        """As Tensor.to, with float64 in the place of f32."""
        return to(tensor, *map(widened, arguments), **{name: widened(value) for name, value in options.items()})

    def wide_softmax(x, dim=None, _stacklevel=3, dtype=None):
        """As torch.nn.functional.softmax, with float64 in the place of f32."""
        return softmax(x, dim=dim, dtype=widened(dtype))

    Tensor.to, Tensor.float, functional.softmax = wide_to, lambda tensor: to(tensor, torch.float64), wide_softmax
    try:
        yield
    finally:
        Tensor.to, Tensor.float, functional.softmax = to, to_float, softmax


def double_with_frequencies(model):
    """A float64 copy whose plain inverse rotary frequencies are computed in float64, too.

    1 / theta^(2 i / head_dim): Su et al. 2021, §3.2.2, https://arxiv.org/abs/2104.09864.
    """
    twin = double(model)
    for module in twin.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if not name.endswith("inv_freq"):
                continue
            rope = twin.config.rope_parameters
            if name not in ("inv_freq", "original_inv_freq"):  # a model with frequencies for each kind of layer
                rope = rope[name.removesuffix("_inv_freq").removesuffix("_original")]
            if rope["rope_type"] == "default":
                width = 2 * buffer.numel()
                exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
                setattr(module, name, 1 / rope["rope_theta"] ** exponents)
    return twin


def in_f64(tensor):
    """In float64, unless it holds integers."""
    return tensor.double() if tensor.is_floating_point() else tensor


def all_in_f64(inputs):
    """Each of `inputs` in float64, unless it holds integers."""
    return {name: in_f64(value) for name, value in inputs.items()}


@contextlib.contextmanager
def bf16_identity():
    """Makes torch.eye give bfloat16: Nystromformer's iterative inverse fails with its f32 identity."""
    eye = torch.eye
    torch.eye = lambda *sizes, **options: eye(*sizes, **options).bfloat16()
    try:
        yield
    finally:
        torch.eye = eye


def without_failing(run):
    """The result of `run` and, if it fails because of an f32 identity, why."""
    try:
        return run(), {}
    except RuntimeError as error:
        failure = f"{type(error).__name__}: {error}"
    with bf16_identity():
        return run(), {"transformers_fails": failure}


def restore_frequencies(rounded, model):
    """Gives a bf16 copy f32 rotary frequencies, as from_pretrained(dtype=bfloat16) has them. True if there are any."""
    frequencies = {name: buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    for name, buffer in frequencies.items():
        module, _, attribute = name.rpartition(".")
        setattr(rounded.get_submodule(module), attribute, buffer.clone())
    return bool(frequencies)


def size_of(difference, prefix=""):
    """The largest difference, and the root mean square of all."""
    return {
        f"{prefix}logits_max_abs": float(difference.abs().max()),
        f"{prefix}logits_rms": float(difference.pow(2).mean().sqrt()),
    }


@torch.no_grad()
def bf16_distances(model, inputs, options, logits, compared):
    """How far transformers' own runs in bf16 are from `logits`: of model.to(bfloat16), and under torch.autocast."""
    rounded = double(model).to(torch.bfloat16).eval()
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in inputs.items()}

    def difference():
        """Of the bf16 copy's logits."""
        return (rounded(**half, **options).logits.float() - logits)[compared]

    of_bf16, found = without_failing(difference)
    found.update(size_of(of_bf16))
    if restore_frequencies(rounded, model):
        found["logits_max_abs_f32_rope"] = float(difference().abs().max())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        of_autocast = (model(**inputs, **options).logits.float() - logits)[compared]
    return found | size_of(of_autocast, "autocast_")


@torch.no_grad()
def sdpa_logits(model, inputs, options):
    """The logits by torch's scaled_dot_product_attention instead of eager attention."""
    copied = copy.deepcopy(model).eval()
    copied.set_attn_implementation("sdpa")
    return copied(**inputs, **options).logits
