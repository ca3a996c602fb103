"""Which tokens a rank has and which keys it sees, without processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headway import masks as M
from headway.coordinates import Coordinates
from headway.parallel import Shards, _shards
from headway.parallel._sight import sight


@pytest.mark.parametrize("lengths", [[256], [100, 28], [13, 90, 7, 50, 32], [128, 64, 32, 16, 8, 4, 2, 1, 1]])
def test_balanced_shards_have_nearly_as_many_pairs_each(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shards.Group, "of", lambda mesh: SimpleNamespace(size=4, rank=0))
    shards = Shards.balanced(lengths, M.Causal() & M.Documents(), None)
    pairs = [seen for n in lengths for seen in range(1, n + 1)]
    each = [sum(sum(pairs[start:stop]) for start, stop in runs) for runs in shards.layout]
    assert max(each) < 1.05 * sum(each) / 4


def test_a_part_of_a_mask_that_shows_nothing_adds_no_keys() -> None:
    q, k = Coordinates.span(3, start=10, length=20), Coordinates.span(20)
    window, nothing = M.Window(2, 0), M.Boolean(torch.zeros(1, 1, 3, 20, dtype=torch.bool))
    assert sight(window, q, k) == (8, 13)
    assert sight(window | nothing, q, k) == sight(nothing | window, q, k) == (8, 13)
    low, high = sight(nothing | nothing, q, k)
    assert low == high
