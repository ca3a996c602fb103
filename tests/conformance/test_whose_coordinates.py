"""Two objects of each row of ENCODINGS: what one has placed or prepared never serves the other."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from headway import Coordinates, HeadwayError, attention
from headway.masks import Causal
from headway.models import Stack
from headway.nn import Block, KeyValueCache, MultiHeadAttention, SegmentMemory
from headway.nn.attention import caches_prepared
from headway.positions import (
    CAPE,
    ENCODINGS,
    SHAPE,
    Compose,
    Interpolated,
    PositionEncoding,
    RandomFloat,
    RandomizedPositions,
    RoPE,
)
from headway.positions._base import IN_ATTENTION
from headway.testing.inputs import CheckSizes, on_axes, randomized

EXAMPLES = [
    pytest.param(example, id=f"{name}-{number}")
    for name, kind in ENCODINGS.items()
    for number, example in enumerate(kind.examples())
    if example.acts & IN_ATTENTION
]
N = 5


def twins(encoding: PositionEncoding) -> tuple[PositionEncoding, PositionEncoding]:
    """Two of a kind, with other parameters."""
    one, other = (
        randomized(copy.deepcopy(encoding), torch.Generator().manual_seed(seed), torch.float32).eval()
        for seed in (1, 2)
    )
    return one, other


def layer_of(encoding: PositionEncoding) -> MultiHeadAttention:
    sizes = CheckSizes.of(encoding)
    kv_heads = encoding.sizes.num_kv_heads
    torch.manual_seed(0)
    return MultiHeadAttention(
        sizes.embed_dim, sizes.heads, num_kv_heads=kv_heads, head_dim=sizes.head_dim, encoding=encoding
    )


def span(encoding: PositionEncoding, n: int, **given: int) -> Coordinates:
    return on_axes(Coordinates.span(n, **given), encoding.axes)


def tokens(encoding: PositionEncoding, n: int) -> Tensor:
    return torch.randn(1, n, CheckSizes.of(encoding).embed_dim)


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_cross_attention_in_a_stack_places_for_itself(encoding: PositionEncoding) -> None:
    if encoding.causal_only:
        pytest.skip("queries of a cross-attention look at all keys")
    one, other = twins(encoding)
    cross = layer_of(one)
    block = Block(cross.embed_dim, cross.num_heads, head_dim=cross.head_dim, cross_attention=cross)
    stack = Stack([block], Compose(Interpolated(4.0), other)).eval()
    seen: list[Tensor] = []
    cross.register_forward_hook(lambda _, inputs, out: seen.extend([inputs[0], out]))
    context = tokens(encoding, N)
    with torch.no_grad():
        stack(tokens(encoding, N), positions=span(encoding, N), context=context, context_positions=span(encoding, N))
        x, out = seen
        expected = cross(x, context, positions=span(encoding, N), key_positions=span(encoding, N))
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_decoding_places_what_another_placed(encoding: PositionEncoding) -> None:
    one, other = twins(encoding)
    layer, x = layer_of(one).eval(), tokens(encoding, N)
    stranger = Compose(Interpolated(4.0), other)
    found = []
    with torch.no_grad():
        for place in (lambda at: at, one.place, stranger.place):
            cache, steps = KeyValueCache(), []
            for i, step in enumerate(x.split(1, dim=1)):
                at = place(span(encoding, 1, start=i, length=i + 1))
                steps.append(layer(step, mask=Causal(), positions=at, cache=cache))
            found.append(torch.cat(steps, dim=1))
    for steps in found[1:]:
        torch.testing.assert_close(steps, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_a_cache_of_prepared_keys_is_read_by_their_encoding_alone(encoding: PositionEncoding) -> None:
    one, other = twins(encoding)
    filling, reading, x = layer_of(one).eval(), layer_of(other).eval(), tokens(encoding, N + 1)

    def step(layer: MultiHeadAttention, cache: KeyValueCache, start: int, stop: int) -> Tensor:
        at = span(encoding, stop - start, start=start, length=N + 1)
        return layer(x[:, start:stop], mask=Causal(), positions=at, cache=cache)

    with torch.no_grad():
        cache, own = KeyValueCache(), KeyValueCache()
        step(filling, cache, 0, N)
        step(reading, own, 0, N)
        together = copy.deepcopy((filling, cache)), pickle.loads(pickle.dumps((filling, cache)))
        branch = copy.deepcopy(cache)
        if caches_prepared(one):
            for stranger in (reading, copy.deepcopy(filling)):
                with pytest.raises(HeadwayError, match="the cache holds keys prepared by a"):
                    step(stranger, cache, N, N + 1)
            bare = layer_of(one)
            bare.encoding = None
            with pytest.raises(HeadwayError, match="and this call needs them as projected: start a new cache"):
                step(bare, cache, N, N + 1)
            assert len(cache) == N
        else:
            torch.testing.assert_close(step(reading, copy.deepcopy(cache), N, N + 1), step(reading, own, N, N + 1))
        expected = step(filling, cache, N, N + 1)
        assert torch.equal(step(filling, branch, N, N + 1), expected)
        for layer, kept in together:
            assert torch.equal(step(layer, kept, N, N + 1), expected)


@pytest.mark.parametrize("encoding", EXAMPLES)
def test_placed_coordinates_survive_an_update(encoding: PositionEncoding) -> None:
    """Held over two steps of training, they give each step the gradient that fresh ones give."""
    if not list(encoding.parameters()):
        pytest.skip("nothing to update")
    one, _ = twins(encoding)
    layer, x = layer_of(one), tokens(encoding, N)
    held = one.place(span(encoding, N))
    for _ in range(2):
        grads = []
        for at in (held, span(encoding, N)):
            layer.zero_grad()
            layer(x, mask=Causal(), positions=at).square().sum().backward()
            grads.append([p.grad.clone() for p in one.parameters() if p.grad is not None])
        assert len(grads[0]) == len(grads[1])
        assert all(map(torch.equal, *grads))
        with torch.no_grad():
            for p in one.parameters():
                p.mul_(0.5)


LEARNED = [
    pytest.param(example.values[0], id=example.id)
    for example in EXAMPLES
    if example.values[0].for_one_forward(span(example.values[0], 2)).learned is not None
]


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("encoding", LEARNED)
def test_learned_tables_are_made_once_for_a_forward_pass(
    encoding: PositionEncoding, composed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all layers of a stack, and by both sides of one call; a next pass makes them of what parameters then are."""
    one, _ = twins(encoding)
    blocks = [Block(layer.embed_dim, layer.num_heads, attention=layer) for layer in map(layer_of, [one] * 3)]
    for block in blocks:
        block.attention.encoding = None
    stack = Stack(blocks, Compose(one, Interpolated(2.0)) if composed else one).eval()
    made: list[Tensor] = []
    learned_tables = type(one).learned_tables
    monkeypatch.setattr(type(one), "learned_tables", lambda self, at: made.append(at) or learned_tables(self, at))

    def run() -> Tensor:
        return stack(tokens(encoding, N), positions=span(encoding, N), mask=Causal())

    for passes in (1, 2):
        stack.zero_grad()
        torch.manual_seed(0)
        run().square().sum().backward()
        assert len(made) == passes
        grads = [p.grad.clone() for p in one.parameters() if p.grad is not None]
        assert grads
        assert all(grad.abs().max() > 0 for grad in grads)
    made.clear()
    layer = layer_of(one)
    layer(tokens(encoding, N), positions=span(encoding, N))
    assert len(made) == 1


