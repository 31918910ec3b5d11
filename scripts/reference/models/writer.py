"""What transformers computes with one model, to expected.json and expected.safetensors."""

import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import pipeline

from .precision import double, float_copy
from .training import MODES, OPTIMIZER, descend
from .weights import write_json

N_GREEDY_TOKENS = 12


def run_backward(model, inputs, labels, **options):
    """The output with hidden states, and the gradient of every parameter."""
    model.zero_grad(set_to_none=True)
    output = model(**inputs, **options, labels=labels, output_hidden_states=True)
    output.loss.backward()
    parameters = model.named_parameters()
    return output, {name: p.grad.detach().clone() for name, p in parameters if p.grad is not None}


def relative_noise(gradients, exact, epsilon=0.0):
    """The largest error of a gradient, relative to its largest entry. Gradients of almost zero do not count."""
    errors = [
        float((gradients[name].double() - exact[name]).abs().max() / (exact[name].abs().max() + epsilon))
        for name in gradients
        if exact[name].abs().max() > 1e-6
    ]
    return max(errors)


def hidden_states_of(output):
    """All hidden states, by name. A model with two stacks has those of both."""
    stacks = ("hidden_states",)
    if getattr(output, "hidden_states", None) is None:
        stacks = ("encoder_hidden_states", "decoder_hidden_states")
    return {f"{stack}/{i}": hidden for stack in stacks for i, hidden in enumerate(getattr(output, stack))}


def greedy_text(model, tokenizer, text, pad_id, least_margin=0.0):
    """The text continued by the most likely token at each step; `generate` must give the same.

    None where the two largest logits of a step are closer to each other than `least_margin`.
    """
    prompt = torch.tensor([tokenizer(text)["input_ids"]])
    ids, margin = prompt.clone(), 1e9
    for _ in range(N_GREEDY_TOKENS):
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1]
        first, second = logits.topk(2).values
        margin = min(margin, float(first - second))
        ids = torch.cat([ids, logits.argmax()[None, None]], 1)
    if margin < least_margin:
        return None
    generated = generate(model, prompt, pad_id)
    assert generated.tolist() == ids.tolist(), text
    return {
        "prompt": text,
        "prompt_ids": prompt[0].tolist(),
        "output_ids": generated[0].tolist(),
        "text": tokenizer.decode(generated[0]),
        "min_top2_margin": margin,
    }


def generate(model, prompt, pad_id, **options):
    """Greedy decoding with the cache of transformers, without an end."""
    options |= {"max_new_tokens": N_GREEDY_TOKENS, "do_sample": False, "eos_token_id": -1, "pad_token_id": pad_id}
    return model.generate(prompt, **options)


