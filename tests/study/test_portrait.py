"""Every encoding of the table can be drawn, and what is drawn is its numbers."""

import math

import pytest
import torch

from headway.errors import HeadwayError
from headway.positions import ENCODINGS, ALiBi, NoPE, encoding
from headway.study.portrait import portrait
from looks import faults

SIZES = {"num_heads": 4, "head_dim": 16, "embed_dim": 64, "max_length": 96, "bidirectional": False}


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "none"])
def test_everything_is_drawn(name: str) -> None:
    figure = portrait(encoding(name, **SIZES), name)
    panels = [axes for axes in figure.axes if axes.get_title("left") or axes.get_title()]
    assert panels, "no panel has a title"
    for axes in panels:
        drawn = [torch.tensor([*map(float, line.get_ydata())]) for line in axes.lines]
        drawn += [torch.tensor(image.get_array().filled(math.nan).tolist()) for image in axes.images]
        assert any(part.isfinite().any() for part in drawn)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "none"])
def test_an_untrained_encoding_is_drawn_with_something_to_see(name: str) -> None:
    """Parameters of zero, and contents on which the encoding does not act, are replaced; the picture can be read."""
    figure = portrait(encoding(name, **SIZES), name, untrained=True)
    drawn = [torch.tensor([*map(float, line.get_ydata())]) for axes in figure.axes for line in axes.lines]
    images = [image.get_array().filled(math.nan) for axes in figure.axes for image in axes.images]
    drawn += [torch.tensor(image.tolist()) for image in images]
    ranges = [part[part.isfinite()].max() - part[part.isfinite()].min() for part in drawn if part.isfinite().any()]
    levels = {round(float(part[0]), 6) for part in drawn if part.ndim == 1}
    assert max(ranges) > 1e-3 or len(levels) > 1
    assert faults(figure) == []


def test_it_says_what_was_drawn_at_random() -> None:
    torch.manual_seed(0)
    cope = encoding("cope", **SIZES)
    assert (
        "Drawn at random, as it is untrained (seed 0): vectors"
        in portrait(cope, "cope", untrained=True).get_supxlabel()
    )
    for parameter in cope.parameters():
        torch.nn.init.normal_(parameter)
    assert portrait(cope, "cope", untrained=True).get_supxlabel() == ""
    assert portrait(encoding("cope", **SIZES), "cope").get_supxlabel() == ""


def test_the_lines_are_the_scores() -> None:
    figure = portrait(ALiBi(2), "alibi")
    for head, line in enumerate(figure.axes[0].lines[:2]):
        x, y = (torch.tensor([*map(float, part)]) for part in line.get_data())
        torch.testing.assert_close(y, 1 - x.abs() * 2.0 ** (-4 * (head + 1)))


@pytest.mark.parametrize(("heads", "said"), [(4, ""), (8, "the first 4 of 8 heads")])
def test_it_says_that_heads_are_left_out(heads: int, said: str) -> None:
    figure = portrait(ALiBi(heads), "alibi")
    assert figure.axes[0].get_legend().get_title().get_text() == said
    assert faults(figure) == []


def test_nothing_to_draw_raises() -> None:
    with pytest.raises(HeadwayError, match="nothing to draw"):
        portrait(NoPE(), "none")
