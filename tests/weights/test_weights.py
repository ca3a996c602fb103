"""The table of weights, how foreign files are read, and, where the weights are, that others read what was made."""

import io
import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import weights
from weights import _fetch, facts, golden, piper, rxnmapper, whisper

HERE = Path(__file__).parent
Find = Callable[[str], Path]


def test_every_file_is_in_the_table() -> None:
    files = {path.stem.replace("_", "-") for path in HERE.glob("[a-z]*.py")} - {"golden"}
    assert {name for name in files if not name.startswith("test-")} == set(weights.WEIGHTS)


@pytest.mark.parametrize("name", weights.WEIGHTS)
def test_packages_are_pinned(name: str) -> None:
    line = weights.WEIGHTS[name]
    assert line.licence
    for package in line.packages:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package.version)
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
    assert line.by_default == (sum(package.megabytes for package in line.packages) < 100)


def test_home_is_named_or_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADWAY_WEIGHTS", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights.home() == tmp_path / ".cache" / "headway" / "weights"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert weights.home() == tmp_path / "cache" / "headway" / "weights"
    monkeypatch.setenv("HEADWAY_WEIGHTS", "~/elsewhere")
    assert weights.home() == tmp_path / "elsewhere"


def test_asking_for_weights_marks_a_test_and_skips_it(
    weights: Find, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert request.node.get_closest_marker("weights")
    monkeypatch.setenv("HEADWAY_WEIGHTS", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"^the weights of minilm are not here: make weights$"):
        weights("minilm")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ERROR: Could not find a version that satisfies the requirement toy==1.0 (from versions: none)",
         "the package index no longer has this package"),
        ("ERROR: Could not find a version that satisfies the requirement toy==1.0 (from versions: 0.9, 1.1)",
         "the package index has only 0.9, 1.1"),
        ("WARNING: Retrying (Retry(total=0)) after connection broken\nERROR: (from versions: none)",
         "the package index cannot be reached"),
        ("WARNING: one\nERROR: the disk is full\n", "ERROR: the disk is full"),
        ("", "pip failed and said nothing"),
    ],
)  # fmt: skip
def test_what_pip_says_comes_to_one_line(said: str, reason: str) -> None:
    assert _fetch._reason(weights.Package("toy", "1.0", 0.1, ""), said) == f"toy==1.0: {reason}"