class Writer:
    """Collects what transformers computes with one model."""

    has_hidden_states = True

    def __init__(self, folder, architecture):
        """A writer of the records of one folder."""
        self.folder, self.tensors = folder, {}
        self.record = {
            "format": 1,
            "architecture": architecture,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "cases": {},
            "notes": [],
        }

    def note(self, *notes):
        """Adds notes for readers of expected.json."""
        self.record["notes"] += notes

    def file_name(self, name):
        """The name in the file of a parameter of the model."""
        return name

    def in_file(self, tensors):
        """Parameters of the model, or their gradients, as the file has them."""
        return {self.file_name(name): tensor for name, tensor in tensors.items()}

    def keeps_gradient(self, name):
        """Whether the gradient is recorded: of the layers, that of the first only."""
        if any(stack in name for stack in ("layer.", "h.", "block.")):
            return any(f"{stack}.0." in name for stack in ("layer", "h", "block"))
        return True

    def add_tensors(self, case, tensors):
        """Records tensors of one case."""
        self.tensors.update({f"{case}/{name}": tensor.detach() for name, tensor in tensors.items()})

    def add_gradients(self, case, gradients):
        """Records whole gradients of one case. Returns their names."""
        kept = {name: gradient for name, gradient in self.in_file(gradients).items() if self.keeps_gradient(name)}
        self.add_tensors(case, {f"grad/{name}": gradient for name, gradient in kept.items()})
        return list(kept)

    def add_case(self, name, model, inputs, labels, is_full=False, extra=None):
        """Records a batch with logits, loss and norms of gradients; if `is_full`, hidden states and gradients, too."""
        output, gradients = run_backward(model, inputs, labels)
        exact, exact_gradients = run_backward(double(model), inputs, labels)
        self.add_tensors(name, {**inputs, **(extra or {}), "labels": labels, "logits": output.logits})
        noise = {
            "logits_max_abs_f32_vs_f64": float((output.logits.double() - exact.logits).abs().max()),
            "grad_max_rel_f32_vs_f64": relative_noise(gradients, exact_gradients, epsilon=1e-12),
            "logits_absmax": float(output.logits.abs().max()),
            "logits_std_over_positions": float(output.logits.std(1).mean()),
        }
        self.record["cases"][name] = {
            "inputs": sorted(inputs),
            **self.loss_and_gradients(name, output, exact, gradients, is_full),
            "noise": noise,
        }

    def loss_and_gradients(self, case, output, exact, gradients, is_full):
        """The part of a case's record on the loss and its gradients. If `is_full`, records tensors, too."""
        kept = []
        if is_full and self.has_hidden_states:
            self.add_tensors(case, hidden_states_of(output))
        if is_full:
            kept = self.add_gradients(case, gradients)
        return {
            "loss": float(output.loss),
            "loss_f64": float(exact.loss),
            "grad_norms": {name: float(g.double().norm()) for name, g in self.in_file(gradients).items()},
            "total_grad_norm": float(torch.sqrt(sum(g.double().pow(2).sum() for g in gradients.values()))),
            "full_grads": kept,
        }

    def add_trajectory(self, case, model, inputs, labels, recorded=()):
        """Records a few steps of AdamW in several modes, with the final values of the parameters in `recorded`."""
        runs = {}
        for mode in MODES:
            trained = float_copy(model)
            losses = self.losses_and_norms(model, trained, inputs, labels, mode)
            parameters = self.in_file({name: p.detach() for name, p in trained.named_parameters()})
            norms = {name: float(parameter.double().norm()) for name, parameter in parameters.items()}
            runs[mode] = losses | {"final_param_norms": norms}
            if mode != "strong":
                self.add_tensors(f"traj/{mode}/final", {n: p for n, p in parameters.items() if n in recorded})
        self.record["trajectory"] = {"case": case, "optimizer": OPTIMIZER, **runs}

    def losses_and_norms(self, model, trained, inputs, labels, mode):
        """Trains `trained`, a copy of the model. The part of the record on losses and norms of gradients."""
        losses, norms = descend(trained, inputs, labels, mode)
        return {"losses": losses, "grad_norms_before_clip": norms}

    def add_tokenizer(self, tokenizer, texts, pairs=()):
        """Records how texts and pairs of texts are tokenized."""
        singles = []
        for text in texts:
            encoded = tokenizer(text)
            tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
            decoded = tokenizer.decode(encoded["input_ids"], skip_special_tokens=True)
            singles.append({"text": text, "tokens": tokens, "decoded": decoded, **encoded})
        self.record["tokenizer"] = singles + [{"text": list(pair), **tokenizer(*pair)} for pair in pairs]

    def add_filled_masks(self, model, tokenizer, sentences, label="plain", **options):
        """Records what the pipeline puts for {m} in sentences; those that `options` truncate before it are left out."""
        fill_mask = pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu")
        given = {"tokenizer_kwargs": options} if options else {}
        results = []
        for sentence in sentences:
            n_masks = sentence.count("{m}")
            sentence = sentence.format(m=tokenizer.mask_token)
            if tokenizer(sentence, **options)["input_ids"].count(tokenizer.mask_token_id) == n_masks:
                results.append({"sentence": sentence, "output": fill_mask(sentence, top_k=5, **given)})
        of_label = {"top_k": 5, "tokenizer_kwargs": options or None, "results": results}
        self.record.setdefault("fill_mask", {})[label] = of_label

    def save(self):
        """Writes expected.safetensors and expected.json."""
        tensors = {name: tensor.contiguous().clone() for name, tensor in self.tensors.items()}
        save_file(tensors, f"{self.folder}/expected.safetensors")
        for file in os.listdir(self.folder):
            os.chmod(f"{self.folder}/{file}", 0o644)
        write_json(f"{self.folder}/expected.json", self.record, ensure_ascii=False)
