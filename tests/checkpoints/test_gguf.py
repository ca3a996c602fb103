"""GGUF files, written here by the package gguf: the same model as in a Hugging Face folder, and no file is believed."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.checkpoints import load, save, stop_ids
from headway.checkpoints._gguf import read_gguf, read_metadata
from headway.errors import HeadwayError

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")
F32, F16, BF16, Q8_0, Q4_1 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_1"))

WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 64, 4, 2, 16, 2, 40
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
CONFIGS = {
    "llama": ("LlamaForCausalLM", {"rms_norm_eps": 1e-5}),
    "qwen2": ("Qwen2ForCausalLM", {"rms_norm_eps": 1e-6, "use_sliding_window": False}),
    "qwen3": ("Qwen3ForCausalLM", {"rms_norm_eps": 1e-6, "use_sliding_window": False}),
}


def config(name: str, **more: Any) -> dict[str, Any]:
    architecture, own = CONFIGS[name]
    return {
        "architectures": [architecture],
        "model_type": name,
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        **own,
        **more,
    }


def drawn(values: dict[str, Any]) -> dict[str, Tensor]:
    """Random tensors under Hugging Face's names."""
    generator = torch.Generator().manual_seed(0)
    kv, bias = KV_HEADS * HEAD_DIM, values["model_type"] == "qwen2" or values.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    if not values.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (VOCAB, WIDTH)
    for layer in range(LAYERS):
        before = f"model.layers.{layer}."
        for part, rows in (("q", HEADS * HEAD_DIM), ("k", kv), ("v", kv)):
            shapes[f"{before}self_attn.{part}_proj.weight"] = (rows, WIDTH)
            if bias:
                shapes[f"{before}self_attn.{part}_proj.bias"] = (rows,)
            if part != "v" and values["model_type"] == "qwen3":
                shapes[f"{before}self_attn.{part}_norm.weight"] = (HEAD_DIM,)
        shapes[f"{before}self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD_DIM)
        if values.get("attention_bias"):
            shapes[f"{before}self_attn.o_proj.bias"] = (WIDTH,)
        for part in ("gate", "up"):
            shapes[f"{before}mlp.{part}_proj.weight"] = (96, WIDTH)
        shapes[f"{before}mlp.down_proj.weight"] = (WIDTH, 96)
        for part in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{before}{part}.weight"] = (WIDTH,)
    return {
        name: torch.randn(shape, generator=generator) / shape[-1] ** (0.5 if len(shape) == 2 else 0)
        for name, shape in shapes.items()
    }


def theirs(name: str) -> str:
    """GGUF's name of a tensor."""
    stem, _, leaf = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{leaf}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{INNER[part]}.{leaf}"


def in_pairs(tensor: Tensor) -> Tensor:
    """Rows of each head from halves into neighbours, one by one."""
    rows, half = [], HEAD_DIM // 2
    for head in range(tensor.shape[0] // HEAD_DIM):
        for pair in range(half):
            rows += [head * HEAD_DIM + pair, head * HEAD_DIM + half + pair]
    return tensor[rows]


def write_gguf(
    path: Path,
    values: dict[str, Any],
    tensors: dict[str, Tensor],
    kind: Any = F32,
    said: Callable[[Any], None] = lambda writer: None,
) -> dict[str, Tensor]:
    """Writes the file; returns the tensors as rounding to ``kind`` has left them, under Hugging Face's names."""
    name = values["model_type"]
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(LAYERS)
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_freq_base(values["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    said(writer)
    rounded = {}
    for own, tensor in tensors.items():
        here = kind if tensor.ndim == 2 else F32
        paired = name == "llama" and (".q_proj." in own or ".k_proj." in own)
        held = gguf.quants.quantize((in_pairs(tensor) if paired else tensor).numpy(), here)
        writer.add_tensor(theirs(own), held, raw_dtype=here)
        rounded[own] = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), here), here).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def write_folder(folder: Path, values: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "model.safetensors")
    return folder


IDS = torch.arange(VOCAB)[torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))][:22].view(2, 11)


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0, Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_that_of_the_folder(name: str, kind: Any, tmp_path: Path) -> None:
    values = config(name)
    rounded = write_gguf(tmp_path / "model.GGUF", values, drawn(values), kind)
    expected = load(write_folder(tmp_path / "folder", values, rounded), dtype=torch.float32)
    found = load(tmp_path / "model.GGUF", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(found(IDS), expected(IDS))


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0], ids=lambda kind: kind.name)
def test_numbers_keep_their_dtype_and_blocks_become_float32(kind: Any, tmp_path: Path) -> None:
    values = config("llama")
    write_gguf(tmp_path / "model.gguf", values, drawn(values), kind)
    _, tensors = read_gguf(tmp_path / "model.gguf")
    dtype = {F16: torch.float16, BF16: torch.bfloat16}.get(kind, torch.float32)
    assert tensors["model.layers.1.mlp.up_proj.weight"].dtype == dtype
    assert next(load(tmp_path / "model.gguf").parameters()).dtype == dtype


