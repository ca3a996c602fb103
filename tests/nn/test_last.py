"""The output of only the last tokens equals that of these tokens among all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import Coordinates, HeadwayError
from headway.attention import observing
from headway.masks import AnyMask, Boolean, Causal, Padding, Window
from headway.models import Decoder, Stack, TransformerConfig
from headway.nn import Block, KeyValueCache, MultiHeadAttention, ParallelBlock, Part
from headway.positions import Compose

WIDTH, HEADS, N = 32, 4, 11
MASKS: dict[str, Callable[[], AnyMask]] = {
    "none": lambda: None,
    "causal": Causal,
    "window": lambda: Causal() & Window(3),
    "tensor": lambda: torch.ones(N, N, dtype=torch.bool).tril(),
    "joined": lambda: Causal() & Boolean(torch.rand(2, HEADS, N, N) < 0.7),
    "function": lambda: lambda b, h, q_idx, kv_idx: q_idx >= kv_idx + h,
    "padding": lambda: Padding(torch.tensor([N, N - 2])),
}
POSITIONS: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "given": lambda: torch.arange(3, 3 + 2 * N, 2),
    "padded": lambda: Coordinates.padded([N, N - 4], N),
    "packed": lambda: Coordinates.packed([[5, N - 5], [N]]),
}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def layer_of(name: str | None = "rope", **options: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    sizes = {"num_heads": HEADS, "head_dim": WIDTH // HEADS, "embed_dim": WIDTH, "bidirectional": False}
    encoding = None if name is None else headway.encoding(name, **sizes)
    return MultiHeadAttention(WIDTH, HEADS, encoding=encoding, **options).double().eval()


@torch.no_grad()
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("last", [1, 4])
def test_masks_and_positions(mask: str, positions: str, cached: bool, last: int) -> None:
    if (mask, positions) == ("padding", "padded"):
        pytest.skip("lengths are given once")
    layer, x, shown, at = layer_of(), torch.randn(2, N, WIDTH).double(), MASKS[mask](), POSITIONS[positions]()
    caches = [KeyValueCache() if cached else None for _ in range(2)]
    expected = layer(x, mask=shown, positions=at, cache=caches[0])
    found = layer(x, mask=shown, positions=at, cache=caches[1], last=last)
    close(found, expected[:, -last:])
    if caches[0] is not None and caches[1] is not None:
        assert torch.equal(caches[0].keys, caches[1].keys)
        following = torch.randn(2, 1, WIDTH).double()
        assert torch.equal(*(layer(following, mask=Causal(), cache=cache) for cache in caches if cache is not None))


@torch.no_grad()
@pytest.mark.parametrize("name", [None, "alibi", "t5", "shaw", "fire", "cope", "forgetting", "path", "rotary-values"])
def test_encodings(name: str | None) -> None:
    layer, x = layer_of(name), torch.randn(2, N, WIDTH).double()
    for make in (KeyValueCache, lambda: None):
        close(layer(x, mask=Causal(), cache=make(), last=2), layer(x, mask=Causal(), cache=make())[:, -2:])


@torch.no_grad()
def test_parts_and_a_context() -> None:
    layer, x = layer_of("rope", parts=["head-gate", "element-gate", "exclusive"]), torch.randn(2, N, WIDTH).double()
    close(layer(x, mask=Causal(), cache=KeyValueCache(), last=3), layer(x, mask=Causal())[:, -3:])
    other, context = layer_of(), torch.randn(2, 7, WIDTH).double()
    close(other(x, context, last=3), other(x, context)[:, -3:])


@torch.no_grad()
@pytest.mark.parametrize(
    "block",
    [
        Block(WIDTH, HEADS, encoding="rope"),
        Block(WIDTH, HEADS, norm_first=False),
        Block(WIDTH, HEADS, norm_after="rms", norm="rms"),
        ParallelBlock(WIDTH, HEADS),
        ParallelBlock(WIDTH, HEADS, shared_norm=True),
    ],
)
def test_blocks(block: Block) -> None:
    block.double().eval()
    x, memory = torch.randn(2, N, WIDTH).double(), torch.randn(2, 5, WIDTH).double()
    close(block(x, mask=Causal(), last=2), block(x, mask=Causal())[:, -2:])
    close(block(x, memory=memory, last=2), block(x, memory=memory)[:, -2:])


def decoder_of(**options: Any) -> Decoder:
    torch.manual_seed(0)
    config = TransformerConfig(30, embed_dim=WIDTH, num_layers=3, num_heads=HEADS, **options)
    return Decoder(config, "rope").double().eval()


@torch.no_grad()
def test_a_decoder_computes_its_last_layer_for_the_last_tokens_alone() -> None:
    decoder, ids = decoder_of(), torch.randint(30, (2, N))
    rows: list[int] = []
    real = nn.functional.gelu
    with pytest.MonkeyPatch.context() as patched:
        from headway.nn import feed_forward

        patched.setitem(feed_forward.ACTIVATIONS, "gelu", lambda x: (rows.append(x.shape[1]), real(x))[1])
        found = decoder.hidden(ids, cache=decoder.new_cache(), last=2)
    assert rows == [N, N, 2]
    close(found, decoder.hidden(ids)[:, -2:])


@torch.no_grad()
def test_what_observes_the_last_layer_sees_all_tokens() -> None:
    decoder, ids = decoder_of(), torch.randint(30, (2, N))
    seen: list[int] = []
    last: Any = decoder.stack.layers[-1]
    handle = last.feed_forward.register_forward_hook(lambda module, inputs, out: seen.append(out.shape[1]))
    found = decoder.hidden(ids, last=2)
    handle.remove()
    assert seen == [N]
    assert found.shape == (2, 2, WIDTH)
    seen.clear()
    observer: Any = lambda call, compute: (seen.append(call.q.shape[2]), compute())[1]  # noqa: E731
    with observing(observer):
        decoder.hidden(ids, last=1)
    assert seen == [N, N, N]


@torch.no_grad()
@pytest.mark.parametrize("name", ["stack.norm", "stack", "stack.blocks.2.attention_norm"])
def test_a_hook_sees_all_tokens_of_a_prompt(name: str) -> None:
    decoder = decoder_of()
    expected, seen = decoder.generate([[1, 2, 3, 4, 5]], 2).ids, []
    decoder.get_submodule(name).register_forward_hook(lambda module, inputs, out: seen.append(out.shape[1]))
    assert decoder.generate([[1, 2, 3, 4, 5]], 2).ids == expected
    assert seen == [5, 1]


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class MixingPart(Part):
    def output(self, out: Tensor, x: Tensor, v: Tensor | None) -> Tensor:
        return out.cumsum(2)


class PlainStack(Stack):
    def forward(self, x: Tensor, *, mask: Any, positions: Any, cache: Any, memory: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x, mask=mask, positions=positions, cache=cache, memory=memory)


@torch.no_grad()
@pytest.mark.parametrize("change", ["feed_forward", "part", "hook"])
def test_modules_of_others_compute_all_tokens(change: str) -> None:
    decoder, ids = decoder_of(), torch.randint(30, (2, N))
    block: Any = decoder.stack.layers[-1]
    if change == "feed_forward":
        block.feed_forward = Mixing()
    elif change == "part":
        block.attention.parts = nn.ModuleList([MixingPart()])
    else:
        block.attention.register_forward_hook(lambda module, inputs, out: out.cumsum(1))
    close(decoder.hidden(ids, last=2), decoder.hidden(ids)[:, -2:])


def test_stacks_and_functions_that_do_not_know_last() -> None:
    decoder, ids = decoder_of(), torch.randint(30, (2, N))
    logits, found = decoder(ids), decoder.generate([[1, 2, 3]], 2).ids
    decoder.stack.__class__ = PlainStack
    assert torch.equal(decoder(ids), logits)
    assert decoder.generate([[1, 2, 3]], 2).ids == found
    decoder, seen = decoder_of(), []
    real: Any = decoder.hidden

    def hidden(ids: Tensor, *, positions: Any, mask: Any, cache: Any) -> Any:
        seen.append(ids.shape[1])
        return real(ids, positions=positions, mask=mask, cache=cache)

    decoder.hidden = hidden  # type: ignore[method-assign, assignment]
    assert decoder.generate([[1, 2, 3]], 2).ids == found
    assert seen == [3, 1]


@torch.no_grad()
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("name", ["randomized", "random-float", "cape", "shape"])
def test_positions_are_drawn_once(name: str, cached: bool) -> None:
    encoding = Compose(headway.encoding(name, bidirectional=False), headway.encoding("rope", head_dim=WIDTH // HEADS))
    layer, x = MultiHeadAttention(WIDTH, HEADS, encoding=encoding).double().train(), torch.randn(2, N, WIDTH).double()
    for at in (Coordinates.span(N), torch.arange(N)):
        out = []
        for last in (None, 3):
            torch.manual_seed(0)
            cache = KeyValueCache() if cached else None
            out.append(layer(x, mask=Causal(), positions=at, cache=cache, last=last)[:, -3:])
        close(*out)


def test_the_ids_that_are_generated_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(num_kv_heads=2)
    prompts = [[1, 2, 3, 4, 5, 6], [7, 8]]
    found = decoder.generate(prompts, 12)
    real = Decoder.hidden
    monkeypatch.setattr(Decoder, "hidden", lambda self, ids, *, last=None, **options: real(self, ids, **options))
    expected = decoder.generate(prompts, 12)
    assert found.ids == expected.ids
    for own, other in zip(found.log_probs, expected.log_probs, strict=True):
        assert own == pytest.approx(other, abs=1e-10)


def test_gradients() -> None:
    layer, x = layer_of(), torch.randn(2, N, WIDTH).double()
    grads = []
    for cut in (True, False):
        given = x.clone().requires_grad_()
        out = layer(given, mask=Causal(), last=3) if cut else layer(given, mask=Causal())[:, -3:]
        out.square().sum().backward()
        grads.append(given.grad)
    close(*grads)


@pytest.mark.parametrize("last", [0, N + 1, -1])
def test_what_is_refused(last: int) -> None:
    x = torch.randn(2, N, WIDTH)
    for module in (layer_of().float(), Block(WIDTH, HEADS), decoder_of().float().stack):
        with pytest.raises(HeadwayError, match=f"last is {last}"):
            module(x, last=last)
    with pytest.raises(HeadwayError, match="last and context"):
        Block(WIDTH, HEADS, cross_attention=True)(x, context=x, last=1)
    nested = torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)
    with pytest.raises(HeadwayError, match="last is given but cannot continue the sequences of a nested tensor"):
        layer_of().float()(nested, last=1)
