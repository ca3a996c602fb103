"""LeRoPE: the frequencies of RoPE, each times a learned factor."""

import pytest
import torch

from headway import attention
from headway.coordinates import Coordinates
from headway.positions import LeRoPE, RoPE, SSMax
from headway.positions._compose import Compose

AT = Coordinates.span(6, start=3)


def test_it_starts_as_rope() -> None:
    x = torch.randn(2, 3, 6, 16, dtype=torch.float64)
    for layout in ("interleaved", "half"):
        expected = RoPE(16, layout=layout).prepare(x, AT)
        assert torch.equal(LeRoPE(16, layout=layout).prepare(x, AT), expected)


def test_frequencies_have_a_gradient() -> None:
    encoding = LeRoPE(8)
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    attention(q, k, v, encoding=encoding).square().sum().backward()
    assert encoding.alpha.grad is not None
    assert bool((encoding.alpha.grad != 0).all())


def test_transformers_agrees() -> None:
    """Mistral Large 4: the cosines and sines, and its factor of queries as the scalable softmax with a bias."""
    package = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    from types import SimpleNamespace

    config = SimpleNamespace(
        max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, head_dim=16
    )
    theirs = package.MistralLarge4TextRotaryEmbedding(config)
    theirs.alpha.copy_(torch.linspace(-0.6, 0.9, 8))
    cos, sin = theirs(torch.zeros(1, 1, 1), torch.arange(3, 9)[None])
    encoding = LeRoPE(16)
    encoding.alpha.data.copy_(theirs.alpha)
    for found, expected in zip(encoding.waves(AT), (cos, sin), strict=True):
        torch.testing.assert_close(found[0, 0].float(), expected[0, :, :8], atol=2e-6, rtol=0)
    x = torch.randn(1, 2, 6, 16)
    turned, _ = package.apply_rotary_pos_emb_interleave(x, x, cos, sin)
    # theirs leaves the first dimensions of all pairs before the second ones
    ours = encoding.prepare(x, AT).unflatten(-1, (8, 2)).mT.flatten(-2)
    torch.testing.assert_close(ours, turned, atol=4e-6, rtol=0)


def test_the_factor_of_queries_of_mistral_large_4() -> None:
    scaling = SSMax(2, bias=True)
    scaling.s.data.copy_(torch.tensor([0.3, -0.1]))
    assert scaling.b is not None
    scaling.b.data.fill_(1.0)
    q, k, v = torch.randn(3, 1, 2, 6, 16, dtype=torch.float64)
    found = attention(q, k, v, encoding=Compose(LeRoPE(16), scaling.double()))
    factor = 1 + torch.tensor([0.3, -0.1]).double()[:, None] * torch.arange(1, 7).double().log()
    expected = attention(q * factor[..., None], k, v, encoding=RoPE(16))
    torch.testing.assert_close(found, expected)
