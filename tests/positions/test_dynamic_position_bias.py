"""The three forms of the network that reads a bias off the distance."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.dynamic_position_bias import DynamicPositionBias
from headway.properties import Pairs


def bias(encoding: DynamicPositionBias, at: Coordinates) -> Tensor:
    zeros = torch.zeros(encoding.num_heads, at.index.shape[1], 4, dtype=torch.float64)
    return Pairs(encoding, zeros, zeros, at, at).scores().detach()


def test_crossformers_numbers() -> None:
    """Attention(96, (2, 3), 2) of cheerss/CrossFormer, models/crossformer.py at 7952010: queries 0 and 4 of 2 heads.

    Its parameter of number k is sin(0.7·t + 1.3 + k), t = 0, 1 …; width is 96/16 there, not the paper's 96/4.
    """
    expected = [
        [1.37821742, 1.41831144, 1.45706003, 1.4595184, 1.45130442, 1.44806524],
        [1.32904623, 1.3717708, 1.34957879, 1.35533631, 1.37821742, 1.41831144],
        [3.49100227, 3.41700185, 3.32859601, 3.33809522, 3.31256568, 3.30189982],
        [3.51221157, 3.50086269, 3.50623517, 3.50554286, 3.49100227, 3.41700185],
    ]
    encoding = DynamicPositionBias(2, 96, window=(2, 3)).double()
    layers = [encoding.layers[0]]
    for norm, layer in zip(encoding.norms, encoding.layers[1:], strict=True):
        layers += [norm, layer]
    for number, parameter in enumerate(p for layer in layers for p in (layer.weight, layer.bias)):
        wave = torch.sin(0.7 * torch.arange(parameter.numel(), dtype=torch.float64) + 1.3 + number)
        parameter.data = wave.view(parameter.shape)
    at = Coordinates.of(torch.tensor([[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]]), 6)
    found = bias(encoding, at)[:, [0, 4]].flatten(0, 1)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=0)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_lines_are_those_of_x_transformers(log: bool, depth: int) -> None:
    package = pytest.importorskip("x_transformers.x_transformers")
    theirs = package.DynamicPositionBias(8, heads=3, depth=depth, log_distance=log)
    form = "x-transformers-log" if log else "x-transformers"
    ours = DynamicPositionBias(3, 32, window=9, form=form, depth=depth)
    linears = [module for module in theirs.modules() if isinstance(module, torch.nn.Linear)]
    for a, b in zip(ours.layers, linears, strict=True):
        a.load_state_dict(b.state_dict())
    expected = theirs(9, 9).detach()
    torch.testing.assert_close(bias(ours.double(), Coordinates.span(9)), expected.double(), atol=1e-5, rtol=1e-5)


def test_beyond_the_window_the_largest_distance_in_it_counts() -> None:
    encoding = DynamicPositionBias(1, 8, window=3, form="x-transformers").double()
    found = bias(encoding, Coordinates.of(torch.tensor([0, 2, 50]), 3))[0]
    assert found[0, 2] == found[0, 1]
    assert found[2, 0] == found[1, 0] != found[0, 1]


def test_axes_and_widths_follow_the_form() -> None:
    flat, line = DynamicPositionBias(2, 96), DynamicPositionBias(2, 96, form="x-transformers")
    assert (flat.axes, flat.sides, flat.layers[0].out_features) == (2, (7, 7), 6)
    assert (line.axes, line.sides, line.layers[0].out_features) == (1, (512,), 24)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 0, "embed_dim": 8}, "num_heads is 0"),
        ({"num_heads": 1, "embed_dim": 0}, "embed_dim is 0"),
        ({"num_heads": 1, "embed_dim": 8, "depth": 0}, "depth is 0"),
        ({"num_heads": 1, "embed_dim": 8, "width": 0}, "width is 0"),
        ({"num_heads": 1, "embed_dim": 8, "window": 0}, "window is 0"),
        ({"num_heads": 1, "embed_dim": 8, "form": "log"}, "form is 'log': give 'crossformer', "),
        ({"num_heads": 1, "embed_dim": 8, "form": "x-transformers", "window": (2, 2)}, "reads one axis: give one size"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        DynamicPositionBias(**arguments)
