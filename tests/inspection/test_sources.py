"""Each way in which attention is found, on real modules: the weights are the model's, and its outputs do not change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway import masks
from headway.inspection._sources.transformers import _flash_mask
from headway.integrations import transformers as integration
from headway.integrations.torch import swap_attention
from headway.models import Decoder, Encoder, EncoderDecoder, TransformerConfig, generate

transformers = pytest.importorskip("transformers")

IMPLEMENTATIONS = ["sdpa", "eager", "headway"]


def seen_of(model: nn.Module, call: Callable[[], Any], keep: str = "qk", **options: Any) -> tuple[Any, Any]:
    with hw.capture(model, keep, **options) as seen:
        out = call()
    return seen, out


# ---------------------------------------------------------------- transformers

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40}


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=16, n_head=4, n_layer=2, vocab_size=40, n_positions=32, bos_token_id=1, eos_token_id=39
        )
    )


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=32))


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=32, max_position_embeddings=32)
    )


def gemma2() -> Any:
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            **SMALL,
            num_key_value_heads=2,
            head_dim=4,
            intermediate_size=32,
            sliding_window=4,
            attn_logit_softcapping=3.0,
        )
    )


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=40,
            d_model=16,
            d_kv=4,
            num_heads=4,
            num_layers=2,
            d_ff=32,
            decoder_start_token_id=0,
            eos_token_id=39,
        )
    )


def vit() -> Any:
    return transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=8, patch_size=4
        )
    )


def whisper() -> Any:
    return transformers.WhisperModel(
        transformers.WhisperConfig(
            vocab_size=40, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=6,
            max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
    )  # fmt: skip


IDS = torch.tensor([[3, 5, 7, 5, 9, 11], [2, 4, 6, 8, 10, 12]])
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
RIGHT = LEFT.flip(1)

FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Tensor]]] = {
    "gpt2": (gpt2, {"input_ids": IDS, "attention_mask": LEFT}),
    "bert": (bert, {"input_ids": IDS, "attention_mask": RIGHT}),
    "llama": (llama, {"input_ids": IDS, "attention_mask": LEFT}),
    "gemma2": (gemma2, {"input_ids": IDS, "attention_mask": RIGHT}),
    "t5": (t5, {"input_ids": IDS, "attention_mask": RIGHT, "decoder_input_ids": IDS[:, :3]}),
    "vit": (vit, {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)}),
    "whisper": (
        whisper,
        {"input_features": torch.linspace(-1, 1, 2 * 8 * 12).view(2, 8, 12), "decoder_input_ids": IDS[:, :3]},
    ),
}


def made(family: str, implementation: str) -> tuple[Any, dict[str, Tensor]]:
    build, inputs = FAMILIES[family]
    if implementation == "headway":
        integration.register()
    torch.manual_seed(1)
    model = build().eval()
    for part in model.parameters():
        if part.ndim > 1:
            nn.init.normal_(part, std=0.4)
    model.set_attn_implementation(implementation)
    return model, inputs


def tensors(out: Any) -> list[Tensor]:
    return [x for x in out.values() if isinstance(x, Tensor)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_weights_are_those_of_eager_and_outputs_stay(family: str, implementation: str) -> None:
    if family == "gemma2" and implementation == "sdpa":
        pytest.skip("transformers' sdpa refuses a soft cap")
    model, inputs = made(family, implementation)
    before = tensors(model(**inputs))
    seen, out = seen_of(model, lambda: model(**inputs))
    assert all(map(torch.equal, tensors(out), before))

    eager, _ = made(family, "eager")
    truth = eager(**inputs, output_attentions=True)
    names = (
        ["attentions"] if "attentions" in truth else ["encoder_attentions", "decoder_attentions", "cross_attentions"]
    )
    for name in names:
        found = getattr(seen, name)
        assert isinstance(found, tuple)
        assert len(found) == len(truth[name]) == 2
        for own, expected in zip(found, truth[name], strict=True):
            assert own.shape == expected.shape
            assert own.dtype == expected.dtype
            sees = own.sum(-1, keepdim=True) > 0  # eager gives padding that sees nothing the mean of everything
            torch.testing.assert_close(own, expected.masked_fill(~sees, 0), atol=2e-6, rtol=1e-4)
    dense, _ = seen_of(model, lambda: model(**inputs), "weights")
    for name in names:
        assert all(map(torch.equal, getattr(dense, name), getattr(seen, name)))


@torch.no_grad()
def test_layers_have_the_names_of_modules() -> None:
    model, inputs = made("t5", "sdpa")
    seen, _ = seen_of(model, lambda: model(**inputs))
    known = dict(model.named_modules())
    assert all(layer in known for layer in seen.layers)
    assert len(seen.layers) == 6
    kinds = {record.layer: record.kind for record in seen.records}
    assert kinds["decoder.block.1.layer.1.EncDecAttention"] == "cross"
    assert kinds["decoder.block.1.layer.0.SelfAttention"] == "self"
    assert seen.records[0].layer == "encoder.block.0.layer.0.SelfAttention"
    with pytest.raises(hw.HeadwayError, match="encoder_attentions"):
        _ = seen.attentions


PADDED = {
    "gpt2": [[0, 0, 1, 1, 1, 1], [1] * 6],
    "bert": [[1, 1, 1, 1, 0, 0][::-1][::-1], [1] * 6],
    "llama": [[0, 0, 1, 1, 1, 1], [1] * 6],
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", PADDED)
@torch.no_grad()
def test_padding_of_transformers_does_not_count(family: str, implementation: str) -> None:
    model, inputs = made(family, implementation)
    inputs = {**inputs, "attention_mask": torch.tensor(PADDED[family])}
    seen, _ = seen_of(model, lambda: model(**inputs))
    for record in seen.records:
        assert record.padding is not None
        assert torch.equal(record.padding, inputs["attention_mask"].bool())
    alone = torch.tensor(PADDED[family][0]).bool()
    short, _ = seen_of(model, lambda: model(input_ids=inputs["input_ids"][:1, alone]))
    if family != "gpt2":  # its positions are learned, and count padding
        for name in ("entropy", "first", "distance", "previous"):
            whole = seen.statistics(0, name)[name][0][:, alone]
            torch.testing.assert_close(whole, short.statistics(0, name)[name][0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_padding_of_a_decoder_and_its_context() -> None:
    model, inputs = made("t5", "sdpa")
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    seen, _ = seen_of(model, lambda: model(**inputs, decoder_attention_mask=mask))
    for record in seen.records:
        expected = mask if record.module.startswith("decoder") else inputs["attention_mask"]
        assert record.padding is not None, record
        assert torch.equal(record.padding, expected.bool()), record
    seen, _ = seen_of(model, lambda: model(**inputs))
    of_decoder = [record.padding for record in seen.records if record.module.startswith("decoder")]
    assert of_decoder == [None] * 4  # the context's mask says nothing of them


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_generate_has_a_call_for_each_step(family: str, implementation: str) -> None:
    model, inputs = made(family, implementation)
    model.generation_config.pad_token_id = 0

    def call() -> Tensor:
        ids: Tensor = model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        return ids

    before = call()
    seen, out = seen_of(model, call)
    assert torch.equal(out, before)
    assert seen.calls == 4
    assert len(seen) == 8
    assert [(record.n, record.m) for record in seen.records[::2]] == [(6, 6), (1, 7), (1, 8), (1, 9)]
    assert all(record.kind == "self" for record in seen.records)
    mask = F.pad(LEFT, (0, 4), value=1)
    whole, _ = seen_of(model, lambda: model(out, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)))
    for step, row in ((1, 6), (3, 8)):
        own = seen.weights(1, call=step)[:, :, 0]
        torch.testing.assert_close(own, whole.weights(1)[:, :, row, : row + 1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen.weights(0, call=0), whole.weights(0)[:, :, :6, :6], atol=1e-5, rtol=1e-4)
    with pytest.raises(hw.HeadwayError, match="4 times"):
        _ = seen.attentions
    assert seen.of_call(-1).attentions[0].shape == (2, 4, 1, 9)


@torch.no_grad()
def test_generate_of_an_encoder_decoder() -> None:
    model, inputs = made("t5", "sdpa")
    inputs = {name: x for name, x in inputs.items() if not name.startswith("decoder")}
    seen, _ = seen_of(model, lambda: model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False))
    assert [len(seen.of_call(number)) for number in range(seen.calls)] == [2, 4, 4, 4]
    assert seen.of_call(0).attentions[0].shape == (2, 4, 6, 6)
    assert seen.of_call(3).cross_attentions[1].shape == (2, 4, 1, 6)
    assert seen.of_call(3).decoder_attentions[1].shape == (2, 4, 1, 3)


@torch.no_grad()
def test_a_static_cache() -> None:
    model, inputs = made("llama", "sdpa")
    model.generation_config.pad_token_id = 0
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False, "disable_compile": True}
    fixed, _ = seen_of(model, lambda: model.generate(**inputs, **options, cache_implementation="static"))
    growing, _ = seen_of(model, lambda: model.generate(**inputs, **options))
    for one, other in zip(fixed.records, growing.records, strict=True):
        assert one.kind == "self"
        torch.testing.assert_close(one.weights()[..., : other.m], other.weights(), atol=1e-6, rtol=1e-5)


def mistral() -> Any:
    config = transformers.MistralConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
    )
    return transformers.MistralForCausalLM(config)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("build", [gpt2, llama, mistral])
@torch.no_grad()
def test_tokens_of_a_cache_are_counted_from_the_first_token(build: Any, padded: bool, cache: str) -> None:
    """Places of a static cache that are empty, and tokens that a sliding window has left, do not shift the others."""
    torch.manual_seed(1)
    model, mask = build().eval(), LEFT if padded else torch.ones_like(LEFT)
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    if cache == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    seen, _ = seen_of(model, lambda: model.generate(IDS, attention_mask=mask, **options))
    padding = mask.argmax(1, keepdim=True)
    for record in seen.records:
        total = 6 + record.call
        q = torch.arange(total - record.n, total) - padding
        k = torch.arange(record.m) + max(total - record.m, 0) - padding
        weights, apart = record.weights(), (k[:, None] - q[..., None])[:, None]
        expected = {
            "previous": (weights * (apart == -1)).sum(-1),
            "current": (weights * (apart == 0)).sum(-1),
            "first": (weights * (k == 0)[:, None, None]).sum(-1),
            "distance": (weights * apart.abs()).sum(-1),
        }
        found = record.statistics(list(expected))
        assert torch.equal(found.counted, (q >= 0)[:, None].expand_as(found.counted))
        for name, x in expected.items():
            torch.testing.assert_close(found[name][found.counted], x[found.counted], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_mask_of_tokens_over_the_whole_of_a_static_cache() -> None:
    model, _ = made("llama", "sdpa")
    mask = F.pad(LEFT, (0, 3), value=1)
    cache = transformers.StaticCache(config=model.config, max_cache_len=9)
    seen, _ = seen_of(model, lambda: model(IDS, attention_mask=mask, past_key_values=cache))
    assert all(torch.equal(record.padding, LEFT.bool()) for record in seen.records)
    first = seen.statistics(0, "first").first
    torch.testing.assert_close(first[0, :, 2:], seen.weights(0)[0, :, 2:6, 2])


@pytest.mark.parametrize("own", [False, True])
@torch.no_grad()
def test_the_first_token_behind_padding_on_the_left(own: bool) -> None:
    class Padded(Own):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
            mask = attention_mask[:, None, None].bool()
            return F.scaled_dot_product_attention(*self.projected(x), mask)

    model: nn.Module
    if own:
        model = Padded()
        seen, _ = seen_of(model, lambda: model(torch.randn(2, 6, 16), attention_mask=LEFT))
    else:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1).eval()
        seen, _ = seen_of(model, lambda: model(torch.randn(2, 6, 16), src_key_padding_mask=LEFT == 0))
    found, weights = seen.statistics(0, ("first", "previous")), seen.weights(0)
    torch.testing.assert_close(found.first[0, :, 2:], weights[0, :, 2:, 2])
    torch.testing.assert_close(found.first[1], weights[1, :, :, 0])
    torch.testing.assert_close(found.previous[1, :, 1:], weights[1].diagonal(-1, 1, 2))


@pytest.mark.parametrize("kind", ["real", "padding", "added"])
@torch.no_grad()
def test_a_mask_of_tokens_that_means_the_opposite(kind: str) -> None:
    class Padded(Own):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
            mask = ~attention_mask if kind == "padding" else attention_mask
            return F.scaled_dot_product_attention(*self.projected(x), mask[:, None, None])

    real = RIGHT.bool()
    given = {"real": real, "padding": ~real, "added": torch.zeros(2, 6).masked_fill(~real, -torch.inf)}[kind]
    model = Padded()
    seen, _ = seen_of(model, lambda: model(torch.randn(2, 6, 16), attention_mask=given))
    padding, counted = seen.records[0].padding, seen.statistics(0).counted
    if kind == "real":
        assert torch.equal(padding, real)
    else:
        assert padding is None
        assert counted.all()


@torch.no_grad()
def test_a_mask_of_queries_and_keys_in_a_batch_as_long_as_the_tokens() -> None:
    class Masked(Own):
        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
            return F.scaled_dot_product_attention(*self.projected(x), attention_mask)

    model, mask = Masked(), torch.ones(6, 6, dtype=torch.bool).tril()
    seen, _ = seen_of(model, lambda: model(torch.randn(6, 6, 16), attention_mask=mask))
    assert seen.records[0].padding is None
    assert seen.statistics(0).counted.all()


@torch.no_grad()
def test_packed_documents_of_transformers() -> None:
    model, _ = made("llama", "sdpa")
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    seen, _ = seen_of(model, lambda: model(IDS[:1], position_ids=positions, use_cache=False))
    weights = seen.weights(0)
    assert not weights[:, :, 3:, :3].any()
    assert weights[:, :, 3:, 3].all()
    torch.testing.assert_close(seen.statistics(0, "first").first[0, :, 3:], weights[0, :, 3:, 3])


@torch.no_grad()
def test_a_layer_that_is_shared_attends_several_times() -> None:
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=40,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=32,
    )
    model = transformers.AlbertModel(config).eval()
    seen, _ = seen_of(model, lambda: model(IDS))
    assert [record.layer.partition("#")[2] for record in seen.records] == ["", "2", "3"]
    assert len({record.module for record in seen.records}) == 1
    assert len(seen.attentions) == 3
    assert not torch.equal(seen.weights(0), seen.weights(2))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gradients_of_transformers_stay(implementation: str) -> None:
    model, inputs = made("gpt2", implementation)
    model(**inputs).logits.square().sum().backward()
    before = [part.grad.clone() for part in model.parameters()]
    model.zero_grad()
    with hw.capture(model, "qk") as seen:
        model(**inputs).logits.square().sum().backward()
    assert all(torch.equal(part.grad, old) for part, old in zip(model.parameters(), before, strict=True))
    assert not any(x.requires_grad for x in seen.attentions)


@pytest.mark.slow  # transformers compiles flex_attention
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_flex_attention() -> None:
    config = transformers.LlamaConfig(**{**SMALL, "hidden_size": 64}, num_key_value_heads=2, intermediate_size=32)
    model = transformers.LlamaModel(config).eval()
    model.set_attn_implementation("flex_attention")
    before = model(IDS, attention_mask=LEFT).last_hidden_state
    seen, out = seen_of(model, lambda: model(IDS, attention_mask=LEFT).last_hidden_state)
    assert torch.equal(out, before)
    model.set_attn_implementation("eager")
    eager, _ = seen_of(model, lambda: model(IDS, attention_mask=LEFT))
    for one, other in zip(seen.attentions, eager.attentions, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def like_flash(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float,
    sliding_window: int | None = None, is_causal: bool | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What FlashAttention computes: the queries are the last of the keys, the mask is padding, a window looks back."""
    n, m = q.shape[2], k.shape[2]
    step = torch.arange(m)[None, :] - (torch.arange(n)[:, None] + m - n)
    allowed = torch.ones(n, m).bool()
    if module.is_causal if is_causal is None else is_causal:
        allowed &= step <= 0
    if sliding_window is not None:
        allowed &= step > -sliding_window
    shown = allowed if mask is None else allowed & mask[:, None, None].bool()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2) * scaling).masked_fill(~shown, -torch.inf)
    return (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2), None


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("n", [3, 5, 8])
def test_flash_attention_aligns_the_last_query_with_the_last_key(n: int, window: int | None) -> None:
    q, k = torch.randn(1, 2, n, 4), torch.randn(1, 2, 5, 4)
    module = nn.Module()
    module.is_causal = True  # type: ignore[assignment]
    mask, _ = _flash_mask(module, q, 5, None, {"sliding_window": window})
    found = hw.attention(q, k, k, mask=mask, scale=0.3)
    torch.testing.assert_close(found.transpose(1, 2), like_flash(module, q, k, k, None, 0.3, window)[0])


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_masks_as_flash_attention_is_given_them(padded: bool) -> None:
    from transformers.masking_utils import flash_attention_mask

    transformers.AttentionInterface.register("like_flash", like_flash)
    transformers.AttentionMaskInterface.register("like_flash", flash_attention_mask)
    config = transformers.MistralConfig(**SMALL, num_key_value_heads=2, intermediate_size=32, sliding_window=3)
    model = transformers.MistralForCausalLM(config).eval()
    model.generation_config.pad_token_id = 0
    inputs = {"input_ids": IDS, "attention_mask": LEFT if padded else torch.ones_like(LEFT)}
    found = []
    for implementation in ("like_flash", "eager"):
        model.config._attn_implementation = implementation
        seen, _ = seen_of(model, lambda: model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False))
        found.append(seen.records)
    for flash, eager in zip(*found, strict=True):
        torch.testing.assert_close(flash.weights(), eager.weights(), atol=1e-5, rtol=1e-4)
        assert not padded or torch.equal(flash.padding, eager.padding)


