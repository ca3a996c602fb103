"""Every kernel keeps the promise on every term, crossed with sink, cap and log-sum-exp, and obeys every mask."""

import pytest

from headway.kernels import KERNELS
from headway.testing import kernels as checks


# Kernels change first: what they are compared with is computed once for all that come in a row.
@pytest.mark.one_in(23)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("crossing", checks.CROSSINGS)
@pytest.mark.parametrize("term", checks.term_names())
def test_promise_on_terms(kernel: str, term: str, crossing: str) -> None:
    assert checks.keeps_the_promise(kernel, term, crossing)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", checks.mask_names())
def test_masks(kernel: str, mask: str) -> None:
    assert checks.obeys_the_mask(kernel, mask)
    assert checks.keeps_the_promise(kernel, "none", "alone", mask)
