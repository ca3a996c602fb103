"""The measured roles of heads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import HeadwayError
from .._numbers import index_of
from .._table import DataTable
from .._watch import layer_named
from ._base import Role
from ._finding import Finding
from ._judge import Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Measured:
    """A role with its figures of all heads."""

    role: Role
    candidates: tuple[str, ...]
    judged: Judged
    has_baseline: bool


class HeadRoles:
    """The roles of all heads of a model.

    Args:
        heads: layer and number of each head.
        measured: the figures of each role.
        not_measured: roles that cannot be measured on these texts, with what they need.
    """

    def __init__(
        self, heads: list[tuple[str, int]], measured: Mapping[str, Measured], not_measured: dict[str, str]
    ) -> None:
        self._heads, self._measured = heads, measured
        self.not_measured = not_measured

    @property
    def layers(self) -> list[str]:
        """The names of the layers."""
        return list(dict.fromkeys(layer for layer, _ in self._heads))

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the roles that were measured, in the order by which one of them is primary."""
        return tuple(self._measured)

    @property
    def lacking(self) -> str:
        """What the roles that were not measured need, as a sentence."""
        return "; ".join(f"{role} needs {what}" for role, what in self.not_measured.items())

    def only(self, roles: Collection[str]) -> HeadRoles:
        """Returns the results of some of the roles.

        Args:
            roles: their names.

        Raises:
            HeadwayError: if there are none.
        """
        if not roles:
            raise HeadwayError(f"roles is empty: give one or more of {', '.join((*self.roles, *self.not_measured))}")
        measured = {name: one for name, one in self._measured.items() if name in roles}
        lacking = {name: what for name, what in self.not_measured.items() if name in roles}
        return HeadRoles(self._heads, measured, lacking)

    def heads(self, layer: int | str) -> int:
        """Returns the number of heads of a layer.

        Args:
            layer: the name of the layer, or its number in ``layers``.

        Raises:
            HeadwayError: if there is no such layer.
        """
        name = layer_named(layer, self.layers)
        return sum(one == name for one, _ in self._heads)

    def of(self, layer: int | str, head: int) -> list[Finding]:
        """Returns what a head does: a finding for each role and candidate that holds, the primary role's first.

        Among the candidates of one role, the one that was furthest above its baseline on the other half of the texts
        comes first.

        Args:
            layer: the name of the layer, or its number in ``layers``.
            head: the number of the head.

        Raises:
            HeadwayError: if there is no such layer or head.
        """
        name = layer_named(layer, self.layers)
        numbers = [number for number, (one, _) in enumerate(self._heads) if one == name]
        return list(self._held(numbers[index_of(head, len(numbers), "head")]))

    def role(self, name: str) -> list[Finding]:
        """Returns the findings of a role, of all heads and candidates.

        Args:
            name: the name of the role.

        Raises:
            HeadwayError: if it was not measured.
        """
        measured = self._of_role(name)
        return [self._finding(measured, h, c) for c in range(len(measured.candidates)) for h in range(len(self._heads))]

    def best(self, name: str) -> list[Finding]:
        """Returns for each candidate of a role the best head, and the best candidate first.

        Heads and order were chosen on one half of the texts by the distance from the baseline; the figures are those of
        the other half. Candidates with too few cases are left out.

        Args:
            name: the name of the role.

        Raises:
            HeadwayError: if it was not measured.
        """
        measured = self._of_role(name)
        best, heads = measured.judged.chosen_by.nan_to_num(-torch.inf).max(0)
        order = best.argsort(descending=True, stable=True).tolist()
        return [self._finding(measured, int(heads[c]), c) for c in order if best[c] > -torch.inf]

    def table(self) -> DataTable:
        """Returns one row for each head: its primary role with its figures, and all of its roles."""
        rows = DataTable()
        for number, (layer, head) in enumerate(self._heads):
            held = list(self._held(number))
            first = {} if not held else asdict(held[0])
            numbers = {name: first.get(name, torch.nan) for name in ("figure", "low", "high", "baseline")}
            names = dict.fromkeys(f"{one.role} ({one.candidate})" for one in held)
            what = {"role": first.get("role", ""), "candidate": first.get("candidate", ""), **numbers}
            rows.append({"layer": layer, "head": head, **what, "cases": first.get("cases", 0), "all": ", ".join(names)})
        return rows

    def plot(self, *, title: str = "Roles of heads", out: str | Path | None = None) -> Figure:
        """Draws all heads, a line for each layer, in the colours of their primary roles; needs matplotlib.

        Args:
            title: the title of the picture.
            out: a file to which the picture is also written, in the format that its name ends with, such as .png or
                .svg.

        Returns:
            The figure of matplotlib.

        Raises:
            HeadwayError: if no role was measured, or the file cannot be written.
        """
        from ..._common.pictures import need_format, save
        from ._picture import picture_of_roles

        if not self._measured:
            raise HeadwayError(f"no role was measured: {self.lacking}")
        need_format(out)
        primary: dict[str, list[Finding | None]] = {layer: [] for layer in self.layers}
        for (layer, _), held in zip(self._heads, self._primary(), strict=True):
            primary[layer].append(held)
        figure = picture_of_roles(primary, self.roles, title)
        if out is not None:
            save(figure, out)
        return figure

    def _of_role(self, name: str) -> Measured:
        if name in self.not_measured:
            raise HeadwayError(f"{name!r} was not measured: it needs {self.not_measured[name]}")
        if name not in self._measured:
            raise HeadwayError(f"{name!r} was not measured: give one of {', '.join(self._measured)}")
        return self._measured[name]

    def _held(self, number: int) -> Iterator[Finding]:
        for measured in self._measured.values():
            chosen_by, holds = measured.judged.chosen_by[number], measured.judged.holds[number]
            for c in chosen_by.nan_to_num(-torch.inf).argsort(descending=True, stable=True).tolist():
                if holds[c]:
                    yield self._finding(measured, number, c)

    def _primary(self) -> list[Finding | None]:
        """The finding of each head's primary role; None for a head without a role."""
        return [next(self._held(number), None) for number in range(len(self._heads))]

    def _finding(self, measured: Measured, head: int, candidate: int) -> Finding:
        judged = measured.judged
        figure, low, high, baseline, cases = (
            float(x[head, candidate]) for x in (judged.figure, judged.low, judged.high, judged.baseline, judged.cases)
        )
        return Finding(
            role=measured.role.name,
            candidate=measured.candidates[candidate],
            layer=self._heads[head][0],
            head=self._heads[head][1],
            figure=figure,
            low=low,
            high=high,
            baseline=baseline if measured.has_baseline else torch.nan,
            cases=round(cases),
            holds=bool(judged.holds[head, candidate]),
        )

    def __repr__(self) -> str:
        held = self._primary()
        counts = {role: sum(one is not None and one.role == role for one in held) for role in self._measured}
        said = ", ".join(f"{count} {role}" for role, count in counts.items() if count)
        return f"HeadRoles({len(self.layers)} layers, {len(self._heads)} heads: {said or 'no role held'})"
