"""The reference kernel against the equation of ``headway.terms``, written as a loop over pairs of tokens."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import headway as hw
from headway import terms as T
from headway.kernels import _ops, _purity, reference
from headway.testing import kernels as checks
from headway.testing.inputs import term_examples

BATCH, HEADS, KV_HEADS, N, M, HEAD_DIM, V_DIM = 2, 4, 2, 3, 4, 4, 3
Q_POSITIONS = torch.tensor([[[3, 1], [9, 0], [4, 2]], [[0, 0], [1, 1], [2, 0]]])
K_POSITIONS = torch.tensor([[[0, 2], [9, 1], [4, 0], [5, 3]], [[3, 0], [2, 2], [1, 1], [0, 1]]])
CROSSINGS = {
    "alone": {},
    "sink": {"sink": True},
    "log-sum-exp": {"lse": True},
    "cap": {"soft_cap": 2.0},
    "all": {"sink": True, "lse": True, "soft_cap": 2.0},
}
# the first batch row: an empty row and a key that nobody sees; the second: everything but one pair
ALLOWED = torch.tensor(
    [[[1, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1]], [[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]]], dtype=torch.bool
)[:, None]


class Draw:
    """Leaves in float64, kept in the order in which they were drawn."""

    def __init__(self, seed: int = 1) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.leaves: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        self.leaves.append(torch.randn(shape, generator=self.generator, dtype=torch.float64).requires_grad_())
        return self.leaves[-1]


def examples(draw: Draw, n: int = N, m: int = M) -> dict[str, list[T.Term]]:
    return term_examples(draw, batch=BATCH, heads=HEADS, kv_heads=KV_HEADS, n=n, m=m, head_dim=HEAD_DIM, v_dim=V_DIM)


NAMES = ["none", *examples(Draw())]


def one_example(name: str, n: int = N, m: int = M) -> tuple[list[T.Term], list[Tensor]]:
    """The terms of that name, every tensor of theirs that wants a gradient a leaf, and these leaves."""
    if name == "none":
        return [], []
    tensors: list[Tensor] = []
    structure = _ops.flatten(tuple(examples(Draw(), n, m)[name]), tensors)
    tensors = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    return list(_ops.unflatten(structure, tensors)), [t for t in tensors if t.requires_grad]


# ---------------------------------------------------------------- the equation, pair by pair


def row_of(where: T.Map, b: int, i: int, j: int, q_positions: Tensor, k_positions: Tensor) -> int:
    """ρ(i, j)"""
    if isinstance(where, T.Grid):
        row = 0
        for part in where.maps:
            row = row * part.count + row_of(part, b, i, j, q_positions, k_positions)
        return row
    if isinstance(where, T.Classes):
        return int(where.q_class[0, i]) * where.classes + int(where.k_class[0, j])
    delta = delta_of(where.axis, b, i, j, q_positions, k_positions)
    if isinstance(where, T.Clip):
        return max(where.low, min(where.high, math.floor(delta))) - where.low
    return sum(1 for boundary in where.boundaries.tolist() if boundary <= delta)


def delta_of(axis: int, b: int, i: int, j: int, q_positions: Tensor, k_positions: Tensor) -> float:
    return float(k_positions[b, j, axis]) - float(q_positions[b, i, axis])


def of_head(x: Tensor, h: int) -> Tensor:
    return x[min(h, x.shape[0] - 1)]


def pick(x: Tensor, *at: int) -> Tensor:
    """x at an index, a dimension of size 1 standing for all."""
    for number in at[-x.ndim :]:
        x = x[min(number, x.shape[0] - 1)]
    return x


def bias_of(values: T.Bias, h: int, where: tuple[Any, ...]) -> Tensor:
    if isinstance(values, T.Rows):
        return of_head(values.table, h)[row_of(values.map, *where)]
    delta = delta_of(values.axis, *where)
    if isinstance(values, T.Linear):
        return -(of_head(values.past, h) if delta <= 0 else of_head(values.future, h)) * abs(delta)
    if isinstance(values, T.Log):
        return -of_head(values.weight, h) * torch.log(1 + of_head(values.rate, h) * abs(delta))
    if isinstance(values, T.Power):
        return -of_head(values.weight, h) * abs(delta) ** of_head(values.exponent, h)
    if isinstance(values, T.Cosines):
        return (of_head(values.weight, h) * torch.cos(delta * values.frequencies.double())).sum()
    if isinstance(values, T.Stretched):
        b, i = where[:2]
        t = torch.log(1 + values.rate[0] * abs(delta)) * pick(values.stretch, b, i)
        piece = sum(1 for edge in values.edges.tolist() if edge <= t)
        return of_head(values.intercept, h)[piece] + of_head(values.slope, h)[piece] * t
    knots, heights = values.knots.tolist(), of_head(values.values, h)
    if delta <= knots[0]:
        return heights[0]
    for left, right, low, high in zip(knots, knots[1:], heights, heights[1:], strict=False):
        if delta <= right:
            return low + (delta - left) / (right - left) * (high - low)
    return heights[-1]


def vector_of(rows: T.Rows | T.Sinusoids, h: int, where: tuple[Any, ...]) -> Tensor:
    if isinstance(rows, T.Rows):
        return of_head(rows.table, h)[row_of(rows.map, *where)]
    angle = -delta_of(rows.axis, *where) * rows.frequencies.double()
    return of_head(rows.weight, h) @ torch.cat([angle.sin(), angle.cos()])


def stick_weight(term: T.StickWeights, scores: Tensor, seen: list[int], j: int, own: int) -> Tensor:
    """The weight of key j of those in sight, of a query whose own token is key ``own``."""
    taking = [t for t in seen if t != own or term.attend_current]
    weight = scores.new_zeros(())
    if j in taking:
        weight = torch.sigmoid(scores[j])
        for t in taking:
            weight = weight * (1 - torch.sigmoid(scores[t])) if t > j else weight
    if j == own and term.remainder:
        rest = scores.new_ones(())
        for t in taking:
            rest = rest * (1 - torch.sigmoid(scores[t]))
        weight = weight + rest
    return weight


def product_of(
    term: T.Term, q: Tensor, keys: Tensor, heads: tuple[int, int, int], ahead: int, where: tuple[Any, ...]
) -> Tensor:
    """What replaces ⟨q, k⟩ of a query, which is key ``ahead`` + i, and key j."""
    b, h, group = heads
    _, i, j, *_ = where
    k = keys[j]
    if isinstance(term, T.LimitedRotation):
        delta = delta_of(term.axis, *where)
        of_q, of_k = (0, 0) if abs(delta) < term.window else (1 if delta < 0 else 2, 1)
        turned = []
        for x, cos, sin in (
            (q, term.q_cos[of_q, 0, 0, i], term.q_sin[of_q, 0, 0, i]),
            (k, term.k_cos[of_k, 0, 0, j], term.k_sin[of_k, 0, 0, j]),
        ):
            x = torch.complex(x[0::2], x[1::2]) * torch.complex(cos.double(), sin.double())
            turned.append(x)
        return (turned[0] * turned[1].conj()).real.sum()
    if isinstance(term, T.HouseholderPath):
        for t in range(ahead + i, j, -1):
            w = term.w[b, group, t]
            q = q - term.beta[b, group, t] * (w @ q) * w
        sums = 0 if term.q_sums is None or term.k_sums is None else term.q_sums[b, h, i] - term.k_sums[b, h, j]
        return q @ k + sums
    if isinstance(term, T.ChannelDecay):
        return (q * k * term.log_gates[b, h, j + 1 : ahead + i + 1].sum(0).exp()).sum()
    assert isinstance(term, T.ContentSlope)
    assert term.key_weight is not None
    assert term.query_weight is not None
    gate = torch.log1p((term.key_weight[h] @ k).exp()) + torch.log1p((term.query_weight[h] @ q).exp())
    return q @ k - math.sqrt(len(q)) * max(-delta_of(term.axis, *where), 0) * term.slope[h] * gate


def log_gates_behind(term: T.GatedPath, b: int, h: int, i: int, j: int, own: int) -> Tensor:
    """The logarithms of the gates of a query, whose own token is key ``own``, on the keys behind key j."""
    query, found = pick(term.query, b, h, i), term.query.new_zeros(())
    for t in range(j + 1, own + 1):
        found = found - torch.log1p((-query @ pick(term.path, b, h, t)).exp())
    return found


def with_counted(term: T.ContextualPositions, scores: Tensor, allowed: Tensor, q: Tensor) -> Tensor:
    """Scores plus the products of each query with the vectors of positions, which count gates from the last key on."""
    batch, heads, n, m = scores.shape
    found = []
    for b, h, i, j in itertools.product(*map(range, (batch, heads, n, m))):
        vectors, position = of_head(term.vectors, h), scores.new_zeros(())
        for t in range(j, m):
            if allowed[b, h, i, t]:
                position = position + 1 / (1 + (-scores[b, h, i, t]).exp())
        position = position.clamp(max=len(vectors) - 1)
        low, high = math.floor(position.item()), math.ceil(position.item())
        vector = vectors[low] + (position - low) * (vectors[high] - vectors[low])
        found.append(scores[b, h, i, j] + q[b, h, i] @ vector)
    return torch.stack(found).view(scores.shape)


def through_network(term: T.HeadNetwork, scores: Tensor, allowed: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """Scores plus biases plus what two convolutions over neighbouring keys give for those of all heads."""
    batch, heads, n, m = scores.shape
    steps = range(-(term.into.shape[2] // 2), term.into.shape[2] // 2 + 1)

    def bias(b: int, h: int, i: int, j: int) -> Tensor:
        return torch.stack([bias_of(one.values, h, (b, i, j, q_at, k_at)) for one in term.biases]).sum()

    def heard(b: int, i: int, t: int) -> Tensor:
        seen = [t in range(m) and bool(allowed[b, h, i, t]) for h in range(heads)]
        zero = scores.new_zeros(())
        own = [scores[b, h, i, t] if seen[h] else zero for h in range(heads)]
        return torch.stack(own + [bias(b, h, i, t) if seen[h] else zero for h in range(heads)])

    def hidden(b: int, i: int, t: int) -> Tensor:
        if t not in range(m) or not allowed[b, :, i, t].any():
            return torch.zeros_like(term.into_bias)
        x = term.into_bias
        for number, step in enumerate(steps):
            x = x + term.into[:, :, number] @ heard(b, i, t + step)
        return torch.where(x > 0, x, 0.01 * x)

    found = []
    for b, h, i, j in itertools.product(*map(range, (batch, heads, n, m))):
        score = scores[b, h, i, j] + bias(b, h, i, j) + term.out_bias[h]
        for number, step in enumerate(steps):
            score = score + term.out[h, :, number] @ hidden(b, i, j + step)
        found.append(score)
    return torch.stack(found).view(scores.shape)


def literal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Sequence[T.Term],
    *,
    scale: float,
    allowed: Tensor | None = None,
    q_positions: Tensor,
    k_positions: Tensor,
    sink: Tensor | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp by a loop over every pair; positions [batch, tokens, axes]."""
    batch, heads, n, _ = q.shape
    m, group = k.shape[2], heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    allowed = (
        torch.ones(batch, heads, n, m, dtype=torch.bool) if allowed is None else allowed.expand(batch, heads, n, m)
    )
    slots = torch.arange(n)

    def table(entry: Callable[[int, int, int, int, tuple[Any, ...]], Tensor]) -> Tensor:
        found = [
            entry(b, h, i, j, (b, i, j, q_positions, k_positions))
            for b in range(batch)
            for h in range(heads)
            for i in range(n)
            for j in range(m)
        ]
        return torch.stack(found).view(batch, heads, n, m)

    products = [term for term in terms if isinstance(term, T.Product)]
    content = products[0].function(q, k, slots, *products[0].tensors) if products else None
    kinds = (T.LimitedRotation, T.HouseholderPath, T.ChannelDecay, T.ContentSlope)
    own_products = [term for term in terms if isinstance(term, kinds)]

    def score(b: int, h: int, i: int, j: int, where: tuple[Any, ...]) -> Tensor:
        found = q[b, h, i] @ k[b, h, j] if content is None else content[b, h, i, j]
        for product in own_products:
            found = product_of(product, q[b, h, i], k[b, h, :], (b, h, h // group), m - n, where)

        def relative_key(term: T.RelativeKeys) -> Tensor:
            query = (q if term.query is None else term.query)[b, h, i]
            query = query if term.query_bias is None else query + of_head(term.query_bias, h)
            return query @ vector_of(term.rows, h, where)

        for term in terms:
            if isinstance(term, T.RelativeKeys) and term.scaled:
                found = found + relative_key(term)
            elif isinstance(term, T.RelativeQueries):
                key = k[b, h, j] if term.key is None else term.key[b, h // group, j]
                found = found + key @ vector_of(term.rows, h, where)
        found = scale * found
        for term in terms:
            if isinstance(term, T.QueryScale):
                found = found * pick(term.factor, b, h, i)
        for term in terms:
            if isinstance(term, T.RelativeKeys) and not term.scaled:
                found = found + relative_key(term)
            elif isinstance(term, T.DistanceBias):
                found = found + bias_of(term.values, h, where)
            elif isinstance(term, T.TokenBias):
                found = found if term.queries is None else found + pick(term.queries, b, h, i)
                found = found if term.keys is None else found + pick(term.keys, b, h, j)
            elif isinstance(term, T.DenseBias):
                dense = term.values if isinstance(term.values, Tensor) else term.values(slots, *term.tensors)
                found = found + pick(dense, b, h, i, j)
            elif isinstance(term, T.GatedPath):
                found = found + term.slope[h] * log_gates_behind(term, b, h, i, j, m - n + i)
        return found if soft_cap is None else soft_cap * torch.tanh(found / soft_cap)

    scores = table(score)
    for term in terms:
        if isinstance(term, T.ScoreMap):
            scores = term.function(scores, allowed, q, slots, *term.tensors)
        elif isinstance(term, T.HeadNetwork):
            scores = through_network(term, scores, allowed, q_positions, k_positions)
        elif isinstance(term, T.ContextualPositions):
            scores = with_counted(term, scores, allowed, q)
    scores = scores.masked_fill(~allowed, -math.inf)
    sinks = [term.logits for term in terms if isinstance(term, T.Sink)]
    own = [term for term in terms if isinstance(term, T.Normalizer)]
    sticks = [term for term in terms if isinstance(term, T.StickWeights)]
    out = []
    lse = []
    for b in range(batch):
        for h in range(heads):
            for i in range(n):
                seen = [j for j in range(m) if allowed[b, h, i, j]]
                logits = [scores[b, h, i, j] for j in seen] + ([] if sink is None else [sink[h]])
                logits += [pick(z, b, h, i) for z in sinks]
                lse.append(torch.stack(logits).logsumexp(0) if logits else q.new_tensor(-math.inf))
                result = v.new_zeros(v.shape[-1])
                for j in seen:
                    if own:
                        weight = own[0].function(scores, allowed, *own[0].tensors)[b, h, i, j]
                    elif sticks:
                        weight = stick_weight(sticks[0], scores[b, h, i], seen, j, m - n + i)
                    else:
                        weight = torch.exp(scores[b, h, i, j] - lse[-1])
                    value = v[b, h, j]
                    for term in terms:
                        if isinstance(term, T.RelativeValues):
                            value = value + vector_of(term.rows, h, (b, i, j, q_positions, k_positions))
                    result = result + weight * value
                out.append(result)
    return torch.stack(out).view(batch, heads, n, -1), torch.stack(lse).view(batch, heads, n)


# ---------------------------------------------------------------- every term


def qkv(n: int = N, m: int = M, seed: int = 0) -> list[Tensor]:
    draw = Draw(seed)
    return [draw(BATCH, HEADS, n, HEAD_DIM), draw(BATCH, KV_HEADS, m, HEAD_DIM), draw(BATCH, KV_HEADS, m, V_DIM)]


def loss_of(out: Tensor, lse: Tensor | None) -> Tensor:
    """Every entry weighs differently, so that no two errors cancel."""
    loss = (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum()
    if lse is not None:
        finite = lse.masked_fill(lse == -math.inf, 0)
        loss = loss + (finite * torch.linspace(1, -2, lse.numel(), dtype=lse.dtype).view_as(lse)).sum()
    return loss


@pytest.mark.parametrize("crossing", CROSSINGS)
@pytest.mark.parametrize("name", NAMES)
def test_is_the_equation(name: str, crossing: str) -> None:
    """Output, log-sum-exp and every gradient equal the loop's, with an empty row and an unseen key."""
    crossed = CROSSINGS[crossing]
    wants_lse, has_sink = "lse" in crossed, "sink" in crossed
    terms, leaves = one_example(name)
    inputs = [*qkv(), *leaves]
    sink = torch.randn(HEADS, dtype=torch.float64).requires_grad_() if has_sink else None
    inputs += [] if sink is None else [sink]
    arguments: dict[str, Any] = {"q_positions": Q_POSITIONS, "k_positions": K_POSITIONS} if terms else {}
    arguments |= {
        "terms": terms,
        "mask": ALLOWED,
        "sink": sink,
        "soft_cap": crossed.get("soft_cap"),
        "scale": 0.7,
        "kernel": "reference",
    }
    if checks.replaces_softmax(name) and (wants_lse or has_sink):
        with pytest.raises(hw.HeadwayError, match="which replaces the softmax"):
            hw.attention_with_lse(*inputs[:3], **arguments)
        return
    if wants_lse:
        out, lse = hw.attention_with_lse(*inputs[:3], **arguments)
    else:
        out, lse = hw.attention(*inputs[:3], **arguments), None
    expected, expected_lse = literal(
        *inputs[:3],
        terms,
        scale=0.7,
        allowed=ALLOWED,
        q_positions=Q_POSITIONS,
        k_positions=K_POSITIONS,
        sink=sink,
        soft_cap=crossed.get("soft_cap"),
    )
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    if lse is not None:
        torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-12)
    found = torch.autograd.grad(loss_of(out, lse), inputs)
    wanted = torch.autograd.grad(loss_of(expected, expected_lse if wants_lse else None), inputs)
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.abs().max() > 0, f"the gradient of input {number} is zero"
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(BATCH, HEADS, N), (1, HEADS, N), (BATCH, 1, 1), (1, 1, N), (1, HEADS, 1)])
def test_a_sink_by_query_broadcasts(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of one row too."""
    inputs = [*qkv(), torch.randn(shape, dtype=torch.float64, requires_grad=True)]
    positions = {"q_positions": Q_POSITIONS, "k_positions": K_POSITIONS}
    terms = [T.Sink(inputs[3])]
    expected, expected_lse = literal(*inputs[:3], terms, scale=0.7, allowed=ALLOWED, **positions)
    wanted = torch.autograd.grad(loss_of(expected, expected_lse), inputs)
    for block in (1 << 20, 1):
        monkeypatch.setattr(reference, "BLOCK", block)
        out, lse = hw.attention_with_lse(*inputs[:3], terms=terms, scale=0.7, mask=ALLOWED, kernel="reference")
        torch.testing.assert_close((out, lse), (expected, expected_lse))
        torch.testing.assert_close(torch.autograd.grad(loss_of(out, lse), inputs), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str) -> None:
    terms, leaves = one_example(name)

    def run(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        arguments: dict[str, Any] = {"terms": terms, "kernel": "reference", "mask": ALLOWED}
        arguments |= {"q_positions": Q_POSITIONS, "k_positions": K_POSITIONS} if terms else {}
        if checks.replaces_softmax(name):
            return (hw.attention(q, k, v, **arguments),)
        out, lse = hw.attention_with_lse(q, k, v, **arguments)
        return out, lse.masked_fill(lse == -math.inf, 0)

    assert torch.autograd.gradcheck(run, (*qkv(), *leaves), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_gradgradcheck(name: str) -> None:
    terms, leaves = one_example(name, 2, 3)

    def run(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        positions = {"q_positions": Q_POSITIONS[:, :2], "k_positions": K_POSITIONS[:, :3]} if terms else {}
        return hw.attention(q, k, v, terms=terms, kernel="reference", mask=hw.masks.Causal(), **positions)

    assert torch.autograd.gradgradcheck(run, (*qkv(2, 3), *leaves), fast_mode=True)


# ---------------------------------------------------------------- row blocks

MASKS = {
    "none": None,
    "causal": hw.masks.Causal(),
    "window": hw.masks.Window(2, 1),
    "window and first": hw.masks.Causal() & (hw.masks.Window(1) | hw.masks.KeepFirst(1)),
    "padding": hw.masks.Causal() & hw.masks.Padding([7, 4], "left"),
    "documents": hw.masks.Documents.lengths([2, 5]),
    "boolean": torch.arange(5 * 7).view(5, 7) % 3 > 0,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", NAMES)
def test_row_blocks_equal_one_block(name: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, m = 5, 7
    terms, leaves = one_example(name, n, m)
    inputs = [*qkv(n, m), *leaves]
    # several axes, and indices that the mask's reach can rely on
    keys = hw.Coordinates.of(torch.stack([torch.arange(m) * 2, torch.arange(m) % 3], -1)[None], m)
    results = []
    for block in (1 << 20, 2 * BATCH * HEADS * m, 1):
        monkeypatch.setattr(reference, "BLOCK", block)
        out = hw.attention(
            *inputs[:3],
            terms=terms,
            mask=MASKS[mask],
            q_positions=keys.rows(m - n, m),
            k_positions=keys,
            kernel="reference",
        )
        results.append([out, *torch.autograd.grad(loss_of(out, None), inputs)])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_blocks_take_only_the_keys_they_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a window a block of rows looks at few keys; NaN in the others cannot matter then."""
    seen = []
    real = reference.products

    def spy(block: reference.QueryBlock) -> Tensor:
        found = real(block)
        seen.append(tuple(found.shape[-2:]))
        return found

    monkeypatch.setattr(reference, "products", spy)
    monkeypatch.setattr(reference, "BLOCK", 4 * BATCH * HEADS * 64)
    q, k, v = (torch.randn(BATCH, HEADS, 64, HEAD_DIM) for _ in range(3))
    hw.attention(q, k, v, mask=hw.masks.Window(left=3, right=0), kernel="reference")
    assert len(seen) == 16
    assert seen[0] == (4, 4)
    assert set(seen[1:]) == {(4, 7)}


def test_keys_that_begin_after_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """More queries than keys, which stand at their end: the first queries see nothing, in any block."""
    q, k, v = qkv(6, 3)
    where = {"q_positions": hw.Coordinates.span(6), "k_positions": hw.Coordinates.span(3, start=3)}
    expected = torch.zeros(BATCH, HEADS, 6, V_DIM, dtype=torch.float64)
    expected[:, :, 3:] = hw.attention(q[:, :, 3:], k, v, mask=hw.masks.Causal(), kernel="reference").detach()
    for block in (1 << 20, 1):
        monkeypatch.setattr(reference, "BLOCK", block)
        torch.testing.assert_close(hw.attention(q, k, v, mask=hw.masks.Causal(), kernel="reference", **where), expected)


# ---------------------------------------------------------------- function terms


def test_a_captured_tensor_that_wants_a_gradient_is_refused() -> None:
    q, k, v = qkv()
    table = torch.randn(N, M, dtype=torch.float64, requires_grad=True)
    captured = T.DenseBias(lambda rows: table[rows][None, None])
    with pytest.raises(hw.HeadwayError, match=r"DenseBias captures a tensor that requires a gradient.*tensors="):
        hw.attention(q, k, v, terms=(captured,), kernel="reference")
    with torch.no_grad():  # nobody asks for a gradient here
        expected = hw.attention(q, k, v, terms=(captured,), kernel="reference")
    handed = T.DenseBias(lambda rows, t: t[rows][None, None], (table,))
    out = hw.attention(q, k, v, terms=(handed,), kernel="reference")
    torch.testing.assert_close(out, expected)
    (gradient,) = torch.autograd.grad(loss_of(out, None), table)
    assert gradient.abs().min() > 0


# ---------------------------------------------------------------- numbers at the edge


@pytest.mark.parametrize("size", [0.0, 50.0, 2500.0])
def test_scores_of_any_size(size: float) -> None:
    q, k, v = (x.detach() for x in qkv())
    q = (q * size).requires_grad_()
    out, lse = hw.attention_with_lse(q, k, v, kernel="reference")
    expected = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, 1)) * HEAD_DIM**-0.5
    torch.testing.assert_close(out, expected.softmax(-1) @ v.repeat_interleave(2, 1))
    torch.testing.assert_close(lse, expected.logsumexp(-1))
    assert torch.isfinite(torch.autograd.grad(loss_of(out, lse), q)[0]).all()


