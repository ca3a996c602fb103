"""The sources of a model's attention calls, from the outermost function to the innermost."""

from .._watch import Source
from .headway import Headway
from .multi_head import MultiHead
from .scaled_dot_product import ScaledDotProduct
from .transformers import Transformers

SOURCES: dict[str, Source] = {
    "headway": Headway(),
    "transformers": Transformers(),
    "multi_head_attention_forward": MultiHead(),
    "scaled_dot_product_attention": ScaledDotProduct(),
}

__all__ = ["SOURCES", "Source"]
