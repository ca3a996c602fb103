"""GGUF, the file format of llama.cpp: metadata, tokenizer and tensors, most of them quantized, in one file.

The header is read here, and every size in it is checked against the length of the file. The package ``gguf``
dequantizes tensors. Sizes and names are converted to those of a Hugging Face folder, which the families read.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._common.extras import need
from ..errors import HeadwayError, unknown
from ._rules import Paired

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of numbers in a header, as codes of the module struct."""
STRING, ARRAY = 8, 9
PLAIN = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}
"""The types of tensors that are not quantized."""

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ENDS = ("eos", "eot", "eom")
"""The ids in metadata that end a text, a turn and a message."""
ENDINGS = {
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "<|endoftext|>"),
    *("<|end_of_text|>", "<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
}
"""Special tokens that end an answer, of those that llama.cpp knows by their text."""
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Values of tokenizer.ggml.token_type: tokens of text, special tokens, and tokens that are split off first."""
ROPE_FACTORS = "rope_freqs.weight"
"""The divisors of RoPE's frequencies (since Llama 3.1): a tensor in GGUF, numbers in a config.json."""


@dataclass(frozen=True)
class Kind:
    """A general.architecture: the entries of its config.json, and how conversion to GGUF changed the tensors."""

    architecture: str
    model_type: str
    paired: bool = False
    """Whether the rows of queries and keys are in the order of interleaved rotary pairs; they are converted back to the
    "half" layout."""


