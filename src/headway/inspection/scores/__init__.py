"""Scores of heads and tokens that need more than the weights of a layer: ids, other layers, values, gradients."""

from ._base import Score as Score
from ._results import HeadScores as HeadScores
from ._table import *  # noqa: F403 (the class of each score)
from ._table import SCORES as SCORES
