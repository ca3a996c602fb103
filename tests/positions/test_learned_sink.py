"""The sink that is learned."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import headway as hw
from headway.errors import HeadwayError
from headway.positions import ALiBi, Compose
from headway.positions._encodings.learned_sink import LearnedSink


def waves(*shape: int, at: float) -> Tensor:
    """Numbers that anybody can write down again."""
    return torch.sin(0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + at).view(shape)


def with_logits(*logits: float) -> LearnedSink:
    encoding = LearnedSink(len(logits)).double()
    encoding.logits.data = torch.tensor(logits, dtype=torch.float64)
    return encoding


def test_the_authors_numbers() -> None:
    """sdpa of openai/gpt-oss, gpt_oss/torch/model.py at 7b58334: 4 tokens, 2 heads of 3 on one of keys."""
    expected = [
        [0.51188908, 0.24059355, -0.14385689, 0.73991314, 0.34776739, -0.2079388],
        [-0.34545469, -0.47113341, -0.37523072, 0.53391484, 0.15778269, -0.29255713],
        [0.09539791, -0.02375253, -0.13173178, -0.34062074, -0.19005895, 0.04989054],
        [0.46813596, 0.26350573, -0.06505537, 0.35385643, 0.0960888, -0.2068709],
    ]
    q = waves(4, 2, 3, at=0.0).transpose(0, 1)[None]
    k, v = (waves(1, 1, 4, 3, at=at) for at in (1.0, 2.0))
    found = hw.attention(q, k, v, encoding=with_logits(0.5, -1.0), mask=hw.masks.Causal())
    found = found[0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_it_is_that_of_transformers() -> None:
    package = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    ours = LearnedSink(4).double()
    torch.nn.init.normal_(ours.logits)
    q = torch.randn(1, 4, 5, 8, dtype=torch.float64)
    k, v = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64)
    mask = torch.full((5, 5), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    module = SimpleNamespace(num_key_value_groups=2, sinks=ours.logits, training=False)
    expected, _ = package.eager_attention_forward(module, q, k, v, mask, scaling=8**-0.5)
    found = hw.attention(q, k, v, encoding=ours, mask=hw.masks.Causal())
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_it_composes_with_an_encoding() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8, dtype=torch.float64)
    sink = with_logits(0.5, -1.0)
    found = hw.attention(q, k, v, encoding=Compose(ALiBi(2), sink))
    torch.testing.assert_close(found, hw.attention(q, k, v, encoding=ALiBi(2), sink=sink.logits))
    assert not torch.allclose(found, hw.attention(q, k, v, encoding=ALiBi(2)))


def test_no_heads_raise() -> None:
    with pytest.raises(HeadwayError, match="num_heads is 0: give at least 1"):
        LearnedSink(0)