def test_the_config_is_the_folders(tmp_path: Path) -> None:
    values = config("llama")
    write_gguf(tmp_path / "model.gguf", values, drawn(values))
    found, _ = read_gguf(tmp_path / "model.gguf")
    assert {key: found.get(key) for key in values} == values  # 1e-5 too, which float32 does not hold


def test_a_saved_model_ends_where_that_of_the_file_does(tmp_path: Path) -> None:
    def ends(writer: Any) -> None:
        writer.add_eos_token_id(1)
        writer.add_eot_token_id(5)

    values = config("llama")
    write_gguf(tmp_path / "model.gguf", values, drawn(values), said=ends)
    save(load(tmp_path / "model.gguf"), tmp_path / "folder")
    assert stop_ids(tmp_path / "folder") == stop_ids(tmp_path / "model.gguf") == [1, 5]


def test_what_stands_for_no_token_ends_nothing(tmp_path: Path) -> None:
    def ends(writer: Any) -> None:
        writer.add_eos_token_id(1)
        writer.add_eot_token_id(2**32 - 1)

    values = config("llama")
    write_gguf(tmp_path / "model.gguf", values, drawn(values), said=ends)
    assert stop_ids(tmp_path / "model.gguf") == [1]


def test_without_a_head_of_its_own_the_embeddings_are_the_head(tmp_path: Path) -> None:
    values = config("llama", tie_word_embeddings=True)
    tensors = drawn(values)
    write_gguf(tmp_path / "model.gguf", values, tensors)
    model = load(tmp_path / "model.gguf")
    assert model.head.weight is None
    expected = load(write_folder(tmp_path / "folder", values, tensors))
    with torch.no_grad():
        assert torch.equal(model(IDS), expected(IDS))


def test_biases_are_put_back_into_halves_too(tmp_path: Path) -> None:
    values = config("llama", attention_bias=True)
    tensors = drawn(values)
    write_gguf(tmp_path / "model.gguf", values, tensors)
    _, found = read_gguf(tmp_path / "model.gguf")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    expected = load(write_folder(tmp_path / "folder", values, tensors))
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "model.gguf")(IDS), expected(IDS))


def test_what_was_loaded_is_saved_as_a_folder(tmp_path: Path) -> None:
    values = config("qwen3")
    write_gguf(tmp_path / "model.gguf", values, drawn(values), Q8_0)
    model = load(tmp_path / "model.gguf")
    save(model, tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "saved")(IDS), model(IDS))


def test_rotations_are_rescaled_as_the_file_says(tmp_path: Path) -> None:
    def yarn(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)

    values = config("llama")
    write_gguf(tmp_path / "model.gguf", values, drawn(values), said=yarn)
    found, _ = read_gguf(tmp_path / "model.gguf")
    assert found["rope_parameters"] == {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }


