"""The models of a comparison by name: one for each encoding, and two for each recurrent baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import HeadwayError, unknown
from ..models.recurrent import CELLS
from ..positions._naming import label_of
from .models import ModelSizes, build_recurrent, build_transformer, interpolated, kernel_used
from .protocol import FixedProtocol

EQUAL_PARAMETERS = "{} (equal parameters)"
EQUAL_TIME = "{} (equal time)"


@dataclass(frozen=True)
class Candidate:
    """A model that is trained: with an encoding, or a recurrent baseline.

    Attributes:
        name: its name in checkpoints.
        rows: the names of its rows: the encoding and, for learned positions, its interpolated table.
        cell: the recurrent cell of a baseline.
        by_the_clock: whether the baseline is trained for the time of the median Transformer.
    """

    name: str
    rows: tuple[str, ...]
    cell: str | None = None
    by_the_clock: bool = False

    @property
    def equal(self) -> str:
        """The candidate whose learning rate and pace this one has: itself, or its equal in parameters."""
        return EQUAL_PARAMETERS.format(self.cell) if self.by_the_clock else self.name

    def build(self, row: str, sizes: ModelSizes, seed: int) -> nn.Module:
        """Builds the untrained model of one of its rows."""
        if self.cell is not None:
            return build_recurrent(self.cell, sizes, seed)
        return build_transformer(row, sizes, seed)


def candidates(
    encodings: Sequence[str], baselines: Sequence[str], protocol: FixedProtocol, vocabulary: int = 256
) -> list[Candidate]:
    """Returns the models to train. Each encoding is built and called once, so errors come before any training.

    Raises:
        HeadwayError: if there are none, one is unknown, or its sizes do not fit.
    """
    if not encodings and not baselines:
        raise HeadwayError("encodings is empty: give at least one, such as rope")
    sizes = ModelSizes.of(protocol, "language_model", vocabulary)
    models: list[Candidate] = []
    for spec in dict.fromkeys(encodings):
        label_of(spec)
        model = build_transformer(spec, sizes, 0)
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.int64))
        kernel_used(spec, sizes, 1, "cpu")
        beyond = interpolated(spec, sizes) if max(protocol.lengths) > protocol.train_length else None
        models.append(Candidate(spec, (spec,) if beyond is None else (spec, beyond)))
    second_rows = {row for candidate in models for row in candidate.rows[1:]}
    models = [candidate for candidate in models if candidate.name not in second_rows]
    for cell in dict.fromkeys(baselines):
        if cell not in CELLS:
            raise unknown("baseline", cell, (*CELLS, "none"))
        build_recurrent(cell, sizes, 0)
        for name, by_the_clock in ((EQUAL_PARAMETERS, False), (EQUAL_TIME, True)):
            models.append(Candidate(name.format(cell), (name.format(cell),), cell, by_the_clock))
    return models
