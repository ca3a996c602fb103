"""Decoding steps by what an earlier step has prepared have the bits of those without, whatever changes in between."""

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import Coordinates
from headway.masks import Causal, Mask, Window
from headway.models import Decoder, TransformerConfig
from headway.nn import KeyValueCache, MultiHeadAttention, StackCache
from headway.nn import attention as attention_module

WIDTH, HEADS, PROMPT, STEPS = 32, 4, 9, 8
PREPARED = [None, "alibi", "rope", "t5", "yarn", "shaw"]
OTHERS = ["kerple-log", "xpos", "deberta", "fire", "cope", "path", "dynamic-ntk", "rotary-values", "ssmax"]
"""Encodings whose steps are prepared, and some of the others."""


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step was computed by what an earlier one has prepared."""
    found: list[bool] = []
    real = attention_module.step

    def step(*given: Any) -> Tensor | None:
        out = real(*given)
        found.append(out is not None)
        return out

    monkeypatch.setattr(attention_module, "step", step)
    return found


def layer_of(name: str | None, **options: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    sizes = {"num_heads": HEADS, "head_dim": WIDTH // HEADS, "embed_dim": WIDTH, "bidirectional": False}
    encoding = None if name is None else headway.encoding(name, **sizes)
    return MultiHeadAttention(WIDTH, HEADS, num_kv_heads=options.pop("kv", 2), encoding=encoding, **options).eval()


Change = Callable[[MultiHeadAttention, KeyValueCache], None]


def decoded(
    layer: MultiHeadAttention,
    cache: KeyValueCache,
    change: Change = lambda layer, cache: None,
    during: AbstractContextManager[Any] | None = None,
    tokens: int = 1,
    mask: Callable[[], Mask | None] = Causal,
    batch: int = 1,
    **options: Any,
) -> list[Tensor]:
    """Returns what steps compute, between which something changes, and the tokens of the cache after it."""
    torch.manual_seed(1)
    x = torch.randn(batch, PROMPT + 2 * STEPS * tokens, WIDTH, dtype=layer.k_proj.weight.dtype)
    prompt, *steps = x.split([PROMPT] + [tokens] * 2 * STEPS, 1)
    out = [layer(prompt, mask=mask(), cache=cache, **options)]
    out += [layer(one, mask=mask(), cache=cache) for one in steps[:STEPS]]
    change(layer, cache)
    with during or nullcontext():
        rows = len(cache.keys) if len(cache) else batch
        out += [
            layer(one[:1].expand(rows, -1, -1).to(layer.k_proj.weight.dtype), mask=mask(), cache=cache)
            for one in steps[STEPS:]
        ]
    return [*out, cache.keys.clone(), cache.values.clone()]


def check(
    monkeypatch: pytest.MonkeyPatch, layer: MultiHeadAttention, make: Callable[[], KeyValueCache], **options: Any
) -> None:
    """Checks that steps have the bits of those that nothing prepares."""
    other, contexts = copy.deepcopy(layer), options.pop("contexts", nullcontext)
    found = decoded(layer, make(), during=contexts(), **options)
    with monkeypatch.context() as patched:
        patched.setattr(attention_module, "step", lambda *given: None)
        expected = decoded(other, make(), during=contexts(), **options)
    assert len(found) == len(expected)
    for own, one in zip(found, expected, strict=True):
        assert own.dtype == one.dtype
        assert torch.equal(own, one)


@torch.no_grad()
@pytest.mark.parametrize("name", [*PREPARED, *OTHERS])
def test_encodings(name: str | None, monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    check(monkeypatch, layer_of(name, kv=HEADS), KeyValueCache)
    assert sum(hits) == (2 * STEPS - 2 if name in PREPARED else 0)


PARTS = ["head-gate", "element-gate", "exclusive"]


@torch.no_grad()
@pytest.mark.parametrize("parts", [*[[one] for one in PARTS], ["exclusive", "head-gate"]], ids=str)
@pytest.mark.parametrize("name", [None, "rope", "t5"])
def test_parts(name: str | None, parts: list[str], monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    layer = layer_of(name, parts=parts)
    for parameter in layer.parts.parameters():  # type: ignore[union-attr]
        nn.init.normal_(parameter)
    check(monkeypatch, layer, KeyValueCache, tokens=2, batch=2)
    assert sum(hits) >= 2 * STEPS - 4  # others find no free slots


@torch.no_grad()
def test_parts_that_change_the_values_which_are_attended_to(monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    check(monkeypatch, layer_of("rope", parts=["differential"]), KeyValueCache)
    layer = layer_of("rope", parts=["head-gate"])
    [part] = layer.parts  # type: ignore[misc]
    part.attended = lambda v: 2 * v  # type: ignore[method-assign]
    with monkeypatch.context() as patched:
        patched.setattr(attention_module, "step", None)  # which would be called
        doubled = decoded(layer, KeyValueCache())
    del part.attended
    assert not torch.equal(doubled[-3], decoded(layer, KeyValueCache())[-3])
    assert any(hits)


@torch.no_grad()
@pytest.mark.parametrize("parts", [["value-residual"], ["value-residual", "head-gate"]], ids=str)
def test_decoders_with_parts(parts: list[str], monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    config = TransformerConfig(20, embed_dim=WIDTH, num_layers=3, num_heads=HEADS, parts=tuple(parts))
    torch.manual_seed(0)
    decoder, ids = Decoder(config, "rope").eval(), torch.randint(20, (2, 24))

    def logits() -> Tensor:
        cache = decoder.new_cache()
        out = [decoder(ids[:, :9], cache=cache)]
        return torch.cat(out + [decoder(ids[:, i : i + 1], cache=cache) for i in range(9, 24)], 1)

    found = logits()
    assert sum(hits) > 30
    with monkeypatch.context() as patched:
        patched.setattr(attention_module, "step", lambda *given: None)
        assert torch.equal(logits(), found)
    torch.testing.assert_close(found, decoder(ids), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("max_length", [None, 100])
@pytest.mark.parametrize("name", [None, "rope", "alibi"])
def test_dtypes_and_storages(
    name: str | None, max_length: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, hits: list[bool]
) -> None:
    check(monkeypatch, layer_of(name).to(dtype), lambda: KeyValueCache(max_length), tokens=2, batch=2)
    assert any(hits) == (dtype != torch.float64)


def scaled(module: nn.Module, inputs: object, out: Tensor) -> Tensor:
    return 2 * out


def other_projection(layer: MultiHeadAttention, cache: KeyValueCache) -> None:
    layer.q_proj = nn.Sequential(layer.q_proj, nn.Tanh())  # type: ignore[assignment]


def other_encoding(layer: MultiHeadAttention, cache: KeyValueCache) -> None:
    cache.crop(0)
    layer.encoding = headway.encoding("alibi", num_heads=HEADS)


def with_sink(layer: MultiHeadAttention, cache: KeyValueCache) -> None:
    layer.sink = nn.Parameter(torch.ones(HEADS))


def shared_memory(layer: MultiHeadAttention, cache: KeyValueCache) -> None:
    cache.keys.share_memory_()
    cache.values.share_memory_()


CHANGES: dict[str, Change] = {
    "weights in place": lambda layer, cache: layer.q_proj.weight.data.mul_(2),
    "a new parameter": lambda layer, cache: setattr(layer.k_proj, "weight", nn.Parameter(layer.k_proj.weight * 2)),
    "a new module": other_projection,
    "a hook of the output": lambda layer, cache: [layer.out_proj.register_forward_hook(scaled)][0] and None,
    "a hook of the queries": lambda layer, cache: [layer.q_proj.register_forward_hook(scaled)][0] and None,
    "training": lambda layer, cache: layer.train() and None,
    "a scale": lambda layer, cache: setattr(layer, "scale", 0.1),
    "a cap": lambda layer, cache: setattr(layer, "soft_cap", 2.0),
    "a sink": with_sink,
    "a kernel": lambda layer, cache: setattr(layer, "kernel", "reference"),
    "a function in place of attention": lambda layer, cache: setattr(
        layer, "attend", lambda *given, **named: -headway.attention(*given, **named)
    ),
    "another encoding": other_encoding,
    "an attribute of the encoding": lambda layer, cache: setattr(layer.encoding, "base", 100.0),
    "a norm": lambda layer, cache: setattr(layer, "q_norm", nn.RMSNorm(WIDTH // HEADS)),
    "cropped": lambda layer, cache: cache.crop(PROMPT),
    "emptied": lambda layer, cache: cache.crop(0),
    "kept": lambda layer, cache: cache.keep(2, 5),
    "reordered": lambda layer, cache: cache.reorder(torch.tensor([0, 0])),
    "another dtype": lambda layer, cache: [cache.crop(0), layer.bfloat16()][1] and None,
    "a gradient": lambda layer, cache: cache._keys.view() is None,
    "shared memory": shared_memory,
    "a copy for a process": lambda layer, cache: ForkingPickler.dumps(cache) and None,
}


@torch.no_grad()
@pytest.mark.parametrize("max_length", [None, 64])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_steps(
    change: str, max_length: int | None, monkeypatch: pytest.MonkeyPatch, hits: list[bool]
) -> None:
    check(monkeypatch, layer_of("rope"), lambda: KeyValueCache(max_length), change=CHANGES[change])
    assert any(hits)


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "gradients": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "another default dtype": lambda: DefaultDtype(torch.float64),
    "other threads": lambda: Threads(1 + torch.get_num_threads()),
}


class DefaultDtype(AbstractContextManager[None]):
    def __init__(self, dtype: torch.dtype) -> None:
        self.before, self.dtype = torch.get_default_dtype(), dtype

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self.before)


class Threads(AbstractContextManager[None]):
    def __init__(self, count: int) -> None:
        self.before, self.count = torch.get_num_threads(), count

    def __enter__(self) -> None:
        torch.set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self.before)


@torch.no_grad()
@pytest.mark.parametrize("name", ["rope", "t5"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts_of_steps(name: str, context: str, monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    check(monkeypatch, layer_of(name), KeyValueCache, contexts=CONTEXTS[context])
    assert any(hits)


def test_gradients_between_steps(hits: list[bool]) -> None:
    layer, x = layer_of("rope"), torch.randn(1, 40, WIDTH)
    cache, mask = KeyValueCache(), Causal()
    with torch.no_grad():
        layer(x[:, :8], mask=mask, cache=cache)
        for i in range(8, 20):
            layer(x[:, i : i + 1], mask=mask, cache=cache)
    assert any(hits)
    hits.clear()
    out = layer(x[:, 20:21], mask=mask, cache=cache)  # autograd saves a view of the storage
    with torch.no_grad():
        before = cache.keys.clone()
        cache.crop(20)
        layer(x[:, 21:22], mask=mask, cache=cache)
    assert not any(hits)
    out.sum().backward()  # torch notices a write into what it has saved
    assert layer.q_proj.weight.grad is not None
    assert torch.equal(before[:, :, :20], cache.keys[:, :, :20])


@torch.no_grad()
@pytest.mark.parametrize("make", [Causal, lambda: Causal() & Window(6), lambda: None])
def test_masks_are_made_anew(
    make: Callable[[], Mask | None], monkeypatch: pytest.MonkeyPatch, hits: list[bool]
) -> None:
    check(monkeypatch, layer_of("rope"), KeyValueCache, mask=make)
    assert sum(hits) >= 2 * STEPS - 4


@torch.no_grad()
def test_a_cache_that_forgets_and_rows_that_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Causal() & Window(6)
    check(monkeypatch, layer_of("rope"), lambda: KeyValueCache(mask=mask), mask=lambda: mask)
    at = Coordinates.padded([PROMPT - 3, PROMPT], PROMPT)
    check(monkeypatch, layer_of("rope"), KeyValueCache, batch=2, positions=at)


@torch.no_grad()
def test_what_is_captured_is_not_skipped(hits: list[bool]) -> None:
    config = TransformerConfig(20, embed_dim=WIDTH, num_layers=2, num_heads=HEADS)
    decoder = Decoder(config, "rope").eval()
    cache, ids = decoder.new_cache(), torch.randint(20, (1, 20))
    decoder(ids[:, :9], cache=cache)
    for i in range(9, 16):
        decoder(ids[:, i : i + 1], cache=cache)
    assert any(hits)
    hits.clear()
    with headway.capture(decoder) as seen:
        decoder(ids[:, 16:17], cache=cache)
    assert not any(hits)
    assert len(seen.table()) > 0


@torch.no_grad()
def test_copies_and_files_have_nothing_prepared(hits: list[bool]) -> None:
    layer, cache = layer_of("rope"), KeyValueCache()
    decoded(layer, cache)
    assert cache._step is not None
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert other._step is None
        assert torch.equal(other.keys, cache.keys)


@torch.no_grad()
def test_a_storage_that_is_replaced_is_freed() -> None:
    layer, cache = layer_of("rope"), KeyValueCache()
    decoded(layer, cache)
    held = cache._step.keys  # type: ignore[attr-defined]
    assert held() is not None
    cache.crop(0)
    assert held() is None


@torch.no_grad()
def test_a_step_that_raises_appends_nothing(monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    layer, cache = layer_of("rope"), KeyValueCache()
    decoded(layer, cache)
    held, x = len(cache), torch.randn(1, 1, WIDTH)
    hits.clear()
    expected = layer(x, mask=Causal(), cache=copy.deepcopy(cache))

    def fail(*inputs: object) -> None:
        raise RuntimeError("stop")

    handle = layer.out_proj.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="stop"):
        layer(x, mask=Causal(), cache=cache)
    assert hits[-1]
    assert len(cache) == held
    handle.remove()
    assert torch.equal(layer(x, mask=Causal(), cache=cache), expected)


@torch.no_grad()
def test_whole_decoders(monkeypatch: pytest.MonkeyPatch, hits: list[bool]) -> None:
    config = TransformerConfig(20, embed_dim=WIDTH, num_layers=3, num_heads=HEADS, norm="rms", activation="swiglu")
    decoder = Decoder(config, ["rope", "none", "rope"]).eval()
    ids = torch.randint(20, (2, 30))

    def logits(cache: StackCache) -> Tensor:
        out = [decoder(ids[:, :9], cache=cache)]
        out += [decoder(ids[:, i : i + 1], cache=cache) for i in range(9, 30)]
        return torch.cat(out, 1)

    found = logits(decoder.new_cache())
    assert sum(hits) > 50
    with monkeypatch.context() as patched:
        patched.setattr(attention_module, "step", lambda *given: None)
        assert torch.equal(logits(decoder.new_cache(40)), found)
    torch.testing.assert_close(found, decoder(ids), rtol=1e-4, atol=1e-4)
