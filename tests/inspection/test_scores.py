"""Scores against their formulas over dense weights in float64, and on heads that are constructed for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.inspection import (
    SCORES,
    DuplicateToken,
    Induction,
    PrefixMatching,
    PreviousToken,
    attention_statistics,
    statistics_of,
)
from headway.models import Decoder, TransformerConfig

IDS = torch.tensor([[3, 5, 7, 5, 9, 3, 5, 7, 5], [2, 2, 2, 8, 2, 8, 8, 1, 2]])

TARGETS: dict[str, Callable[[list[int], int, int], bool]] = {
    "previous_token": lambda ids, i, j: j == i - 1,
    "duplicate_token": lambda ids, i, j: j < i and ids[j] == ids[i],
    "induction": lambda ids, i, j: 0 < j <= i and ids[j - 1] == ids[i],
    "prefix_matching": lambda ids, i, j: j + 1 < i and ids[j + 1] == ids[i],
}
"""Whether key j is a target of query i, to the letter."""


def arguments_of(name: str, ids: Tensor) -> dict[str, Any]:
    return {} if name == "previous_token" else {"ids": ids}


def decoder(dtype: torch.dtype = torch.float64, **options: Any) -> Decoder:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=2, num_kv_heads=2, **options)
    return Decoder(config, hw.encoding("rope", head_dim=4)).eval().to(dtype)


def by_loops(name: str, weights: Tensor, ids: Tensor, allowed: Tensor, average: str) -> Tensor:
    """The score of each head, [batch, heads], from dense weights [batch, heads, n, n]."""
    batch, heads, n, _ = weights.shape
    found = torch.full((batch, heads), math.nan, dtype=torch.float64)
    for b in range(batch):
        row = ids[b].tolist()
        targets = [[j for j in range(n) if allowed[b, i, j] and TARGETS[name](row, i, j)] for i in range(n)]
        for h in range(heads):
            pairs = [[float(weights[b, h, i, j]) for j in js] for i, js in enumerate(targets) if js]
            each = [sum(one) for one in pairs] if average == "queries" else [w for one in pairs for w in one]
            if each:
                found[b, h] = sum(each) / len(each)
    return found


# ---------------------------------------------------------------- by tokens


@pytest.mark.parametrize("name", TARGETS)
def test_token_scores_are_those_of_the_weights(name: str) -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        model(IDS)
    causal = torch.ones(9, 9).bool().tril().expand(2, 9, 9)
    for average in ("queries", "pairs") if name != "previous_token" else ("queries",):
        given = {"average": average} if name != "previous_token" else {}
        found = seen.scores(name, **arguments_of(name, IDS), **given)
        assert list(found) == seen.layers
        for layer in seen.layers:
            truth = by_loops(name, seen.weights(layer).double(), IDS, causal, average)
            torch.testing.assert_close(found[layer], truth, atol=1e-12, rtol=0, equal_nan=True)
    assert found.mean().shape == (2, 4)
    assert torch.equal(found[0], found[seen.layers[0]])


ALLOWED = torch.ones(2, 9, 9).bool()
KEPT = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0, 0], [1] * 9]).bool()
MASKS: dict[str, tuple[Tensor, dict[str, Any]]] = {
    "all": (ALLOWED, {}),
    "window": (ALLOWED.tril() & ALLOWED.triu(-3), {"mask": M.Causal() & M.Window(left=3)}),
    "padding behind": (ALLOWED & KEPT[:, None] & KEPT[:, :, None], {"mask": M.Padding([5, 9])}),
    "padding in front": (
        ALLOWED & KEPT.flip(1)[:, None] & KEPT.flip(1)[:, :, None],
        {
            "mask": M.Padding([5, 9], "left"),
            "q_positions": Coordinates.padded([5, 9], 9),
            "k_positions": Coordinates.padded([5, 9], 9),
        },
    ),
    "documents": (
        torch.block_diag(torch.ones(4, 4), torch.ones(5, 5)).bool().expand(2, 9, 9),
        {
            "mask": M.Documents(),
            "q_positions": Coordinates.packed([4, 5]),
            "k_positions": Coordinates.packed([4, 5]),
        },
    ),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_in_sight(name: str, mask: str) -> None:
    """Hidden keys, padding and other documents are not targets."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 9, 4).double(), torch.randn(2, 3, 9, 4).double()
    allowed, arguments = MASKS[mask]
    # a target needs its neighbour to be a token of the same text
    texts = torch.tensor([[0] * 4 + [1] * 5] * 2) if mask == "documents" else torch.zeros(2, 9).long()
    texts = torch.where(KEPT.flip(1), texts, 2) if mask == "padding in front" else texts
    found = attention_statistics(q, k, statistics=[SCORES[name](**arguments_of(name, IDS))], **arguments)[name]
    weights = hw.attention_weights(q, k, k, **arguments)
    for b in range(2):
        for i in range(9):
            text = [t if texts[b, at] == texts[b, i] else -at - 1 for at, t in enumerate(IDS[b].tolist())]
            js = [j for j in range(9) if allowed[b, i, j] and TARGETS[name](text, i, j)]
            assert found.targets[b, :, i].tolist() == [len(js)] * 3
            expected = weights[b, :, i, js].sum(-1) if js else torch.full((3,), math.nan).double()
            torch.testing.assert_close(found.weight[b, :, i], expected, atol=1e-12, rtol=0, equal_nan=True)


