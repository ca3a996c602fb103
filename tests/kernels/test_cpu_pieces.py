"""Products that the CPU kernel computes in pieces, or as other terms: over several chunks, blocks and tiles."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import headway as hw
from headway import householder
from headway.coordinates import Coordinates
from headway.kernels import _masks
from headway.kernels._masks import shared_masks
from headway.kernels.cpu import _library
from headway.masks import Boolean, Causal, Documents, Mask, Padding, Window
from headway.terms import (
    ChannelDecay,
    Clip,
    ContentSlope,
    DistanceBias,
    HouseholderPath,
    LimitedRotation,
    Linear,
    QueryScale,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    Rows,
    Sinusoids,
    StickWeights,
    Term,
)

pytestmark = pytest.mark.skipif(_library._load().c is None, reason="the library is not there")
BATCH, HEADS, KV_HEADS, WIDTH = 2, 4, 2, 8
CHUNK = householder.CHUNK
LENGTHS = [1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]
"""One token, a whole chunk, and blocks of one to four chunks, the last of them incomplete."""
KINDS = ["rotation", "path", "path with sums", "decay", "slope by keys", "slope by both", "not scaled"]


def leaves_of(kind: str, n: int, generator: torch.Generator) -> list[Tensor]:
    """Random numbers from which ``term_of`` makes a term, in float64."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if "path" in kind:
        path = [draw(BATCH, KV_HEADS, n, WIDTH), draw(BATCH, KV_HEADS, n)]
        return [*path, -draw(BATCH, HEADS, n).abs()] if "sums" in kind else path
    if kind == "decay":
        return [draw(BATCH, HEADS, n, WIDTH)]
    if "slope" in kind:
        return [draw(HEADS), draw(HEADS, WIDTH), *([draw(HEADS, WIDTH)] if "both" in kind else [])]
    return [draw(BATCH, HEADS, n, 3), draw(1, 9, 3)] if kind == "not scaled" else []


def term_of(kind: str, leaves: list[Tensor], positions: Tensor) -> Term:
    if "path" in kind:
        w, beta = F.normalize(leaves[0], dim=-1), 2 * leaves[1].sigmoid()
        sums = leaves[2].cumsum(-1) if "sums" in kind else None
        return HouseholderPath(w, beta, sums, sums)
    if kind == "decay":
        return ChannelDecay(F.logsigmoid(4 * leaves[0]))
    if "slope" in kind:
        slope, of_keys, *of_queries = leaves
        return ContentSlope(F.softplus(slope) / 8, of_keys, of_queries[0] if of_queries else None)
    if kind == "not scaled":
        return RelativeKeys(Rows(leaves[1], Clip(-6, 2)), query=leaves[0], scaled=False)
    window, rates = 20.5, torch.tensor([1.0, 0.3, 0.1, 0.01], dtype=torch.float64)
    at = positions.double()
    near, past, future = at, torch.full_like(at, window), torch.full_like(at, -window)
    q, k = (torch.stack(places)[:, :, None, :, None] * rates for places in ((near, past, future), (near, 0 * at)))
    return LimitedRotation(window, q.cos(), q.sin(), k.cos(), k.sin())


def results(
    kernel: str, kind: str, n: int, dtype: torch.dtype, positions: Tensor | None = None, **arguments: Any
) -> list[Tensor]:
    """The output, the log-sum-exp, and the gradients of q, k, v and the leaves of the term."""
    generator = torch.Generator().manual_seed(n)
    inputs = [torch.randn(BATCH, heads, n, WIDTH, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    q, k, v = (x.to(torch.bfloat16).to(dtype).requires_grad_() for x in inputs)
    leaves = [x.to(dtype if dtype == torch.float64 else torch.float32) for x in leaves_of(kind, n, generator)]
    leaves = [x.requires_grad_() for x in leaves]
    arguments = {"mask": Causal(), **arguments}
    spoiled = arguments.pop("spoiled", torch.zeros(1, dtype=torch.bool))
    terms = [term_of(kind, leaves, torch.arange(n)[None] if positions is None else positions)]
    terms += arguments.pop("further", [])
    torch.manual_seed(5)
    placed: dict[str, Any] = {} if positions is None else {"q_positions": positions, "k_positions": positions}
    spoilt = k.masked_fill(spoiled, math.nan), v.masked_fill(spoiled, math.nan)
    out, lse = hw.attention_with_lse(q, *spoilt, terms=terms, kernel=kernel, **placed, **arguments)
    seen = lse.isfinite()
    upstream = [torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view(x.shape).sin() for x in (out, lse)]
    loss = (out.double() * upstream[0]).sum() + (torch.where(seen, lse, 0).double() * upstream[1]).sum()
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss, [q, k, v, *leaves])]