KINDS = {
    "llama": Kind("LlamaForCausalLM", "llama", paired=True),
    "qwen2": Kind("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Kind("Qwen3ForCausalLM", "qwen3"),
}


@dataclass(frozen=True)
class Entry:
    """One tensor of the file: its name, shape (rows first), type, and offset after the header."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def read_gguf(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the config of a GGUF file, in the form of a config.json, and its tensors under Hugging Face's names.

    Quantized tensors are converted to float32; float16 and bfloat16 remain as they are. Raises HeadwayError if the file
    is damaged, truncated or inconsistent, or its architecture is not one of KINDS.
    """
    need("gguf", "reading GGUF", "checkpoints")
    with _opened(path) as cursor:
        metadata, entries = _header(cursor)
        start = -(-cursor.at // cursor.alignment(metadata)) * cursor.alignment(metadata)
        held = {entry.name: entry for entry in entries}
        config = _config(metadata, held)
        if stops := ends(path, metadata):
            config["eos_token_id"] = stops[0] if len(stops) == 1 else stops
        kind = KINDS[metadata["general.architecture"]]
        tensors: dict[str, Tensor] = {}
        taken = 0
        for entry in entries:
            tensor = _tensor(cursor, start, entry)
            taken += cursor.at - start - entry.offset
            if taken > len(cursor.data) - start:  # many entries of the same bytes could exhaust the memory
                raise cursor.wrong(f"{entry.name} and others are in the same place")
            name = entry.name
            if name == ROPE_FACTORS:
                config["rope_parameters"] = _by_factors(config, tensor)
                continue
            if kind.paired and (".attn_q." in name or ".attn_k." in name):
                heads = config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"]
                if tensor.shape[0] % (2 * heads):
                    raise cursor.wrong(f"{name} has {tensor.shape[0]} rows for {heads} heads of rotary pairs")
                (tensor,) = Paired(heads).read(tensor, ())
            tensors[_name(cursor, name)] = tensor
    return config, tensors


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Reads the metadata of a GGUF file: sizes and the tokenizer."""
    with _opened(path) as cursor:
        return _header(cursor)[0]


def ends(path: str | Path, metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a model's output: those that the file names, and special tokens known by their text.

    Many files name only the token that ends a text, though their model ends a turn with another one.
    """
    tokens, kinds = _list(metadata, "tokens"), _list(metadata, "token_type")
    named = {name: metadata.get(f"tokenizer.ggml.{name}_token_id", -1) for name in ENDS}
    for name, given in named.items():
        if isinstance(given, bool) or not isinstance(given, int):
            raise HeadwayError(f"the {name}_token_id of {path} is {given!r:.60}: take another file")
    # −1 and 2³² − 1 stand for no token
    ids = [given for given in named.values() if 0 <= given < (len(tokens) or 2**32 - 1)]
    special = (at for at, kind in enumerate(kinds[: len(tokens)]) if kind in (CONTROL, USER_DEFINED))
    return list(dict.fromkeys([*ids, *(at for at in special if tokens[at] in ENDINGS)]))


def _list(metadata: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    return values if isinstance(values, tuple) else ()


class _Cursor:
    """A position in the bytes of a file; reading beyond the end raises HeadwayError."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def wrong(self, what: str) -> HeadwayError:
        return HeadwayError(f"{self.path} is damaged ({what}): download it again")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.wrong(f"{count} bytes are needed after byte {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, code: str, count: int = 1) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}")))

    def number(self, code: str) -> Any:
        (value,) = self.numbers(code)
        return _shortest(value) if code == "f" else value

    def text(self) -> str:
        length = self.number("Q")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.wrong(f"the text before byte {self.at} is not UTF-8") from error

    def value(self, kind: int, *, within: bool = False) -> Any:
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY or within:
            raise self.wrong(f"a value of kind {kind} before byte {self.at}")
        inner, count = self.number("I"), self.number("Q")
        if inner in SCALARS:
            return self.numbers(SCALARS[inner], count)
        return tuple(self.value(inner, within=True) for _ in range(count))

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        size = metadata.get("general.alignment", 32)
        if not isinstance(size, int) or size < 1 or size & (size - 1):
            raise self.wrong(f"the alignment is {size!r}")
        return size


@contextmanager
def _opened(path: str | Path) -> Iterator[_Cursor]:
    path = Path(path)
    if not path.is_file():
        raise HeadwayError(f"{path} does not exist: give a .gguf file, or a folder with config.json")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Cursor(path, data)
    except (OSError, ValueError) as error:
        if isinstance(error, HeadwayError):
            raise
        raise HeadwayError(f"{path} cannot be read: {error}") from error


def _header(cursor: _Cursor) -> tuple[dict[str, Any], list[Entry]]:
    """The metadata and the list of tensors; afterwards the cursor is behind them."""
    magic = cursor.take(4)
    if magic != MAGIC:
        raise HeadwayError(f"{cursor.path} begins with {magic!r}: a GGUF file begins with {MAGIC!r}")
    version = cursor.number("I")
    if version not in VERSIONS:
        raise HeadwayError(f"{cursor.path} has version {version} of GGUF: headway reads {VERSIONS}, little-endian")
    tensors, values = cursor.numbers("Q", 2)
    metadata: dict[str, Any] = {}
    for _ in range(values):
        key = cursor.text()
        if key in metadata:
            raise cursor.wrong(f"{key} occurs twice")
        metadata[key] = cursor.value(cursor.number("I"))
    entries: dict[str, Entry] = {}
    for _ in range(tensors):
        name, axes = cursor.text(), cursor.number("I")
        if name in entries or not 1 <= axes <= 4:
            raise cursor.wrong(f"{name} has {axes} axes" if name not in entries else f"{name} occurs twice")
        shape = cursor.numbers("Q", axes)[::-1]
        entries[name] = Entry(name, shape, cursor.number("I"), cursor.number("Q"))
    return metadata, list(entries.values())


def _tensor(cursor: _Cursor, start: int, entry: Entry) -> Tensor:
    import numpy as np
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        kind = GGMLQuantizationType(entry.kind)
    except ValueError as error:
        raise cursor.wrong(f"{entry.name} is of kind {entry.kind}, which the package gguf does not know") from error
    block, size = GGML_QUANT_SIZES[kind]
    if entry.shape[-1] % block or not math.prod(entry.shape):
        raise cursor.wrong(f"{entry.name} has shape {list(entry.shape)} in blocks of {block}")
    cursor.at = start + entry.offset
    held = cursor.take(math.prod(entry.shape) // block * size)
    if entry.kind in PLAIN:
        return torch.frombuffer(bytearray(held), dtype=PLAIN[entry.kind]).reshape(entry.shape)
    rows = np.frombuffer(held, dtype=np.uint8).reshape(*entry.shape[:-1], -1)
    try:
        return torch.from_numpy(dequantize(rows, kind))
    except NotImplementedError as error:
        raise HeadwayError(
            f"{entry.name} of {cursor.path} is {kind.name}, which the package gguf cannot dequantize: take the "
            "model in another quantization, such as Q8_0"
        ) from error


def _name(cursor: _Cursor, name: str) -> str:
    """The name of a tensor in a Hugging Face checkpoint."""
    stem, _, leaf = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{leaf}"
    block, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if block != "blk" or part not in INNER:
        raise HeadwayError(f"{cursor.path} has a tensor {name}, which is unknown in such models: take another file")
    return f"model.layers.{layer}.{INNER[part]}.{leaf}"


def _config(metadata: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    name = metadata.get("general.architecture")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise unknown("architecture (general.architecture of the GGUF file)", name, KINDS)

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{name}.{key}", default)

    def whole(key: str, default: int | None = None) -> int:
        value = get(key, default)
        if not isinstance(value, int) or value < 1:
            raise HeadwayError(f"{name}.{key} is {value!r}: headway reads models with one positive integer there")
        return value

    epsilon = get("attention.layer_norm_rms_epsilon", 1e-6)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise HeadwayError(f"{name}.attention.layer_norm_rms_epsilon is {epsilon!r}: take another file")
    width, heads = whole("embedding_length"), whole("attention.head_count")
    head_dim = whole("attention.key_length", max(1, width // heads))
    layers = {entry.split(".")[1] for entry in entries if entry.startswith("blk.")}
    embeddings = entries.get("token_embd.weight")
    for key, value, fits in (
        ("block_count", whole("block_count"), len(layers)),
        ("embedding_length", width, embeddings.shape[-1] if embeddings else "no token_embd.weight"),
        ("attention.value_length", whole("attention.value_length", head_dim), head_dim),
        ("rope.dimension_count", whole("rope.dimension_count", head_dim), head_dim),
    ):
        if value != fits:
            raise HeadwayError(f"{name}.{key} is {value} but the rest of the file has {fits}: take another file")
    assert embeddings is not None
    return {
        "architectures": [kind.architecture],
        "model_type": kind.model_type,
        "vocab_size": embeddings.shape[0],
        "hidden_size": width,
        "intermediate_size": whole("feed_forward_length"),
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "num_key_value_heads": whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": whole("context_length"),
        "rms_norm_eps": epsilon,
        "hidden_act": "silu",
        "rope_parameters": _rope(metadata, str(name)),
        **({"attention_bias": "blk.0.attn_q.bias" in entries} if name != "qwen2" else {}),  # qwen2 always has them
        "tie_word_embeddings": "output.weight" not in entries,
        **({"bos_token_id": metadata[bos]} if (bos := "tokenizer.ggml.bos_token_id") in metadata else {}),
    }


def _rope(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    said = {key: metadata.get(f"{name}.rope.scaling.{key}") for key in ("type", "factor", "original_context_length")}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": metadata.get(f"{name}.rope.freq_base", 10000.0)}
    if said["type"] in (None, "none"):
        return rope
    if said["type"] not in ("linear", "yarn") or said["factor"] is None:
        raise HeadwayError(
            f"{name}.rope.scaling is {said}: headway reads the types none, linear and yarn, each with its factor"
        )
    rope |= {"rope_type": said["type"], "factor": said["factor"]}
    if said["type"] == "yarn" and said["original_context_length"] is not None:
        rope["original_max_position_embeddings"] = said["original_context_length"]
    return rope


def _by_factors(config: Mapping[str, Any], factors: Tensor) -> dict[str, Any]:
    """The parameters of RoPE whose frequencies are divided by these factors at any length."""
    if config["rope_parameters"]["rope_type"] != "default":
        raise HeadwayError(f"the file has {ROPE_FACTORS} and another scaling of RoPE: take another file")
    given = [_shortest(factor) for factor in factors.flatten().float().tolist()]
    return {
        "rope_type": "longrope",
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "short_factor": given,
        "long_factor": given,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _shortest(value: float) -> float:
    """The shortest decimal that rounds to a float32, such as 1e-5 for 0.0000099999997…"""
    if not math.isfinite(value):
        return value
    return next(short for digits in range(1, 10) if _single(short := float(f"{value:.{digits}g}")) == value)


def _single(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
