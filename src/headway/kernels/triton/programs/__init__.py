"""The programs that run on a GPU, in Triton.

A program computes a block of queries, of keys, or of what is to be summed. No program writes what another one writes,
so that results are the same bits in every run. Importing this room imports triton.
"""

from ._blocks import ALIGNED, ANY, BESIDE, FLUSH
from ._columns import column_sums, pooled_map
from ._forward import forward, merge_splits, split_forward
from ._gradients import keys_gradient, queries_gradient, query_statistics
from ._rotations import rotations
from ._scores import LINEAR, LOG, POWER, SLOPE
from ._sight import COUNTS, EACH, NONE, NUMBER, SLOT, classify_tiles, list_tiles
from ._sums import (
    BY_AXES,
    BY_DISTANCE,
    BY_PIECE,
    RELATIVE_KEYS,
    RELATIVE_QUERIES,
    RELATIVE_VALUES,
    dense_gradient,
    diagonals_gradient,
    rows_gradient,
    run_sums,
    sums_by_row,
    vectors_gradient,
)

__all__ = [
    "ANY",
    "ALIGNED",
    "BESIDE",
    "FLUSH",
    "NONE",
    "NUMBER",
    "SLOT",
    "EACH",
    "COUNTS",
    "LINEAR",
    "LOG",
    "POWER",
    "SLOPE",
    "RELATIVE_KEYS",
    "RELATIVE_QUERIES",
    "RELATIVE_VALUES",
    "BY_DISTANCE",
    "BY_AXES",
    "BY_PIECE",
    "forward",
    "split_forward",
    "merge_splits",
    "classify_tiles",
    "list_tiles",
    "column_sums",
    "pooled_map",
    "query_statistics",
    "queries_gradient",
    "keys_gradient",
    "diagonals_gradient",
    "rows_gradient",
    "vectors_gradient",
    "sums_by_row",
    "dense_gradient",
    "run_sums",
    "rotations",
]
