"""All weights from a threshold on: against every weight, computed one by one in float64."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway.inspection import WeightList, _above, capture

N, HEADS, WIDTH = 40, 4, 8


class Attends(nn.Module):
    """One layer that attends with given queries and keys."""

    def __init__(self, q: Tensor, k: Tensor, **arguments: Any) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.layer.register_forward_hook(lambda *_: hw.attention(q, k, k, **arguments))

    def forward(self) -> None:
        self.layer(torch.zeros(1))


def drawn(n: int = N, kv_heads: int = 2, batch: int = 2, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    return scale * torch.randn(batch, HEADS, n, WIDTH, generator=g), torch.randn(batch, kv_heads, n, WIDTH, generator=g)


def seen(q: Tensor, k: Tensor, keep: str = "qk", heads: Any = None, rows: Any = None, **arguments: Any) -> Any:
    model = Attends(q, k, **arguments)
    with torch.no_grad(), capture(model, keep=keep, heads=heads, rows=rows) as found:
        model()
    return found


def oracle(
    q: Tensor, k: Tensor, visible: Any = lambda i, j: True, bias: Any = lambda h, i, j: 0.0, sink: Any = None
) -> Any:
    """The weight of every pair as its formula says, by (example, head, query, key)."""
    weights = {}
    group = q.shape[1] // k.shape[1]
    q, k = q.double(), k.double()
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = (q[b, h] @ k[b, h // group].T / math.sqrt(WIDTH)).tolist()
            for i in range(q.shape[2]):
                terms = {j: math.exp(scores[i][j] + bias(h, i, j)) for j in range(k.shape[2]) if visible(i, j)}
                total = sum(terms.values()) + (0 if sink is None else math.exp(sink[h]))
                weights |= {(b, h, i, j): term / total for j, term in terms.items()}
    return weights


def agree(found: WeightList, weights: dict[tuple[int, ...], float], threshold: float) -> None:
    """What was found is complete and right; a weight within rounding of the threshold may be there or not."""
    columns = (found.examples, found.heads, found.queries, found.keys)
    pairs = list(zip(*(x.tolist() for x in columns), strict=True))
    assert pairs == sorted(set(pairs))
    listed = dict(zip(pairs, found.weights.tolist(), strict=True))
    near = threshold * 1e-5
    assert {pair for pair, weight in weights.items() if weight >= threshold + near} <= listed.keys()
    for pair, weight in listed.items():
        assert weight == pytest.approx(weights[pair], rel=1e-5)
        assert weight >= threshold


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all keys": ({}, {}),
    "causal": ({"mask": hw.masks.Causal()}, {"visible": lambda i, j: j <= i}),
    "window": ({"mask": hw.masks.Window(5, 3)}, {"visible": lambda i, j: -5 <= j - i <= 3}),
    "bias by distance": (
        {"terms": (hw.terms.DistanceBias(hw.terms.Linear(torch.tensor([0.5, 0.2, 0.1, 0.0]), torch.zeros(4))),)},
        {"bias": lambda h, i, j: -[0.5, 0.2, 0.1, 0.0][h] * max(i - j, 0)},
    ),
    "sinks": ({"sink": torch.tensor([1.0, 2.0, -1.0, 0.0])}, {"sink": [1.0, 2.0, -1.0, 0.0]}),
}


@pytest.mark.parametrize("threshold", [0.3, 0.07, 0.004])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_complete(form: str, threshold: float) -> None:
    arguments, said = FORMS[form]
    q, k = drawn()
    weights = oracle(q, k, **said)
    captured = seen(q, k, **arguments)
    found = captured.weights_above(0, threshold)
    agree(found, weights, threshold)
    assert len(found) > 20
    assert found.threshold == threshold
    of_head = captured.weights_above("layer", threshold, 3)
    agree(of_head, {pair: weight for pair, weight in weights.items() if pair[1] == 3}, threshold)
    assert len(of_head) == int((found.heads == 3).sum()) > 0


@pytest.mark.parametrize("held", [1, 3000, 1 << 22])
def test_however_it_is_divided(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of heads and of queries; many equal weights, so that some queries have far more than are found first."""
    monkeypatch.setattr(_above, "HELD", held)
    q, k = drawn(130, batch=1)
    q[:, 1] *= 0.01
    weights = oracle(q, k, visible=lambda i, j: i - 50 <= j <= i)
    found = seen(q, k, mask=hw.masks.Causal() & hw.masks.Window(50, 0)).weights_above(0, 0.015)
    agree(found, weights, 0.015)
    assert int(torch.bincount(found.queries[found.heads == 1]).max()) > 3 * _above.FEW


