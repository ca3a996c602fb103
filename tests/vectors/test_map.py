"""A map of words: what it says it keeps, what it refuses, and names that do not overprint, in any script."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from headway.errors import HeadwayError
from headway.vectors import OneHot, Pretrained, WordMap, word_map
from headway.vectors._map import METHODS

pytest.importorskip("sklearn")

GROUPS = {"动物": "狗 猫 马 牛 羊 鸡", "numbers": "two three four five six seven", "other": "x y z u v w"}
WORDS = {group: words.split() for group, words in GROUPS.items()}


@pytest.fixture(scope="module")
def vectors() -> Pretrained:
    """Three groups, far apart."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.eye(3).repeat_interleave(6, 0)
    rows = torch.cat([2 * centres, torch.randn(18, 13, generator=draw) / 4], 1)
    return Pretrained.of([word for words in WORDS.values() for word in words], rows)


@pytest.mark.parametrize("method", METHODS)
def test_groups_stay_together(method: str, vectors: Pretrained) -> None:
    made = word_map(vectors, WORDS, method=method)
    assert made.words == vectors.words
    assert made.groups == tuple(group for group in GROUPS for _ in range(6))
    apart = torch.cdist(made.points, made.points).fill_diagonal_(torch.inf).argmin(1)
    assert [made.groups[near] for near in apart.tolist()] == list(made.groups)
    assert 0.8 < made.trustworthiness <= 1
    assert torch.equal(word_map(vectors, WORDS, method=method).points, made.points)


def test_the_variance_of_the_axes_is_that_of_the_vectors(vectors: Pretrained) -> None:
    made = word_map(vectors, vectors.words, method="pca")
    units = F.normalize(vectors.matrix.double(), dim=1)
    spectrum = torch.linalg.svdvals(units - units.mean(0)).square()
    assert made.variance == pytest.approx((spectrum[:2] / spectrum.sum()).tolist(), rel=1e-5)
    assert word_map(vectors, vectors.words).variance is None


def test_random_places_are_not_trusted() -> None:
    words = [f"w{number}" for number in range(100)]
    rows = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    assert word_map(Pretrained.of(words, rows), words, method="pca").trustworthiness < 0.8


def test_what_it_refuses(vectors: Pretrained, tmp_path: Path) -> None:
    for wrong, said in (
        ({"words": "狗 猫"}, "words is the text"),
        ({"words": ["狗", "狗", "猫", "马", "牛"]}, "'狗' is given twice"),
        ({"words": ["狗", "猫", "mouse", "tow"]}, "2 of the 4 words have a vector: .*'tow': 'two'"),
        ({"words": WORDS, "method": "umap"}, "no map of words 'umap'"),
    ):
        with pytest.raises(HeadwayError, match=said):
            word_map(vectors, **wrong)  # type: ignore[arg-type]
    with pytest.raises(HeadwayError, match="same cosine"):
        word_map(OneHot().fit(["a b c d e f g h"]), list("abcdefgh"))
    made = word_map(vectors, [*vectors.words, "mouse"], method="pca")
    assert made.without == ("mouse",)
    for name in ("map.txt", "no/map.png"):
        with pytest.raises(HeadwayError, match="give"):
            made.plot(tmp_path / name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("count", [10, 120])
def test_names_do_not_overprint(count: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    words = tuple(f"word{number}" if number % 2 else f"第{number}个词" for number in range(count))
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(1)).double()
    made = WordMap(words, tuple("ab"[number % 2] for number in range(count)), points, "t-sne", 0.9, 5)
    figure = made.plot(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    names = figure.axes[0].texts
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in names]
    assert not [1 for i, one in enumerate(boxes) for other in boxes[:i] if one.overlaps(other)]
    said = " ".join(text.get_text() for text in figure.texts)
    missing = count - len(names)
    assert len(names) > 0.7 * count
    assert (f"{missing} name" in said) == (missing > 0)
    assert "trustworthiness 0.90 of 1" in said
