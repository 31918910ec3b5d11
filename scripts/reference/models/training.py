"""A few steps of AdamW (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101) on one batch."""

import torch

N_STEPS = 3
MODES = ("all_decay", "nodecay_clip1", "strong")
OPTIMIZER = {
    "name": "AdamW",
    "lr": 1e-3,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.01,
    "steps": N_STEPS,
    "all_decay": "decay on every parameter, no clipping",
    "nodecay_clip1": "no decay where the name ends in 'bias', contains 'norm' in any case, or contains '.ln_'; "
    "gradients clipped to total norm 1.0 first (torch clip_grad_norm_: scale = min(1, 1/(norm+1e-6)))",
    "strong": "as all_decay with lr 5e-3, weight_decay 0.5, betas (0.8, 0.98), eps 1e-6",
}


def forward(model, inputs, labels):
    """The output, with loss and hidden states."""
    return model(**inputs, labels=labels, output_hidden_states=True)


def is_undecayed(name):
    """Whether the mode nodecay_clip1 spares the parameter from weight decay."""
    return name.endswith("bias") or "norm" in name.lower() or ".ln_" in name


def adamw(model, mode):
    """The optimizer of a mode, which OPTIMIZER describes."""
    parameters = list(model.named_parameters())
    if mode == "strong":
        return torch.optim.AdamW([p for _, p in parameters], lr=5e-3, weight_decay=0.5, eps=1e-6, betas=(0.8, 0.98))
    if mode == "all_decay":
        groups = [{"params": [p for _, p in parameters], "weight_decay": 0.01}]
    else:
        groups = [
            {"params": [p for name, p in parameters if not is_undecayed(name)], "weight_decay": 0.01},
            {"params": [p for name, p in parameters if is_undecayed(name)], "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(groups, lr=1e-3, eps=1e-8, betas=(0.9, 0.999))


def descend(model, inputs, labels, mode):
    """Trains the model. Returns the losses before each step and after the last, and the norms of the gradients."""
    optimizer = adamw(model, mode)
    largest_norm = 1.0 if mode == "nodecay_clip1" else float("inf")
    losses, norms = [], []
    for _ in range(N_STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(model, inputs, labels).loss
        losses.append(float(loss))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), largest_norm)))
        optimizer.step()
    losses.append(float(forward(model, inputs, labels).loss))
    return losses, norms
