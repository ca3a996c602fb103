"""The statistics, one line for each: its import is its row."""

from ._base import Statistic

# isort: off
# of each query, in one pass
from .entropy import Entropy as Entropy
from .visible import Visible as Visible
from .lse import Lse as Lse
from .largest_score import LargestScore as LargestScore
from .largest import Largest as Largest
from .previous import Previous as Previous
from .current import Current as Current
from .next import Next as Next
from .first import First as First
from .sink import Sink as Sink
from .distance import Distance as Distance
from .distances import Distances as Distances
from .classes import Classes as Classes
from .top_keys import TopKeys as TopKeys

# over queries, in a second pass
from .received import Received as Received
from .pooled_map import PooledMap as PooledMap
# isort: on

STATISTICS: dict[str, type[Statistic]] = {
    cls.name: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Statistic) and cls is not Statistic
}
"""The statistics by name, in the order of the imports above. A name is enough for all except "classes"."""
