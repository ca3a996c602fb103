"""Polar positions: lengths, learned phases, and heads that share keys."""

import math

import pytest
import torch

from headway import attention
from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.masks import Causal
from headway.positions._encodings.pope import PoPE


def test_an_example_by_hand() -> None:
    """Zeros have the length ln 2; at a distance of 3 the frequencies 1 and 1/100 have turned by 3 and 0.03."""
    zeros = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    at = Coordinates.of(torch.tensor([5, 2]), 2)
    encoding = PoPE(1, 2, base=10000.0)
    found = (encoding.prepare_query(zeros, at) @ encoding.prepare_key(zeros, at).mT)[0, 0, 0, 1].item()
    assert found == pytest.approx(math.log(2) ** 2 * (math.cos(3) + math.cos(0.03)))


def test_content_moves_no_phase() -> None:
    """Queries that differ only in content differ only in length, and no length is negative."""
    at = Coordinates.of(torch.tensor([7]), 1)
    first, second = (PoPE(1, 8).prepare_query(x, at).unflatten(-1, (2, 8)) for x in torch.randn(2, 1, 1, 1, 8))
    torch.testing.assert_close(*(torch.atan2(x[..., 1, :], x[..., 0, :]) for x in (first, second)))
    assert not torch.allclose(first, second)


def test_phases_are_held_within_bounds() -> None:
    encoding = PoPE(2, 4).double()
    q, k = torch.randn(2, 1, 2, 3, 4, dtype=torch.float64)
    at = Coordinates.span(3)

    def found(value: float) -> torch.Tensor:
        torch.nn.init.constant_(encoding.phase, value)
        return encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT

    torch.testing.assert_close(found(0.5), found(0.0))
    torch.testing.assert_close(found(-7.0), found(-2 * math.pi))
    assert not torch.allclose(found(-1.0), found(0.0))
    gradients = []
    for value in (-1.0, 0.0, 0.5):
        (gradient,) = torch.autograd.grad(found(value).sum(), encoding.phase)
        gradients.append(bool(gradient.any()))
    assert gradients == [True, True, False], "from 0, where it begins, it learns"


def test_the_sign_of_the_phase() -> None:
    """cos((pⱼ − pᵢ)·θ + δ): with δ = −1 a key one step later is met in full by θ = 1."""
    encoding = PoPE(1, 1)
    torch.nn.init.constant_(encoding.phase, -1.0)
    x, at = torch.zeros(1, 1, 2, 1), Coordinates.span(2)
    found = (encoding.prepare_query(x, at) @ encoding.prepare_key(x, at).mT)[0, 0]
    assert found[0, 1].item() == pytest.approx(math.log(2) ** 2)
    assert found[1, 0].item() == pytest.approx(math.log(2) ** 2 * math.cos(-2))


def test_heads_that_share_keys_have_phases_of_their_own() -> None:
    encoding = PoPE(4, 8, uniform=True)
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 6)
    found = attention(q, k, v, encoding=encoding, mask=Causal())
    wide = [x.repeat_interleave(2, dim=1) for x in (k, v)]
    torch.testing.assert_close(attention(q, *wide, encoding=encoding, mask=Causal()), found)
    same = attention(q[:, :1].expand(-1, 4, -1, -1), k, v, encoding=encoding, mask=Causal())
    assert not torch.allclose(same[:, 0], same[:, 1])


def test_keys_hold_nothing_learned() -> None:
    assert not PoPE(4, 8).prepare_key(torch.randn(1, 2, 3, 8), Coordinates.span(3)).requires_grad


def test_large_inputs_stay_finite() -> None:
    x, at = torch.tensor([-60_000.0, -30, 30, 60_000]).half().view(1, 1, 1, 4), Coordinates.span(1)
    key = PoPE(1, 4).prepare_key(x, at).flatten()
    assert key.isfinite().all()
    torch.testing.assert_close(key[:4], x.flatten().clamp(min=0))


@pytest.mark.parametrize(("arguments", "said"), [((0, 8), "num_heads is 0"), ((2, 8, 1.0), "base is 1.0")])
def test_wrong_arguments_raise(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        PoPE(*arguments)


def test_other_sizes_raise() -> None:
    at = Coordinates.span(2)
    with pytest.raises(HeadwayError, match="num_heads=4 and is given a last dimension of 3: build it with num_heads=3"):
        PoPE(4, 8).prepare_query(torch.zeros(1, 3, 2, 8), at)
    with pytest.raises(HeadwayError, match="head_dim=8 and is given a last dimension of 6: build it with head_dim=6"):
        PoPE(4, 8).prepare_key(torch.zeros(1, 4, 2, 6), at)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("package", ["PoPE_pytorch", "x_transformers"])
def test_others_agree(package: str) -> None:
    theirs = pytest.importorskip(package)
    encoding = PoPE(2, 8, uniform=True)
    q, k = torch.randn(2, 1, 2, 5, 8)
    at, phase = Coordinates.span(5), encoding.phase.detach()
    if package == "PoPE_pytorch":
        module = theirs.PoPE(8, heads=2)
        module.bias.data = phase
        expected = theirs.apply_pope_to_qk(module(5), q, k)
    else:
        module = theirs.x_transformers.PolarEmbedding(8, heads=2)
        module.learned_bias.data = phase.view_as(module.learned_bias)
        frequencies, bias = module(torch.arange(5))
        apply = theirs.x_transformers.apply_polar_pos_emb
        expected = apply(q, frequencies), apply(k, frequencies + bias)
    found = encoding.prepare_query(q, at) @ encoding.prepare_key(k, at).mT
    torch.testing.assert_close(found, expected[0] @ expected[1].mT, atol=1e-5, rtol=0)


def test_pope_pytorch_deals_keys_out_to_heads_in_turn() -> None:
    """The same weights give the same with keys shared 0 1 0 1 there and 0 0 1 1 here, once heads are put in order."""
    theirs = pytest.importorskip("PoPE_pytorch")
    q, k = torch.randn(1, 4, 5, 32), torch.randn(1, 2, 5, 32)
    module = theirs.PoPE(32, heads=4)
    module.bias.data.uniform_(-6, 0)
    expected = theirs.compute_attn_similarity(q, k, module(5)).detach()
    order, at = [0, 2, 1, 3], Coordinates.span(5)
    encoding = PoPE(4, 32)
    encoding.phase.data = module.bias.data[order]
    key = encoding.prepare_key(k, at).repeat_interleave(2, dim=1)
    found = (encoding.prepare_query(q[:, order], at) @ key.mT).detach()
    torch.testing.assert_close(found, expected[:, order], atol=5e-5, rtol=0)
