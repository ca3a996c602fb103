"""headway inside transformers: the same numbers as eager, family by family, forward, backward and in generation."""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import headway as hw
from headway import HeadwayError, masks, terms
from headway.integrations import transformers as integration
from headway.integrations.transformers import _attention
from headway.integrations.transformers._mask_tensor import MaskTensor

T = pytest.importorskip("transformers")
if not hasattr(T, "AttentionMaskInterface"):
    pytest.skip("transformers is older than its mask interface", allow_module_level=True)

VOCABULARY, PAD, START, END = 61, 0, 1, 2
SPECIAL = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
TEXT = {
    **SPECIAL,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GROUPED = {**TEXT, "num_key_value_heads": 2}
LAYERED = {**GROUPED, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
T5 = {
    **SPECIAL,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": PAD,
    "dropout_rate": 0.0,
    "relative_attention_max_distance": 9,
    "relative_attention_num_buckets": 8,
}
BART = {
    **SPECIAL,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": END,
    "forced_eos_token_id": None,
    "dropout": 0.0,
}
GPT2 = {**SPECIAL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
WHISPER = {**BART, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64}
IMAGE = {**STILL, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SPEECH = {
    **IMAGE,
    "vocab_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "layerdrop": 0.0,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "activation_dropout": 0.0,
    "apply_spec_augment": False,
}

ENCODERS = {
    "bert": ("BertForMaskedLM", {**TEXT, **STILL}),
    "roberta": ("RobertaForMaskedLM", {**TEXT, **STILL}),
    "albert": ("AlbertForMaskedLM", {**TEXT, **STILL, "embedding_size": 16}),
    "electra": ("ElectraForMaskedLM", {**TEXT, **STILL, "embedding_size": 16}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {**SPECIAL, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "dropout": 0.0, "attention_dropout": 0.0},
    ),
    "modernbert": ("ModernBertForMaskedLM", {**TEXT, "local_attention": 6, "global_attn_every_n_layers": 2}),
}
DECODERS = {
    "gpt2": ("GPT2LMHeadModel", {**GPT2, **QUIET}),
    "opt": ("OPTForCausalLM", {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**TEXT, "rotary_pct": 0.5}),
    "phi": ("PhiForCausalLM", TEXT),
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 5}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "qwen2": ("Qwen2ForCausalLM", {**LAYERED, "use_sliding_window": True}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 16}),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", {**LAYERED, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3ForCausalLM", LAYERED),
    "smollm3": ("SmolLM3ForCausalLM", {**GROUPED, "no_rope_layers": [1, 0]}),
    "gpt_oss": ("GptOssForCausalLM", {**LAYERED, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "cohere2": ("Cohere2ForCausalLM", LAYERED),
    "starcoder2": ("Starcoder2ForCausalLM", {**GROUPED, "sliding_window": 5}),
    "stablelm": ("StableLmForCausalLM", GROUPED),
    "granite": ("GraniteForCausalLM", {**GROUPED, "attention_multiplier": 0.2}),
    "llama4": (
        "Llama4ForCausalLM",
        {
            **GROUPED,
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "attention_chunk_size": 4,
            "num_local_experts": 2,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
        },
    ),
}
SEQUENCES = {
    "t5": ("T5ForConditionalGeneration", T5),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "umt5": ("UMT5ForConditionalGeneration", T5),
    "switch_transformers": ("SwitchTransformersForConditionalGeneration", {**T5, "num_experts": 2}),
    "bart": ("BartForConditionalGeneration", BART),
    "marian": ("MarianMTModel", BART),
    "pegasus": ("PegasusForConditionalGeneration", BART),
}
OTHERS = {
    "vit": ("ViTModel", {**IMAGE, "image_size": 12, "patch_size": 4}),
    "dinov2": ("Dinov2Model", {**IMAGE, "image_size": 12, "patch_size": 4}),
    "clip_text": ("CLIPTextModel", TEXT),
    "clip_vision": ("CLIPVisionModel", {**IMAGE, "image_size": 12, "patch_size": 4}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "wav2vec2": ("Wav2Vec2Model", SPEECH),
    "hubert": ("HubertModel", SPEECH),
}
FAMILIES = {**ENCODERS, **DECODERS, **SEQUENCES, **OTHERS}


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    T.logging.set_verbosity_error()
    integration.register()
    integration.register()  # twice does no harm


def model_of(family: str, **changes: Any) -> Any:
    """A small model with weights large enough that attention is far from even."""
    torch.manual_seed(0)
    name, sizes = FAMILIES[family]
    kind = getattr(T, name)
    model = kind._from_config(kind.config_class(**{**sizes, **changes}), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
            elif "sinks" in repr(parameter.shape):
                parameter.normal_()
    return model


def ids(rows: int = 3, n: int = 12) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(1))


def padding(side: str, rows: int = 3, n: int = 12) -> Tensor:
    """The 2-D attention mask of transformers: rows of n, 7 and 4 real tokens."""
    real = torch.ones(rows, n, dtype=torch.long)
    for row, length in zip(range(rows), (n, 7, 4), strict=True):
        if side == "left":
            real[row, : n - length] = 0
        elif side == "right":
            real[row, length:] = 0
        elif side == "holes":
            real[row, length // 2 : length // 2 + row] = 0
    return real


def inputs_of(family: str, side: str = "none") -> dict[str, Tensor]:
    if family == "whisper":
        return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids(2)}
    if family in ("wav2vec2", "hubert"):
        return {
            "input_values": torch.randn(2, 300),
            "attention_mask": (torch.arange(300) < torch.tensor([[300], [150]])).long(),
        }
    if family in ("vit", "dinov2", "clip_vision"):
        return {"pixel_values": torch.randn(2, 3, 12, 12)}
    found = {"input_ids": ids(), "attention_mask": padding(side)}
    if family in SEQUENCES:
        found["decoder_input_ids"] = ids(n=9).flip(0)
    return found


def states(output: Any) -> dict[str, Tensor]:
    """Every tensor that a model gave which has one row for each token: logits and hidden states."""
    found = {}
    for name, value in output.items():
        if name in ("logits", "last_hidden_state", "encoder_last_hidden_state"):
            found[name] = value
        elif "hidden_states" in name:
            found |= {f"{name}[{i}]": state for i, state in enumerate(value)}
    assert found
    return found


def assert_same(eager: Any, ours: Any, real: Tensor | None = None) -> None:
    """Equal to 1e-5 of the largest value, or of one, wherever there is a real token."""
    expected, got = states(eager), states(ours)
    assert expected.keys() == got.keys()
    for name, a in expected.items():
        b = got[name]
        if real is not None and a.shape[:2] == real.shape and "decoder" not in name:
            a, b = a[real.bool()], b[real.bool()]
        size = max(1.0, a.abs().max().item())
        assert (a - b).abs().max().item() < 1e-5 * size, name


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What headway's attention was called with, call by call."""
    seen: list[dict[str, Any]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        seen.append({"q": q, "k": k, **arguments})
        return hw.attention(q, k, v, **arguments)

    monkeypatch.setattr(_attention, "attention", spy)
    return seen


# ---------------------------------------------------------------- one forward pass


def test_one_argument_is_all(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    model = model_of("llama")
    model.save_pretrained(tmp_path)
    ours = T.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="headway")
    assert_same(model(ids(), output_hidden_states=True), ours(ids(), output_hidden_states=True))
    assert len(calls) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_every_hidden_state_is_eagers(family: str, calls: list[dict[str, Any]]) -> None:
    model = model_of(family)
    sides = ("none", "right", "left", "holes") if "attention_mask" in inputs_of(family) else ("none",)
    for side in sides if family not in OTHERS else ("none",):
        inputs = inputs_of(family, side)
        with torch.no_grad():
            model.set_attn_implementation("eager")
            eager = model(**inputs, output_hidden_states=True)
            assert not calls
            model.set_attn_implementation("headway")
            ours = model(**inputs, output_hidden_states=True)
        assert len(calls) == {"whisper": 6}.get(family, 6 if family in SEQUENCES else 2)
        calls.clear()
        assert_same(eager, ours, inputs.get("attention_mask"))


def test_masks_arrive_as_masks(calls: list[dict[str, Any]]) -> None:
    """No mask that transformers can say by name becomes n² booleans."""
    said = {}
    for family, side in (
        ("llama", "none"),
        ("llama", "left"),
        ("qwen2", "right"),
        ("llama4", "left"),
        ("modernbert", "left"),
    ):
        model = model_of(family)
        model.set_attn_implementation("headway")
        model(**inputs_of(family, side))
        said[family, side] = [call["mask"] for call in calls]
        calls.clear()
    causal, padded = masks.Causal(), masks.Padding()
    assert said["llama", "none"] == [causal, causal]
    assert said["llama", "left"] == [causal & padded, causal & padded]
    assert said["qwen2", "right"] == [masks.Window(left=4) & causal & padded, causal & padded]
    assert said["llama4", "left"] == [masks.Chunked(4) & causal & padded, causal & padded]
    assert said["modernbert", "left"] == [padded, masks.Window(3, 3) & padded]


def test_packed_documents_stay_apart(calls: list[dict[str, Any]]) -> None:
    """position_ids that restart say where documents begin; transformers reads them so where there is no cache."""
    position = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8]])
    inputs = {"input_ids": ids(2), "position_ids": position, "use_cache": False, "output_hidden_states": True}
    for family in ("llama", "mistral", "gemma3"):
        model = model_of(family)
        eager = model(**inputs)
        model.set_attn_implementation("headway")
        assert_same(eager, model(**inputs))
        for call in calls:
            kinds = [type(part) for part in call["mask"].masks]
            assert kinds[0] is masks.Documents
            assert {*kinds[1:]} <= {masks.Window, masks.Causal}
        calls.clear()


def test_states_that_become_fewer_between_layers_need_no_mask() -> None:
    """Informer's encoder halves its tokens; where nothing is masked there is no mask of the old size."""
    torch.manual_seed(0)
    config = T.InformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=1, d_model=32, dropout=0.0
    )
    model = T.InformerModel._from_config(config, attn_implementation="eager").eval()
    given = {
        "past_values": torch.randn(2, 10),
        "past_time_features": torch.randn(2, 10, 1),
        "past_observed_mask": torch.ones(2, 10),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }
    torch.manual_seed(1)  # it samples keys
    eager = model(**given)
    model.set_attn_implementation("headway")
    torch.manual_seed(1)
    assert_same(eager, model(**given))


def test_a_users_own_mask_is_taken() -> None:
    """A tensor of four dimensions: booleans, True where a query may attend to a key, or numbers to add."""
    model = model_of("llama")
    allowed = torch.ones(3, 1, 12, 12, dtype=torch.bool).tril()
    allowed[:, :, 6:, 2] = False
    forbidden = torch.zeros(3, 1, 12, 12).masked_fill(~allowed, torch.finfo(torch.float32).min)
    numbers = forbidden.clone()
    numbers[..., 8:, 5] = -0.7
    eager = [model(ids(), attention_mask=mask) for mask in (forbidden, forbidden, numbers)]
    model.set_attn_implementation("headway")
    for expected, mask in zip(eager, (allowed, forbidden, numbers), strict=True):
        assert_same(expected, model(ids(), attention_mask=mask))
    assert (eager[0].logits - eager[2].logits).abs().max() > 1e-3
    with pytest.raises(HeadwayError, match=r"attention_mask is torch\.int64"):
        model(ids(), attention_mask=allowed.long())


def test_a_users_own_mask_function_is_taken() -> None:
    """What is not known by name is evaluated pair by pair, padding included."""
    masking = importlib.import_module("transformers.masking_utils")
    model = model_of("llama")
    dense = []
    for implementation in ("eager", "headway"):
        model.set_attn_implementation(implementation)
        mask = masking.create_causal_mask(
            model.config,
            torch.zeros(3, 12, 32),
            padding("left"),
            None,
            or_mask_function=lambda batch, head, query, key: torch.stack([key < 9, query % 2 == 0]).all(),
        )
        dense.append(mask if mask.dtype == torch.bool else mask == 0)
    assert torch.equal(*dense)
    assert dense[0].triu(1).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_eagers(family: str) -> None:
    side = "right" if family in {**ENCODERS, **DECODERS, **SEQUENCES} else "none"
    inputs = inputs_of(family, side)
    real = inputs["attention_mask"].bool() if side == "right" and family not in SEQUENCES else None
    found = []
    for implementation in ("eager", "headway"):
        model = model_of(family).train()
        model.set_attn_implementation(implementation)
        torch.manual_seed(2)
        out = next(iter(states(model(**inputs)).values()))
        out = out if real is None else out[real]
        (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(3))).mean().backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    eager, ours = found
    assert eager.keys() == ours.keys()
    assert eager
    largest = max(gradient.abs().max().item() for gradient in eager.values())
    for name, gradient in eager.items():
        size = max(gradient.abs().max().item(), 1e-2 * largest)
        assert (gradient - ours[name]).abs().max().item() < 1e-4 * size, name


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", [*DECODERS, *SEQUENCES])
def test_generation_is_eagers_token_by_token(family: str, cache: str) -> None:
    """Greedy, left padded, past the window and the chunk of those that have one."""
    model = model_of(family)
    real = torch.tensor([[1] * 7, [0] * 3 + [1] * 4, [0] * 5 + [1] * 2])
    setting = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    if cache == "static":
        setting["cache_implementation"] = "static"
    found = []
    for implementation in ("eager", "headway"):
        model.set_attn_implementation(implementation)
        found.append(model.generate(input_ids=ids(n=7), attention_mask=real, **setting))
    assert found[0].shape[1] > 12
    assert len(found[0].unique()) > 3
    assert torch.equal(*found)


