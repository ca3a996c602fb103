"""A red check gives no number: the kernels' own checks run before anything is measured."""

from __future__ import annotations

from headway.kernels import KERNELS
from headway.testing.kernels import keeps_the_promise, mask_names, obeys_the_mask, term_names


def red() -> dict[str, str]:
    """The kernels that fail a check, each with what it failed."""
    failing = {}
    for kernel in KERNELS:
        try:
            for term in term_names():
                keeps_the_promise(kernel, term, "alone")
            for mask in mask_names():
                obeys_the_mask(kernel, mask)
        except AssertionError as error:
            failing[kernel] = str(error)
    return failing
