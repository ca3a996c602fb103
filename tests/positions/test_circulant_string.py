"""Rotations by circulant matrices: the exponential itself, and dependence only on differences."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.circulant_string import CirculantSTRING

PLACES = torch.tensor([[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]).double()[None]


def drawn(num_heads: int, head_dim: int) -> CirculantSTRING:
    return CirculantSTRING(num_heads, head_dim, initial=0.5).double().requires_grad_(False)


@pytest.mark.parametrize("head_dim", [3, 7, 8])
def test_vectors_are_turned_by_the_exponential(head_dim: int) -> None:
    encoding = drawn(2, head_dim)
    x = torch.randn(1, 2, 6, head_dim, dtype=torch.float64)
    found = encoding.prepare(x, Coordinates.of(PLACES, 6))
    for head in range(2):
        C = [torch.stack([encoding.c[a, head].roll(n) for n in range(head_dim)], dim=1) for a in (0, 1)]
        assert C[0][1, 0] == C[0][2, 1] == encoding.c[0, head, 1]
        for token, (p, r) in enumerate(PLACES[0].tolist()):
            turn = torch.linalg.matrix_exp(p * (C[0] - C[0].mT) + r * (C[1] - C[1].mT))
            torch.testing.assert_close(found[0, head, token], turn @ x[0, head, token])


def test_scores_know_differences_alone() -> None:
    encoding = drawn(3, 8)
    q, k = torch.randn(2, 1, 3, 6, 8, dtype=torch.float64)

    def scores(places: Tensor) -> Tensor:
        at = Coordinates.of(places, 6)
        return encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT

    torch.testing.assert_close(scores(PLACES), scores(PLACES + 70.7))
    assert not torch.allclose(scores(PLACES), scores(PLACES.flip(-1)), atol=0.1)


def test_only_differences_of_the_numbers_count() -> None:
    encoding, x, at = drawn(1, 8), torch.randn(1, 1, 6, 8), Coordinates.of(PLACES, 6)
    before = encoding.prepare(x, at)
    encoding.c += 1.0
    encoding.c[..., 0] = 9.0
    torch.testing.assert_close(encoding.prepare(x, at), before)


def test_queries_that_share_keys_share_matrices() -> None:
    encoding, at = CirculantSTRING(6, 8, num_kv_heads=2), Coordinates.of(PLACES, 6)
    k = torch.randn(1, 2, 6, 8)
    wide = encoding.prepare_key(k, at).repeat_interleave(3, dim=1)
    torch.testing.assert_close(encoding.prepare_query(k.repeat_interleave(3, dim=1), at), wide)
    with pytest.raises(HeadwayError, match="x has 3 heads but the encoding learns for 2"):
        encoding.prepare(torch.randn(1, 3, 6, 8), at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((4, 2), "head_dim is 2: .* give at least 3"), ((4, 8, 0), "axes is 0"), ((4, 8, 2, 3), "num_kv_heads is 3")],
)
def test_wrong_arguments_raise(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        CirculantSTRING(*arguments)