def test_a_bias_of_minus_infinity_hides_like_a_mask() -> None:
    q, k, v = qkv()
    bias = torch.zeros(ALLOWED.shape, dtype=torch.float64).masked_fill(~ALLOWED, -math.inf)
    results = []
    for arguments in ({"terms": (T.DenseBias(bias),)}, {"mask": ALLOWED}):
        out, lse = hw.attention_with_lse(q, k, v, kernel="reference", **arguments)  # type: ignore[arg-type]
        results.append([out, lse, *torch.autograd.grad(loss_of(out, lse), (q, k, v))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_a_token_bias_of_nan_at_keys_that_nobody_sees_does_not_leak() -> None:
    q, k, v = qkv()
    keys = torch.zeros(1, HEADS, M, dtype=torch.float64)
    keys[..., 1] = math.nan
    keys.requires_grad_()
    mask = torch.ones(N, M, dtype=torch.bool)
    mask[:, 1] = False
    out = hw.attention(q, k, v, terms=(T.TokenBias(keys=keys),), mask=mask, soft_cap=3.0, kernel="reference")
    clean = hw.attention(q, k, v, mask=mask, soft_cap=3.0, kernel="reference")
    torch.testing.assert_close(out, clean)
    for gradient in torch.autograd.grad(loss_of(out, None), (q, k, v, keys)):
        assert torch.isfinite(gradient).all()


def test_no_keys() -> None:
    q, k, v = qkv(3, 0)
    for terms in ((), (T.Sink(torch.ones(HEADS, dtype=torch.float64)),)):
        out, lse = hw.attention_with_lse(q, k, v, terms=terms, kernel="reference")
        assert out.shape == (BATCH, HEADS, 3, V_DIM)
        assert out.abs().max() == 0
        assert (lse == (1.0 if terms else -math.inf)).all()
        assert torch.autograd.grad(out.sum(), q)[0].abs().max() == 0
    weigh = T.Normalizer(lambda scores, allowed: torch.sigmoid(scores))
    assert hw.attention(q, k, v, terms=(weigh,), kernel="reference").abs().max() == 0


# ---------------------------------------------------------------- dropout


def test_dropout_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(6, 7)
    results = []
    for block in (1 << 20, 1):
        monkeypatch.setattr(reference, "BLOCK", block)
        torch.manual_seed(3)
        out = hw.attention(q, k, v, dropout=0.5, mask=hw.masks.Causal(), kernel="reference")
        results.append([out, *torch.autograd.grad(loss_of(out, None), (q, k, v))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def kept_weights(dropout: float, batch: int, heads: int, n: int, seed: int) -> Tensor:
    """The weights after dropout, times n, read off by values that are a unit matrix."""
    torch.manual_seed(seed)
    q, k = torch.zeros(batch, heads, n, 4), torch.zeros(batch, heads, n, 4)
    return hw.attention(q, k, torch.eye(n).expand(batch, heads, n, n), dropout=dropout, kernel="reference") * n


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(dropout: float) -> None:
    kept = kept_weights(dropout, 4, 4, 64, seed=0)
    there = kept > 0
    torch.testing.assert_close(kept[there], torch.full_like(kept[there], 1 / (1 - dropout)))
    deviation = (dropout * (1 - dropout) / there.numel()) ** 0.5
    assert abs(there.float().mean().item() - (1 - dropout)) < 4 * deviation
    # in every row, column, head and row of the batch: 4.5 deviations of a mean over that many
    for over in [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]:
        shares = there.float().mean(over)
        each = (dropout * (1 - dropout) * shares.numel() / there.numel()) ** 0.5
        assert (shares - (1 - dropout)).abs().max() < 4.5 * each


def test_dropout_draws_anew_for_each_call_head_and_row_of_the_batch() -> None:
    first, again = kept_weights(0.5, 2, 2, 32, seed=0), kept_weights(0.5, 2, 2, 32, seed=0)
    assert torch.equal(first, again)
    others = [
        kept_weights(0.5, 2, 2, 32, seed=1),
        first.flip(0),
        first.flip(1),
        first.transpose(2, 3),
        first.roll(1, 2),
    ]
    for other in others:
        agree = ((first > 0) == (other > 0)).float().mean().item()
        assert 0.45 < agree < 0.55


def test_dropout_leaves_the_mean_alone() -> None:
    q, k, v = (x.detach() for x in qkv())
    expected = hw.attention(q, k, v, kernel="reference")
    draws = torch.stack([hw.attention(q, k, v, dropout=0.4, kernel="reference") for _ in range(400)])
    deviation = draws.std(0) / 20
    assert ((draws.mean(0) - expected).abs() < 4.5 * deviation + 1e-12).all()


def test_dropout_differentiates_what_it_computed() -> None:
    q, k, v = qkv()

    def run(*inputs: Tensor) -> Tensor:
        torch.manual_seed(5)
        return hw.attention(*inputs, dropout=0.5, kernel="reference")

    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_under_activation_checkpointing(reentrant: bool) -> None:
    q, k, v = qkv()
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(7)

        def run(*inputs: Tensor) -> Tensor:
            return hw.attention(*inputs, dropout=0.5, kernel="reference").square()

        out = checkpoint(run, q, k, v, use_reentrant=reentrant) if checkpointed else run(q, k, v)
        results.append([out, *torch.autograd.grad(loss_of(out, None), (q, k, v))] if not reentrant else [out])
        if reentrant:
            for x in (q, k, v):
                x.grad = None
            loss_of(out, None).backward()
            results[-1] += [x.grad.clone() for x in (q, k, v) if x.grad is not None]
    assert len(results[0]) == len(results[1]) == 4
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


# ---------------------------------------------------------------- functions are pure


def _with_function(term: type, function: Callable[..., Tensor], q: Tensor) -> Tensor:
    return hw.attention(q, q, q, terms=(term(function),), mask=hw.masks.Causal())


def _dropout(training: bool) -> Callable[..., Tensor]:
    return lambda scores, allowed, *rest: torch.nn.functional.dropout(scores, 0.5, training)


def _by_generator() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda scores, *rest: scores + torch.randn(scores.shape, generator=generator)


def _by_counter() -> Callable[..., Tensor]:
    runs = itertools.count(1)
    return lambda scores, *rest: scores * next(runs)


IMPURE = {
    "dropout in a score map": (T.ScoreMap, _dropout(True)),
    "a generator of its own": (T.ScoreMap, _by_generator()),
    "a counter": (T.ScoreMap, _by_counter()),
    "noise in a dense bias": (T.DenseBias, lambda rows: torch.rand(1, 1, len(rows), 5)),
    "noise in a product": (T.Product, lambda q, k, rows: q @ k.mT + torch.rand(())),
    "noise in a normalizer": (T.Normalizer, lambda scores, allowed: torch.rand(scores.shape) * allowed),
    "written into q": (T.Product, lambda q, k, rows: q.mul_(2) @ k.mT),
}


@pytest.mark.parametrize("name", IMPURE)
def test_functions_that_are_not_pure_are_refused(name: str) -> None:
    term, function = IMPURE[name]
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    before = q.detach().clone()
    for _ in range(2):  # and again the second time
        with pytest.raises(hw.HeadwayError, match=r"pass the numbers in the term's tensors=|write into a clone"):
            _with_function(term, function, q)
    assert torch.equal(q.detach(), before)


def test_dropout_that_begins_later_is_refused() -> None:
    """The function was pure in evaluation, where it was met first."""
    dropout = torch.nn.Dropout(0.5).eval()
    q = torch.randn(1, 2, 5, 8, requires_grad=True)

    def function(scores: Tensor, *rest: Tensor) -> Tensor:
        return dropout(scores)

    _with_function(T.ScoreMap, function, q)
    dropout.train()
    with pytest.raises(
        hw.HeadwayError, match="a function of ScoreMap draws random numbers, but the backward pass runs it again"
    ):
        _with_function(T.ScoreMap, function, q)


def test_writing_into_q_without_gradients_is_told() -> None:
    q = torch.randn(1, 2, 5, 8)
    with torch.no_grad(), pytest.raises(hw.HeadwayError, match="a function in terms writes into q, k or its tensors"):
        hw.attention(q, q.clone(), q.clone(), terms=(T.Product(lambda q, k, rows: q.mul_(2) @ k.mT),))


def test_a_pure_function_is_tried_once_and_forgotten_with_it() -> None:
    runs = []

    def function(scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        runs.append(len(rows))
        return scores.tanh_()  # the scores are the function's own, and NaN equals NaN

    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    _with_function(T.ScoreMap, function, q)
    assert runs == [1, 1, 5]
    _with_function(T.ScoreMap, function, q)
    assert runs == [1, 1, 5, 1, 5]
    known = len(_purity._pure)
    del function
    gc.collect()
    assert len(_purity._pure) == known - 1


def test_random_numbers_handed_over_have_the_right_gradient() -> None:
    noise = torch.rand(1, 1, 5, 5, dtype=torch.float64)
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor) -> Tensor:
        term = T.ScoreMap(lambda scores, allowed, q, rows, noise: scores * (noise[:, :, rows] > 0.3), (noise,))
        return hw.attention(q, q, q, terms=(term,))

    assert torch.autograd.gradcheck(run, (q,))