# ---------------------------------------------------------------- what else a model asks of its attention


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_are_eagers(family: str) -> None:
    """output_attentions gives the true weights, cross-attention's too, and no others."""
    model = model_of(family)
    inputs = inputs_of(family)
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
        model.set_attn_implementation("headway")
        ours = model(**inputs, output_attentions=True)
    names = [name for name in eager if "attentions" in name and len(eager[name])]
    assert names
    for name in names:
        assert len(eager[name]) == len(ours[name]) == 2
        for a, b in zip(eager[name], ours[name], strict=True):
            assert (a - b).abs().max() < 1e-5


def test_attentions_in_training_carry_a_gradient() -> None:
    model = model_of("llama").train()
    model.set_attn_implementation("headway")
    model(ids(), output_attentions=True).attentions[0][..., 0].square().mean().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_dropout_is_for_training() -> None:
    model = model_of("gpt2", attn_pdrop=0.5)
    model.set_attn_implementation("headway")
    still = [model(ids()).logits for _ in range(2)]
    assert torch.equal(*still)
    model.train()
    dropped = [model(ids()).logits for _ in range(2)]
    assert not torch.equal(*dropped)
    torch.manual_seed(5)
    first = model(ids()).logits
    torch.manual_seed(5)
    assert torch.equal(first, model(ids()).logits)


