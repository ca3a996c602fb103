"""Checks the kernels before anything is measured: a kernel that fails gets no numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from .._common.language import retold, said
from .._common.progress import nobody
from ..attention import attention_weights
from ..inspection import Statistics, statistics_of
from ..kernels import KERNELS
from ..testing.kernels import keeps_the_promise, mask_names, obeys_the_mask, term_names
from .cases import Case
from .measure import CheckError, agree
from .sides import Inputs, kernel_of
from .statistics import all_statistics, attend, numbers

TOKENS = 333
"""The most tokens of a case in a check: no multiple of any tile, and more than one of each."""

ZERO = 0.1
"""Differences are relative to at least this share of the largest value of all results. The gradient of a number that
is added to all scores, such as FIRE's last bias, is 0 up to rounding."""


def failing(cases: Iterable[Case], doing: Callable[[str], None] = nobody) -> tuple[dict[str, str], str]:
    """Runs the kernels' own checks, and each case with few tokens against the reference kernel.

    Returns the kernels that fail, each with its error, and a description of the checks. ``doing`` is called with the
    current check, in the language of the command.
    """
    small: dict[tuple[str, Case], None] = {}
    for case in cases:
        small[kernel_of(case), replace(case, n=min(case.n, TOKENS))] = None
    kernels = dict.fromkeys(kernel for kernel, _ in small)
    failed: dict[str, str] = {}
    for kernel in kernels:
        doing(said("checking the kernel {kernel}", kernel=kernel))
        try:
            for term in term_names():
                keeps_the_promise(kernel, term, "alone")
            for mask in mask_names():
                obeys_the_mask(kernel, mask)
        except AssertionError as error:
            failed[kernel] = " ".join(str(error).split())
    against = [(kernel, case) for kernel, case in small if kernel != "reference"]
    for kernel, case in against:
        doing(said("checking {case}", case=retold(str(case))))
        inputs = Inputs(case)
        try:
            actual, expected = (inputs.ours(kernel=name)() for name in (kernel, "reference"))
            least = ZERO * max(x.detach().abs().max().item() for x in expected)
            agree(f"{kernel} and the reference kernel on {case}", case.dtype, actual, expected, least)
            if case.part == "statistics":
                _compare_statistics(kernel, case)
        except Exception as error:  # a kernel may raise anything
            failed.setdefault(kernel, f"{'' if isinstance(error, CheckError) else type(error).__name__ + ': '}{error}")
    checked = (
        f"{', '.join(kernels)}: {len(term_names())} kinds of terms with every gradient in two dtypes and "
        f"{len(mask_names())} kinds of masks, against float64; and {len(against)} of the cases measured, cut to "
        f"{TOKENS} tokens, output and every gradient against the reference kernel"
    )
    if any(case.part == "statistics" for _, case in against):
        checked = f"{checked}; with them all statistics, alone and in the pass of attention"
    return failed, checked


def _compare_statistics(kernel: str, case: Case) -> None:
    """Raises CheckError unless the statistics of a kernel, alone and in its pass, are those of the reference kernel."""
    inputs = Inputs(case)
    call, asked = inputs.call(), list(all_statistics(case.n).values())
    weights = attention_weights(inputs.q, inputs.k, inputs.v, **inputs.arguments).detach()
    expected = statistics_of(call, asked, kernel="reference")

    def compare(way: str, actual: Statistics) -> None:
        what = f"statistics of {kernel} {way} and of the reference kernel on {case}"
        agree(what, case.dtype, numbers(actual), numbers(expected))
        for keys, largest in (
            (actual["largest"].key[..., None], expected["largest"].weight[..., None]),
            (actual["top_keys"].keys, expected["top_keys"].weights),
        ):
            at = weights.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0)
            agree(f"the weights of their keys in {what}", case.dtype, [at], [largest])

    compare("alone", statistics_of(call, asked, kernel=kernel))
    with torch.no_grad():
        if not KERNELS[kernel].reduces_as_it_runs(call):
            return
        out, actual = attend(call, asked, KERNELS[kernel])
    compare("in the pass of attention", actual)
    if not torch.equal(out, inputs.ours(kernel=kernel)()[0]):
        raise CheckError(f"{kernel} gives another output when it computes statistics on {case}")
