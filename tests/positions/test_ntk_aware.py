"""The larger base: the first frequency stays, the last is that of position interpolation."""

import pytest
import torch

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import RoPE
from headway.positions._encodings.ntk_aware import NTKAware
from headway.positions._encodings.position_interpolation import PositionInterpolation

AT = Coordinates.span(1)
# jquesnelle/yarn (the author's), scaled_rope/LlamaNTKScaledRotaryEmbedding.py at 995db5b, run in float64:
# dim 16, base 10000, alpha 4
AUTHORS = [
    1.0,
    0.259412817015,
    0.0672950096316,
    0.0174571880196,
    0.00452861832132,
    0.00117478163592,
    0.000304753413551,
    7.90569415042e-05,
]


def test_numbers_of_the_authors_code() -> None:
    assert NTKAware(16, 4.0).frequencies(AT).tolist() == pytest.approx(AUTHORS, rel=1e-11)


@pytest.mark.parametrize(("width", "factor", "base"), [(128, 8.0, 1e4), (64, 2.5, 5e5), (4, 3.0, 1e4)])
def test_the_ends_of_the_spectrum(width: int, factor: float, base: float) -> None:
    found, plain = NTKAware(width, factor, base).frequencies(AT), RoPE(width, base).frequencies(AT)
    pressed = PositionInterpolation(width, factor, base).frequencies(AT)
    assert found[0] == plain[0] == 1
    assert found[-1].item() == pytest.approx(pressed[-1].item(), rel=1e-13)
    assert ((pressed[1:-1] < found[1:-1]) & (found[1:-1] < plain[1:-1])).all()


def test_it_is_rotary_embedding_torchs() -> None:
    package = pytest.importorskip("rotary_embedding_torch")
    theirs = package.RotaryEmbedding(8, theta_rescale_factor=3.0, cache_if_possible=False)
    q = torch.randn(1, 2, 50, 8)
    given = NTKAware(8, 3.0).prepare(q, Coordinates.span(50))
    torch.testing.assert_close(given, theirs.rotate_queries_or_keys(q), atol=2e-5, rtol=0)


def test_one_pair_alone_has_no_slower_one() -> None:
    with pytest.raises(HeadwayError, match="2 dimensions are turned: the base is changed for slower pairs"):
        NTKAware(8, rotary_dim=2)
