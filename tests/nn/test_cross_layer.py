"""Layers that share the keys and values of an earlier layer, through its cache."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headway import Coordinates, HeadwayError, attention, encoding
from headway.masks import Causal, Window
from headway.nn import CrossLayerAttention, KeyValueCache, MultiHeadAttention
from headway.positions import PositionEncoding


class Pair(nn.Module):
    """Two layers; the second has the keys and values of the first."""

    def __init__(self, one: PositionEncoding | None, num_kv_heads: int = 2, **options: object) -> None:
        super().__init__()
        self.first = MultiHeadAttention(32, 4, num_kv_heads=num_kv_heads, encoding=one)
        self.second = CrossLayerAttention(32, 4, encoding=one, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, **options: object) -> Tensor:
        cache = KeyValueCache() if cache is None else cache
        y = x + self.first(x, cache=cache, **options)  # type: ignore[arg-type]
        return y + self.second(y, cache=cache, **options)  # type: ignore[arg-type]


def literally(pair: Pair, x: Tensor, one: PositionEncoding | None) -> Tensor:
    """The second layer as attention to projections of the first layer's input."""

    def heads(projection: nn.Module, x: Tensor) -> Tensor:
        return projection(x).unflatten(-1, (-1, 8)).transpose(1, 2)

    y = x + pair.first(x, mask=Causal())
    q, k, v = heads(pair.second.q_proj, y), heads(pair.first.k_proj, x), heads(pair.first.v_proj, x)
    out = attention(q, k, v, encoding=one, mask=Causal(), q_input=y, k_input=x)
    for part in pair.second.parts or ():
        out = part.output(out, y, v)  # type: ignore[operator]
    return y + pair.second.out_proj(out.transpose(1, 2).flatten(2))


NAMES = [None, "rope", "alibi", "t5", "learned + rope", "forgetting", "dynamic-ntk", "rotary-values"]


def made(name: str | None) -> PositionEncoding | None:
    return None if name is None else encoding(name, num_heads=4, head_dim=8, embed_dim=32)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "learned + rope"])
def test_it_attends_to_the_keys_and_values_of_the_first_layer(name: str | None) -> None:
    one = made(name)
    pair, x = Pair(one).double(), torch.randn(2, 7, 32, dtype=torch.float64)
    torch.testing.assert_close(pair(x, mask=Causal()), literally(pair, x, one))


@pytest.mark.parametrize("name", [None, "rope", "alibi", "forgetting"])
def test_gradients_reach_the_first_layer_through_the_cache(name: str | None) -> None:
    one = made(name)
    pair, x = Pair(one).double(), torch.randn(2, 7, 32, dtype=torch.float64)
    weights = list(pair.first.k_proj.parameters()) + list(pair.first.v_proj.parameters())
    found = torch.autograd.grad(pair(x, mask=Causal()).square().sum(), weights)
    expected = torch.autograd.grad(literally(pair, x, one).square().sum(), weights)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [None, "rope", "alibi", "forgetting"])
def test_decoding_equals_a_full_pass(name: str | None) -> None:
    pair, x, cache = Pair(made(name)).eval(), torch.randn(2, 9, 32), KeyValueCache()
    with torch.no_grad():
        whole = pair(x, mask=Causal())
        steps = [pair(x[:, a:b], cache, mask=Causal()) for a, b in ((0, 4), (4, 5), (5, 7), (7, 8), (8, 9))]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=2e-5, rtol=1e-5)
    assert len(cache) == 9


def test_positions_and_padding_come_from_the_cache() -> None:
    pair, x = Pair(made("rope")).eval(), torch.randn(2, 6, 32)
    at = Coordinates.padded([6, 4], 6, side="left")
    found = pair(x, mask=Causal(), positions=at)
    alone = pair(x[1:, 2:], mask=Causal())
    torch.testing.assert_close(found[1, 2:], alone[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "dynamic-ntk", "cope"])
def test_decoding_with_given_positions(name: str) -> None:
    pair, x = Pair(made(name)).double().eval(), torch.randn(2, 6, 32, dtype=torch.float64)
    at = torch.tensor([[0, 2, 5, 6, 9, 11], [3, 4, 5, 8, 19, 20]])
    with torch.no_grad():
        whole, cache = pair(x, mask=Causal(), positions=at), KeyValueCache()
        parts = ((0, 3), (3, 4), (4, 6))
        steps = [pair(x[:, a:b], cache, mask=Causal(), positions=at[:, a:b]) for a, b in parts]
        torch.testing.assert_close(torch.cat(steps, 1), whole)
        with pytest.raises(HeadwayError, match="positions differ from those of the same tokens in the cache"):
            pair.second(x[:, :2], cache=cache, positions=torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["randomized + rope", "shape + rope", "position-coupling + rope"])
