"""A writer that also records how far runs in other precisions are, and refuses draws that amplify rounding."""

import itertools
import json
import re

import torch
from transformers import pipeline

from .precision import (
    all_f64,
    all_in_f64,
    bf16_distances,
    double_with_frequencies,
    in_f64,
    sdpa_logits,
)
from .run import Unsteady
from .texts import PROMPTS
from .training import descend
from .writer import Writer, generate, greedy_text, relative_noise, run_backward

LARGEST_LOSS_DEVIATION = 3e-6
LARGEST_NORM_DEVIATION = 1e-5
LEAST_MARGIN = 5e-3
N_GREEDY_TEXTS = 3


class PrecisionWriter(Writer):
    """As Writer, with float64 runs that are float64 throughout, and, in each case,

    bf16           distance of transformers' own bf16 run (model.to(bfloat16)) from its f32 run, and of a run under
                   torch.autocast
    noise.sdpa_*   distance of the sdpa run from the eager one
    compare_where  "attention_mask": logits count only where the mask is 1 (elsewhere every key may be masked)
    """

    def __init__(self, folder, architecture, last_layer=None, has_sdpa=True):
        """`last_layer(model)` is the layer whose input is recorded as "pooled"."""
        super().__init__(folder, architecture)
        self.last_layer, self.has_sdpa = last_layer, has_sdpa

    def keeps_gradient(self, name):
        """Whether the gradient is recorded: of the layers, that of the first only."""
        layer = re.search(r"(?:layers?)\.(\d+)\.", name)
        return layer is None or layer[1] == "0"

    def add_case(self, name, model, inputs, labels, is_full=False, compared=None, **options):
        """As Writer.add_case; only positions where `compared` is 1 count, if it is given. `options` are the model's."""
        output, gradients = self.run_with_pooled(name, model, inputs, labels, options)
        with all_f64():
            exact, exact_gradients = run_backward(
                double_with_frequencies(model), all_in_f64(inputs), in_f64(labels), **options
            )
        assert exact.logits.dtype == torch.float64 and exact.loss.dtype == torch.float64
        self.add_tensors(name, {**inputs, "labels": labels, "logits": output.logits})
        at = slice(None) if compared is None else compared == 1
        logits = output.logits.detach()
        noise = {
            "logits_max_abs_f32_vs_f64": float((logits.double() - exact.logits)[at].abs().max()),
            "grad_max_rel_f32_vs_f64": relative_noise(gradients, exact_gradients),
            "logits_absmax": float(logits.abs().max()),
            "logits_std": float(logits[at].std(correction=0)),
        }
        if self.has_sdpa:
            sdpa = sdpa_logits(model, inputs, options)
            noise["sdpa_logits_max_abs"] = float((sdpa.double() - logits.double())[at].abs().max())
            noise["sdpa_logits_max_abs_all_positions"] = float((sdpa - logits).abs().max())
        self.record["cases"][name] = {
            "inputs": sorted(inputs),
            **({"kwargs": options} if options else {}),
            **({} if compared is None else {"compare_where": "attention_mask"}),
            **self.loss_and_gradients(name, output, exact, gradients, is_full),
            "noise": noise,
            "bf16": bf16_distances(model, inputs, options, logits, at),
        }

    def run_with_pooled(self, name, model, inputs, labels, options):
        """As `run_backward`; records the input of the last layer, if there is one."""
        if self.last_layer is None:
            return run_backward(model, inputs, labels, **options)
        pooled = []
        hook = self.last_layer(model).register_forward_pre_hook(lambda _, arguments: pooled.append(arguments[0]))
        result = run_backward(model, inputs, labels, **options)
        hook.remove()
        self.add_tensors(name, {"pooled": pooled[0]})
        return result

    def losses_and_norms(self, model, trained, inputs, labels, mode):
        """As Writer.losses_and_norms, beside those in float64, which must be near."""
        losses, norms = descend(trained, inputs, labels, mode)
        with all_f64():
            exact_losses, exact_norms = descend(
                double_with_frequencies(model), all_in_f64(inputs), in_f64(labels), mode
            )
        loss_deviation = max(abs(a - b) for a, b in zip(losses, exact_losses))
        norm_deviation = max(abs(a - b) / b for a, b in zip(norms, exact_norms))
        if loss_deviation > LARGEST_LOSS_DEVIATION or norm_deviation > LARGEST_NORM_DEVIATION:
            raise Unsteady(f"{self.folder} {mode} {loss_deviation, norm_deviation}")
        return {
            "losses": losses,
            "losses_f64": exact_losses,
            "grad_norms_before_clip": norms,
            "grad_norms_before_clip_f64": exact_norms,
        }

    def add_classified_texts(self, model, tokenizer, texts, label="plain", **options):
        """Records the scores of all classes, by the pipeline."""
        classify = pipeline("text-classification", model=model.eval(), tokenizer=tokenizer, device="cpu")
        results = []
        for text in texts:
            is_single = isinstance(text, str)
            scores = classify(text if is_single else dict(text=text[0], text_pair=text[1]), top_k=None, **options)
            results.append({"input": text if is_single else list(text), "output": scores})
        of_label = {"tokenizer_kwargs": options, "results": results}
        self.record.setdefault("text_classification", {})[label] = of_label

    def add_greedy_texts(self, model, tokenizer, pad_id):
        """Records the first prompts whose every step is clear; as one left-padded batch they go on the same way."""
        model.eval()
        texts = (greedy_text(model, tokenizer, prompt, pad_id, LEAST_MARGIN) for prompt in PROMPTS)
        clear = list(itertools.islice((text for text in texts if text is not None), N_GREEDY_TEXTS))
        if len(clear) < N_GREEDY_TEXTS:
            raise Unsteady(f"{self.folder}: greedy")
        prompts = [text["prompt_ids"] for text in clear]
        width = max(map(len, prompts))
        batch = torch.tensor([[pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        generated = generate(model, batch, pad_id, attention_mask=mask)[:, width:].tolist()
        for text, prompt, continuation in zip(clear, prompts, generated):
            assert continuation == text["output_ids"][len(prompt) :], text["prompt"]
        self.record["greedy"] = clear
        self.note(
            "greedy: with and without cache, alone and as one left-padded batch (attention_mask given), the "
            "continuations are the same"
        )

    def save(self):
        """As Writer.save. No number is NaN."""
        json.dumps(self.record, allow_nan=False)
        super().save()
