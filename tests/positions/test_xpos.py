"""xPos: one centre for both sides, the authors' numbers, and how far it holds."""

import math

import pytest
import torch
from torch import Tensor

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.rope import RoPE
from headway.positions._encodings.xpos import XPos


def given(seed: int, n: int = 5) -> Tensor:
    """((7i + 5·seed) mod 17 − 8)/8 [1, 1, n, 8], in float64."""
    return (((torch.arange(n * 8).double() * 7 + seed * 5) % 17 - 8) / 8).view(1, 1, n, 8)


def scores(encoding: XPos, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    at = Coordinates.of(positions, len(positions))
    return (encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT)[0, 0]


def test_the_numbers_of_the_authors() -> None:
    """torchscale/component/xpos_relative_position.py and multihead_attention.py of sunyt32/torchscale at 4ad9dfd,
    head_dim 8, scale_base 4, five tokens, whose centre is 2; microsoft/torchscale at 4d1e0e8 gives the same scores."""
    expected = [
        [-1.546875, -1.390662, 2.302169, -0.414833, -1.374426],
        [1.973186, 0.5, -0.681027, 0.406812, -2.442029],
        [-0.43257, 2.366073, -2.09375, -2.197728, 2.57936],
        [-0.610358, -0.904429, 2.60342, 0.5, -2.019656],
        [-0.102529, -0.555465, 0.540073, 2.152426, -1.546875],
    ]
    last_key = [-1.649189, -0.12062, 0.909447, -1.208871, -0.193184, 0.928432, -0.553328, 0.411548]
    q, k, positions = given(1), given(2), torch.arange(5)
    torch.testing.assert_close(
        scores(XPos(8, scale_base=4), q, k, positions), torch.tensor(expected).double(), atol=3e-6, rtol=0
    )
    key = XPos(8, scale_base=4, centre=2).prepare_key(k, Coordinates.span(5))[0, 0, 4]
    torch.testing.assert_close(key, torch.tensor(last_key).double(), atol=3e-6, rtol=0)


def test_the_centre_cancels() -> None:
    q, k, positions = given(1), given(2), torch.tensor([0, 3, 90, 91, 700])
    near, far = (scores(XPos(8, centre=centre), q, k, positions) for centre in (0.0, 350.5))
    torch.testing.assert_close(near, far, atol=1e-12, rtol=1e-12)


def test_pairs_fade_and_none_where_zeta_is_one() -> None:
    """At a distance of scale_base the first pair has shrunk to γ/(1 + γ), and later pairs by less."""
    q = torch.zeros(1, 1, 2, 8, dtype=torch.float64)
    q[..., ::2] = torch.eye(4, dtype=torch.float64)[:, None, None].sum(0)
    at = Coordinates.of(torch.tensor([0, 512]), 2)
    encoding, plain = XPos(8), RoPE(8)
    lengths = encoding.prepare_query(q, at)[0, 0, 1].unflatten(-1, (4, 2)).norm(dim=-1)
    turned = plain.prepare(q, at)[0, 0, 1].unflatten(-1, (4, 2)).norm(dim=-1)
    expected = torch.tensor([(2 * c / 8 + 0.4) / 1.4 for c in range(4)]).double()
    torch.testing.assert_close(lengths / turned, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "reach"), [(torch.float16, 3200), (torch.bfloat16, 32_000), (torch.float32, 32_000)])
def test_it_stays_finite_and_right_up_to_its_reach(dtype: torch.dtype, reach: int) -> None:
    """Far from the centre scores are those near it; beyond, a token's factor stays as it is and nothing overflows."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 8, 16, generator=generator).to(dtype) for _ in range(2))
    encoding = XPos(16)

    def found(start: int) -> Tensor:
        at = Coordinates.span(8, start=start)
        prepared = encoding.prepare_query(q, at), encoding.prepare_key(k, at)
        assert all(part.dtype == dtype and part.isfinite().all() for part in prepared)
        return prepared[0].double() @ prepared[1].double().mT

    eps = torch.finfo(dtype).eps
    exact = XPos(16, centre=reach - 7)
    at = Coordinates.span(8, start=reach - 7)
    expected = exact.prepare_query(q.double(), at) @ exact.prepare_key(k.double(), at).mT
    torch.testing.assert_close(found(reach - 7), expected, atol=10 * eps, rtol=0)
    found(10 * reach)
    found(1 << 20)


def test_in_float16_a_centre_far_off_moves_the_reach() -> None:
    q = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(1))
    at = Coordinates.span(4, start=60_000)
    for encoding, fades in ((XPos(8, scale_base=8.0, centre=60_000.0), True), (XPos(8, scale_base=8.0), False)):
        half = encoding.prepare_query(q.half(), at), encoding.prepare_key(q.half(), at)
        found = half[0].double() @ half[1].double().mT
        exact = XPos(8, scale_base=8.0, centre=60_000.0)
        expected = exact.prepare_query(q.double(), at) @ exact.prepare_key(q.double(), at).mT
        assert torch.allclose(found, expected, atol=2e-2) == fades


def test_a_mask_that_looks_ahead_raises() -> None:
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(HeadwayError, match="XPos is only for queries that see no later keys"):
        attention(q, q, q, encoding=XPos(8))
    assert attention(q, q, q, encoding=XPos(8), mask=Causal()).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"head_dim": 7}, "head_dim is 7"),
        ({"head_dim": 8, "base": 1.0}, "base is 1.0"),
        ({"head_dim": 8, "gamma": 0.0}, "gamma is 0.0: give a number above 0"),
        ({"head_dim": 8, "scale_base": math.inf}, "scale_base is inf"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        XPos(**arguments)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_x_transformers_agrees() -> None:
    theirs = pytest.importorskip("x_transformers").x_transformers
    q, k = given(1), given(2)
    frequencies, scale = theirs.RotaryEmbedding(8, use_xpos=True, scale_base=4)(torch.arange(5))
    at, encoding = Coordinates.span(5), XPos(8, scale_base=4, centre=2)
    ours = encoding.prepare_query(q, at), encoding.prepare_key(k, at)
    expected = [theirs.apply_rotary_pos_emb(x, frequencies, s) for x, s in ((q, scale), (k, scale**-1))]
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b.double(), atol=2e-6, rtol=0)


def test_rotary_embedding_torch_agrees_but_for_queries_of_a_cache() -> None:
    """There each side has a centre of its own, and the factor ζ^((T − 1)//2/scale_base) stays in every score."""
    theirs = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding
    q, k, at = given(1), given(2), Coordinates.span(5)
    encoding = XPos(8, scale_base=4)
    ours = (encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT)[0, 0]
    whole = theirs(8, use_xpos=True, xpos_scale_base=4).rotate_queries_and_keys(q.float(), k.float())
    torch.testing.assert_close((whole[0] @ whole[1].mT)[0, 0].double(), ours, atol=5e-6, rtol=0)
    cached = theirs(8, use_xpos=True, xpos_scale_base=4).rotate_queries_with_cached_keys(
        q[:, :, -1:].float(), k.float()
    )
    last = (cached[0] @ cached[1].mT)[0, 0, 0].double()
    assert not torch.allclose(last, ours[-1], atol=0.1)