DRAWN = {
    "shape": lambda: SHAPE(50),
    "cape": lambda: CAPE(),
    "randomized": lambda: RandomizedPositions(64),
    "random-float": lambda: RandomFloat(16, span=4.0),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_for_a_token_is_drawn_once(name: str) -> None:
    """In training, for a token as query and as key: in one call with fewer queries, and in a stack with a memory."""
    encoding = Compose(DRAWN[name](), RoPE(8))
    q, k, v = torch.randn(3, 1, 2, 6, 8)

    def attend(queries: Tensor) -> Tensor:
        torch.manual_seed(1)
        return attention(queries, k, v, encoding=encoding, mask=Causal())

    torch.testing.assert_close(attend(q[:, :, 4:]), attend(q)[:, :, 4:])

    stack = Stack([Block(16, 2, head_dim=8)], encoding)
    places: list[tuple[Coordinates, Coordinates]] = []
    stack.blocks[0].attention.register_forward_pre_hook(
        lambda _, inputs, named: places.append((named["positions"], named["key_positions"])), with_kwargs=True
    )
    memory = SegmentMemory(8)
    for segment in torch.randn(2, 1, 4, 16):
        stack(segment, memory=memory, mask=Causal())
    tokens, keys = places[1]
    assert keys.index.shape[1] == 8
    assert torch.equal(tokens.position, keys.position[:, 4:])
    fixed = encoding.eval()
    assert not torch.equal(keys.position, fixed.place(Coordinates.span(8)).position)
