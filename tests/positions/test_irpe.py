"""iRPE: buckets of both axes, the authors' numbers."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import IRPE


def wave(*shape: int, a: float) -> Tensor:
    return torch.sin(a * torch.arange(math.prod(shape), dtype=torch.float64)).view(shape)


# iRPE.forward and piecewise_index of microsoft/Cream, iRPE/DeiT-with-iRPE/irpe.py at 4a13c40, in float64
BUCKETS = {
    0.5: [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    1.0: [0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    1.9: [0, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3],
    3.0: [0, 1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6],
}
THEIRS = {
    "product": [
        [
            [-0.188744355987731, 0.708355187093325, -0.541618278729696, -0.17622446017963],
            [0.165332423738673, -0.451155220165185, 0.161045634712621, 0.23311652729102],
        ],
        [
            [0.356324717450252, 0.352149910141441, -0.860121821951148, 0.631903334747621],
            [-0.808593569647832, 0.250911899713124, 0.609026234990102, -0.771091638888635],
        ],
    ],
    "cross": [
        [
            [0.599159114645879, -0.0301552267748364, -0.461092023394514, 0.335539270764878],
            [0.684328143923348, 0.709888708256315, -1.58483731170468, 0.958215966134924],
        ],
        [
            [0.254170335881868, -0.118102637327428, 0.0421128779207032, 0.0850858000685216],
            [-0.948204109443638, 0.437051244051061, 0.370855902224159, -0.686368262758139],
        ],
    ],
}
"""Tokens 0 and 6 of an image of 2 rows and 4 columns, 2 heads of 4, by method."""


@pytest.mark.parametrize("ratio", BUCKETS)
def test_the_buckets_of_the_authors(ratio: float) -> None:
    encoding = IRPE(1, 4, ratio=ratio)
    assert [encoding._bucket(x) for x in range(31)] == BUCKETS[ratio]
    assert [encoding._bucket(-x) for x in range(31)] == [-b for b in BUCKETS[ratio]]


@pytest.mark.parametrize("method", THEIRS)
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_the_authors_numbers(method: str, kernel: str) -> None:
    encoding = IRPE(2, 4, method=method, on="qkv", shared=method == "product").double()
    for tables, a in ((encoding.queries, 1.3), (encoding.keys, 1.7), (encoding.values, 2.3)):
        for number, table in enumerate(tables):
            table.data.copy_(wave(*table.shape, a=a + 0.1 * number))
    q, k, v = (wave(1, 2, 8, 4, a=a) for a in (0.7, 1.1, 1.9))
    position = torch.stack([torch.arange(8) // 4, torch.arange(8) % 4], dim=-1)
    at = Coordinates.of(position[None], 8)
    found = attention(q, k, v, encoding=encoding, q_positions=at, k_positions=at, kernel=kernel)[0, :, [0, 6]]
    torch.testing.assert_close(found.detach(), torch.tensor(THEIRS[method], dtype=torch.float64), atol=1e-12, rtol=0)


def test_it_starts_without_positions() -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    at = Coordinates.of(torch.randint(9, (1, 8, 2)), 8)
    found = attention(q, k, v, encoding=IRPE(2, 4, on="qkv"), q_positions=at, k_positions=at)
    torch.testing.assert_close(found, attention(q, k, v))


@pytest.mark.parametrize("method", ["product", "cross"])
def test_sizes(method: str) -> None:
    shapes = {"product": (1, 1, 49, 8), "cross": (2, 1, 7, 8)}
    keys = IRPE(4, 8, method=method).keys
    assert keys is not None
    assert keys.shape == shapes[method]
    assert [name for name, _ in IRPE(4, 8, on="bias").named_parameters()] == ["bias"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"method": "euclidean"}, "method is 'euclidean': give one of 'product', 'cross'"),
        ({"on": "vk"}, "on is 'vk': give one of 'k', 'q'"),
        ({"ratio": 0.3}, r"ratio is 0\.3: all distances would share a bucket"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        IRPE(2, 4, **arguments)  # type: ignore[arg-type]
