"""Where trainings run: processes of this machine, Slurm or Ray, or an engine of your own.

    compare("book.txt", baselines=(), engine=Slurm(64, "logs", slurm_partition="cpu"))
    suite.measure(["copy"], ["rope", "alibi"], engine=Ray(8))

An engine is a class with one method, ``run``. It gets jobs that do not depend on each other, and a function that does
one of them; both can be pickled. A job continues from the file of its state, so an engine may begin it again anywhere.
"""

from .._common.engines import Engine as Engine
from .._common.engines import Here as Here
from .._common.engines import Processes as Processes
from .._common.engines import Ray as Ray
from .._common.engines import Report as Report
from .._common.engines import Slurm as Slurm

__all__ = ["Engine", "Here", "Processes", "Ray", "Report", "Slurm"]


def __dir__() -> list[str]:
    return __all__