def test_factors_of_the_frequencies_are_those_of_llama_3(tmp_path: Path) -> None:
    # what conversion writes for rope_type llama3: 1 for short waves, the factor for long ones, between them a mixture
    low, high, factor, length = 1.0, 4.0, 8.0, 16

    def scaled(pair: int) -> float:
        wave = 2 * torch.pi * 500.0 ** (2 * pair / HEAD_DIM)
        if wave < length / high:
            return 1.0
        if wave > length / low:
            return factor
        share = (length / wave - low) / (high - low)
        return 1 / ((1 - share) / factor + share)

    factors = np.array([scaled(pair) for pair in range(HEAD_DIM // 2)], dtype=np.float32)
    values = config("llama")
    tensors = drawn(values)
    write_gguf(
        tmp_path / "model.gguf", values, tensors, said=lambda writer: writer.add_tensor("rope_freqs.weight", factors)
    )
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }
    expected = load(write_folder(tmp_path / "folder", {**values, "rope_parameters": llama3}, tensors))
    plain = load(write_folder(tmp_path / "plain", values, tensors))
    found = load(tmp_path / "model.gguf")
    with torch.no_grad():
        torch.testing.assert_close(found(IDS), expected(IDS), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(found(IDS), plain(IDS), atol=1e-3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a file."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    values = config("llama", tie_word_embeddings=True)
    write_gguf(path, values, drawn(values), Q4_1, lambda writer: writer.add_token_list(["a", "b"]))
    return path.read_bytes()


def test_a_file_cut_off_anywhere_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for length in [*range(0, 1500, 13), len(whole) // 2, len(whole) - 64]:
        path.write_bytes(whole[:length])
        with pytest.raises(HeadwayError, match=r"damaged|cannot be read|begins with"):
            read_gguf(path)


@pytest.mark.parametrize("number", [2**31 - 1, 2**32, 2**63 + 1])
def test_a_lying_header_is_refused_at_once(whole: bytes, number: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    key = whole.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens")
    name = whole.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight")
    places = {"tensors": 8, "values": 16, "items": key + 8, "text": key + 16, "rows": name + 12, "offset": name + 24}
    for place in places.values():
        path.write_bytes(whole[:place] + number.to_bytes(8, "little") + whole[place + 8 :])
        with pytest.raises(HeadwayError, match="damaged"):
            read_gguf(path)


def test_tensors_in_one_place_are_refused(tmp_path: Path) -> None:
    """10⁵ entries of the same bytes would take 10⁵ times their memory."""
    values = config("llama", tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", values, drawn(values))
    whole = (tmp_path / "model.gguf").read_bytes()
    start = -(-(whole.rindex(b".weight") + 40) // 32) * 32
    header, largest = bytearray(whole), 0
    for found in re.finditer(rb"[a-z0-9_.]+\.weight", whole[:start]):
        axes = int.from_bytes(whole[found.end() : found.end() + 4], "little")
        at = found.end() + 4 + 8 * axes + 4
        header[at : at + 8] = bytes(8)
        shape = [int.from_bytes(whole[found.end() + 4 + 8 * k :][:8], "little") for k in range(axes)]
        largest = max(largest, 4 * math.prod(shape))
    (tmp_path / "model.gguf").write_bytes(header[: start + largest])
    with pytest.raises(HeadwayError, match="others are in the same place"):
        read_gguf(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"GGUF", b"GGML", "begins with"),
        (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "little-endian"),
        (b"llama", b"llamo", "did you mean 'llama'"),
        (b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight", "twice"),
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_um.weight", "blk.1.ffn_um.weight"),
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_up.height", "missing are model.layers.1.mlp.up_proj.weight"),
        (b"token_embd.weight", b"token_embd.height", "no token_embd.weight"),
        (b"llama.block_count\x04\0\0\0\x02", b"llama.block_count\x04\0\0\0\x03", "block_count is 3"),
        (b"llama.block_count\x04\0\0\0\x02", b"llama.block_count\x06\0\0\0\x02", "block_count is "),
        (b"llama.block_count", b"llama.block_sount", "block_count is None"),
        (b"attention.head_count\x04\0\0\0\x04", b"attention.head_count\x04\0\0\0\x03", "heads of rotary pairs"),
        (b"layer_norm_rms_epsilon\x06", b"layer_norm_rms_epsilon\x04", "layer_norm_rms_epsilon is "),
        (b"llama.context_length\x04", b"llama.context_length\x63", "kind 99"),
        (b"tokens\x09\0\0\0\x08", b"tokens\x09\0\0\0\x09", "kind 9"),
    ],
)
def test_what_cannot_be_is_said(whole: bytes, before: bytes, after: bytes, said: str, tmp_path: Path) -> None:
    assert before in whole
    path = tmp_path / "model.gguf"
    path.write_bytes(whole.replace(before, after, 1))
    with pytest.raises(HeadwayError, match=said) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="does not exist"):
        load(tmp_path / "model.gguf")


def test_the_header_has_the_tokenizer(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    assert read_metadata(path)["tokenizer.ggml.tokens"] == ("a", "b")


def test_without_the_package_the_remedy_is_named(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HeadwayError, match=r"pip install .*\[checkpoints\]'"):
        load(path)


def test_smollm2_knows_the_capital_of_france(weights: Callable[[str], Path]) -> None:
    from weights import facts

    (file,) = weights("smollm2").glob("*.gguf")
    known, model = facts("smollm2"), load(file)
    cache, ids, steps = model.new_cache(), torch.tensor([known["ids"]]), []
    with torch.no_grad():
        for _ in known["greedy"]:
            logits = model(ids, cache=cache)[:, -1]
            ids = logits.argmax(-1, keepdim=True)
            steps.append((ids.item(), logits))
    assert [step for step, _ in steps] == known["greedy"]
    torch.testing.assert_close(steps[0][1][0, known["top"]], torch.tensor(known["logits"]), atol=1e-3, rtol=1e-5)