@pytest.mark.parametrize("family", ["llama", "gemma2", "t5"])
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    found = []
    for checkpoints in (False, True):
        model = model_of(family).train()
        model.set_attn_implementation("headway")
        if checkpoints:
            model.activation_checkpointing_enable()
        model(**inputs_of(family, "left"), use_cache=False).logits.square().mean().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(map(torch.equal, *found))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_compiled_in_one_graph(family: str) -> None:
    model = model_of(family)
    inputs = inputs_of(family, "left")
    with torch.no_grad():
        eager = model(**inputs, use_cache=False)
        model.set_attn_implementation("headway")
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert_same(eager, compiled(**inputs, use_cache=False), inputs["attention_mask"])


def test_a_row_of_padding_alone_is_finite() -> None:
    """Eager gives the mean of all values there, headway zeros; neither reaches a real token."""
    model = model_of("llama").train()
    real = padding("left")
    real[2] = 0
    eager = model(ids(), attention_mask=real, output_hidden_states=True)
    model.set_attn_implementation("headway")
    ours = model(ids(), attention_mask=real, output_hidden_states=True)
    assert_same(eager, ours, real)
    ours.logits.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("family", ["bert", "llama", "gemma2", "gpt_oss", "t5", "whisper"])
def test_bfloat16_is_as_near_as_eagers(family: str) -> None:
    """Against the same model in float32, the mean error is at most 1.1 of eager's in bfloat16."""
    model = model_of(family)
    inputs = inputs_of(family)
    with torch.no_grad():
        exact = next(iter(states(model(**inputs)).values()))
        model.bfloat16()
        inputs = {name: x.bfloat16() if x.is_floating_point() else x for name, x in inputs.items()}
        errors = []
        for implementation in ("eager", "headway"):
            model.set_attn_implementation(implementation)
            out = next(iter(states(model(**inputs)).values()))
            assert out.dtype == torch.bfloat16
            errors.append((out.float() - exact).abs().mean().item())
    assert errors[1] < 1.1 * errors[0]


