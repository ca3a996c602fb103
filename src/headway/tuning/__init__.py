"""Verifies and measures the kernels on the machine at hand, once, so that ``kernel="auto"`` can rely on it.

::

    print(hw.tune())                              # minutes; or `headway tune`
    print(hw.explain(q, k, v))                    # … chosen (verified and measured here on 2026-11-26 21:40)

First each kernel is checked against float64, then the correct ones are timed. The result is a table in the cache
folder, or in the place that HEADWAY_TUNED names. Nothing is timed afterwards.
"""

from ._run import Tuned, export_table, import_table, tune

__all__ = ["Tuned", "export_table", "import_table", "tune"]


def __dir__() -> list[str]:
    return __all__
