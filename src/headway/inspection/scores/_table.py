"""The scores, one line for each: its import is its row."""

from ._base import Score

# isort: off
# by tokens
from .previous_token import PreviousToken as PreviousToken
from .duplicate_token import DuplicateToken as DuplicateToken
from .induction import Induction as Induction
from .prefix_matching import PrefixMatching as PrefixMatching

# by values, layers and gradients
from .norm_weighted import NormWeighted as NormWeighted
from .rollout import Rollout as Rollout
from .importance import Importance as Importance
# isort: on

SCORES: dict[str, type[Score]] = {
    cls.name: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Score) and cls is not Score
}
"""The scores by name, in the order of the imports above."""
