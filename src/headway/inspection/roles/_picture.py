"""A picture of the roles of all heads: a line for each layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._common.language import said
from ..._common.pictures import BASELINE, COLOURS, INK, style
from ._finding import Finding
from ._table import ROLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS_OF_ROLES = (*COLOURS, BASELINE, "#a8b2c1", "#d5dbe3")
NO_ROLE = "#f3f4f6"


def picture_of_roles(primary: Mapping[str, Sequence[Finding | None]], measured: Collection[str], title: str) -> Figure:
    """Draws each head in the colour of its primary role, with its candidate and its figure.

    ``primary`` has the finding of each head, by layer; None for a head without a role.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    layers = list(primary)
    held = [one for line in primary.values() for one in line if one is not None]
    most = max(map(len, primary.values()))
    colours = _colours(measured, {one.role for one in held})
    size = max(0.62, min(1.0, 12 / most))
    room = int(15 * size)  # letters in a cell
    with style([said("head"), title, *layers, *(one.candidate for one in held)]):
        figure = Figure(figsize=(size * most + 3.4, 0.62 * len(layers) + 1.9), layout="constrained")
        axes = figure.subplots()
        for y, layer in enumerate(layers):
            for x, one in enumerate(primary[layer]):
                colour = NO_ROLE if one is None else colours[one.role]
                axes.add_patch(Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, facecolor=colour, linewidth=0))
                if one is not None:
                    ink = "white" if _dark(colour) else INK
                    what = one.candidate if len(one.candidate) <= room else one.candidate[: room - 1] + "…"
                    text: dict[str, Any] = {"ha": "center", "va": "center", "color": ink, "parse_math": False}
                    axes.text(x + 0.5, y + 0.36, what, fontsize=6.5, **text)
                    axes.text(x + 0.5, y + 0.7, f"{one.figure:.2f}", fontsize=8, **text)
        axes.set(xlim=(0, most), ylim=(len(layers), 0))
        axes.set_xticks([x + 0.5 for x in range(most)], [str(x) for x in range(most)])
        axes.set_yticks([y + 0.5 for y in range(len(layers))], layers, fontsize=8)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set(xlabel=said("head"), ylabel=said("layer"))
        axes.set_title(title, loc="left", fontsize=12, pad=10)
        there = [role for role in colours if any(one.role == role for one in held)]
        patches = [Patch(color=colours[role], label=role.replace("_", " ")) for role in there]
        figure.legend(
            handles=[*patches, Patch(color=NO_ROLE, label=said("no role held"))],
            loc="outside right upper",
            frameon=False,
            fontsize=9,
        )
        figure.supxlabel(
            said("the primary role of each head: what for, and its figure on held-out texts"),
            fontsize=8.5,
            color=BASELINE,
        )
    return figure


def _colours(measured: Collection[str], shown: set[str]) -> dict[str, str]:
    """A colour for each role, the same in every picture; a user's own roles take those of roles that are not shown."""
    colours = dict(zip(ROLES, COLOURS_OF_ROLES, strict=True))
    free = [colour for role, colour in colours.items() if role not in shown] or list(COLOURS_OF_ROLES)
    own = [role for role in measured if role not in ROLES]
    return colours | {role: free[number % len(free)] for number, role in enumerate(own)}


def _dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return bool(torch.tensor([red, green, blue]).float() @ torch.tensor([0.299, 0.587, 0.114]) < 150)
