"""The library transformers itself: imported when it is needed, and checked for its version."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from ..._common.extras import pip_install
from ...errors import HeadwayError

NAME = "headway"
TABLE = "headway_table"
"""The name of MPNet's implementation after ``use_bias_table``; before, headway does not compute its attention."""
OLDEST = "5.23"
"""The version of transformers that is tested; older ones work if their mask interface takes offsets."""

ITS_OWN = (
    "this model masks its scores itself, so its attention does not go through transformers' attention interface: load "
    "it with attn_implementation='eager'"
)

LIBRARY: dict[str, Any] = {}
"""The modules of transformers that this package calls: imported once, since torch.compile cannot trace an import."""


def import_transformers() -> Any:
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise HeadwayError(
            f"transformers cannot be imported ({error}): {pip_install(f'transformers>={OLDEST}')}"
        ) from error
    try:
        for name in ("masking_utils", "utils.output_capturing"):
            LIBRARY[name] = import_module(f"transformers.{name}")
        fits = "q_offset" in inspect.signature(LIBRARY["masking_utils"].sdpa_mask).parameters
    except ImportError:
        fits = False
    if not fits:
        raise HeadwayError(
            f"transformers {transformers.__version__} has another attention and mask interface: "
            f"{pip_install('--upgrade', f'transformers>={OLDEST}')}"
        )
    return transformers