class Layer(nn.Module):
    """What an attention module shows to the interface."""

    is_causal = False


@pytest.mark.parametrize("said", ["keyword", "attribute", "nothing"])
def test_without_a_mask_is_causal_decides(said: str) -> None:
    """As for transformers' sdpa: the keyword before the attribute, and causal where neither says."""
    attend = T.AttentionInterface()["headway"]
    q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
    module = nn.Module() if said == "nothing" else Layer()
    keyword = {"is_causal": True} if said == "keyword" else {}
    if said == "attribute":
        module.is_causal = True
    out, weights = attend(module, q, k, v, None, **keyword)
    assert weights is None
    assert torch.allclose(out, hw.attention(q, k, v, mask=masks.Causal()).transpose(1, 2), atol=1e-6)
    out, _ = attend(module, q, k, v, None, is_causal=False)
    assert torch.allclose(out, hw.attention(q, k, v).transpose(1, 2), atol=1e-6)


def test_a_static_cache_is_empty_behind_its_queries() -> None:
    attend = T.AttentionInterface()["headway"]
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    out, _ = attend(Layer(), q, k, v, None, is_causal=True)
    assert torch.allclose(
        out, hw.attention(q, k[:, :, :5], v[:, :, :5], mask=masks.Causal()).transpose(1, 2), atol=1e-6
    )