@torch.no_grad()
def test_autocast() -> None:
    model, inputs = made("llama", "sdpa")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(**inputs).logits
        seen, out = seen_of(model, lambda: model(**inputs).logits)
    assert torch.equal(out, before)
    exact, _ = seen_of(model, lambda: model(**inputs))
    torch.testing.assert_close(seen.weights(1).float(), exact.weights(1), atol=0.05, rtol=0.1)


class Odd(nn.Module):
    """Attention under transformers' interface that adds a bias nobody is told of."""

    is_causal = False

    def __init__(self) -> None:
        super().__init__()
        self.interface = transformers.AttentionInterface()

    def forward(self, x: Tensor) -> Tensor:
        def biased(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + torch.arange(k.shape[2])
            return (scores.softmax(-1) @ v).transpose(1, 2), None

        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        attend = self.interface.get_interface("eager", biased)
        return attend(self, q, q, q, None)[0].flatten(2)


class Eager(Odd):
    """Attention under transformers' interface whose eager function reads only its mask, which is None here."""

    is_causal = True

    def forward(self, x: Tensor) -> Tensor:
        def plain(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> tuple[Tensor, Tensor]:
            weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
            return (weights @ v).transpose(1, 2), weights

        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        weights: Tensor = self.interface.get_interface("eager", plain)(self, q, q, q, None)[1]
        return weights


def test_eager_reads_its_mask_alone() -> None:
    model, x = Eager(), torch.randn(1, 5, 8)
    seen, weights = seen_of(model, lambda: model(x))
    torch.testing.assert_close(seen.weights(0), weights)


def test_an_attention_that_computes_something_else_is_refused() -> None:
    model = Odd()
    with pytest.raises(hw.HeadwayError, match="its output differs"), hw.capture(model):
        model(torch.randn(1, 5, 8))


# ---------------------------------------------------------------- headway

CONFIG = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=2)


def weights_by_hand(layer: Any, x: Tensor, key: Tensor | None = None, **options: Any) -> Tensor:
    """The weights of a layer, from its projections."""
    key = x if key is None else key
    q = layer.q_proj(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    k = layer.k_proj(key).unflatten(-1, (layer.num_kv_heads, -1)).transpose(1, 2)
    return hw.attention_weights(q, k, k, **options)


@pytest.mark.parametrize(
    "name", ["rope", "alibi", "t5", "shaw", "transformer-xl", "cope", "path", "dape", "fire", "stick-breaking"]
)
@torch.no_grad()
def test_a_stack_of_headway_with_any_encoding(name: str) -> None:
    encoding = hw.encoding(name, num_heads=4, head_dim=4, embed_dim=16)
    model = Decoder(CONFIG, encoding).eval()
    before = model(IDS)
    seen, out = seen_of(model, lambda: model(IDS))
    assert torch.equal(out, before)
    attention = model.stack.layers[0].attention
    assert seen.weights(0).shape == (2, 4, 6, 6)
    handed: list[Any] = []
    hook = attention.register_forward_pre_hook(lambda _, args, kwargs: handed.append((args, kwargs)), with_kwargs=True)
    model(IDS)
    hook.remove()
    (query, *_), options = handed[0]
    places = {"q_positions": options["positions"], "k_positions": options["positions"]}
    expected = weights_by_hand(
        attention, query, encoding=options["encoding"], mask=options["mask"], q_input=query, k_input=query, **places
    )
    torch.testing.assert_close(seen.weights(0), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_an_encoder_decoder_of_headway_with_padding() -> None:
    model = EncoderDecoder(CONFIG, hw.encoding("rope", head_dim=4), hw.encoding("rope", head_dim=4)).eval()
    lengths, own = [4, 6], [3, 2]
    at, target_at = (hw.Coordinates.padded(x, n, side="right") for x, n in ((lengths, 6), (own, 3)))

    def call() -> Tensor:
        context = model.encode(IDS, mask=masks.Padding(lengths), positions=at)
        logits: Tensor = model.decode(
            IDS[:, :3],
            context,
            mask=masks.Padding(),
            positions=target_at,
            context_mask=masks.Padding(lengths),
            context_positions=at,
        )
        return logits

    before = call()
    seen, out = seen_of(model, call)
    assert torch.equal(out, before)
    kinds = [record.kind for record in seen.records]
    assert kinds == ["self"] * 2 + ["self", "cross"] * 2
    for record in seen.records:
        expected = lengths if record.module.startswith("encoder") else own
        assert record.padding is not None
        assert record.padding.sum(1).tolist() == expected
    assert [x.shape[-2:] for x in seen.cross_attentions] == [(3, 6)] * 2
    assert not seen.cross_attentions[0][0, :, :, 4:].any()


@torch.no_grad()
def test_generate_of_headway() -> None:
    model = Decoder(CONFIG, hw.encoding("rope", head_dim=4)).eval()
    prompts = [[3, 5, 7], [2, 4, 6, 8, 10]]
    before = generate(model, prompts, max_new_tokens=3)
    seen, out = seen_of(model, lambda: generate(model, prompts, max_new_tokens=3))
    assert out.ids == before.ids
    assert [(record.n, record.m) for record in seen.records[::2]] == [(5, 5), (1, 6), (1, 7)]
    first = seen.records[0]
    assert first.padding is not None
    assert first.padding.sum(1).tolist() == [3, 5]
    alone, _ = seen_of(model, lambda: model(torch.tensor([[*prompts[0], *out.ids[0][:2]]])))
    last = seen.weights(1, call=2)[0, :, 0]
    torch.testing.assert_close(last[:, -5:], alone.weights(1)[0, :, -1], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_packed_documents_of_headway() -> None:
    model = Encoder(CONFIG, hw.encoding("rope", head_dim=4)).eval()
    at = hw.Coordinates.packed([2, 4])
    seen, _ = seen_of(model, lambda: model(IDS, mask=masks.Documents(), positions=at))
    weights = seen.weights(0)
    assert not weights[:, :, 2:, :2].any()
    torch.testing.assert_close(seen.statistics(0, "first").first[:, :, 2:], weights[:, :, 2:, 2])


def test_what_an_encoding_draws_in_training_is_captured_as_it_was() -> None:
    model = Decoder(CONFIG, hw.encoding("randomized + rope", head_dim=4)).train()
    torch.manual_seed(5)
    before = model(IDS)
    torch.manual_seed(5)
    seen, out = seen_of(model, lambda: model(IDS))
    assert torch.equal(out, before)
    assert len(seen) == 2


# ---------------------------------------------------------------- a module of one's own


class Own(nn.Module):
    def __init__(self, heads: int = 4, kv_heads: int = 4, **options: Any) -> None:
        super().__init__()
        self.q = nn.Linear(16, 16)
        self.k, self.v = nn.Linear(16, 4 * kv_heads), nn.Linear(16, 4 * kv_heads)
        self.options = options

    def projected(self, x: Tensor, context: Tensor | None = None) -> list[Tensor]:
        context = x if context is None else context
        return [
            p(y).unflatten(-1, (-1, 4)).transpose(1, 2) for p, y in ((self.q, x), (self.k, context), (self.v, context))
        ]

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(*self.projected(x, context), **self.options)


def by_formula(module: Own, x: Tensor, context: Tensor | None = None) -> Tensor:
    """The weights of scaled_dot_product_attention, as torch's documentation writes them, in float64."""
    q, k, _ = (y.double() for y in module.projected(x, context))
    given = module.options
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.transpose(-1, -2) * given.get("scale", q.shape[-1] ** -0.5)
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(q.shape[2], k.shape[2]).bool().tril(), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)


OPTIONS = [
    {},
    {"is_causal": True},
    {"attn_mask": torch.ones(6, 6).bool().triu(-2)},
    {"attn_mask": torch.linspace(-2, 2, 2 * 4 * 36).view(2, 4, 6, 6)},
    {"attn_mask": torch.zeros(6, 6).masked_fill(torch.ones(6, 6).bool().triu(1), -torch.inf)},
    {"attn_mask": torch.linspace(-2, 2, 6).view(1, 1, 1, 6)},
    {"scale": 0.3},
    {"enable_gqa": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@torch.no_grad()
def test_a_module_of_ones_own(options: dict[str, Any]) -> None:
    module = Own(kv_heads=2 if "enable_gqa" in options else 4, **options)
    x = torch.randn(2, 6, 16)
    before = module(x)
    seen, out = seen_of(module, lambda: module(x))
    assert torch.equal(out, before)
    assert seen.layers == [""]
    assert seen.records[0].kind == "self"
    torch.testing.assert_close(seen.weights("").double(), by_formula(module, x), atol=1e-6, rtol=1e-5)
    assert seen.records[0].kv_heads == module.k.out_features // 4


@torch.no_grad()
def test_cross_attention_of_ones_own_is_causal_from_the_first_key() -> None:
    for n, m in ((6, 4), (4, 6)):
        module, x, context = Own(is_causal=True), torch.randn(2, n, 16), torch.randn(2, m, 16)
        seen, _ = seen_of(module, partial(module, x, context))
        assert seen.records[0].kind == "cross"
        torch.testing.assert_close(seen.weights(0).double(), by_formula(module, x, context), atol=1e-6, rtol=1e-5)


def test_dropout_does_not_change_what_is_captured() -> None:
    x, module = torch.randn(2, 6, 16), Own(dropout_p=0.5)
    torch.manual_seed(3)
    before = module(x)
    torch.manual_seed(3)
    seen, out = seen_of(module, lambda: module(x))
    assert torch.equal(out, before)
    torch.testing.assert_close(seen.weights(0), by_formula(module, x).float(), atol=1e-6, rtol=1e-5)


def test_gradients_of_ones_own_module_stay() -> None:
    module, x = Own(is_causal=True), torch.randn(2, 6, 16)
    module(x).square().sum().backward()
    before = [part.grad.clone() for part in module.parameters()]  # type: ignore[union-attr]
    module.zero_grad()
    seen_of(module, lambda: module(x).square().sum().backward())
    assert all(torch.equal(part.grad, old) for part, old in zip(module.parameters(), before, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 4), (2, 3, 5, 6, 4)])
@torch.no_grad()
def test_tensors_of_other_numbers_of_dimensions(shape: tuple[int, ...]) -> None:
    class Bare(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k)

    module, q, k = Bare(), torch.randn(shape), torch.randn(shape)
    seen, out = seen_of(module, lambda: module(q, k))
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, k))
    expected = (q @ k.transpose(-1, -2) * 0.5).softmax(-1)
    torch.testing.assert_close(seen.weights(0).reshape(expected.shape), expected, atol=1e-6, rtol=1e-5)


# ---------------------------------------------------------------- torch


def by_torch(module: nn.MultiheadAttention, x: Tensor, **options: Any) -> Tensor:
    weights: Tensor = module(x, x, x, average_attn_weights=False, **options)[1]
    return weights


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_of_torch_with_and_without_its_fast_path(norm_first: bool, padded: bool, grad: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x = torch.randn(2, 6, 16)
    padding = torch.tensor([[False] * 4 + [True] * 2, [False] * 6]) if padded else None
    with torch.set_grad_enabled(grad):
        before = model(x, src_key_padding_mask=padding)
        seen, out = seen_of(model, lambda: model(x, src_key_padding_mask=padding))
        real = torch.ones(2, 6).bool() if padding is None else ~padding
        torch.testing.assert_close(out[real], before[real], atol=1e-5, rtol=1e-5)
        if grad:
            assert torch.equal(out, before)
    assert seen.layers == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all(("fast path" in record.note) is not grad for record in seen.records)
    assert ("fast path" in repr(seen)) is not grad
    for record in seen.records:
        assert record.kind == "self"
        assert (record.padding is None) is not padded
        assert record.padding is None or torch.equal(record.padding, real)
    first = model.layers[0]
    y = first.norm1(x) if norm_first else x
    expected = by_torch(first.self_attn, y, key_padding_mask=padding)
    torch.testing.assert_close(seen.weights(0), expected.detach(), atol=1e-6, rtol=1e-5)


MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.ones(6, 6).bool().triu(1)},
    "float": {"attn_mask": torch.linspace(-2, 2, 36).view(6, 6)},
    "by head": {"attn_mask": torch.linspace(-2, 2, 8 * 36).view(8, 6, 6)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 4 + [True] * 2, [False] * 6])},
    "both": {
        "attn_mask": torch.zeros(6, 6).masked_fill(torch.ones(6, 6).bool().triu(1), -torch.inf),
        "key_padding_mask": torch.tensor([[0.0] * 4 + [-torch.inf] * 2, [0.0, 0.5, 1.0, 0.0, 0.0, 0.0]]),
    },
}
LAYERS = {"plain": {}, "kv": {"add_bias_kv": True}, "zero": {"add_zero_attn": True}, "no bias": {"bias": False}}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("layout", ["batch_first", "seq_first", "unbatched"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("mask", MASKS)
def test_multihead_attention_of_torch(mask: str, kind: str, layout: str, need_weights: bool) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=layout == "batch_first", **LAYERS[kind]).eval()
    x, options = torch.randn(2, 6, 16), dict(MASKS[mask])
    if layout == "seq_first":
        x = x.transpose(0, 1)
    if layout == "unbatched":
        x = x[0]
        options = {
            name: y[0] if name == "key_padding_mask" else y[:4] if y.ndim == 3 else y for name, y in options.items()
        }
    before, truth = layer(x, x, x, need_weights=need_weights, average_attn_weights=False, **options)
    seen, (out, _) = seen_of(
        layer, lambda: layer(x, x, x, need_weights=need_weights, average_attn_weights=False, **options)
    )
    assert torch.equal(out, before)
    if truth is None:
        truth = by_torch(layer, x, **options)
    truth = truth if truth.ndim == 4 else truth[None]
    own = seen.weights(0)
    torch.testing.assert_close(own, truth.detach()[..., : own.shape[-1]], atol=1e-6, rtol=1e-5)
    assert own.shape[-1] == 6 + (kind == "kv")


@pytest.mark.parametrize("padded", [False, True])
def test_the_function_of_torch_by_itself(padded: bool) -> None:
    class Bare(nn.MultiheadAttention):
        def forward(self, x: Tensor, mask: Tensor, padding: Tensor | None) -> Any:  # type: ignore[override]
            return F.multi_head_attention_forward(
                x, x, x, 16, 4, self.in_proj_weight, self.in_proj_bias, None, None, False, 0.0, self.out_proj.weight,
                self.out_proj.bias, attn_mask=mask, key_padding_mask=padding, average_attn_weights=False,
            )  # fmt: skip

    layer, x, mask = Bare(16, 4), torch.randn(6, 2, 16), torch.ones(6, 6).bool().triu(1)
    padding = MASKS["padding"]["key_padding_mask"] if padded else None
    seen, (_, weights) = seen_of(layer, lambda: layer(x, mask, padding))
    torch.testing.assert_close(seen.weights(0), weights.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
def test_cross_attention_of_torch_with_other_widths(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(16, 4, kdim=8, vdim=12, batch_first=True)
    x, key, value = torch.randn(2, 6, 16), torch.randn(2, 5, 8), torch.randn(2, 5, 12)
    seen, _ = seen_of(layer, lambda: layer(x, key, value, need_weights=need_weights))
    truth = layer(x, key, value, average_attn_weights=False)[1]
    assert seen.records[0].kind == "cross"
    torch.testing.assert_close(seen.weights(0), truth.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@torch.no_grad()
def test_torch_under_autocast_and_in_other_dtypes(need_weights: bool) -> None:
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 6, 16)
    exact = by_torch(layer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen, _ = seen_of(layer, lambda: layer(x, x, x, need_weights=need_weights))
    torch.testing.assert_close(seen.weights(0).float(), exact, atol=0.02, rtol=0.05)
    for dtype, atol in ((torch.bfloat16, 0.02), (torch.float64, 1e-6)):
        own, y = copy.deepcopy(layer).to(dtype), x.to(dtype)
        seen, _ = seen_of(own, partial(own, y, y, y, need_weights=need_weights))
        assert seen.weights(0).dtype == dtype
        torch.testing.assert_close(seen.weights(0).float(), exact, atol=atol, rtol=0.05)


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@torch.no_grad()
def test_transformers_in_other_dtypes(family: str, dtype: torch.dtype, implementation: str) -> None:
    model, inputs = made(family, implementation)
    model = model.to(dtype)
    before = model(**inputs).logits
    seen, out = seen_of(model, lambda: model(**inputs).logits)
    assert torch.equal(out.nan_to_num(), before.nan_to_num())  # padding of eager in float64 is NaN
    weights = seen.record(-1 if family == "t5" else 0).weights()
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.double().sum(-1)[1], torch.ones(4, weights.shape[2]).double(), atol=0.02, rtol=0)


def test_a_causal_layer_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    x, mask = torch.randn(2, 6, 16), nn.Transformer.generate_square_subsequent_mask(6)
    layer.eval()
    seen, _ = seen_of(layer, lambda: layer(x, src_mask=mask, is_causal=True))
    assert not seen.weights(0).triu(1).any()
    torch.testing.assert_close(
        seen.weights(0), by_torch(layer.self_attn, x, attn_mask=mask).detach(), atol=1e-6, rtol=1e-5
    )


def test_a_transformer_of_torch() -> None:
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True).eval()
    x, y = torch.randn(2, 6, 16), torch.randn(2, 4, 16)
    padding = torch.tensor([[False] * 3 + [True], [False] * 4])
    seen, _ = seen_of(model, lambda: model(x, y, tgt_key_padding_mask=padding, tgt_is_causal=False))
    kinds = {record.layer: record.kind for record in seen.records}
    assert kinds == {
        "encoder.layers.0.self_attn": "self",
        "decoder.layers.0.self_attn": "self",
        "decoder.layers.0.multihead_attn": "cross",
    }
    of_decoder = [record.padding for record in seen.records if record.layer.startswith("decoder")]
    assert all(x is not None and torch.equal(x, ~padding) for x in of_decoder)
    assert seen.record(0).padding is None
    assert [len(x) for x in (seen.encoder_attentions, seen.decoder_attentions, seen.cross_attentions)] == [1, 1, 1]


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_layer_of_torch_that_headway_computes(need_weights: bool) -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, padding = torch.randn(2, 6, 16), torch.tensor([[False] * 4 + [True] * 2, [False] * 6])
    truth = by_torch(layer, x, key_padding_mask=padding)
    swap_attention(layer)
    seen, _ = seen_of(layer, lambda: layer(x, x, x, key_padding_mask=padding, need_weights=need_weights))
    (record,) = seen.records
    assert record.source == "headway"
    assert record.kind == "self"
    torch.testing.assert_close(record.weights(), truth.detach(), atol=1e-6, rtol=1e-5)
