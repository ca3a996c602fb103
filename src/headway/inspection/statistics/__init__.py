"""Statistics of attention weights, computed without holding the weights, by name."""

from ._base import Statistic as Statistic
from ._results import LargestWeight as LargestWeight
from ._results import TopWeights as TopWeights
from ._results import WeightMap as WeightMap
from ._table import *  # noqa: F403 (the class of each statistic)
from ._table import STATISTICS as STATISTICS
