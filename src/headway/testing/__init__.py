"""The checks that headway's own encodings, kernels and word vectors pass; users can run them on theirs.

headway.testing.check_encoding(MyEncoding(num_heads=4))
"""

from .encodings import ENCODING_CHECKS, check_encoding
from .kernels import KERNEL_CHECKS, check_kernel
from .tolerances import Comparison, assert_close
from .vectors import VECTOR_CHECKS, check_vectors

__all__ = [
    "ENCODING_CHECKS",
    "KERNEL_CHECKS",
    "VECTOR_CHECKS",
    "Comparison",
    "assert_close",
    "check_encoding",
    "check_kernel",
    "check_vectors",
]


def __dir__() -> list[str]:
    return __all__
