"""Copying a string twice."""

import torch
from torch import Tensor

from ._strings import StringTask


class RepeatCopy(StringTask):
    """Writes a string twice: a b c > a b c a b c."""

    name = "repeat-copy"
    source = "Graves et al. 2014, arXiv:1410.5401; Duplicate String in Ruoss et al. 2023, arXiv:2305.16843"
    scored = "every letter of both copies"

    @staticmethod
    def output(text: Tensor) -> Tensor:
        """Returns strings twice."""
        return torch.cat([text, text], -1)
