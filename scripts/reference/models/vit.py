"""ViT (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929) as a classifier of pictures.

Pixel values are those of the PIL image processor; how far torchvision's are off is added where torchvision is
installed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, pipeline
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from .batches import targets, tensor
from .classes import label_names
from .precision_writer import PrecisionWriter
from .run import pick
from .shape import NO_DROPOUT, Shape
from .weights import randomise, save_model, saved_names, write_json

try:
    import torchvision  # noqa: F401  transformers' module below can be imported without it
    from transformers.models.vit.image_processing_vit import ViTImageProcessor
except ImportError:
    ViTImageProcessor = None

PARTS = {
    "vit.layers.": "vit.encoder.layer.",
    ".mlp.fc1.": ".intermediate.dense.",
    ".mlp.fc2.": ".output.dense.",
    ".attention.q_proj.": ".attention.attention.query.",
    ".attention.k_proj.": ".attention.attention.key.",
    ".attention.v_proj.": ".attention.attention.value.",
    ".attention.o_proj.": ".attention.output.dense.",
}


def vit_file_name(name):
    """The name in the file, and in the memory of transformers 4, of a parameter in the memory of transformers 5."""
    for part, part_of_file in PARTS.items():
        name = name.replace(part, part_of_file)
    return name


class VitWriter(PrecisionWriter):
    """As PrecisionWriter, with the names that transformers renames in memory."""

    def file_name(self, name):
        """The name in the file of a parameter of the model."""
        return vit_file_name(name)


@dataclass
class VitShape(Shape):
    """Sizes of ViT and of its pictures; `resample` is the number of PIL's filter."""

    patch: int = 8
    height: int = 32
    width: int = 24
    resample: int = 2


@dataclass(frozen=True)
class Kind:
    """The pictures of a folder: their mode, their classes, and the mean and deviation that scale their values."""

    mode: str
    names: dict
    mean: list
    std: list

    @property
    def is_gray(self):
        """Whether a picture has one channel."""
        return self.mode == "L"

    @property
    def n_channels(self):
        """One or three."""
        return len(self.mean)


CATS = {0: "cat", 1: "boat", 2: "tower", 3: "gull"}
COLOUR = Kind("RGB", CATS, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
GRAY = Kind("L", {label: str(label) for label in range(6)}, mean=[0.5], std=[0.5])


def vit(run):
    """A folder for pictures in colour, and one for gray ones."""
    vit_folder(run, 300, "vit", COLOUR)
    vit_folder(run, 301, "vit_gray", GRAY)


def vit_shape(run, rng, is_gray):
    """The sizes; gray pictures are square, unless they are recorded."""
    if run.is_recorded:
        sizes = {"height": 24, "resample": 3} if is_gray else {"height": 32, "resample": 2}
        return VitShape(d_model=32, n_heads=4, n_layers=2, d_ff=48, **sizes)
    d_model, n_heads = pick(rng, (40, 5), (30, 3), (36, 2))
    patch = pick(rng, 4, 6, 7)
    n_rows, n_columns = pick(rng, (3, 4), (5, 3), (4, 2))
    return VitShape(
        d_model,
        n_heads,
        n_layers=pick(rng, 1, 2),
        d_ff=pick(rng, 44, 56),
        patch=patch,
        height=patch * n_rows,
        width=patch * (n_rows if is_gray else n_columns),
        activation=pick(rng, "gelu", "gelu_new", "relu"),
        resample=pick(rng, 2, 3),
    )


def vit_folder(run, number, name, kind):
    """Writes one folder."""
    rng, folder = run.rng(number), run.folder(name)
    shape = vit_shape(run, rng, kind.is_gray)
    config = ViTConfig(
        **shape.config(),
        **NO_DROPOUT,
        layer_norm_eps=1e-3 if kind.is_gray else 1e-12,
        image_size=shape.height if kind.is_gray else [shape.height, shape.width],
        patch_size=shape.patch,
        num_channels=kind.n_channels,
        qkv_bias=True,
        attn_implementation="eager",
        **label_names(kind.names),
    )
    model = ViTForImageClassification(config).train()
    randomise(model, rng, 0.5)
    save_model(model, folder)
    assert saved_names(folder) == {vit_file_name(parameter) for parameter, _ in model.named_parameters()}
    save_processor(folder, shape, kind)
    writer = VitWriter(folder, "ViTForImageClassification", last_layer=lambda model: model.classifier)
    record_cases(writer, model, rng, shape, kind)
    model.eval()
    sizes = [("exact", shape.height, shape.width, kind.mode), ("large", 61, 47, kind.mode), ("small", 11, 9, kind.mode)]
    sizes += [("colour", 40, 31, "RGB")] if kind.is_gray else [("gray", 40, 31, "L"), ("alpha", 30, 30, "RGBA")]
    record_pictures(writer, model, rng, sizes, kind)
    conversion = "L" if kind.is_gray else "RGB (alpha dropped, gray repeated)"
    writer.note(
        f"images: opened with PIL, converted to {conversion}, resized as 8-bit values, then v / 255, (v - mean) / std"
    )
    writer.save()


def save_processor(folder, shape, kind):
    """Writes preprocessor_config.json."""
    config = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": kind.mean,
        "image_std": kind.std,
        "image_processor_type": "ViTImageProcessor",
        "resample": shape.resample,
        "rescale_factor": 1 / 255,
        "size": {"height": shape.height, "width": shape.width},
    }
    write_json(f"{folder}/preprocessor_config.json", config)