def test_odd_arguments_are_taken() -> None:
    """A scale that is a tensor, queries of one row for the batch, a mask longer than the keys, a dropout not in use."""
    attend = T.AttentionInterface()["headway"]
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(3, 4, 7, 8), torch.randn(3, 4, 7, 8)
    expected = hw.attention(q.expand(3, -1, -1, -1), k, v, scale=0.3).transpose(1, 2)
    mask = torch.ones(3, 1, 5, 9, dtype=torch.bool)
    out, _ = attend(Layer().eval(), q, k, v, mask, dropout=0.5, scaling=torch.tensor(0.3))
    assert torch.allclose(out, expected, atol=1e-6)


# ---------------------------------------------------------------- what a mask goes through in a model


def masks_of(model: Any, side: str, n: int = 12) -> tuple[Tensor, Tensor]:
    """The mask that transformers' sdpa gets, and headway's."""
    masking = importlib.import_module("transformers.masking_utils")
    found = []
    for implementation in ("sdpa", "headway"):
        model.set_attn_implementation(implementation)
        found.append(
            masking.create_causal_mask(
                model.config, torch.zeros(3, n, 32), padding(side, n=n), None, allow_is_causal_skip=False
            )
        )
    return found[0], found[1]


@pytest.mark.parametrize("side", ["none", "left", "right", "holes"])
def test_a_mask_is_the_tensor_it_stands_for(side: str) -> None:
    dense, ours = masks_of(model_of("llama"), side)
    assert ours.shape == dense.shape
    assert ours.dtype == torch.bool
    assert "shape=(3, 1, 12, 12)" in repr(ours)
    same = [
        lambda x: x[:, :, :, :7],
        lambda x: x[:, :, -3:, :],
        lambda x: x[..., None, 4],
        lambda x: x[:, 0],
        lambda x: x.to("cpu").contiguous().detach().clone(),
        lambda x: x.expand(3, 4, 12, 12) & torch.ones(12, dtype=torch.bool),
        lambda x: torch.where(x, 0.0, -1.0),
        lambda x: ~x,
        lambda x: torch.cat([x, x], dim=-1),
    ]
    for change in same:
        changed = change(ours)
        changed = changed if type(changed) is Tensor else changed.clone()
        assert type(changed) is Tensor
        assert torch.equal(change(dense), changed)


def test_a_mask_stays_one_where_keys_are_cut_off() -> None:
    _, ours = masks_of(model_of("llama"), "left")
    for kept in (ours[:, :, :, :7], ours[:, :, :, :50], ours.detach()):
        assert isinstance(kept, MaskTensor)
        assert kept.located.mask == masks.Causal() & masks.Padding()


@pytest.mark.parametrize("change", ["add", "fill", "cast"])
def test_a_mask_is_not_put_on_scores(change: str) -> None:
    _, ours = masks_of(model_of("llama"), "left")
    scores = torch.zeros(3, 4, 12, 12)
    with pytest.raises(HeadwayError, match="load it with attn_implementation='eager'"):
        {"add": lambda: scores + ours, "fill": lambda: scores.masked_fill(ours, 0.0), "cast": lambda: ours.float()}[
            change
        ]()


