"""Scores of heads and tokens that need token ids, several layers, the output projection or gradients, by name."""

from ._base import Score as Score
from ._results import HeadScores as HeadScores
from ._table import *  # noqa: F403 (the class of each score)
from ._table import SCORES as SCORES
