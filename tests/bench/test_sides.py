from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from headway import HeadwayError
from headway.bench import FULL, Case
from headway.bench.measure import agree
from headway.bench.sides import (
    COPY,
    DENSE,
    DENSE_GRADIENT,
    FLEX,
    OURS,
    PLAIN,
    READ,
    REFERENCE,
    SDPA,
    Flex,
    kernel_of,
    sides,
)
from headway.kernels import KERNELS

SMALL = list(
    dict.fromkeys(
        replace(of, n=min(of.n, 40), head_dim=8)
        for of in FULL.cases()
        # the last two in test_statistics.py and test_sequence.py
        if of.part not in ("memory", "statistics", "sequence")
    )
)


@pytest.mark.parametrize("of", SMALL, ids=str)
def test_sides_that_say_they_compute_the_same_do(of: object) -> None:
    found = sides(of)
    results = {name: run() for name, run in found.runs.items()}
    for name, shaped in found.same.items():
        agree(name, of.dtype, map(shaped, results[OURS][:3]), results[name][:3])
    for name in set(results) - {COPY, READ}:
        assert len(results[name]) >= (3 if of.direction == "backward" else 1)
        assert all(torch.isfinite(x).all() for x in results[name])


def test_what_runs_against_what() -> None:
    def names(**changes: str) -> set[str]:
        return set(sides(Case(n=16, head_dim=8, **changes)).runs)

    assert names() == {OURS, SDPA}
    assert names(encoding="rope") == names(encoding="rotary-values") == {OURS, PLAIN, SDPA}
    assert names(encoding="t5") == {OURS, PLAIN, SDPA, DENSE}
    assert names(encoding="t5", direction="backward") == {OURS, PLAIN, SDPA, DENSE_GRADIENT}
    assert names(encoding="kerple", direction="backward") == {OURS, PLAIN, SDPA, DENSE_GRADIENT}
    assert names(encoding="alibi", direction="backward") == {OURS, PLAIN, SDPA, DENSE}
    assert names(encoding="shaw") == {OURS, PLAIN, SDPA, DENSE}
    assert names(encoding="cope", mask="causal") == {OURS, PLAIN, SDPA, DENSE, REFERENCE}


@pytest.mark.parametrize("group", [1, 4])
def test_queries_against_a_cache_see_all_of_it(group: int) -> None:
    of = Case("cache", n=40, head_dim=8, queries=5, group=group)
    runs = sides(of).runs
    assert set(runs) == {OURS, SDPA, READ}
    assert runs[OURS]()[0].shape == (1, 8 * group, 5, 8)
    assert of.share == 1
    assert of.flop == 2 * 2 * 8 * group * 5 * 40 * 8


def test_a_learned_bias_gets_its_gradient_on_both_sides() -> None:
    runs = sides(Case(encoding="t5", n=16, head_dim=8, direction="backward")).runs
    assert [tuple(x.shape) for x in runs[OURS]()[3:]] == [(8, 32)]
    assert [tuple(x.shape) for x in runs[DENSE_GRADIENT]()[3:]] == [(1, 8, 16, 16)]
    assert len(runs[PLAIN]()) == 3


def test_the_kernel_is_the_one_that_attention_takes() -> None:
    forward = Case(encoding="t5", n=16)
    assert kernel_of(forward) == sides(forward).kernel
    # metadata alone: a case that no memory would hold
    assert kernel_of(Case(encoding="t5", n=10**6, direction="backward")) in ("cpu", "reference")


@pytest.mark.parametrize(
    ("encoding", "said"), [("sinusoidal", "does nothing in attention"), ("rop", "no encoding 'rop'")]
)
def test_an_encoding_that_cannot_be_measured_is_said(encoding: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        sides(Case(encoding=encoding, n=16, head_dim=8))


def test_without_time_to_compile_flex_attention_is_left_out_with_a_word() -> None:
    found = sides(Case(n=16, head_dim=8), Flex(0))
    assert FLEX not in found.runs
    assert found.says == {FLEX: "not compiled: the 0 s for compiling are spent"}


def test_what_flex_attention_refuses_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flex, asked = Flex(10), []

    def refuse(*_: object) -> None:
        asked.append(1)
        raise NotImplementedError("no backward\non a CPU")

    monkeypatch.setattr(flex, "_compiled", refuse)
    for n in (16, 32):
        found = sides(Case(n=n, head_dim=8, direction="backward"), flex)
        assert found.says == {FLEX: "NotImplementedError: no backward on a CPU"}
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "mask"), [("none", "causal"), ("alibi", "none"), ("t5", "window")])
def test_flex_attention_computes_the_same(encoding: str, mask: str) -> None:
    of = Case(encoding=encoding, mask=mask, n=40, head_dim=16)
    found = sides(of, Flex(600))
    assert not found.says
    agree(FLEX, of.dtype, found.runs[OURS](), found.runs[FLEX]())


def test_a_told_kernel_is_taken_or_refused() -> None:
    short = Case(n=16, head_dim=8)
    assert {kernel_of(replace(short, kernel=name)) for name in ("cpu", "reference")} == {"cpu", "reference"}
    taken = sides(replace(short, kernel="reference")).runs[OURS]
    with patch.object(KERNELS["reference"], "run", side_effect=RuntimeError("asked")), pytest.raises(RuntimeError):
        taken()
    with pytest.raises(HeadwayError, match="kernel 'triton' cannot run none, full, 16 tokens"):
        kernel_of(replace(short, kernel="triton"))
