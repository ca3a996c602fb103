"""A map of words in two dimensions, and how well it keeps the neighbourhoods of the vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .._common.extras import need
from .._common.files import need_file_place
from .._common.pictures import save
from ..errors import HeadwayError, unknown
from ._base import Vectors
from ._unknown import UnknownWordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("t-sne", "pca")
PERPLEXITY = 10.0
"""The number of neighbours that t-SNE keeps together; fewer if there are fewer than 31 words."""
NEAREST = 5
"""The neighbours by which the trustworthiness is measured."""
FEWEST = 4
ENDINGS = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class WordMap:
    """Words in two dimensions.

    Attributes:
        words: the words that have a vector.
        groups: the group of each word; "" if no groups were given.
        points: the place of each word, float64 [words, 2].
        method: "t-sne" or "pca".
        trustworthiness: 0 … 1, how far the nearest words on the map are also near by their vectors: 1 if no word is
            near only on the map, and about 0.5 for random places (Venna and Kaski 2001).
        neighbours: the number of nearest words that count for it.
        variance: the share of the variance along each axis, for "pca"; None for "t-sne", whose axes mean nothing.
        without: the words that were left out, as they have no vector.
    """

    words: tuple[str, ...]
    groups: tuple[str, ...]
    points: Tensor
    method: str
    trustworthiness: float
    neighbours: int
    variance: tuple[float, float] | None = None
    without: tuple[str, ...] = ()

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """Draws the map: each word with its name, each group in a colour and a shape of its own.

        Names do not overlap. A name without room beside its point stands further away, with a line. A name without any
        room is left out, and the picture says so. Below the title stands how well the map keeps neighbourhoods.

        Args:
            path: the file to write, .png, .pdf or .svg; none if None.
            title: the title; one that names the method if None.

        Returns:
            matplotlib's figure.

        Raises:
            HeadwayError: if matplotlib is missing, no font has a letter, or the file cannot be written.
        """
        place = None if path is None else picture_place(path)
        need("matplotlib", "a map of words", extra="plot")
        from ._map_picture import picture_of_map

        rows = zip(self.words, self.groups, self.points.tolist(), strict=True)
        points = [(word, group, x, y) for word, group, (x, y) in rows]
        figure = picture_of_map(points, title or "Words in two dimensions", self._facts())
        if place is not None:
            save(figure, place, dpi=200)
        return figure

    def _facts(self) -> str:
        """What the map keeps of the vectors."""
        kept = f"trustworthiness {self.trustworthiness:.2f} of 1 ({self.neighbours} nearest words)"
        if self.variance is None:
            return f"t-SNE: axes and large distances mean nothing · {kept}"
        first, second = (100 * share for share in self.variance)
        return f"PCA: the axes keep {first:.0f} % and {second:.0f} % of the variance · {kept}"


def word_map(
    vectors: Vectors, words: Sequence[str] | Mapping[str, Sequence[str]], *, method: str = "t-sne", seed: int = 0
) -> WordMap:
    """Returns a map of words in two dimensions, by scikit-learn.

    Vectors are first scaled to length one, so distances follow cosines. The same seed gives the same map.

    Args:
        vectors: the vectors.
        words: the words, or the words of each group by its name.
        method: "t-sne" keeps near words together, and distances between distant groups mean nothing; "pca" projects
            on the two directions of the largest variance.
        seed: the seed of t-SNE.

    Raises:
        HeadwayError: if the method is unknown, a word is given twice, fewer than four words have a vector, or all
            pairs of them have the same cosine.

    References:
        van der Maaten and Hinton 2008 (t-SNE); Venna and Kaski 2001 (trustworthiness).

    Example:
        word_map(vectors, {"animals": ["dog", "cat"], "numbers": ["two", "three"]}).plot("map.png")
    """
    if method not in METHODS:
        raise unknown("map of words", method, METHODS)
    if isinstance(words, str):
        raise HeadwayError(f"words is the text {words[:40]!r}: give a list of words, or lists by name")
    pairs = list(words.items()) if isinstance(words, Mapping) else [("", words)]
    asked = [(word, group) for group, its in pairs for word in its]
    if twice := sorted(word for word, times in Counter(word for word, _ in asked).items() if times > 1):
        raise HeadwayError(f"the word {twice[0]!r} is given twice: give each word once")
    known = [(word, group) for word, group in asked if word in vectors]
    without = tuple(word for word, _ in asked if word not in vectors)
    if len(known) < FEWEST:
        few = f"{len(known)} of the {len(asked)} words have a vector: give at least {FEWEST} that have one"
        raise HeadwayError(f"{few}; {UnknownWordError(without[:FEWEST], vectors)}" if without else few)
    units = F.normalize(torch.stack([vectors.vector(word) for word, _ in known]), dim=1)
    cosines = (units @ units.T)[~torch.eye(len(units), dtype=torch.bool)]
    if float(cosines.std()) < 1e-6:
        raise HeadwayError(f"every two words of {vectors.name} have the same cosine, so that a map would be arbitrary")
    manifold, variance = need("sklearn.manifold", "a map of words"), None
    if method == "pca":
        pca = need("sklearn.decomposition", "a map of words").PCA(2, svd_solver="full")
        points = pca.fit_transform(units.double().numpy())
        variance = (float(pca.explained_variance_ratio_[0]), float(pca.explained_variance_ratio_[1]))
    else:
        perplexity = min(PERPLEXITY, (len(known) - 1) / 3)
        points = manifold.TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(units.numpy())
    nearest = min(NEAREST, (len(known) - 1) // 2)
    return WordMap(
        tuple(word for word, _ in known),
        tuple(group for _, group in known),
        torch.from_numpy(points).double(),
        method,
        float(manifold.trustworthiness(units.numpy(), points, n_neighbors=nearest)),
        nearest,
        variance,
        without,
    )


def picture_place(path: str | Path) -> Path:
    """Returns the path of a picture; raises HeadwayError for another ending, or a folder that does not exist."""
    place = Path(path)
    if place.suffix.lower() not in ENDINGS:
        raise HeadwayError(f"{place} has no ending of a picture: give {', '.join(ENDINGS)}")
    need_file_place(place)
    return place
