"""Cases of Nyström attention (Xiong et al. 2021, https://arxiv.org/abs/2102.03902)."""

import numpy as np

from .autograd import t_nystrom
from .formulas import np_nystrom, np_segments
from .masks import tt, u8


def nystrom(w, seed):
    B = 2
    m = 4 if seed == 0 else 3
    Tn = 12 if seed == 0 else 15
    Hn, Dn = 2, (4 if seed == 0 else 6)

    def nys(
        name,
        T,
        m,
        how="equal",
        init="original",
        conv=None,
        keep=None,
        mask_rule="hf",
        s=1.0,
        note="",
        iters=6,
        q=None,
        k=None,
    ):
        q = w.normal(B, Hn, T, Dn, scale=s) if q is None else q
        k = w.normal(B, Hn, T, Dn, scale=s) if k is None else k
        v = w.normal(B, Hn, T, Dn)
        P = {} if conv is None else dict(conv=w.normal(Hn, 1, conv, 1, scale=0.5))
        o, aux = np_nystrom(q, k, v, m, how, init, iters, P.get("conv"), keep, mask_rule)
        op, _ = np_nystrom(q, k, v, m, how, init, iters, P.get("conv"), keep, mask_rule, True)
        res = float(np.abs(aux["kernel_2"] @ aux["inverse"] @ aux["kernel_2"] - aux["kernel_2"]).max())
        w.case(
            name,
            "nystrom",
            dict(q=q, k=k, v=v, **P),
            lambda t: t_nystrom(t["q"], t["k"], t["v"], m, how, init, iters, t.get("conv"), tt(keep), mask_rule),
            o,
            aux=dict(aux, out_true_pinv=op),
            const={} if keep is None else dict(mask=u8(keep)),
            landmarks=m,
            segments=[list(x) for x in np_segments(T, m, how)],
            segment_rule=how,
            init=init,
            iterations=iters,
            conv_kernel=conv,
            mask_rule=None if keep is None else mask_rule,
            residual_KZK_minus_K=res,
            note=note,
        )

    for init in ("original", "exact"):
        nys(f"nystrom/{init}", Tn, m, init=init)
        nys(f"nystrom/{init}_conv", Tn, m, init=init, conv=5, s=1.5)
    kp = np.ones((B, Tn), bool)
    kp[0, Tn - 4 :] = False
    kp[1, :2] = False
    nys("nystrom/pad_hf", Tn, m, conv=3, keep=kp, s=1.5, note="mask (B,T) touches only kernel_3 (transformers)")
    nys(
        "nystrom/pad_author",
        Tn,
        m,
        conv=3,
        keep=kp,
        mask_rule="author",
        s=1.5,
        note="the authors' code: q, k and the conv input multiplied by the mask, kernel_3 masked; landmark means still divide by the full segment",
    )
    nys("nystrom/large", Tn, m, s=6.0, note="kernels near one-hot; landmarks' kernel_2 may be near singular")
    nys("nystrom/iters3", Tn, m, conv=5, iters=3, note="3 iterations instead of 6")
    for how in ("adaptive", "array_split", "ceil_last_short"):
        nys(
            f"nystrom/indivisible_{how}",
            13,
            4,
            how,
            s=1.2,
            note="T = 13, 4 landmarks; transformers cannot run this, so the segment rule is ours to choose",
        )
    nys(
        "nystrom/m_equals_T",
        4,
        4,
        note="formula run as is; transformers instead switches to plain softmax attention when num_landmarks == segment_means_seq_len",
    )
    nys("nystrom/one_landmark", 6, 1, note="out is one row for all positions: kernel_1 = kernel_2 = 1")
    nys("nystrom/T1", 1, 1)