LONGER = {**TEXT, "max_position_embeddings": 128}
BY_THEMSELVES = {
    "BloomForCausalLM": {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "MptForCausalLM": {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4},
    "MPNetForMaskedLM": TEXT,
    "RoFormerForMaskedLM": TEXT,
    "LongformerModel": {**TEXT, "attention_window": 8},
    "CanineModel": {**TEXT, "local_transformer_stride": 8},
    "MegatronBertModel": TEXT,
    "CodeGenModel": {**GPT2, "rotary_dim": 4, "n_ctx": 64},
    "XGLMModel": {**SPECIAL, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    "ConvBertModel": {**TEXT, "embedding_size": 32},
    "IBertModel": TEXT,
    "NystromformerModel": {**LONGER, "num_landmarks": 4, "segment_means_seq_len": 12},
    "RemBertModel": {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16},
    "LukeModel": {**TEXT, "entity_vocab_size": 7, "entity_emb_size": 16},
    "VisualBertModel": {**TEXT, "visual_embedding_dim": 16},
}
"""Models with an attention of their own; Longformer's never puts the mask on scores as it is."""
PEGASUS = {**BART, "attention_type": "original_full", "encoder_layers": 1, "decoder_layers": 1}
DEEPSEEK = {
    **SPECIAL,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "q_lora_rank": 16,
    "o_lora_rank": 16,
    "o_groups": 2,
    "qk_rope_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "sliding_window": 5,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 4,
    "max_position_embeddings": 64,
    "layer_types": ["compressed_sparse_attention"],
}
NUMBERS = {
    "BigBirdPegasusModel": PEGASUS,
    "DeepseekV4Model": DEEPSEEK,
}
"""Models that compute with the numbers which eager adds to scores."""
BY_NAME = {
    "GPTNeoModel": {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
    },
    "GPTJModel": {**GPT2, "rotary_dim": 4},
    "FalconModel": TEXT,
    "GitModel": TEXT,
    "SamVisionModel": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32},
    "Data2VecVisionModel": {**IMAGE, "image_size": 16, "patch_size": 8},
}
"""Models that look their attention's class up in a dictionary, by the implementation's name."""


def made(name: str, config: dict[str, Any], implementation: str = "headway") -> Any:
    torch.manual_seed(0)
    kind = getattr(T, name)
    model = kind._from_config(kind.config_class(**config), attn_implementation=implementation).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    return model


def as_it_is(model: Any, **inputs: Any) -> Any:
    return model(**inputs)


def compiled(model: Any, **inputs: Any) -> Any:
    return torch.compile(model, backend="eager")(**inputs)


def exported(model: Any, **inputs: Any) -> Any:
    return torch.export.export(model, (), inputs, strict=False).module()(**inputs)


def traced(model: Any, **inputs: Any) -> Any:
    with warnings.catch_warnings():  # that it is deprecated, and what it takes for constant
        warnings.simplefilter("ignore")
        return torch.jit.trace(_Called(model, tuple(inputs)), tuple(inputs.values()), check_trace=False)


class _Called(nn.Module):
    """A model called with arguments by position, as a trace calls it."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor:
        return next(iter(states(self.model(**dict(zip(self.names, values, strict=True)), return_dict=True)).values()))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", BY_THEMSELVES)
@pytest.mark.parametrize("way", [as_it_is, compiled, exported, traced], ids=lambda way: way.__name__)
@torch.no_grad()
def test_a_mask_of_a_model_that_does_not_go_through_the_interface_is_refused(
    name: str, way: Callable[..., Any]
) -> None:
    """However headway came to be its implementation."""
    model = made(name, BY_THEMSELVES[name], "eager")
    model.config._attn_implementation = "headway"
    with pytest.raises(HeadwayError, match="does not go through transformers' attention interface"):
        way(model, input_ids=ids(), attention_mask=padding("left"))


@pytest.mark.parametrize("name", [*BY_THEMSELVES, *BY_NAME])
def test_a_model_that_does_not_go_through_the_interface_is_refused_when_it_is_made(name: str) -> None:
    config = (BY_THEMSELVES | BY_NAME)[name]
    with pytest.raises(HeadwayError, match="load it with attn_implementation='eager'"):
        made(name, config)
    made(name, config, "eager")


RIGHT = {
    **{FAMILIES[one][0]: FAMILIES[one][1] for one in ("llama", "bert", "t5", "gpt2", "gemma2", "mistral", "bart")},
    **NUMBERS,
}


@pytest.mark.one_in(18)
@pytest.mark.parametrize("way", [as_it_is, compiled], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", RIGHT)
@torch.no_grad()
def test_what_is_padded_is_eagers_compiled_or_not(name: str, way: Callable[..., Any]) -> None:
    """One graph for both sides: what is padded where is not known when it is compiled."""
    eager, ours = (made(name, RIGHT[name], implementation) for implementation in ("eager", "headway"))
    for side in ("left", "right"):
        inputs = {"input_ids": ids(), "attention_mask": padding(side), "use_cache": False}
        if "Conditional" in name or "Pegasus" in name:
            inputs["decoder_input_ids"] = ids(n=9).flip(0)
        assert_same(eager(**inputs), way(ours, **inputs), inputs["attention_mask"])


def test_a_model_is_not_traced_by_jit() -> None:
    """Numbers to add that are zero while they are traced may be others later, as may lengths."""
    model = made("BigBirdPegasusModel", PEGASUS)
    inputs = {"input_ids": ids(), "attention_mask": padding("none"), "decoder_input_ids": ids(n=9)}
    with pytest.raises(HeadwayError, match=r"torch\.jit\.trace would keep what attention decides by the lengths"):
        traced(model, **inputs)


ENCODER_HEADS = ["BertLMHeadModel", "RobertaForCausalLM", "XLMRobertaForCausalLM", "ElectraForCausalLM"]


@pytest.mark.parametrize("setting", [{}, {"num_beams": 3}, {"do_sample": True}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("kind", ENCODER_HEADS)
def test_an_encoder_generates_as_eager(kind: str, setting: dict[str, Any]) -> None:
    """Where is_decoder is False, no mask knows of the tokens that the cache holds."""
    model = made(kind, {**TEXT, **STILL}, "eager")
    for side in ("none", "left", "right"):
        found = []
        for implementation in ("eager", "headway"):
            model.set_attn_implementation(implementation)
            torch.manual_seed(3)
            more = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, **setting}
            found.append(model.generate(input_ids=ids(), attention_mask=padding(side), **more))
        assert torch.equal(*found)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MegatronBertModel"])
def test_tensors_without_numbers_pass_or_are_refused_alike(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    config = BY_THEMSELVES.get(name) or RIGHT[name]
    with FakeTensorMode():
        kind = getattr(T, name)
        model = kind._from_config(kind.config_class(**config), attn_implementation="eager").eval()
        model.config._attn_implementation = "headway"
        inputs = {"input_ids": torch.ones(3, 12).long(), "attention_mask": torch.ones(3, 12).long()}
        if name in RIGHT:
            assert model(**inputs).logits.shape == (3, 12, VOCABULARY)
        else:
            with pytest.raises(HeadwayError, match="does not go through"):
                model(**inputs)


def test_a_part_may_have_another_implementation() -> None:
    """Git's text attention is its own, its vision is not."""
    vision = {**IMAGE, "image_size": 16, "patch_size": 8}
    config = T.GitConfig(**TEXT, vision_config=vision)
    model = T.GitModel._from_config(config, attn_implementation={"": "eager", "vision_config": "headway"})
    assert model.image_encoder.config._attn_implementation == "headway"


def test_a_mask_of_fewer_keys_than_the_cache_holds_is_refused() -> None:
    _, ours = masks_of(model_of("llama"), "left")
    q, k = torch.randn(3, 4, 12, 8), torch.randn(3, 4, 15, 8)
    with pytest.raises(HeadwayError, match="a mask for 12 keys, but its cache holds 15: give use_cache=False"):
        T.AttentionInterface()["headway"](Layer(), q, k, k, ours)


def test_what_headway_does_not_take_is_refused() -> None:
    attend = T.AttentionInterface()["headway"]
    x = torch.randn(1, 2, 3, 8)
    for name in _attention.REFUSED:
        with pytest.raises(HeadwayError, match=f"passes {name} to its attention.*attn_implementation='sdpa'"):
            attend(Layer(), x, x, x, None, **{name: x})
    cache = type("PagedAttentionCache", (), {})()
    with pytest.raises(HeadwayError, match="paged cache"):
        attend(Layer(), x, x, x, None, cache=cache)


def test_without_transformers_the_error_names_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HeadwayError, match="pip install 'transformers>="):
        integration.register()
    old = types.ModuleType("transformers")
    old.__version__ = "4.40.0"
    monkeypatch.setitem(sys.modules, "transformers", old)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(
        HeadwayError, match=r"transformers 4\.40\.0 has another attention and mask interface: .*pip install --upgrade"
    ):
        integration.register()