def random_pixels(rng, *shape):
    """Pixel values of the normal distribution."""
    return {"pixel_values": tensor(rng.standard_normal(shape).astype(np.float32))}


def record_cases(writer, model, rng, shape, kind):
    """The cases, of random pixel values, and the trajectory."""
    n_channels, n_classes = kind.n_channels, len(kind.names)
    inputs = random_pixels(rng, 3, n_channels, shape.height, shape.width)
    labels = targets(rng, 3, "single", n_classes)
    writer.add_case("pixels", model, inputs, labels, is_full=True)
    if kind.is_gray:
        others = random_pixels(rng, 1, n_channels, shape.patch * 4, shape.patch * 5)
        other_labels = targets(rng, 1, "single", n_classes)
        writer.add_case("interpolated", model, others, other_labels, interpolate_pos_encoding=True)
        writer.note(
            "interpolated: another picture size; the patch rows of position_embeddings, as a square grid, are "
            "resampled bicubically (torch: a = -0.75, align_corners false, no antialiasing), the [CLS] row stays"
        )
    recorded = (
        "vit.encoder.layer.0.attention.attention.query.weight",
        "vit.embeddings.cls_token",
        "vit.embeddings.patch_embeddings.projection.weight",
        "classifier.weight",
    )
    writer.add_trajectory("pixels", model, inputs, labels, recorded)
    writer.note(
        "tensor names are those of the file (and of 4.x); 5.x renames them in memory (vit.layers.0.attention.q_proj, "
        "mlp.fc1, ...)",
        "patches in row-major order, each flattened (channel, row, column) by the convolution; pooled = "
        "vit.layernorm(hidden)[:, 0], no pooler; hidden_states: the last one is before vit.layernorm",
    )


def picture(rng, height, width, mode):
    """Waves in each channel."""
    n_channels = len(mode) if mode in ("RGB", "RGBA") else 1
    y, x = np.mgrid[:height, :width]
    values = np.zeros((height, width, n_channels))
    for channel in range(n_channels):
        frequency, phase = rng.uniform(0.05, 0.5, 4), rng.uniform(0, 6.3, 2)
        sine = np.sin(frequency[0] * y + frequency[1] * x + phase[0])
        cosine = np.cos(frequency[2] * y - frequency[3] * x + phase[1])
        values[..., channel] = 127 + 80 * sine + 45 * cosine
    values = np.clip(values, 0, 255).astype(np.uint8)
    return Image.fromarray(values if n_channels > 1 else values[..., 0], mode)


def record_pictures(writer, model, rng, sizes, kind):
    """Writes pictures, and records their pixel values, logits and scores."""
    folder = writer.folder
    processor = ViTImageProcessorPil.from_pretrained(folder)
    classify = pipeline("image-classification", model=model, image_processor=processor, device="cpu")
    writer.record["images"] = []
    for name, height, width, mode in sizes:
        file = f"{name}.png"
        picture(rng, height, width, mode).save(f"{folder}/{file}", optimize=True)
        image = Image.open(f"{folder}/{file}").convert(kind.mode)
        pixels = processor(images=image, return_tensors="pt").pixel_values
        logits = picture_logits(model, pixels)
        writer.add_tensors(f"image/{file}", {"pixel_values": pixels, "logits": logits})
        scores = scores_of(logits[0], kind.names)
        if not kind.is_gray:  # the pipeline opens every file as RGB, so it cannot serve a one-channel model
            found = classify(f"{folder}/{file}", top_k=len(kind.names))
            assert [score["label"] for score in found] == [score["label"] for score in scores]
            assert abs(found[0]["score"] - scores[0]["score"]) < 1e-6
            scores = found
        record = {"file": file, "mode": mode, "height": height, "width": width, "output": scores}
        if ViTImageProcessor:
            record["torchvision"] = torchvision_distances(model, folder, image, pixels, logits)
        writer.record["images"].append(record)


@torch.no_grad()
def picture_logits(model, pixels):
    """The logits of pictures."""
    return model(pixel_values=pixels).logits


def scores_of(logits, names):
    """The probabilities of the classes, the largest first."""
    scores = [{"label": names[label], "score": float(score)} for label, score in enumerate(logits.softmax(-1))]
    return sorted(scores, key=lambda score: -score["score"])


def torchvision_distances(model, folder, image, pixels, logits):
    """How far the pixel values of torchvision's image processor are, and the logits that they give."""
    others = ViTImageProcessor.from_pretrained(folder)(images=image, return_tensors="pt").pixel_values
    distance = (others - pixels).abs()
    return {
        "pixel_values_max_abs": float(distance.max()),
        "pixel_values_differing": int((distance > 1e-5).sum()),
        "logits_max_abs": float((picture_logits(model, others) - logits).abs().max()),
    }
