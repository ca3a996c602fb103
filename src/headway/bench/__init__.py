"""Measures the speed and memory of attention on this machine, against torch and against the processor's limit.

The modules, in the order in which to read them: ``cases`` lists what is measured; ``verify`` checks the kernels first;
``sides`` builds the functions to compare (``statistics`` those with statistics), ``machine`` measures the processor's
limit (the roofline, in short "roof"), and ``measure`` times all of them in turn (``memory`` in a new process); ``rows``
stores the results; ``targets`` judges them; ``report``, ``brief`` and ``picture`` show them; ``run`` does all of it.
``models`` measures whole models against transformers; ``model_sides`` builds their sides.
"""

from .._common.progress import ProgressListener as ProgressListener
from .cases import FULL as FULL
from .cases import QUICK as QUICK
from .cases import Case as Case
from .cases import Plan as Plan
from .run import bench as bench

__all__ = ["FULL", "QUICK", "Case", "Plan", "ProgressListener", "bench"]