# ---------------------------------------------------------------- learned biases by distance

TABLES = {
    **{family: FAMILIES[family] for family in ("t5", "mt5", "umt5", "switch_transformers")},
    "mpnet": ("MPNetForMaskedLM", {**TEXT, **STILL, "max_position_embeddings": 200}),
}


@pytest.mark.parametrize("family", TABLES)
def test_a_bias_table_gives_what_n_squared_numbers_give(
    family: str, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    """Hidden states, weights and every gradient, the table's own included, beyond the distance that all share."""
    monkeypatch.setitem(FAMILIES, family, TABLES[family])
    real = padding("right", n=150 if family == "mpnet" else 20)
    inputs = {"input_ids": ids(3, real.shape[1]), "attention_mask": real}
    if family in SEQUENCES:
        inputs["decoder_input_ids"] = ids(3, 15).flip(0)
    found = []
    for table in (False, True):
        model = model_of(family).train()
        if table:
            assert integration.use_bias_table(integration.use_bias_table(model)) is model  # twice does no harm
        out = model(**inputs, output_hidden_states=True, output_attentions=True)
        out.logits[real[:, : out.logits.shape[1]].bool()].square().mean().backward()
        found.append((out, {name: p.grad for name, p in model.named_parameters()}))
    (eager, expected), (ours, got) = found
    assert_same(eager, ours, real)
    for name in [name for name in eager if "attentions" in name]:
        for a, b in zip(eager[name], ours[name], strict=True):
            a, b = (x.transpose(1, 2)[real[:, : x.shape[2]].bool()] for x in (a, b))
            assert (a - b).abs().max() < 1e-5
    biases = [name for name, gradient in expected.items() if "relative_attention_bias" in name and gradient is not None]
    assert biases
    for name, gradient in expected.items():
        if gradient is None:
            assert got[name] is None or not got[name].any()
        else:
            size = max(gradient.abs().max().item(), 1e-2)
            assert (gradient - got[name]).abs().max().item() < 1e-4 * size, name
    assert all(expected[name].abs().max() > 0 for name in biases)
    kinds = {type(term) for call in calls for term in call["terms"]}
    assert kinds == {terms.DistanceBias}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["t5", "mt5", "umt5", "switch_transformers"])
