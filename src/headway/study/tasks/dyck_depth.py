"""The depth of brackets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._sequences import Examples, SequenceTask

DEEPEST = 8


class DyckDepth(SequenceTask):
    """Tells after each bracket how many are open: ( ( ) ( → 1 2 1 2. At most eight are."""

    name = "dyck-depth"
    source = "Hahn 2020, arXiv:1906.06755; Yao et al. 2021, arXiv:2105.11115"
    counts = "brackets"
    scored = "the depth after each bracket"
    symbols = ("(", ")", *map(str, range(DEEPEST + 1)))
    answers = DEEPEST + 1

    def examples(self, count: int, length: int, generator: torch.Generator) -> Examples:
        """Returns ``length`` brackets; see ``SequenceTask``."""
        opens = torch.rand(count, length, generator=generator) < 0.5
        depth, steps, depths = torch.zeros(count, dtype=torch.int64), [], []
        for wanted in opens.T:
            up = (wanted & (depth < DEEPEST)) | (depth == 0)
            depth = depth + torch.where(up, 1, -1)
            steps.append((~up).long())
            depths.append(depth)
        return Examples(torch.stack(steps, 1), 2 + torch.stack(depths, 1))

    def answer(self, prefix: Sequence[int]) -> int:
        """Returns the depth; see ``SequenceTask``."""
        return 2 + 2 * list(prefix).count(0) - len(prefix)

    def order_free(self, length: int) -> float:
        """Returns 1: the depth is a difference of two numbers."""
        return 1.0
