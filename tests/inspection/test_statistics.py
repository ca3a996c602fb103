"""Every statistic against its formula over dense weights, for every mask, encoding and kernel that computes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from encoded_calls import IN_ATTENTION, encoded
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.errors import HeadwayError
from headway.inspection import (
    STATISTICS,
    Classes,
    Distances,
    PooledMap,
    Statistics,
    TopKeys,
    attention_statistics,
    statistics_of,
)
from headway.kernels import Call, reference, score_blocks
from headway.testing import kernels as checks

EDGES = (-5, -2, 0, 1, 4)
LABELS = torch.tensor([0, 2, -1, 1, 1, 0, 2, 2, -1, 0, 1, 1, 2])


def all_statistics(m: int) -> list[Any]:
    """Every statistic, those that have parameters with some that matter."""
    own = {
        "classes": Classes(LABELS[torch.arange(m) % 13]),
        "distances": Distances(EDGES),
        "top_keys": TopKeys(min(4, m)),
        "pooled_map": PooledMap(4, 5),
    }
    return [own.get(name, name) for name in STATISTICS]


class Dense:
    """The weights of a call as loops read them: weights, scores [batch, heads, n, m], and indices of tokens."""

    def __init__(self, call: Call, weights: Tensor, counted: Tensor) -> None:
        self.call, self.weights = call, weights.double()
        self.scores = torch.full_like(self.weights, -math.inf)
        for block in score_blocks(call):
            self.scores[:, :, block.rows, block.keys] = block.scores.double()
        self.batch, self.heads, self.n, self.m = weights.shape
        self.q = call.q_coordinates.index.expand(self.batch, -1).tolist()
        self.k = call.k_coordinates.index.expand(self.batch, -1).tolist()
        self.counted = counted

    def by_row(self, function: Callable[[Tensor, Tensor, int, int], Any], *shape: int) -> Tensor:
        """function(weights, scores, row of the batch, query) of each query; NaN where it does not count."""
        found = torch.full((self.batch, self.heads, self.n, *shape), math.nan, dtype=torch.float64)
        for b, h, i in self.counted.nonzero().tolist():
            found[b, h, i] = torch.as_tensor(
                function(self.weights[b, h, i], self.scores[b, h, i], b, i), dtype=torch.float64
            )
        return found

    def neighbour(self, offset: int) -> Tensor:
        def weight(weights: Tensor, scores: Tensor, b: int, i: int) -> float:
            return sum(float(w) for w, k in zip(weights, self.k[b], strict=True) if k == self.q[b][i] + offset)

        return self.by_row(weight)

    def in_order(self, scores: Tensor) -> list[int]:
        """The keys in sight from the highest score down, the lowest slot first."""
        seen = [j for j in range(self.m) if scores[j] != -math.inf]
        return sorted(seen, key=lambda j: (-float(scores[j]), j))


def entropy(dense: Dense) -> Tensor:
    return dense.by_row(lambda w, s, b, i: -sum(float(x) * math.log(x) for x in w if x > 0))


def visible(dense: Dense) -> Tensor:
    return dense.by_row(lambda w, s, b, i: sum(float(x) != -math.inf for x in s)).nan_to_num(-1).long()


def largest(dense: Dense) -> tuple[Tensor, Tensor]:
    keys = dense.by_row(lambda w, s, b, i: dense.in_order(s)[0]).nan_to_num(-1).long()
    return dense.by_row(lambda w, s, b, i: w.max()), keys


def top_keys(dense: Dense) -> tuple[Tensor, Tensor, Tensor]:
    count = min(4, dense.m)

    def listed(scores: Tensor) -> list[int]:
        return (dense.in_order(scores) + [-1] * count)[:count]

    keys = dense.by_row(lambda w, s, b, i: listed(s), count)
    weights = dense.by_row(lambda w, s, b, i: [float(w[j]) if j >= 0 else 0.0 for j in listed(s)], count)
    return weights, keys.nan_to_num(-1).long(), weights[..., -1]


def lse(dense: Dense) -> Tensor:
    sinks = [term.by_query.detach().double() for term in dense.call.terms if isinstance(term, T.Sink)]
    logits = [sink.expand(dense.batch, dense.heads, dense.n) for sink in sinks]
    found = torch.full((dense.batch, dense.heads, dense.n), math.nan, dtype=torch.float64)
    for b, h, i in dense.counted.nonzero().tolist():
        if not any(isinstance(term, T.NORMALIZERS) for term in dense.call.terms):
            seen = [*dense.scores[b, h, i].tolist(), *(float(sink[b, h, i]) for sink in logits)]
            found[b, h, i] = max(seen) + math.log(sum(math.exp(x - max(seen)) for x in seen))
    return found


def largest_score(dense: Dense) -> Tensor:
    normalized = any(isinstance(term, T.NORMALIZERS) for term in dense.call.terms)
    found = dense.scores.amax(-1) if dense.m else torch.full((dense.batch, dense.heads, dense.n), -math.inf)
    return (found + math.nan if normalized else found).masked_fill(~dense.counted, math.nan)


def first(dense: Dense) -> Tensor:
    return dense.by_row(lambda w, s, b, i: sum(float(x) for x, k in zip(w, dense.k[b], strict=True) if k == 0))


def sink(dense: Dense) -> Tensor:
    has = any(isinstance(term, T.Sink) for term in dense.call.terms)
    return dense.by_row(lambda w, s, b, i: 1 - float(w.sum()) if has else 0.0)


def distance(dense: Dense) -> Tensor:
    return dense.by_row(
        lambda w, s, b, i: sum(float(x) * abs(k - dense.q[b][i]) for x, k in zip(w, dense.k[b], strict=True))
    )


def distances(dense: Dense) -> Tensor:
    def ranges(weights: Tensor, scores: Tensor, b: int, i: int) -> Tensor:
        found = torch.zeros(len(EDGES) + 1).double()
        for w, k in zip(weights, dense.k[b], strict=True):
            found[sum(edge <= k - dense.q[b][i] for edge in EDGES)] += w
        return found

    return dense.by_row(ranges, len(EDGES) + 1)


def classes(dense: Dense) -> Tensor:
    labels = LABELS[torch.arange(dense.m) % 13]
    count = int(labels.max()) + 1
    return dense.by_row(lambda w, s, b, i: torch.stack([w[labels == c].sum() for c in range(count)]), count)


def counting(dense: Dense) -> Tensor:
    return dense.weights.masked_fill(~dense.counted[..., None], 0)


def received(dense: Dense) -> Tensor:
    return counting(dense).sum(2)


def pooled_map(dense: Dense) -> tuple[Tensor, Tensor]:
    weights, (rows, columns) = counting(dense), (min(4, dense.n), min(5, dense.m))
    mass = torch.zeros(dense.batch, dense.heads, rows, columns).double()
    most, queries = mass.clone(), torch.zeros(dense.batch, dense.heads, rows).double()
    for i in range(dense.n):
        queries[:, :, i * rows // dense.n] += dense.counted[:, :, i]
        for j in range(dense.m):
            cell = (slice(None), slice(None), i * rows // dense.n, j * columns // dense.m)
            mass[cell] += weights[:, :, i, j]
            most[cell] = torch.maximum(most[cell], weights[:, :, i, j])
    return mass / queries[..., None], most


ORACLES: dict[str, Callable[[Dense], Any]] = {
    "entropy": entropy,
    "visible": visible,
    "lse": lse,
    "largest_score": largest_score,
    "largest": largest,
    "previous": lambda dense: dense.neighbour(-1),
    "current": lambda dense: dense.neighbour(0),
    "next": lambda dense: dense.neighbour(1),
    "first": first,
    "sink": sink,
    "distance": distance,
    "distances": distances,
    "classes": classes,
    "received": received,
    "top_keys": top_keys,
    "pooled_map": pooled_map,
}


def test_every_statistic_has_an_oracle() -> None:
    assert set(ORACLES) == set(STATISTICS)


def agree(found: Statistics, call: Call, weights: Tensor, tolerance: float) -> None:
    dense = Dense(call, weights, found.counted)
    assert set(found.names) == set(ORACLES)
    for name, oracle in ORACLES.items():
        ours, theirs = found[name], oracle(dense)
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
        for a, b in pairs:
            assert a.dtype in (weights.dtype, torch.int64), name
            message = f"{name}: {{}}".format
            torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance, equal_nan=True, msg=message)


def drawn(heads: int, kv_heads: int, n: int, m: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, n, 8), (2, kv_heads, m, 8), (2, kv_heads, m, 8))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


MASKS = checks.mask_examples(2, 9, 13)
CALLS: dict[str, dict[str, Any]] = {
    **{f"mask: {name}": {"mask": mask} for name, mask in MASKS.items()},
    "a sink and a cap": {"mask": M.Causal(), "sink": torch.randn(4).double(), "soft_cap": 2.0},
    "equal scores": {"scale": 0.0},
    "dropout": {"dropout": 0.5, "dropout_seed": 1},
    "biases": {
        "terms": (T.DistanceBias(T.Linear(torch.rand(4).double(), torch.rand(4).double())),),
        "q_positions": torch.arange(4, 13),
        "k_positions": torch.arange(13),
    },
}


@pytest.mark.parametrize("size", [1, 130, 1 << 21])
@pytest.mark.parametrize("name", CALLS)
def test_every_statistic_is_that_of_dense_weights(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK", size)
    q, k, v = drawn(4, 2, 9, 13)
    found = attention_statistics(q, k, v, all_statistics(13), **CALLS[name])
    call = make_call(q, k, v, **CALLS[name])
    agree(found, call, hw.attention_weights(q, k, v, **CALLS[name]), 1e-12)


@pytest.mark.parametrize("name", IN_ATTENTION)
def test_every_encoding(name: str) -> None:
    (q, k, v), arguments = encoded(name)
    found = attention_statistics(q, k, v, all_statistics(9), **arguments)
    call = make_call(q, k, v, **arguments)
    agree(found, call, hw.attention_weights(q, k, v, **arguments).detach(), 1e-12)
    assert not found.entropy.requires_grad
    without_values = attention_statistics(q, k, statistics="entropy", **arguments)
    # NaN where a query keeps no key
    torch.testing.assert_close(without_values.entropy, found.entropy, rtol=0, atol=0, equal_nan=True)


# ---------------------------------------------------------------- which queries count, which tokens are meant


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out_and_a_padded_row_gives_what_the_unpadded_one_gives(side: str) -> None:
    lengths = [9, 5]
    q, k, v = drawn(4, 2, 9, 9)
    at = hw.Coordinates.padded(lengths, 9, side=side)
    for padding in (M.Padding(lengths, side), M.Padding()):
        mask = M.Causal() & padding
        found = attention_statistics(q, k, v, all_statistics(9), mask=mask, q_positions=at, k_positions=at)
        assert found.left_out.tolist() == [[0] * 4, [4] * 4]
        for row, length in enumerate(lengths):
            real = slice(9 - length, None) if side == "left" else slice(0, length)
            alone = [x[row : row + 1, :, real] for x in (q, k, v)]
            once = attention_statistics(
                *alone, ["entropy", "previous", "first", "distance", "received"], mask=M.Causal()
            )
            for name in once:
                torch.testing.assert_close(found[name][row : row + 1, :, real], once[name])
            assert found.largest.key[row, :, real].ge(0).all()
            assert found.summary()["entropy"][row].tolist() == pytest.approx(once.summary()["entropy"][0].tolist())
    padded = slice(0, 4) if side == "left" else slice(5, 9)
    assert found.entropy[1, :, padded].isnan().all()
    assert found.received[1, :, padded].eq(0).all()


@pytest.mark.parametrize("given", ["coordinates", "mask"])
def test_documents_that_follow_one_another_are_what_each_is_alone(given: str) -> None:
    lengths, names = [4, 1, 6], ["previous", "current", "next", "first", "distance"]
    q, k, v = drawn(4, 2, 11, 11)
    at = hw.Coordinates.packed(lengths)
    ids = torch.repeat_interleave(torch.tensor([7, 3, 5]), torch.tensor(lengths))
    where = {"q_positions": at, "k_positions": at, "encoding": hw.encoding("rope", head_dim=8)}
    if given == "coordinates":
        found = attention_statistics(q, k, v, names, mask=M.Documents(), **where)
    else:
        found = attention_statistics(q, k, v, names, mask=M.Documents(ids))
        where = {}
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        start += length
        encoding = {"encoding": where["encoding"]} if where else {}
        alone = attention_statistics(*(x[:, :, rows] for x in (q, k, v)), names, **encoding)
        for name in names:
            torch.testing.assert_close(found[name][:, :, rows], alone[name])


def test_neighbours_across_documents_do_not_count_where_nothing_hides_them() -> None:
    q, k, v = drawn(4, 2, 6, 6)
    at = hw.Coordinates.packed([3, 3])
    found = attention_statistics(q, k, v, ["previous", "first"], encoding=hw.encoding("rope", head_dim=8),
                                 q_positions=at, k_positions=at)  # fmt: skip
    assert found.previous[:, :, 3].eq(0).all()
    weights = hw.attention_weights(q, k, v, encoding=hw.encoding("rope", head_dim=8), q_positions=at, k_positions=at)
    torch.testing.assert_close(found.first[:, :, 5], weights[:, :, 5, 3])


@pytest.mark.parametrize("of_mask", [False, True])
def test_neighbours_are_found_where_the_index_starts_anew_in_each_document(of_mask: bool) -> None:
    q, k, v = drawn(4, 2, 12, 12)
    index = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 5, 4, 3, 1, 0]])
    document = torch.tensor([[7, 7, 7, 7, -3, -3, -3, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40]])
    at = hw.Coordinates(index[..., None], index, None if of_mask else document)
    documents = M.Documents(document[0]) if of_mask else M.Documents()
    weights = hw.attention_weights(q, k, v, mask=documents, q_positions=at, k_positions=at)
    found = attention_statistics(
        q, k, v, ["previous", "current", "next"], mask=documents, q_positions=at, k_positions=at
    )
    for offset, name in ((-1, "previous"), (0, "current"), (1, "next")):
        there = (index == index.mT + offset) & (document == document.mT)
        torch.testing.assert_close(found[name], (weights * there).sum(-1))


def test_neighbours_in_documents_that_differ_from_row_to_row() -> None:
    q, k, v = drawn(4, 2, 6, 6)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2]])
    weights = hw.attention_weights(q, k, v, mask=M.Documents(ids))
    found = attention_statistics(q, k, v, "previous", mask=M.Documents(ids)).previous
    torch.testing.assert_close(found[..., 1:], weights.diagonal(-1, 2, 3))


@pytest.mark.parametrize("packed", [False, True])
def test_neighbours_where_keys_are_known_to_count_on(packed: bool) -> None:
    q, k, v = drawn(4, 2, 9, 12)
    keys = hw.Coordinates.packed([5, 3, 4]) if packed else hw.Coordinates.span(12, start=7)
    places = torch.tensor([0, 3, 4, 5, 7, 8, 9, 10, 11]) if packed else torch.tensor([2, 6, 7, 8, 9, 17, 18, 19, 25])
    queries = hw.Coordinates(
        places[None, :, None], places[None], keys.document[:, places] if keys.document is not None else None
    )
    weights = hw.attention_weights(q, k, v, q_positions=queries, k_positions=keys)
    there = keys.index == places[:, None] + torch.tensor([-1, 0, 1])[:, None, None]
    if keys.document is not None and queries.document is not None:
        there = there & (keys.document == queries.document.mT)
    found = attention_statistics(q, k, v, ["previous", "current", "next"], q_positions=queries, k_positions=keys)
    for name, one in zip(found, there, strict=True):
        torch.testing.assert_close(found[name], (weights * one).sum(-1))
        assert found[name].gt(0).any()


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_autocast_does_not_round(kernel: str) -> None:
    q, k, v = (x.bfloat16() for x in drawn(4, 2, 9, 13))
    statistics = all_statistics(13)
    expected = attention_statistics(q, k, v, statistics, kernel=kernel)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_statistics(q, k, v, statistics, kernel=kernel)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, equal_nan=True)


def test_a_class_does_not_take_the_column_of_another_statistic() -> None:
    labels = torch.zeros(13, dtype=torch.long)
    found = attention_statistics(*drawn(4, 2, 9, 13), ["entropy", Classes(labels, ("entropy",))])
    with pytest.raises(HeadwayError, match="a column 'entropy' already: give Classes other names"):
        found.summary()


def test_queries_that_do_not_count() -> None:
    q, k, v = drawn(4, 2, 9, 13)
    counts = torch.tensor([True, False] * 4 + [True])
    found = attention_statistics(q, k, v, ["received", "entropy"], queries=counts)
    weights = hw.attention_weights(q, k, v)
    torch.testing.assert_close(found.received, weights[:, :, counts].sum(2))
    assert found.entropy.isnan().any(1).any(0).tolist() == (~counts).tolist()
    assert found.left_out.eq(4).all()


def test_the_list_of_top_keys_is_complete_above_its_bound() -> None:
    q, k, v = drawn(4, 2, 9, 13)
    found = attention_statistics(q, k, v, [TopKeys(5)]).top_keys
    weights = hw.attention_weights(q, k, v)
    listed = torch.zeros_like(weights, dtype=torch.bool).scatter(-1, found.keys, True)
    assert (weights.masked_fill(listed, 0) <= found.bound[..., None]).all()
    assert (found.bound <= 1 / 5).all()


# ---------------------------------------------------------------- what is no statistic


@pytest.mark.parametrize(
    ("statistics", "said"),
    [
        (["entrpy"], "there is no statistic 'entrpy': did you mean 'entropy'?"),
        (["xyz"], f"there is no statistic 'xyz': headway.inspection.STATISTICS has all {len(STATISTICS)}"),
        (["entropy", "entropy"], "holds 'entropy' twice"),
        ([], "statistics is empty: give one or more of entropy"),
        ([3], "statistics holds 3: give names such as 'entropy'"),
        (3, "statistics is 3: give names such as 'entropy'"),
        (["classes"], "'classes' needs the class of each key: give headway.inspection.Classes"),
        ([TopKeys(14)], r"TopKeys has count 14 and there are 13 keys: give TopKeys\(8\)"),
        ([TopKeys(0)], "TopKeys has count 0"),
        ([Classes(torch.zeros(12, dtype=torch.long))], r"labels of shape \(12,\): give one for each key, \[13\]"),
    ],
)
def test_what_does_not_exist_or_fit(statistics: list[Any], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        attention_statistics(*drawn(4, 2, 9, 13), statistics)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Classes(torch.zeros(3)), "labels of torch.float32 of shape \\(3,\\): give whole numbers"),
        (lambda: Classes([1, 2]), "labels of list: give whole numbers"),
        (lambda: Classes(torch.tensor([-2, 0])), "labels from -2 to 0: give −1, or classes from 0"),
        (lambda: Classes(torch.tensor([0, 2]), ("a", "b")), "from 0 to 1, as there are 2 names"),
        (lambda: Classes(torch.tensor([0, 1]), ("a", "a")), r"names \('a', 'a'\): give different names"),
        (lambda: Classes(torch.tensor([0, 1]), "ab"), "names 'ab': give different names"),
        (lambda: Distances((1, 1)), "give whole numbers that rise"),
        (lambda: Distances((0.5, 1.5)), r"edges \(0.5, 1.5\): give whole numbers"),
        (lambda: Distances(5), "edges 5: give whole numbers"),
        (lambda: Distances((0, 1 << 63)), "up to 2"),
        (lambda: TopKeys(2.5), "count 2.5: give a whole number"),
        (lambda: PooledMap(0), "0 rows and 64 columns: give whole numbers, at least 1"),
        (lambda: PooledMap(2.5), "2.5 rows and 64 columns: give whole numbers"),
    ],
)
def test_statistics_that_cannot_be_made(made: Callable[[], object], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        made()


def test_other_arguments_are_checked_as_by_attention() -> None:
    q, k, v = drawn(4, 2, 9, 13)
    with pytest.raises(HeadwayError, match="there is no kernel 'x'"):
        attention_statistics(q, k, v, kernel="x")
    with pytest.raises(HeadwayError, match=r"queries are torch.float64 of shape \(9,\): give booleans \[9\]"):
        attention_statistics(q, k, v, queries=torch.ones(9).double())
    with pytest.raises(HeadwayError, match="sdpa computes attention only"):
        attention_statistics(q, k, v, kernel="sdpa")
    found = attention_statistics(q, k, v)
    with pytest.raises(AttributeError, match="'received' was not asked for: this holds entropy, largest"):
        found.received  # noqa: B018
    with pytest.raises(HeadwayError, match="'received' was not asked for"):
        found["received"]


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_no_queries_and_no_keys(n: int, m: int) -> None:
    q, k, v = drawn(4, 2, n, m)
    found = attention_statistics(q, k, v, ["entropy", "largest", "received", "previous", "first", "pooled_map"])
    assert found.entropy.shape == (2, 4, n)
    assert found.received.shape == (2, 4, m)
    assert found.left_out.eq(n if not m else 0).all()
    assert found.received.eq(0).all()


def test_a_call_of_a_users_own() -> None:
    q, k, v = drawn(4, 2, 9, 13)
    call = make_call(q, k, v, mask=M.Causal())
    both = statistics_of(call, [STATISTICS["entropy"]()]), attention_statistics(q, k, v, "entropy", mask=M.Causal())
    torch.testing.assert_close(both[0].entropy, both[1].entropy)


def test_the_page_lists_every_statistic() -> None:
    page = (Path(__file__).parents[2] / "docs" / "inspection.md").read_text(encoding="utf-8")
    rows = [name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert [name for name in STATISTICS if name not in rows] == []


class Looks(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        found = attention_statistics(q, k, None, ["entropy", "received"], mask=M.Causal())
        return found.entropy, found.received


@pytest.mark.slow
def test_compiled_they_are_the_same() -> None:
    q, k, _ = drawn(4, 2, 13, 13, torch.float32)
    torch.testing.assert_close(torch.compile(Looks())(q, k), Looks()(q, k))


def test_exported_and_mapped_they_are_the_same() -> None:
    q, k, _ = drawn(4, 2, 13, 13, torch.float32)
    torch.testing.assert_close(torch.export.export(Looks(), (q, k)).module()(q, k), Looks()(q, k))
    others = torch.vmap(Looks())(torch.stack([q, 2 * q]), torch.stack([k, k]))
    torch.testing.assert_close(others[1][1], Looks()(2 * q, k)[1])


@pytest.mark.parametrize("name", ["names", "summary", "counted", "left_out"])
def test_a_users_statistic_hides_no_attribute(name: str) -> None:
    own = type("Own", (type(STATISTICS["entropy"]()),), {"name": name})()
    with pytest.raises(HeadwayError, match=f"Own is called '{name}', as an attribute of Statistics"):
        attention_statistics(*drawn(4, 2, 9, 13), [own])