REPEATED = torch.arange(2, 8).repeat(3)[None]
"""Three times the same six tokens."""


def scored(name: str, scores: Tensor, ids: Tensor = REPEATED, **arguments: Any) -> float:
    """The score of one causal head with these scores [n, n]."""
    n = ids.shape[1]
    q = k = torch.zeros(1, 1, n, 4).double()
    call = make_call(q, k, k, mask=M.Causal(), terms=(T.DenseBias(scores.double()[None, None]),))
    found = statistics_of(call, [SCORES[name](**arguments_of(name, ids), **arguments)])
    return found.summary()[name].item()


def towards(rule: Callable[[int, int], bool], n: int) -> Tensor:
    """Scores of a head that attends only to the keys of a rule, or to its own token where there are none."""
    found = torch.full((n, n), -1e4)
    for i in range(n):
        for j in [j for j in range(i) if rule(i, j)] or [i]:
            found[i, j] = 0
    return found


def test_constructed_heads_have_the_values_of_the_definitions() -> None:
    n, period = 18, 6
    previous = towards(lambda i, j: j == i - 1, n)
    assert scored("previous_token", previous) == 1
    assert scored("duplicate_token", previous) == scored("induction", previous) == 0
    latest = towards(lambda i, j: j == i - period + 1, n)
    assert scored("induction", latest) == 1
    assert scored("prefix_matching", latest) == scored("duplicate_token", latest) == 0
    # 6 queries have one target, 6 have two, of which the head takes one
    assert scored("induction", latest, average="pairs") == pytest.approx(12 / 18, abs=1e-15)
    every = towards(lambda i, j: j > 0 and (i - j) % period == period - 1, n)
    assert scored("induction", every) == pytest.approx(1, abs=1e-15)
    before = towards(lambda i, j: j == i - period - 1, n)
    assert scored("prefix_matching", before) == 1
    assert scored("induction", before) == 0
    assert scored("duplicate_token", towards(lambda i, j: j == i - period, n)) == 1
    uniform = torch.zeros(n, n)
    assert scored("previous_token", uniform) == pytest.approx(
        sum(1 / (i + 1) for i in range(1, n)) / (n - 1), abs=1e-15
    )
    expected = sum((i // period) / (i + 1) for i in range(period, n)) / (n - period)
    assert scored("duplicate_token", uniform) == pytest.approx(expected, abs=1e-15)


def test_of_tokens_that_never_repeat_there_is_no_score() -> None:
    assert math.isnan(scored("induction", torch.zeros(5, 5), torch.arange(5)[None]))
    assert math.isnan(scored("duplicate_token", torch.zeros(5, 5), torch.arange(5)[None], average="pairs"))
    assert math.isnan(scored("previous_token", torch.zeros(1, 1), torch.arange(1)[None]))


def test_while_a_model_generates() -> None:
    """The keys are those of all tokens so far, the query is the last."""
    model = decoder(torch.float32)
    ids = torch.tensor([[3, 5, 7, 5, 9, 3]])
    with hw.capture(model, "qk") as seen:
        new = hw.models.generate(model, ids, max_new_tokens=3).ids
    out = torch.cat([ids, torch.tensor(new)], dim=1)
    step = seen.of_call(-1)
    m = step.records[0].m
    found = step.scores("duplicate_token", ids=out[:, :m])
    weights = step.weights(0).double()[0, :, -1]
    earlier = [j for j in range(m - 1) if out[0, j] == out[0, m - 1]]
    expected = weights[:, earlier].sum(-1) if earlier else torch.full((4,), math.nan).double()
    torch.testing.assert_close(found[0][0].double(), expected, atol=1e-6, rtol=0, equal_nan=True)
    with pytest.raises(HeadwayError, match=r"the model was called \d times: take one call, such as of_call\(-1\)"):
        seen.scores("duplicate_token", ids=out)


def test_scores_are_statistics_too() -> None:
    model = decoder(torch.float32)
    with hw.capture(model, statistics=("entropy", Induction(IDS), PreviousToken())) as seen:
        model(IDS)
    with hw.capture(model, "qk") as kept:
        model(IDS)
    torch.testing.assert_close(
        seen.statistics(1).induction, kept.statistics(1, Induction(IDS)).induction, equal_nan=True
    )
    columns = seen.table()[0].keys()
    assert {"induction", "previous_token"} <= columns


def test_the_largest_heads() -> None:
    model = decoder()
    with hw.capture(model, "qk") as seen:
        model(IDS)
    found = seen.scores("induction", ids=IDS)
    rows = found.top(3)
    assert [row["induction"] for row in rows] == sorted((row["induction"] for row in found.table()), reverse=True)[:3]
    assert f"{rows[0]['layer']} head {rows[0]['head']}" in repr(found)
    with pytest.raises(HeadwayError, match="count is 0"):
        found.top(0)


@pytest.mark.parametrize(
    ("score", "arguments", "message"),
    [
        ("induktion", {}, "there is no score 'induktion': did you mean 'induction'"),
        ("entropy", {}, "there is no score 'entropy': give one of previous_token"),
        ("induction", {}, r"the score 'induction' needs ids: give scores\('induction', ids=…\)"),
        ("induction", {"ids": IDS, "mean": 1}, "the score 'induction' has no argument 'mean': it takes ids, average"),
        ("previous_token", {"ids": IDS}, "no argument 'ids': it takes none"),
        ("induction", {"ids": IDS[:, :5]}, r"has ids of shape \(2, 5\): give one for each key, \[9\] or \[2, 9\]"),
        ("induction", {"ids": torch.zeros(3, 9).long()}, r"shape \(3, 9\)"),
        ("induction", {"ids": IDS.float()}, r"ids of torch.float32 of shape \(2, 9\): give the whole numbers"),
        ("induction", {"ids": [1, 2]}, "ids of list"),
        ("induction", {"ids": IDS, "average": "rows"}, "average is 'rows': give 'queries' or 'pairs'"),
        ("induction", {"ids": IDS, "layers": "layer"}, "there is no layer 'layer': the nearest is"),
        (DuplicateToken(IDS), {"ids": IDS}, "ids comes with an object: give it to DuplicateToken"),
        (PrefixMatching(IDS[0, :4]), {}, r"stack.blocks.0.attention': 'prefix_matching' has ids of shape \(4,\)"),
    ],
)
def test_what_does_not_fit_is_refused(score: Any, arguments: dict[str, Any], message: str) -> None:
    model = decoder(torch.float32)
    with hw.capture(model, "qk") as seen:
        model(IDS)
    with pytest.raises(HeadwayError, match=message):
        seen.scores(score, **arguments)


@pytest.mark.parametrize("keep", ["statistics", "weights"])
def test_what_was_not_kept_is_said(keep: str) -> None:
    model = decoder(torch.float32)
    with hw.capture(model, keep) as seen:
        model(IDS)
    with pytest.raises(HeadwayError, match=r"'induction' is computed from queries and keys, .* keep='qk'"):
        seen.scores("induction", ids=IDS)


@pytest.mark.parametrize("name", ["previous_token", "duplicate_token", "induction", "prefix_matching"])
def test_documents_whose_index_starts_anew_are_what_packed_ones_are(name: str) -> None:
    q, k, v = (torch.randn(1, 2, 12, 8, dtype=torch.float64) for _ in range(3))
    ids = torch.tensor([3, 5, 3, 5, 4, 4, 5, 4, 6, 3, 6, 3])
    packed = Coordinates.packed([4, 3, 5])
    index = packed.position[..., 0]
    anew = Coordinates(index[..., None], index, packed.document)
    score = SCORES[name](**arguments_of(name, ids))
    found = [
        attention_statistics(q, k, v, [score], mask=M.Documents(), q_positions=at, k_positions=at)[name]
        for at in (packed, anew)
    ]
    assert found[0].targets.any()
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
