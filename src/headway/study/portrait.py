"""A picture of one encoding: its effect by distance, on all pairs of positions, and its wavelengths."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..positions import PositionEncoding
from ..properties import Pairs
from .charts import COLOURS, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REACH = 128
"""The largest distance drawn to each side."""
SHOWN = 64
"""Positions in a map of all pairs."""
HEADS = 8
"""The most heads that are drawn."""


def portrait(encoding: PositionEncoding, name: str) -> Figure:
    """Draws an encoding with its present parameters, for a query and a key that are the same at every position.

    Args:
        encoding: the encoding.
        name: the title.

    Returns:
        The figure: scores by distance and for all pairs, what is added to embeddings, wavelengths, or positions, as far
        as
        the encoding has an effect on them.

    Raises:
        HeadwayError: if the encoding does nothing.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sitter = _Sitter(encoding)
        panels = sitter.panels()
        if not panels:
            raise HeadwayError(f"{name} does nothing, so there is nothing to draw")
        with rc_context({"font.family": ["DejaVu Sans"], "font.size": 10}):
            figure = Figure(figsize=(4.3 * len(panels) + 0.4, 4.2))
            all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
            figure.subplots_adjust(left=0.62 / figure.get_figwidth(), right=0.985, top=0.8, bottom=0.14, wspace=0.28)
            for axes, panel in zip(all_axes, panels, strict=True):
                panel(axes)
                axes.tick_params(colors=INK, length=3)
                for side in ("top", "right"):
                    axes.spines[side].set_visible(False)
            figure.text(0.012, 0.94, name, fontsize=13, fontweight="bold", color=INK, va="center")
    return figure


