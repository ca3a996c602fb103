"""How fast attention is here, against torch and against the processor itself.

The way of a measurement, which is also the order in which to read: ``cases`` says what is measured; ``verify`` checks
the kernels first; ``sides`` builds what runs against each other, ``machine`` the roof above them, and ``measure``
times them in turn (``memory`` in a fresh process); ``rows`` keeps what was found; ``targets`` judges it, ``report``
and ``picture`` show it; ``run`` goes through it all. ``models`` does the same for whole models, against transformers.
"""

from .cases import FULL as FULL
from .cases import QUICK as QUICK
from .cases import Case as Case
from .cases import Plan as Plan
from .run import Watch as Watch
from .run import bench as bench

__all__ = ["FULL", "QUICK", "Case", "Plan", "Watch", "bench"]