def field(number: int, content: bytes | int) -> bytes:
    """A field of a protocol buffer: a whole number, or bytes."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def test_reads_the_initializers_of_an_onnx_file() -> None:
    table = torch.randn(300, 2)
    raw = struct.pack("<600f", *table.flatten().tolist())
    loose = field(1, 300) + field(1, 2) + field(2, 1) + field(8, b"loose") + field(9, raw)
    packed = field(8, b"packed") + field(1, varint(2) + varint(300)) + field(9, raw) + field(2, 1)
    whole_numbers = field(1, 1) + field(2, 7) + field(8, b"whole") + field(9, bytes(8))
    other_kinds = varint(9 << 3 | 5) + bytes(4) + varint(10 << 3 | 1) + bytes(8)
    graph = field(1, b"a node") + b"".join(field(5, part) for part in (loose, whole_numbers, packed)) + other_kinds
    read = dict(piper.initializers(field(1, 8) + field(7, graph) + field(8, b"an opset")))
    assert list(read) == ["loose", "packed"]
    assert torch.equal(read["loose"], table)
    assert torch.equal(read["packed"], table.view(2, 300))


def test_reads_the_variables_of_a_ctranslate2_file() -> None:
    table = torch.randn(3, 5, dtype=torch.float16)

    def string(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    heads = string("num_heads") + struct.pack("<BBI", 0, 2, 2) + b"\6\0"
    embeddings = string("weight") + struct.pack("<BIIBI", 2, 3, 5, 4, 30) + table.numpy().tobytes()
    aliases = struct.pack("<I", 0)
    head = struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<I", 3) + struct.pack("<I", 2)
    read = dict(whisper.variables(io.BytesIO(head + heads + embeddings + aliases)))
    assert read["num_heads"] is None
    assert torch.equal(read["weight"], table)
    with pytest.raises(ValueError, match="is not version 6"):
        next(whisper.variables(io.BytesIO(struct.pack("<I", 5) + head[4:])))


def test_parts_what_ctranslate2_fused() -> None:
    q, k, v = (torch.full((2, 2), number) for number in (1.0, 2.0, 3.0))
    before = "model.decoder.layers.0."
    fused = dict(whisper.renamed("decoder/layer_0/self_attention/linear_0/weight", torch.cat([q, k, v])))
    expected = {before + f"self_attn.{letter}_proj.weight": part for letter, part in zip("qkv", (q, k, v), strict=True)}
    torch.testing.assert_close(fused, expected)
    across = dict(whisper.renamed("decoder/layer_0/attention/linear_1/bias", torch.tensor([0.0, 0.0, 7.0, 8.0])))
    torch.testing.assert_close(across, {before + "encoder_attn.v_proj.bias": torch.tensor([7.0, 8.0])})
    with pytest.raises(AssertionError, match="no bias"):
        list(whisper.renamed("decoder/layer_0/attention/linear_1/bias", torch.ones(4)))
    with pytest.raises(ValueError, match="decoder/something/weight is not a tensor of Whisper"):
        list(whisper.renamed("decoder/something/weight", torch.ones(4)))


def test_smiles_fall_into_tokens() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "[13C@H]",
        "Br",
        "Cl",
        "C",
        "c",
        "l",
        "B",
        "(",
        ")",
        "%12",
        ">>",
    ]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(rxnmapper.tokenizer(words)))
    read = tokenizer.encode("BrC(Cl)[13C@H]%12>>Bc?").tokens
    expected = ["[CLS]", "Br", "C", "(", "Cl", ")", "[13C@H]", "%12", ">>", "B", "c", "[UNK]", "[SEP]"]
    assert read == expected
    assert tokenizer.encode("C[MASK]").tokens == ["[CLS]", "C", "[MASK]", "[SEP]"]


def close(computed: Any, written: Any) -> bool:
    """The same facts, numbers to 1e-4 of them or of one."""
    if isinstance(written, dict):
        return computed.keys() == written.keys() and all(close(computed[key], written[key]) for key in written)
    if isinstance(written, list):
        return len(computed) == len(written) and all(map(close, computed, written))
    if isinstance(written, float):
        return math.isclose(computed, written, rel_tol=1e-4, abs_tol=1e-4)
    return bool(computed == written)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "smollm2")) for name in golden.FACTS]
)
def test_transformers_still_computes_the_golden_facts(name: str, weights: Find) -> None:
    """So what was made is read as transformers reads it, and golden.json is what golden.py writes."""
    pytest.importorskip("transformers")
    for need in golden.NEEDS.get(name, [name]):
        weights(need)
    if name == "smollm2":
        pytest.importorskip("gguf")
        pytest.importorskip("accelerate")
    written = facts(name)
    computed = golden.compute(name)
    for key in written:
        assert close(computed[key], written[key]), key
    assert computed.keys() == written.keys()


def test_transformers_misses_nothing_in_whisper_and_albert(weights: Find) -> None:
    transformers = pytest.importorskip("transformers")
    for name in ("whisper", "rxnmapper"):
        (architecture,) = json.loads((weights(name) / "config.json").read_text(encoding="utf-8"))["architectures"]
        _, report = getattr(transformers, architecture).from_pretrained(weights(name), output_loading_info=True)
        assert not any(report.values()), report


def test_sinusoids_of_whisper_are_sines_then_cosines(weights: Find) -> None:
    table = load_file(weights("whisper") / "model.safetensors")["model.encoder.embed_positions.weight"].double()
    angles = torch.arange(1500).double()[:, None] * 1e4 ** (-torch.arange(192).double() / 191)
    assert (table - torch.cat([angles.sin(), angles.cos()], -1)).abs().max() < 2**-11


def test_facts_are_told_from_their_neighbours() -> None:
    written = {"ids": [1, 2], "rows": [[0.5, 100.0]], "text": "a"}
    assert close(written, written)
    assert close({**written, "rows": [[0.50005, 100.005]]}, written)
    for wrong in ({"ids": [1, 3]}, {"rows": [[0.5002, 100.0]]}, {"rows": [[0.5]]}, {"text": "b"}, {"more": 1}):
        assert not close({**written, **wrong}, written), wrong
