"""What the heads of a comparison's language models do while they are trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from torch import Tensor, nn

from .._common.files import write_text
from .._common.training import Companion
from ..inspection import HeadLog

LINES = 8
"""The most lines after the first."""
STEPS = 75
"""The least steps from one line to the next, which keeps the time of the log at about 2 % of a training's."""
WINDOWS = 4
"""The windows that are read."""


class HeadWatch(Companion):
    """Writes a ``HeadLog`` at the beginning of a training, a few times in it and at its end.

    Checkpoints hold the log, so a training that resumes continues it, on another machine too. The log reads the first
    few of the ``windows`` of ids, which are the same for every model.
    """

    def __init__(self, model: nn.Module, path: Path, windows: Tensor, steps: int) -> None:
        self._model, self._path, self._windows = model, path, windows[:WINDOWS]
        self._log = HeadLog(model, path)
        self._steps = steps
        lines = max(1, min(LINES, steps // STEPS))
        self._wanted = {steps * line // lines for line in range(lines + 1)}
        if not self._log.steps:
            self.after(0)

    def after(self, step: int, loss: float = math.nan, seconds: float = 0.0) -> None:
        """Writes a line after some of the steps; ``step`` is the number of steps done.

        ``loss`` and ``seconds`` are not read.
        """
        if step in self._wanted:
            self._log.write(step, self._windows)

    def text(self) -> str:
        """Returns the text of the log, which is empty if nothing was written."""
        return self._path.read_text(encoding="utf-8") if self._path.exists() else ""

    def state_dict(self) -> dict[str, Any]:
        """Returns the log, as a checkpoint holds it."""
        return {"head_log": self.text()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the log of a checkpoint, unless an earlier version wrote it without a log."""
        if "head_log" in state:
            write_text(self._path, state["head_log"])
            self._log = HeadLog(self._model, self._path)

    def summary(self) -> dict[str, float | None] | None:
        """Returns the roles of the heads at the end of the training; None if the log does not reach it.

        "normalized_entropy" and "first" are means of all heads, "previous_token" and "induction" those of the head that
        does it most. A number is None if the training diverged.
        """
        rows = [row for row in self._log.table() if row["step"] == self._steps]
        if not rows:
            return None

        def of_all(summed: Callable[[list[float]], float], name: str) -> float | None:
            values = [row[name] for row in rows]
            return summed(values) if all(map(math.isfinite, values)) else None

        return {
            "normalized_entropy": of_all(mean, "normalized_entropy"),
            "first": of_all(mean, "first"),
            "previous_token": of_all(max, "previous_token"),
            "induction": of_all(max, "induction"),
        }
