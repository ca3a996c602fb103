"""Music Transformer's relative keys, against its skewing."""

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.music_transformer import MusicTransformer
from headway.properties import Pairs


def waves(*shape: int, at: float) -> Tensor:
    """Numbers that anybody can write down again."""
    return torch.sin(0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + at).view(shape)


def scores(encoding: MusicTransformer, q: Tensor, k: Tensor) -> Tensor:
    at = Coordinates.span(q.shape[1])
    return Pairs(encoding, q, k, at, at).scores().detach()


def test_numbers_of_the_skewing() -> None:
    """RPE.skew of mcleish7/arithmetic, cramming/architectures/embeddings.py at 86022a5: 2 heads of 4, 5 of 7 tokens.

    Its rows stand for the distances 6 … 0, so that its last is our first; queries 1 and 4.
    """
    expected = [
        [[0.55291926, 0.13287386], [-1.63365245, 1.9674941]],
        [
            [1.03532328, -1.4553202, 1.70714714, -1.76170414, 1.61268687],
            [1.7847097, -1.24829513, 0.56763342, 0.17862135, -0.90423548],
        ],
    ]
    encoding = MusicTransformer(2, 4, max_length=7, shared=True).double()
    encoding.E.data = waves(7, 4, at=0.3).flip(0)[None]
    q = waves(2, 5, 4, at=0.1)
    found = scores(encoding, q, torch.zeros_like(q)) * 4**0.5  # the square root of head_dim
    for row, numbers in zip((1, 4), expected, strict=True):
        expected_row = torch.tensor(numbers, dtype=torch.float64)
        torch.testing.assert_close(found[:, row, : row + 1], expected_row, atol=1e-8, rtol=0)


def test_each_head_has_vectors_of_its_own() -> None:
    encoding = MusicTransformer(3, 4, max_length=6).double()
    q, k = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    found = scores(encoding, q, k)
    expected = q[2, 5] @ (k[2, 1] + encoding.E[2, 4]) / 2
    torch.testing.assert_close(found[2, 5, 1], expected.detach())


def test_beyond_the_table_nothing_is_added() -> None:
    encoding = MusicTransformer(1, 4, max_length=3).double()
    q, k = torch.randn(2, 1, 6, 4, dtype=torch.float64)
    added = scores(encoding, q, k) - q @ k.mT / 2
    assert added[0, 5, :3].abs().max() < 1e-12
    assert (added[0, 5, 3:].abs() > 1e-6).all()


def test_queries_that_look_ahead_are_refused() -> None:
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises(HeadwayError, match="MusicTransformer is only for queries that see no later keys"):
        hw.attention(q, q, q, encoding=MusicTransformer(2, 8))


@pytest.mark.parametrize("name", ["num_heads", "head_dim", "max_length"])
def test_sizes_below_one_raise(name: str) -> None:
    with pytest.raises(HeadwayError, match=f"{name} is 0: give at least 1"):
        MusicTransformer(**({"num_heads": 1, "head_dim": 1, "max_length": 1} | {name: 0}))