def test_a_bias_table_generates_the_same(family: str, cache: str) -> None:
    model = model_of(family)
    real = torch.tensor([[1] * 7, [0] * 3 + [1] * 4, [0] * 5 + [1] * 2])
    setting = {"max_new_tokens": 14, "min_new_tokens": 14, "do_sample": False}
    if cache == "static":
        setting["cache_implementation"] = "static"
    eager = model.generate(input_ids=ids(n=7), attention_mask=real, **setting)
    integration.use_bias_table(model)
    assert torch.equal(eager, model.generate(input_ids=ids(n=7), attention_mask=real, **setting))


@pytest.mark.parametrize("family", ["t5", "mpnet"])
def test_with_eager_again_the_bias_is_as_before(
    family: str, monkeypatch: pytest.MonkeyPatch, calls: list[dict[str, Any]]
) -> None:
    monkeypatch.setitem(FAMILIES, family, TABLES[family])
    model = model_of(family)
    inputs = inputs_of("bert") | ({"decoder_input_ids": ids()} if family == "t5" else {})
    eager = model(**inputs).logits
    integration.use_bias_table(model)
    assert not torch.equal(model(**inputs).logits, eager)
    assert calls
    model.config._attn_implementation = "eager"
    model.set_attn_implementation("eager")
    calls.clear()
    assert torch.equal(model(**inputs).logits, eager)
    assert not calls


def test_memory_of_a_bias_table_grows_with_n() -> None:
    """The largest tensor of a training step, with twice the tokens, is twice as large; n² numbers are never made."""
    largest = []
    for n in (256, 512):
        model = model_of("t5").train()
        integration.use_bias_table(model)
        with Largest() as seen:
            model(input_ids=ids(1, n), decoder_input_ids=ids(1, n)).logits.square().mean().backward()
        largest.append(seen.numbers)
    assert largest[1] <= 2 * largest[0]
    assert largest[1] < 512**2


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that an operator gives."""

    numbers = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if type(x) is Tensor:
                self.numbers = max(self.numbers, x.numel())
        return out


def test_a_model_without_a_bias_by_distance_has_no_table() -> None:
    with pytest.raises(HeadwayError, match="'bert' is not a model with a bias by distance: give one of t5"):
        integration.use_bias_table(model_of("bert"))
    with pytest.raises(HeadwayError, match="'Linear' is not a model"):
        integration.use_bias_table(nn.Linear(2, 2))


def test_a_table_needs_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(T.AttentionInterface._global_mapping, "headway")
    with pytest.raises(HeadwayError, match=r"call headway\.integrations\.transformers\.register\(\) first"):
        integration.use_bias_table(model_of("t5"))
