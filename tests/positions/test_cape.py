"""CAPE: what is drawn lies within its bounds, once for each sequence or token; nothing is drawn outside of training."""

import math

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import ALiBi, Compose, RoPE, Sinusoidal
from headway.positions._encodings import cape
from headway.positions._encodings.cape import CAPE

# gcambara/cape, cape/cape.py, commit d456950: CAPE1d(6, …).eval().compute_pos_emb(…)
AUDIO = [
    [-0.975723, 0.219007, -0.06262, 0.998037, -0.002908, 0.999996],
    [-0.434965, 0.900447, -0.020886, 0.999782, -0.000969, 1.0],
    [0.434966, 0.900447, 0.020886, 0.999782, 0.000969, 1.0],
    [0.975723, 0.219007, 0.06262, 0.998037, 0.002908, 0.999996],
]
# the same in training with Δ = 5·GLOBAL, ε = ½·LOCAL, ln λ = ln(1.03)·SCALE
GLOBAL, SCALE = [[-0.99147296], [-0.78886127]], [[0.18884242], [0.77571332]]
LOCAL = [[-0.42831504, -0.94609034, -0.05677128], [-0.87976742, 0.54373169, 0.48739874]]
TRAINING = [
    [
        [0.883234, 0.468933, -0.239047, 0.971008, -0.011204, 0.999937],
        [0.967111, -0.254353, -0.205322, 0.978694, -0.009598, 0.999954],
        [-0.138681, -0.990337, -0.138911, 0.990305, -0.006469, 0.999979],
    ],
    [
        [0.974456, -0.22458, -0.206715, 0.978401, -0.009664, 0.999953],
        [-0.39601, -0.918246, -0.12658, 0.991956, -0.005891, 0.999983],
        [-0.985711, -0.168448, -0.080678, 0.99674, -0.003749, 0.999993],
    ],
]


def rows(count: int, n: int) -> Coordinates:
    return Coordinates.of(torch.arange(n).expand(count, n), n)


def moved(encoding: CAPE, at: Coordinates) -> Tensor:
    return encoding.train().locate(at).axis()


def test_the_package_in_evaluation() -> None:
    found = Compose(CAPE.audio(), Sinusoidal(6)).eval().embed(torch.zeros(1, 4, 6))
    torch.testing.assert_close(found[0], torch.tensor(AUDIO), atol=2e-6, rtol=0)


def test_the_package_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter(torch.tensor(part, dtype=torch.float64) for part in (GLOBAL, LOCAL, SCALE))
    monkeypatch.setattr(cape, "uniform", lambda shape, bound, device: bound * next(draws).reshape(shape))
    found = Compose(CAPE(), Sinusoidal(6)).embed(torch.zeros(2, 3, 6), rows(2, 3))
    torch.testing.assert_close(found, torch.tensor(TRAINING), atol=2e-6, rtol=0)


def test_nothing_is_drawn_in_evaluation() -> None:
    before, at = torch.get_rng_state(), rows(2, 5)
    assert CAPE().eval().locate(at) is at
    CAPE.audio().eval().locate(at)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_shift_for_each_sequence() -> None:
    found = moved(CAPE(local_shift=0, scale=1), rows(500, 4)) - torch.arange(4)
    assert torch.equal(found, found[:, :1].expand(-1, 4)) or (found - found[:, :1]).abs().max() < 1e-12
    assert found.abs().max() <= 5
    assert found.max() > 4.9
    assert found.min() < -4.9
    assert len(found[:, 0].unique()) == 500


def test_one_jitter_for_each_token_keeps_the_order() -> None:
    found = moved(CAPE(global_shift=0, scale=1), rows(200, 5))
    assert (found - torch.arange(5)).abs().max() <= 0.5
    assert (found.diff(dim=1) > 0).all()
    assert len((found - torch.arange(5)).unique()) == 1000


def test_one_stretch_for_each_sequence() -> None:
    found = moved(CAPE(global_shift=0, local_shift=0), rows(500, 4))[:, 1:] / torch.arange(1, 4)
    torch.testing.assert_close(found, found[:, :1].expand(-1, 3))
    assert 1 / 1.03 <= found.min() < 0.975
    assert 1.025 < found.max() <= 1.03
    assert abs(found[:, 0].log().mean().item()) < 3 * math.log(1.03) / 3**0.5 / 500**0.5


def test_packed_documents_are_sequences_and_may_lie_apart() -> None:
    at = Coordinates(torch.arange(6).reshape(1, 6, 1), torch.arange(6)[None], torch.tensor([[7, 7, 2, 7, 2, 2]]))
    shift = (moved(CAPE(local_shift=0, scale=1), at) - torch.arange(6))[0]
    torch.testing.assert_close(shift[[0, 1, 3]], shift[[0, 0, 0]])
    torch.testing.assert_close(shift[[2, 4, 5]], shift[[2, 2, 2]])
    assert shift[0] != shift[2]


def test_a_seed_repeats_a_draw_and_the_next_differs() -> None:
    torch.manual_seed(1)
    first, second = (moved(CAPE(), rows(2, 3)) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(moved(CAPE(), rows(2, 3)), first)
    assert not torch.equal(first, second)


def test_queries_and_keys_share_a_draw_and_axes_do_not() -> None:
    """Distances of self-attention are whole: both sides were moved by the same numbers."""
    from headway import attention

    both = Compose(CAPE(local_shift=0, scale=1), RoPE(8)).train()
    q, k, v = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(attention(q, k, v, encoding=both), attention(q, k, v, encoding=RoPE(8)))
    flat = Coordinates.of(torch.zeros(1, 4, 2), 4)
    across = CAPE(local_shift=0, scale=1).train().locate(flat).position[0]
    assert across[0, 0] != across[0, 1]


def test_the_mean_of_a_sequence_is_that_of_its_length() -> None:
    at = Coordinates.padded([2, 4], 4)
    found = CAPE(centred=True).eval().locate(at).axis()
    assert found.tolist() == [[-0.5, -0.5, -0.5, 0.5], [-1.5, -0.5, 0.5, 1.5]]
    assert not CAPE(centred=True).cache_prepared


def test_it_compiles_in_training() -> None:
    both = Compose(CAPE(), Sinusoidal(8)).train()
    compiled = torch.compile(lambda x: both.embed(x), fullgraph=True, backend="eager")
    x = torch.zeros(1, 5, 8)
    assert not torch.equal(compiled(x), compiled(x))


def test_alone_it_is_refused_and_bad_bounds_raise() -> None:
    from headway import attention

    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(HeadwayError, match="CAPE changes where tokens are and nothing here reads it"):
        attention(q, q, q, encoding=CAPE())
    attention(q, q, q, encoding=Compose(CAPE(), ALiBi(1)))
    for name in ("global_shift", "local_shift"):
        with pytest.raises(HeadwayError, match=f"{name} is -1: give at least 0"):
            CAPE(**{name: -1})
    with pytest.raises(HeadwayError, match=r"scale is 0\.5: give at least 1"):
        CAPE(scale=0.5)