def test_queries_stand_where_the_keys_were_drawn(name: str) -> None:
    """With the projections of the first layer the second computes the same, also where places are drawn."""
    pair, x, cache = Pair(made(name), num_kv_heads=4).train(), torch.randn(2, 6, 32), KeyValueCache()
    pair.second.q_proj, pair.second.out_proj = pair.first.q_proj, pair.first.out_proj
    torch.manual_seed(0)
    first = pair.first(x, mask=Causal(), cache=cache)
    torch.manual_seed(0 if name.startswith("randomized") else 1)  # it keeps no prepared keys, and draws for both sides
    torch.testing.assert_close(pair.second(x, mask=Causal(), cache=cache), first)


@pytest.mark.parametrize(
    "change",
    [lambda cache: cache.reorder(torch.tensor([1, 0])), lambda cache: cache.crop(3), lambda cache: cache.keep(1, 2)],
)
def test_places_that_were_drawn_are_those_of_the_last_call_alone(change: Callable[[KeyValueCache], None]) -> None:
    cache = KeyValueCache()
    MultiHeadAttention(32, 4, encoding=made("shape + rope")).train()(torch.randn(2, 6, 32), cache=cache)
    assert cache.placed is not None
    change(cache)
    assert cache.placed is None


@pytest.mark.parametrize("name", [None, "rotary-values"])
def test_parts_read_values_as_projected(name: str | None) -> None:
    one = made(name)
    pair, x = Pair(one, parts=["exclusive"]).double(), torch.randn(2, 6, 32, dtype=torch.float64)
    whole, cache = literally(pair, x, one), KeyValueCache()
    torch.testing.assert_close(pair(x, mask=Causal()), whole)
    with torch.no_grad():
        steps = [pair(part, cache, mask=Causal()) for part in x.split((4, 1, 1), dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_the_encoding_is_that_of_the_cache() -> None:
    one = made("rope")
    first, second = MultiHeadAttention(32, 4, encoding=one), CrossLayerAttention(32, 4)
    x, cache = torch.randn(1, 5, 32), KeyValueCache()
    first(x, mask=Causal(), cache=cache)
    expected = second(x, mask=Causal(), cache=cache, encoding=one)
    assert torch.equal(second(x, mask=Causal(), cache=cache), expected)
    with pytest.raises(HeadwayError, match="another object"):
        second(x, mask=Causal(), cache=cache, encoding=made("rope"))


def test_parts_and_norms() -> None:
    pair = Pair(made("rope"), qk_norm="rms", parts=["head-gate"])
    assert {name for name, _ in pair.second.named_parameters()} > {"q_norm.weight"}
    pair(torch.randn(1, 4, 32), mask=Causal()).sum().backward()
    assert all(p.grad is not None for p in pair.second.parameters())


def test_refusals() -> None:
    layer, cache, x = CrossLayerAttention(32, 4), KeyValueCache(), torch.randn(1, 5, 32)
    with pytest.raises(HeadwayError, match="x has 5 tokens but the cache holds 0: call the layer that fills"):
        layer(x, cache=cache)
    MultiHeadAttention(32, 4)(x, cache=cache)
    with pytest.raises(HeadwayError, match=r"x has shape \(1, 5, 16\): give \[batch, tokens, 32\]"):
        layer(x[..., :16], cache=cache)
    with pytest.raises(HeadwayError, match=r"the cache holds keys \[1, 4, 5, 8\]: give x a batch of 1"):
        CrossLayerAttention(32, 2)(x, cache=cache)
    jagged = torch.nested.nested_tensor([x[0], x[0, :2]], layout=torch.jagged)
    with pytest.raises(HeadwayError, match="x is jagged, but caches hold no jagged keys"):
        layer(jagged, cache=cache)
    paired = KeyValueCache()
    MultiHeadAttention(32, 4, parts=["differential"])(x, cache=paired)
    with pytest.raises(HeadwayError, match=r"the cache holds values .* as without differential attention"):
        layer(x, cache=paired)
    bounded = KeyValueCache(mask=Causal() & Window(left=2))
    MultiHeadAttention(32, 4)(x, cache=bounded, mask=Causal() & Window(left=2))
    with pytest.raises(HeadwayError, match=r"the cache drops tokens .*: use KeyValueCache\(\)"):
        layer(x[:, :1], cache=bounded)
    with pytest.raises(HeadwayError, match="num_heads is 3: give a divisor of embed_dim, 32"):
        CrossLayerAttention(32, 3)
    with pytest.raises(HeadwayError, match=r"dropout is 1\.0: give at least 0"):
        CrossLayerAttention(32, 4, dropout=1.0)
    with pytest.raises(HeadwayError, match="parts has a ValueResidual, which changes values"):
        CrossLayerAttention(32, 4, parts=["value-residual"])