def agree(kind: str, n: int, dtype: torch.dtype = torch.float32, **arguments: Any) -> list[Tensor]:
    """Checks the kernel against the reference in float64, beside the reference's error, which computes in float32."""
    found = results("cpu", kind, n, dtype, **arguments)
    exact = results("reference", kind, n, torch.float64, **arguments)
    naive = results("reference", kind, n, dtype, **arguments)
    for x, same, right in zip(found, naive, exact, strict=True):
        shown = right.isfinite()
        assert torch.equal(x.isfinite(), shown)
        unit = torch.finfo(dtype).eps * right[shown].abs().max()
        error, allowed = ((y.double() - right)[shown].abs().mean() for y in (x, same))
        assert error <= 2 * allowed + unit
    return found


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_length_and_dtype(kind: str, n: int) -> None:
    agree(kind, n)
    agree(kind, n, torch.bfloat16, dropout=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_beside_everything_else_of_a_call(kind: str) -> None:
    """Sinks and what is added to scores take part once, in each head, and get their gradients."""
    n = 2 * CHUNK + 9
    table = torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    further: list[Term] = [DistanceBias(Linear(torch.full((HEADS,), 0.02), torch.zeros(1)))]
    further.append(RelativeValues(Rows(table, Clip(-4, 4))))
    sink = torch.tensor([0.0, 1.0, -math.inf, 3.0], dtype=torch.float64)
    documents = Causal() & Documents.lengths([70, n - 70])
    agree(kind, n, mask=documents, further=further, sink=sink, soft_cap=5.0, scale=0.7, dropout=0.1)
    holes = torch.rand(BATCH, 1, n, n, generator=torch.Generator().manual_seed(1)) < 0.5
    holes[:, :, 5] = False
    found = agree(kind, n, mask=Causal() & Boolean(holes))
    assert not found[0][:, :, 5].any()


@pytest.mark.parametrize("mask", [None, Causal(), Window(30, 7)], ids=str)
@pytest.mark.parametrize("order", ["rising", "of two documents", "falling", "with gaps"])
def test_near_and_far_keys_at_any_positions(order: str, mask: Mask | None) -> None:
    at = torch.arange(100)
    positions = {
        "rising": at,
        "of two documents": at % 50,
        "falling": 100 - at,
        "with gaps": (at * 0.7).floor() + at // 40 * 9.5,
    }[order]
    agree("rotation", 100, positions=positions[None].expand(BATCH, -1), mask=mask)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(results("cpu", kind, 150, torch.float32))
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_a_path_is_made_of_few_pieces_that_hold_each_pair_once() -> None:
    for n in LENGTHS:
        q, w, beta = torch.randn(1, 2, n, WIDTH), torch.randn(1, 1, n, WIDTH), torch.ones(1, 1, n)
        pieces = list(householder.in_pieces(q, q[:, :1], w, beta))
        assert len(pieces) == 1 + math.ceil(math.log2(-(-n // CHUNK)))
        count = torch.zeros(n, n, dtype=torch.int64)
        for piece in pieces:
            first, last = piece.keys()
            count += (torch.arange(n) >= first.mT) & (torch.arange(n) < last.mT)
            between = piece.between()[:, None]
            pairs = (torch.arange(n) >= first.mT) & (torch.arange(n) < last.mT)
            assert (~pairs | (between <= torch.arange(n)[:, None]) | (between >= n)).all()
        assert torch.equal(count, torch.ones(n, n, dtype=torch.int64).tril())


@pytest.mark.parametrize("kind", KINDS)
def test_relative_terms_read_the_queries_and_keys_of_the_call(kind: str) -> None:
    """Pieces have other queries and keys, of another width too."""
    draw = torch.Generator().manual_seed(2)
    table = torch.randn(HEADS, 9, WIDTH, generator=draw, dtype=torch.float64)
    further: list[Term] = [RelativeKeys(Rows(table, Clip(-4, 4))), RelativeQueries(Rows(table.flip(1), Clip(-6, 2)))]
    waves = Sinusoids(torch.randn(HEADS, WIDTH, 4, generator=draw, dtype=torch.float64), torch.tensor([1.0, 0.1]))
    further.append(RelativeKeys(waves, query_bias=table[:, 0], scaled=False))
    agree(kind, CHUNK + 9, further=further)


@pytest.mark.parametrize("apart", [-10, 10])
@pytest.mark.parametrize("steps", [1, 3])
def test_keys_that_a_causal_mask_shows_may_stand_far_ahead(apart: int, steps: int) -> None:
    """The mask reads the order of the tokens, not their positions."""
    q, k, v = (torch.randn(1, 2, 30, WIDTH, generator=torch.Generator().manual_seed(i)) for i in range(3))
    placed = {"q_positions": torch.arange(30)[None], "k_positions": torch.arange(30)[None] * steps + apart}
    given: dict[str, Any] = {"encoding": hw.positions.ReRoPE(WIDTH, window=5), "mask": Causal(), **placed}
    exact = hw.attention(q.double(), k.double(), v.double(), kernel="reference", **given)
    torch.testing.assert_close(hw.attention(q, k, v, kernel="cpu", **given), exact.float())


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_sees_reaches_no_gradient(kind: str) -> None:
    n = CHUNK + 9
    padded = Causal() & Padding(torch.tensor([n - 20, n]))
    clean = results("cpu", kind, n, torch.float32, mask=padded)
    unseen = torch.zeros(BATCH, 1, n, 1, dtype=torch.bool)
    unseen[0, :, n - 20 :] = True
    found = results("cpu", kind, n, torch.float32, mask=padded, spoiled=unseen)
    for x, y in zip(found, clean, strict=True):
        if kind == "decay":  # gradients of its pieces are summed in another order
            torch.testing.assert_close(x, y)
        else:
            assert torch.equal(x, y)


@pytest.mark.parametrize("kind", ["slope by keys", "slope by both"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_slopes_at_any_positions(kind: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    positions = (3 * torch.rand(BATCH, 50, generator=draw)).cumsum(1)
    agree(kind, 50, positions=positions.to(dtype), mask=None)


def test_layers_of_a_model_share_which_keys_are_near() -> None:
    at = Coordinates.packed([20, 30])
    q, encoding = torch.randn(1, 2, 50, WIDTH), hw.positions.ReRoPE(WIDTH, window=5)
    with torch.no_grad(), shared_masks():
        for _ in range(3):
            hw.attention(q, q, q, encoding=encoding, mask=Causal(), q_positions=at, k_positions=at, kernel="cpu")
        known = _masks._shared.get()
        assert known is not None
        assert len(known) == 3  # near, past and future


@pytest.mark.parametrize("mask", [Causal(), Window(19, 0)], ids=["causal", "window"])
@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_channels_decay_for_few_queries_of_many_keys(n: int, mask: Mask) -> None:
    """As in decoding and where a prompt is read in chunks: each query meets the keys before all of them, too."""
    m = 65
    draw = torch.Generator().manual_seed(n)
    shapes = ((BATCH, HEADS, n, WIDTH), (BATCH, KV_HEADS, m, WIDTH), (BATCH, KV_HEADS, m, WIDTH), (1, HEADS, m, WIDTH))
    q, k, v, gates = (torch.randn(shape, generator=draw) for shape in shapes)
    gates = F.logsigmoid(4 * gates)
    gates[:, 0, 20, 3], gates[:, 1, m - 1, 0], gates[:, :, 3, 5] = -torch.inf, -torch.inf, 0.5

    def run(kernel: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, gates)]
        out = hw.attention(*leaves[:3], terms=[ChannelDecay(leaves[3])], mask=mask, kernel=kernel)
        upstream = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape).sin()
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]

    exact = run("reference", torch.float64)
    for found, naive, right in zip(run("cpu", torch.float32), run("reference", torch.float32), exact, strict=True):
        error, allowed = ((x.double() - right).abs().mean() for x in (found, naive))
        assert error <= 2 * allowed + torch.finfo(torch.float32).eps * right.abs().max()


def refused(kind: str, n: int = 5, m: int = 5, mask: Mask | None = Causal(), **arguments: Any) -> str:  # noqa: B008
    """Why the kernel does not run a call."""
    leaves = leaves_of(kind, m, torch.Generator().manual_seed(0))
    leaves = [x[..., m - n :, :] if kind == "not scaled" and x.ndim == 4 else x for x in leaves]
    terms = [term_of(kind, leaves, torch.arange(m)[None]), *arguments.pop("further", [])]
    q, k = torch.randn(BATCH, HEADS, n, WIDTH), torch.randn(BATCH, KV_HEADS, m, WIDTH)
    return "; ".join(hw.explain(q, k, k, terms=terms, mask=mask, **arguments).reasons["cpu"])


def test_what_is_refused() -> None:
    scales: list[Term] = [QueryScale(torch.ones(1, 1, 1))]
    for mask, n in ((None, 5), (Window(3, 1), 5), (Causal(), 3)):
        assert "HouseholderPath only with as many queries as keys" in refused("path", n, mask=mask)
        if n == 5:
            assert "ChannelDecay only for queries that are the last keys" in refused("decay", n, mask=mask)
    assert not refused("path", mask=Window(3, 0) & Boolean(torch.ones(5, 5, dtype=torch.bool)))
    assert "does not combine QueryScale with a HouseholderPath" in refused("path with sums", further=scales)
    assert not refused("path", further=scales)
    assert not refused("decay", 3)
    assert "ChannelDecay only for queries that are the last keys" in refused("decay", 7)
    assert "unscaled RelativeKeys with a QueryScale" in refused("not scaled", further=scales)
    assert "a scale of 0" in refused("not scaled", scale=0.0)
    for kind in ("path", "rotation", "decay"):
        assert "with StickWeights: both" in refused(kind, further=[StickWeights()])
    slope = term_of("slope by keys", leaves_of("slope by keys", 5, torch.Generator()), torch.arange(5))
    with pytest.raises(hw.HeadwayError, match="HouseholderPath and ContentSlope, each of which replaces"):
        refused("path", further=[slope])
