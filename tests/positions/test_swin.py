"""Swin's table: its order, its resizing, checkpoints."""

import pytest
import torch
from torch import Tensor

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.swin import Swin
from headway.properties import Pairs


def bias(encoding: Swin, height: int, width: int) -> Tensor:
    """The bias between all tokens of an image in rows, [num_heads, height·width, height·width]."""
    n = height * width
    position = torch.stack([torch.arange(n) // width, torch.arange(n) % width], dim=-1)
    at, zeros = Coordinates.of(position[None], n), torch.zeros(encoding.num_heads, n, 4, dtype=torch.float64)
    return Pairs(encoding, zeros, zeros, at, at).scores().detach()


def test_the_authors_numbers() -> None:
    """WindowAttention of microsoft/Swin-Transformer, models/swin_transformer.py at f82860b: window 2 × 3, 2 heads."""
    expected = [
        [-0.36647913, 0.85459891, 0.6569866, 0.33498815, 0.98544973, 0.0],
        [-0.60483282, -0.88756703, 0.30311836, -0.97917773, -0.36647913, 0.85459891],
        [-0.87969576, 0.31909836, 0.98816823, -0.35078323, 0.86320937, 0.64421769],
        [0.05042269, -0.97562601, -0.38207142, -0.61813711, -0.87969576, 0.31909836],
    ]
    encoding = Swin(2, (2, 3)).double()
    encoding.table.data = torch.sin(0.7 * torch.arange(30, dtype=torch.float64)).view(15, 2)
    found = bias(encoding, 2, 3)[:, [0, 4]].flatten(0, 1)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


def test_a_checkpoint_of_transformers_fits() -> None:
    package = pytest.importorskip("transformers.models.swin.modeling_swin")
    theirs, ours = package.SwinRelativePositionBias(3, (4, 3)), Swin(3, (4, 3))
    torch.nn.init.normal_(theirs.relative_position_bias_table)
    ours.load_state_dict({"table": theirs.state_dict()["relative_position_bias_table"]})
    torch.testing.assert_close(bias(ours.double(), 4, 3), theirs()[0].detach().double())


def test_beyond_the_window_the_outermost_row_counts() -> None:
    encoding = Swin(1, 2).double()
    found = bias(encoding, 4, 4)
    assert torch.equal(found[0, 0, 3], found[0, 0, 1])
    assert torch.equal(found[0, 15, 0], found[0, 5, 0])


def test_resized_is_the_bicubic_table() -> None:
    """Swin's own load_pretrained and timm do the same; a window of its own size changes nothing."""
    encoding = Swin(3, (3, 3)).double()
    other = encoding.resized(5)
    image = encoding.table.detach().T.reshape(1, 3, 5, 5)
    expected = torch.nn.functional.interpolate(image, size=(9, 9), mode="bicubic")
    torch.testing.assert_close(other.table.detach(), expected.reshape(3, 81).T)
    assert other.table.dtype == torch.float64
    assert other.window == 5
    torch.testing.assert_close(encoding.resized(3).table, encoding.table)
    assert encoding.resized((3, 7)).table.shape == (5 * 13, 3)


def test_a_ramp_stays_a_ramp_in_the_middle_when_resized() -> None:
    """Height and width are not mixed up."""
    encoding = Swin(1, (4, 5)).double()
    encoding.table.data = torch.arange(7.0, dtype=torch.float64)[:, None].expand(7, 9).reshape(-1, 1)
    table = encoding.resized((4, 9)).table.detach().view(7, 17)
    torch.testing.assert_close(table, torch.arange(7.0, dtype=torch.float64)[:, None].expand(7, 17))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((0,), "num_heads is 0"), ((1, 0), "window is 0"), ((1, (3, 3, 3)), r"window is \(3, 3, 3\): give one size, or")],
)
def test_wrong_arguments_raise(arguments: tuple, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        Swin(*arguments)


def test_positions_of_one_axis_raise() -> None:
    with pytest.raises(HeadwayError, match="positions have 1 axis but Swin reads 2"):
        Swin(1).place(Coordinates.span(4))
