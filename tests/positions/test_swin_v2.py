"""Swin v2: cosines, temperature, and the two spacings of distances."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.swin_v2 import SwinV2
from headway.properties import Pairs


def image(height: int, width: int) -> Coordinates:
    n = height * width
    return Coordinates.of(torch.stack([torch.arange(n) // width, torch.arange(n) % width], dim=-1)[None], n)


def waves(*shape: int, at: float = 0.0) -> Tensor:
    """Numbers that anybody can write down again."""
    return torch.sin(0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + at).view(shape)


@pytest.mark.parametrize(
    ("pretrained", "expected"),
    [
        (
            None,
            [
                [18.55163358, 16.35564415, 12.86581072, 11.50343848, 12.02197009, 13.69715518],
                [11.31450555, 11.41036352, 14.95457211, 19.26678099, 18.29308204, 16.34589089],
                [87.85715865, 34.79022503, -51.43859163, -83.82669688, -74.32873441, -41.30214793],
                [-40.77367754, 19.39804918, 94.24806721, 106.08265022, 83.30799182, 40.22297569],
            ],
        ),
        (
            (4, 5),
            [
                [18.55163358, 16.35123825, 12.87547127, 11.48669415, 12.00834419, 13.68189128],
                [11.50654579, 12.73029269, 17.92542046, 19.3307774, 18.29308204, 16.34148499],
                [87.85715865, 34.65547867, -51.50960883, -83.88393984, -74.36246192, -41.33648559],
                [-40.36350147, 20.80287926, 98.68130398, 107.07109646, 83.30799182, 40.08822932],
            ],
        ),
    ],
)
def test_the_authors_scores(pretrained: tuple[int, int] | None, expected: list[list[float]]) -> None:
    """WindowAttention of microsoft/Swin-Transformer, models/swin_transformer_v2.py at f82860b: window 2 × 3, 2 heads.

    Queries 0 and 4; the second head's logit_scale of 9 is cut to ln 100.
    """
    encoding = SwinV2(2, (2, 3), pretrained).double()
    first, second = encoding.cpb_mlp[0], encoding.cpb_mlp[2]
    first.weight.data, first.bias.data = waves(512, 2, at=1.0), waves(512, at=2.0)
    second.weight.data = 0.05 * waves(2, 512, at=3.0)
    encoding.logit_scale.data = torch.tensor([1.5, 9.0], dtype=torch.float64).view(2, 1, 1)
    q, k, _ = (waves(6, 8, at=0.1) @ waves(24, 8).T).view(6, 3, 2, 4).permute(1, 2, 0, 3)
    at = image(2, 3)
    found = Pairs(encoding, q, k, at, at).scores().detach()[:, [0, 4]].flatten(0, 1)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)


def test_weights_are_those_of_transformers_from_its_checkpoint() -> None:
    package = pytest.importorskip("transformers.models.swinv2.modeling_swinv2")
    config = package.Swinv2Config(qkv_bias=True)
    theirs = package.Swinv2SelfAttention(config, 12, 3, [4, 4], [6, 6]).double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = SwinV2(3, 4, 6).double()
    ours.load_state_dict(
        {
            name.replace("continuous_position_bias_mlp", "cpb_mlp"): value
            for name, value in theirs.state_dict().items()
            if name.startswith(("continuous", "logit_scale"))
        }
    )
    x = torch.randn(1, 16, 12, dtype=torch.float64)
    q, k = (linear(x)[0].view(16, 3, 4).transpose(0, 1) for linear in (theirs.query, theirs.key))
    at = image(4, 4)
    _, expected = theirs(x, output_attentions=True)
    torch.testing.assert_close(Pairs(ours, q, k, at, at).scores().softmax(-1), expected[0], atol=1e-6, rtol=0)


def test_the_papers_spacing_is_another() -> None:
    """sign(Δ)·ln(1 + |Δ|), no thirds: seen through a network that hands on the second coordinate."""
    at = image(1, 4)
    zeros = torch.zeros(1, 4, 4, dtype=torch.float64)
    found = {}
    for spacing in ("code", "paper"):
        encoding = SwinV2(1, 4, hidden=2, spacing=spacing).double()
        encoding.cpb_mlp[0].weight.data = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
        encoding.cpb_mlp[2].weight.data = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
        bias = Pairs(encoding, zeros, zeros, at, at).scores().detach()[0]
        found[spacing] = (bias / 16).logit()[3].tolist()  # query 3, so Δ = 3, 2, 1, 0
    assert found["paper"] == pytest.approx([math.log(1 + d) for d in (3, 2, 1, 0)])
    assert found["code"] == pytest.approx([math.log2(1 + 8 * d / 3) / 3 for d in (3, 2, 1, 0)])


def test_queries_and_keys_are_of_length_one() -> None:
    x = 1e-3 * torch.randn(1, 2, 5, 8, dtype=torch.float16)
    found = SwinV2(2).prepare(x, image(1, 5))
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float().norm(dim=-1), torch.ones(1, 2, 5), atol=1e-3, rtol=0)
    assert not SwinV2(2).prepare(torch.zeros(1, 2, 1, 8), image(1, 1)).isnan().any()
    torch.testing.assert_close(
        SwinV2(2).terms(image(1, 1), image(1, 1))[0].factor, torch.full((1, 2, 1), 10.0).double()
    )


def test_a_temperature_beyond_the_limit_gets_no_gradient() -> None:
    encoding = SwinV2(2)
    encoding.logit_scale.data = torch.tensor([1.0, 9.0]).view(2, 1, 1)
    temperature, _ = encoding.terms(image(1, 2), image(1, 2))
    F.relu(temperature.factor).sum().backward()
    assert encoding.logit_scale.grad.flatten().tolist() == pytest.approx([math.e, 0.0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 0}, "num_heads is 0"),
        ({"num_heads": 1, "window": (2, 0)}, "window is 0"),
        ({"num_heads": 1, "pretrained_window": 0}, "pretrained_window is 0"),
        ({"num_heads": 1, "hidden": 0}, "hidden is 0"),
        ({"num_heads": 1, "spacing": "log"}, "spacing is 'log': give 'code' or 'paper'"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        SwinV2(**arguments)