def test_weights_that_do_not_sum_to_1() -> None:
    sigmoid = hw.terms.Normalizer(lambda scores, allowed: torch.sigmoid(scores).masked_fill(~allowed, 0))
    q, k = drawn(150, batch=1)
    captured = seen(q, k, terms=(sigmoid,))
    found = captured.weights_above(0, 0.3)
    columns = torch.stack([found.examples, found.heads, found.queries, found.keys], 1)
    assert torch.equal(columns, (captured.weights(0) >= 0.3).nonzero())
    assert int(torch.bincount(found.queries[found.heads == 0]).max()) > 60


def test_padding_and_what_was_kept() -> None:
    q, k = drawn()
    weights = oracle(q, k)
    kept = seen(q, k, keep="weights", heads=[1, 3], rows=[0, 5, 39])
    chosen = {pair: weight for pair, weight in weights.items() if pair[1] in (1, 3) and pair[2] in (0, 5, 39)}
    agree(kept.weights_above(0, 0.05), chosen, 0.05)
    agree(kept.weights_above(0, 0.05, 3), {pair: x for pair, x in chosen.items() if pair[1] == 3}, 0.05)
    with pytest.raises(hw.HeadwayError, match="head 2 was not kept: the capture kept 1, 3"):
        kept.weights_above(0, 0.05, 2)
    for keep in ("qk", "weights"):
        captured = seen(q, k, keep=keep)
        captured.records[0].padding = torch.arange(N)[None] < torch.tensor([[N], [30]])
        real = {pair: weight for pair, weight in weights.items() if pair[0] == 0 or pair[2] < 30}
        agree(captured.weights_above(0, 0.05), real, 0.05)


def test_queries_that_see_nothing_and_scores_that_are_not_numbers() -> None:
    q, k = drawn(batch=1)
    q[0, 2, 7] = torch.nan
    weights = oracle(q.nan_to_num(0), k, visible=lambda i, j: i >= 3 and j <= i)
    visible = torch.ones(N, N, dtype=torch.bool).tril()
    visible[:3] = False
    found = seen(q, k, mask=hw.masks.Boolean(visible)).weights_above(0, 0.02)
    agree(found, {pair: weight for pair, weight in weights.items() if pair[1:3] != (2, 7)}, 0.02)


@pytest.mark.parametrize(("queries", "keys"), [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("keep", ["qk", "weights"])
def test_no_queries_and_no_keys(keep: str, queries: int, keys: int) -> None:
    q, k = drawn(5)
    found = seen(q[:, :, :queries], k[:, :, :keys], keep).weights_above(0, 0.1)
    assert len(found) == len(found.table()) == 0


def test_as_a_table(tmp_path: Path) -> None:
    q, k = drawn(6, batch=1)
    found = seen(q, k).weights_above(0, 0.5)
    rows = found.table(["a", "b", "c", "d", "e", "f"])
    assert len(rows) == len(found) > 3
    assert rows[0].keys() == {"example", "head", "query", "key", "weight", "from", "to"}
    assert all("abcdef"[row["query"]] == row["from"] and "abcdef"[row["key"]] == row["to"] for row in rows)
    rows.csv(tmp_path / "links.csv")
    with (tmp_path / "links.csv").open(encoding="utf-8") as file:
        assert [int(row["key"]) for row in csv.DictReader(file)] == found.keys.tolist()
    assert repr(found) == f"WeightList({len(found)} weights of 0.5 or more)"
    with pytest.raises(hw.HeadwayError, match="tokens has 2 names and there are"):
        found.table(["a", "b"])
    assert len(seen(q, k).weights_above(0, 1).table()) == 0


@pytest.mark.parametrize("threshold", [0, -0.1, 1.5, math.nan, "0.1", True, None])
def test_what_is_no_threshold(threshold: Any) -> None:
    with pytest.raises(hw.HeadwayError, match=r"give a weight above 0 and at most 1, such as 0\.1"):
        seen(*drawn(4)).weights_above(0, threshold)


def test_what_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = drawn()
    with pytest.raises(hw.HeadwayError, match="keep='statistics' keeps no weights: capture with keep='qk'"):
        seen(q, k, keep="statistics").weights_above(0, 0.1)
    captured = seen(q, k)
    with pytest.raises(hw.HeadwayError, match="there is no head 4: the nearest is 3"):
        captured.weights_above(0, 0.1, 4)
    monkeypatch.setattr(_above, "LIMIT", 1000)
    with pytest.raises(hw.HeadwayError, match="give a larger threshold, or head="):
        captured.weights_above(0, 0.001)