class _Sitter:
    """A float64 copy of an encoding, with inputs that are the same at every position, scaled so that s·⟨q, k⟩ is 1."""

    def __init__(self, encoding: PositionEncoding) -> None:
        self.encoding = copy.deepcopy(encoding).to("cpu", torch.float64).eval()
        self.heads, self.head_dim = encoding.sizes.num_heads or 1, encoding.sizes.head_dim or 64
        self.width = encoding.sizes.embed_dim or self.heads * self.head_dim
        self.limit = encoding.table_end or 1 << 20
        self.axes = self.encoding.axes or 1

    def panels(self) -> list[Any]:
        acts = self.encoding.acts
        if acts == {"locate"}:
            return [self.places]
        found: list[Any] = []
        if acts & {"prepare", "terms"}:
            found += [self.by_distance, self.grid if self.axes == 2 else self.map_of_scores]
        if "values" in acts:
            found.append(self.values_by_distance)
        if "embed" in acts:
            found += [self.codes, self.map_of_codes]
        if acts & {"prepare"} and self.frequencies() is not None:
            found.append(self.wavelengths)
        return found

    # ------------------------------------------------------------ scores

    def scores(self, at: Coordinates) -> Tensor:
        """Scores [heads, n, n], NaN for pairs that the mask of the encoding hides."""
        n = at.index.shape[1]
        found = self.pairs(at).scores().expand(self.heads, n, n)
        if not self.encoding.causal_only:
            return found
        return found.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), math.nan)

    def pairs(self, at: Coordinates) -> Pairs:
        """The encoding between queries and keys that are all the same."""
        n = at.index.shape[1]
        like = torch.ones(self.heads, n, self.head_dim, dtype=torch.float64)
        scale = self.encoding.default_scale(self.head_dim)
        like = like / math.sqrt(scale * self.head_dim)
        x = torch.randn(1, n, self.width, dtype=torch.float64)
        return Pairs(self.encoding, like, like, at, at, x, x)

    def along(self, n: int, axis: int | None = None) -> Coordinates:
        """n tokens along one axis, with the others at 0, or along all axes."""
        at = Coordinates.span(n, axes=self.axes)
        return at if axis is None else replace(at, position=at.position * (torch.arange(self.axes) == axis))

    def by_distance(self, axes: Axes) -> None:
        reach = min(REACH, (self.limit - 1) // 2)
        query = 2 * reach if self.encoding.causal_only else reach
        distances = torch.arange(2 * reach + 1) - query
        if self.axes > 1:
            lines = [
                (f"axis {a + 1}", self.scores(self.along(2 * reach + 1, a))[:, query].mean(0)) for a in range(self.axes)
            ]
        else:
            rows = self.scores(self.along(2 * reach + 1))[:HEADS, query]
            same = self.heads == 1 or bool((rows.nan_to_num() - rows[:1].nan_to_num()).abs().max() < 1e-9)
            lines = [("", rows[0])] if same else [(f"head {h + 1}", row) for h, row in enumerate(rows)]
        for number, (label, line) in enumerate(lines):
            axes.plot(distances.numpy(), line.numpy(), color=COLOURS[number % len(COLOURS)], linewidth=1.5, label=label)
        if len(lines) > 1:
            axes.legend(fontsize=7.5, frameon=False, ncols=2, labelcolor=INK, handlelength=1.2)
        axes.axhline(1, color=FAINT, linewidth=0.8, zorder=0)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        _say(axes, "Score by distance, content the same", "key position − query position")

    def values_by_distance(self, axes: Axes) -> None:
        reach = min(SHOWN, (self.limit - 1) // 2)
        query = 2 * reach if self.encoding.causal_only else reach
        at = self.along(2 * reach + 1)
        v = torch.ones(self.heads, 2 * reach + 1, self.head_dim, dtype=torch.float64)
        seen = self.pairs(at).transformed(v)[0, query].T
        top = float(seen.abs().max())
        image = axes.imshow(
            seen.numpy(), cmap="RdBu", vmin=-top, vmax=top, aspect="auto", interpolation="nearest",
            extent=(-query - 0.5, 2 * reach - query + 0.5, self.head_dim - 0.5, -0.5),
        )  # fmt: skip
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        _say(axes, "A value of ones, by distance", "key position − query position", "dimension")

    def map_of_scores(self, axes: Axes) -> None:
        n = min(SHOWN, self.limit)
        scores = self.scores(self.along(n)).mean(0)
        image = axes.imshow(scores.numpy(), cmap="viridis", interpolation="nearest")
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        _say(axes, "Score of every pair, mean of the heads", "key position", "query position")

    def grid(self, axes: Axes) -> None:
        side = 15
        rows = torch.arange(side)
        position = torch.stack(torch.meshgrid(rows, rows, indexing="ij"), dim=-1).reshape(1, -1, 2)
        at = replace(Coordinates.span(side * side), position=position)
        middle = side * side // 2
        scores = self.scores(at)[:, middle].mean(0).view(side, side)
        image = axes.imshow(scores.numpy(), cmap="viridis", extent=(-7.5, 7.5, 7.5, -7.5), interpolation="nearest")
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        _say(axes, "Score around a query, mean of the heads", "second axis", "first axis")

    # ------------------------------------------------------------ embeddings

    def code(self, n: int) -> Tensor:
        x = torch.zeros(1, n, self.width, dtype=torch.float64)
        return self.encoding.embed(x, self.along(n))[0]

    def codes(self, axes: Axes) -> None:
        code = self.code(min(REACH, self.limit))
        top = float(code.abs().max()) or 1.0
        image = axes.imshow(code.numpy(), cmap="RdBu", vmin=-top, vmax=top, aspect="auto", interpolation="nearest")
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        _say(axes, "What is added to the embeddings", "dimension", "position")

    def map_of_codes(self, axes: Axes) -> None:
        code = self.code(min(SHOWN, self.limit))
        length = code.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        image = axes.imshow(
            ((code / length) @ (code / length).T).numpy(), cmap="viridis", vmax=1, interpolation="nearest"
        )
        axes.figure.colorbar(image, ax=axes, shrink=0.85)
        _say(axes, "Cosine of the codes of two positions", "position", "position")

    # ------------------------------------------------------------ frequencies and positions

    def frequencies(self) -> Tensor | None:
        """The angle per step of each pair of dimensions, from the phases of the first two positions."""
        phases = getattr(self.encoding, "phases", None)
        if phases is None or self.axes > 1 or self.encoding.reads_input:
            return None
        try:
            first, second = (phases(replace(self.along(2), length=2))[0, ..., t, :] for t in (0, 1))
        except (HeadwayError, TypeError):
            return None
        found: Tensor = (second - first).abs()
        return found if found.ndim == 1 else found[0]

    def wavelengths(self, axes: Axes) -> None:
        rates = self.frequencies()
        assert rates is not None
        turning = rates > 0
        pairs = torch.arange(len(rates))
        axes.semilogy(
            pairs[turning].numpy(), (2 * math.pi / rates[turning]).numpy(), "o", color=COLOURS[0], markersize=3
        )
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlim(-0.02 * len(rates), 1.02 * len(rates))
        still = int((~turning).sum())
        _say(axes, "Wavelengths, in tokens" + (f"; {still} pairs do not rotate" if still else ""), "pair of dimensions")

    def places(self, axes: Axes) -> None:
        n = min(SHOWN, self.limit)
        for number, training in enumerate((True, True, True, False)):
            located = self.encoding.train(training).locate(self.along(n)).axis()[0]
            label = "evaluation" if not training else "training, three draws" if not number else None
            colour = INK if not training else COLOURS[number]
            axes.plot(range(n), located.numpy(), color=colour, linewidth=1.4, label=label)
        axes.legend(fontsize=8, frameon=False, labelcolor=INK)
        _say(axes, "Positions that tokens get", "position given", "position read")


def _say(axes: Axes, title: str, x: str, y: str = "") -> None:
    axes.set_title(title, fontsize=10.5, color=INK, loc="left", pad=8)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
