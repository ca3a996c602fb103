"""Inspection of attention: exact statistics of its weights, scores and roles of heads, captures of running models."""

from types import ModuleType as _ModuleType

from ._ablate import ablate as ablate
from ._above import WeightList as WeightList
from ._capture import capture as capture
from ._effects import HeadEffects as HeadEffects
from ._effects import head_effects as head_effects
from ._head_log import HeadLog as HeadLog
from ._head_log import read_head_log as read_head_log
from ._head_log_picture import plot_head_log as plot_head_log
from ._record import AttentionRecord as AttentionRecord
from ._record import Records as Records
from ._run import Statistics as Statistics
from ._run import attention_statistics as attention_statistics
from ._run import statistics_of as statistics_of
from ._seen import Seen as Seen
from .report import compare_reports as compare_reports
from .roles import ROLES as ROLES
from .roles import Finding as Finding
from .roles import HeadRoles as HeadRoles
from .roles import Role as Role
from .roles import head_roles as head_roles
from .scores import *  # noqa: F403 (the class of each score)
from .scores import SCORES as SCORES
from .scores import HeadScores as HeadScores
from .scores import Score as Score
from .statistics import *  # noqa: F403 (the class of each statistic)
from .statistics import STATISTICS as STATISTICS
from .statistics import LargestWeight as LargestWeight
from .statistics import Statistic as Statistic
from .statistics import TopWeights as TopWeights
from .statistics import WeightMap as WeightMap

# not assigned to plainly, since type checkers would take it for the whole list
globals()["__all__"] = [
    name for name, thing in globals().items() if not (name.startswith("_") or isinstance(thing, _ModuleType))
]


def __dir__() -> list[str]:
    return globals()["__all__"]
