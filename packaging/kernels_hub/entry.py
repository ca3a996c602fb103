"""headway as a kernel of the Hugging Face hub: attn_implementation="owner/headway".

The folder ``headway`` beside this file is the whole library: ``get_kernel(…).headway`` is the package.
"""

from contextlib import suppress
from typing import Any

from . import headway
from .headway.errors import HeadwayError
from .headway.integrations.transformers._attention import attend as flash_attn_forward
from .headway.integrations.transformers._library import import_transformers

__all__ = ["flash_attn_forward", "headway", "supports_flash_attn"]

with suppress(HeadwayError):  # without transformers the package is there all the same
    import_transformers()


def supports_flash_attn(*_: Any, **__: Any) -> bool:
    """Returns True. Its presence tells transformers to call ``flash_attn_forward`` with the masks of SDPA."""
    return True
