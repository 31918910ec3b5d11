"""Cases of Nyström attention (Xiong et al. 2021, https://arxiv.org/abs/2102.03902)."""

from dataclasses import replace

import numpy as np

from .autograd import t_nystrom
from .formulas import Nystrom, np_nystrom, np_segments
from .masks import u8

B, H = 2, 2


class Cases:
    """Writes cases of Nyström attention, with queries, keys and values of one width."""

    def __init__(self, writer, head_dim):
        """Cases of this head_dim."""
        self.writer, self.head_dim = writer, head_dim

    def case(self, name, T, nystrom, conv_kernel=None, scale=1.0, note=""):
        """One case, of a sequence of length T. `scale` is that of queries and keys."""
        writer, shape = self.writer, (B, H, T, self.head_dim)
        inputs = dict(
            q=writer.normal(*shape, scale=scale), k=writer.normal(*shape, scale=scale), v=writer.normal(*shape)
        )
        if conv_kernel is not None:
            inputs["conv"] = writer.normal(H, 1, conv_kernel, 1, scale=0.5)
        q, k, v, conv = inputs["q"], inputs["k"], inputs["v"], inputs.get("conv")
        out, aux = np_nystrom(q, k, v, conv, nystrom)
        out_true_pinv, _ = np_nystrom(q, k, v, conv, nystrom, true_inverse=True)
        A, Z = aux["kernel_2"], aux["inverse"]
        writer.case(
            f"nystrom/{name}",
            "nystrom",
            inputs,
            lambda t: t_nystrom(t["q"], t["k"], t["v"], t.get("conv"), nystrom),
            out,
            aux=dict(aux, out_true_pinv=out_true_pinv),
            const={} if nystrom.keep is None else dict(mask=u8(nystrom.keep)),
            landmarks=nystrom.n_landmarks,
            segments=[list(segment) for segment in np_segments(T, nystrom.n_landmarks, nystrom.segment_rule)],
            segment_rule=nystrom.segment_rule,
            init=nystrom.init,
            iterations=nystrom.n_iterations,
            conv_kernel=conv_kernel,
            mask_rule=None if nystrom.keep is None else nystrom.mask_rule,
            residual_KZK_minus_K=float(np.abs(A @ Z @ A - A).max()),
            note=note,
        )


def nystrom(writer, seed):
    """Both starts of the inverse, padding by both rules, segments of unequal length, few and many landmarks."""
    n_landmarks, T, head_dim = (4, 12, 4) if seed == 0 else (3, 15, 6)
    case, plain = Cases(writer, head_dim).case, Nystrom(n_landmarks)
    for init in ("original", "exact"):
        case(init, T, replace(plain, init=init))
        case(f"{init}_conv", T, replace(plain, init=init), conv_kernel=5, scale=1.5)
    keep = np.ones((B, T), bool)
    keep[0, T - 4 :] = False
    keep[1, :2] = False
    padded = replace(plain, keep=keep)
    note = "mask (B,T) touches only kernel_3 (transformers)"
    case("pad_hf", T, padded, conv_kernel=3, scale=1.5, note=note)
    note = (
        "the authors' code: q, k and the conv input multiplied by the mask, kernel_3 masked; landmark means still "
        "divide by the full segment"
    )
    case("pad_author", T, replace(padded, mask_rule="author"), conv_kernel=3, scale=1.5, note=note)
    note = "kernels near one-hot; landmarks' kernel_2 may be near singular"
    case("large", T, plain, scale=6.0, note=note)
    case("iters3", T, replace(plain, n_iterations=3), conv_kernel=5, note="3 iterations instead of 6")
    note = "T = 13, 4 landmarks; transformers cannot run this, so the segment rule is ours to choose"
    for rule in ("adaptive", "array_split", "ceil_last_short"):
        case(f"indivisible_{rule}", 13, Nystrom(4, segment_rule=rule), scale=1.2, note=note)
    note = (
        "formula run as is; transformers instead switches to plain softmax attention when num_landmarks == "
        "segment_means_seq_len"
    )
    case("m_equals_T", 4, Nystrom(4), note=note)
    case("one_landmark", 6, Nystrom(1), note="out is one row for all positions: kernel_1 = kernel_2 = 1")
    case("T1", 1, Nystrom(1))
