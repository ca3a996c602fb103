"""Every row of ENCODINGS passes every check, on every kernel that takes it."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import headway
from headway.call import make_call
from headway.kernels._problem import tensors_in
from headway.masks import Causal
from headway.positions import ENCODINGS, EVIDENCE, KINDS, PositionEncoding, citation
from headway.testing import ENCODING_CHECKS
from headway.testing import encodings as checks
from headway.testing.inputs import where

PACKAGE = Path(headway.__file__).parent
SHARED = ("terms.py", "biases.py", "coordinates.py", "kernels/lowering")
SOURCES = tuple(str(PACKAGE / name) for name in ("positions", *SHARED))
"""Where encodings, and what they return, are computed."""
OF_CALLS = tuple(str(PACKAGE / name) for name in (*SHARED, "kernels", "attention.py", "call.py", "heads.py"))
"""Where a call is computed with that, and what it shares with them."""

FURTHER = pytest.mark.one_in(6)  # the examples of an encoding behind its first
EXAMPLES = {
    f"{name}-{number}": example for name, kind in ENCODINGS.items() for number, example in enumerate(kind.examples())
}
COMPILER = "compiles_as_one_graph"
COMPILED_TOO = {
    "sinusoidal-1", "learned-1", "deberta-1", "tupe-1", "kerple-power-1", "dynamic-position-bias-1", "swin-v2-1",
    "mixed-rope-1", "dinov3-rope-1", "comrope-1", "grape-m-1", "longrope-1", "ssmax-1", "nope-scaling-1",
    "selective-rope-1", "grape-m-contextual-1", "grape-a-1", "interpolated-1", "cape-1", "relative-projection-1",
    "shape-1", "irpe-1", "rope-pp-1", *(f"multimodal-rope-{example}" for example in (1, 2, 3, 4)),
}  # fmt: skip
"""Further examples that reach steps of their own. Compilation is checked of these and of first examples."""
WHOLE = {
    "rope-0", "alibi-0", "t5-0", "transformer-xl-0", "kerple-power-1", "interpolated-0", "interpolated-1", "rerope-0",
    "shaw-0", "grape-a-0", "grape-a-1", "path-0", "path-fox-0", "swin-v2-0", "dape-0", "fire-0", "grape-ap-0",
    "relative-projection-0", "deberta-0", "tupe-0", "tupe-1", "rotary-values-0", "repo-0", "index-0", "cope-0", "tra-0",
    "wall-0",
}  # fmt: skip
"""Of those, the ones that are compiled with a kernel, since they reach every step of it that another one reaches. Of
the others all is compiled that a kernel is given."""


def compiled(example: str) -> bool:
    return example.endswith("-0") or example in COMPILED_TOO


# the one that runs every encoding on every kernel runs whole
ONE_IN = {"matches_its_formula": 1, COMPILER: 99, "keeps_the_promise_in_every_dtype": 31, "trains_with_dropout": 23}
MARKS = {check: pytest.mark.one_in(ONE_IN.get(check, 9)) for check in ENCODING_CHECKS}
CASES = [
    pytest.param(encoding, check, id=f"{name}-{check}", marks=[mark, *[FURTHER] * (not name.endswith("-0"))])
    for name, encoding in EXAMPLES.items()
    for check, mark in MARKS.items()
    if check != COMPILER or compiled(name)
]


@pytest.mark.parametrize(("encoding", "check"), CASES)
def test_encoding(encoding: PositionEncoding, check: str) -> None:
    if check == COMPILER and example_of(encoding) not in WHOLE:
        has_one_graph_up_to_the_kernel(encoding)
    else:
        ENCODING_CHECKS[check](encoding)


def example_of(encoding: PositionEncoding) -> str:
    return next(name for name, one in EXAMPLES.items() if one is encoding)


def has_one_graph_up_to_the_kernel(encoding: PositionEncoding) -> None:
    """Checks all tensors that a kernel is given, compiled and not."""
    layer = checks._layer(encoding, dtype=torch.float32)

    def run(x: Tensor) -> Tensor:
        at = checks._span(layer, x.shape[1])
        x = layer.embed(x, at)
        call = make_call(*layer.project(x), encoding=layer.in_attention, mask=Causal(), **where(at, x))
        given = [call.q, call.k, call.v, call.terms]
        for turn in (call.q_rotation, call.k_rotation, call.v_rotation, call.out_rotation):
            given += [] if turn is None else [turn.cos, turn.sin]
        return torch.cat([part.flatten().float().nan_to_num() for part in tensors_in(given)])

    checks._has_one_graph(layer, run)


Step = tuple[str, int, int, int]


def steps(encoding: PositionEncoding) -> set[Step]:
    """The steps from one instruction to the next, in SOURCES and OF_CALLS, of a training step, which is not the first.

    The first fills caches, which other tests may have filled before.
    """
    layer = checks._layer(encoding, dtype=torch.float32)
    x, coordinates = checks._x(layer, 2, 5), checks._span(layer, 5)
    found: set[Step] = set()

    def entered(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code, last = frame.f_code, -1
        if not code.co_filename.startswith(SOURCES + OF_CALLS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def stepped(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "opcode":
                found.add((code.co_filename, code.co_firstlineno, last, frame.f_lasti))
                last = frame.f_lasti
            return stepped

        return stepped

    before = sys.gettrace()
    try:
        for trace in (None, entered):
            sys.settrace(trace)
            layer(x, coordinates, mask=Causal()).sum().backward()
    finally:
        sys.settrace(before)
    return found


def within(found: set[Step], sources: tuple[str, ...]) -> set[Step]:
    return {step for step in found if step[0].startswith(sources)}


def test_examples_that_are_not_compiled_reach_no_step_of_their_own() -> None:
    reached = {name: steps(encoding) for name, encoding in EXAMPLES.items()}
    found = {name: within(steps, SOURCES) for name, steps in reached.items()}
    known = set().union(*(found[name] for name in EXAMPLES if compiled(name)))
    assert [name for name in EXAMPLES if found[name] - known] == []
    first = set().union(*(found[name] for name in EXAMPLES if name.endswith("-0")))
    assert [name for name in COMPILED_TOO if found[name] <= first] == []
    whole = set().union(*(reached[name] for name in WHOLE))
    assert [name for name in EXAMPLES if compiled(name) and within(reached[name], OF_CALLS) - whole] == []


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_row_has_examples_of_two_head_counts_and_a_citation(name: str) -> None:
    kind = ENCODINGS[name]
    examples = kind.examples()
    heads = {example.num_heads for example in examples if hasattr(example, "num_heads")}
    assert len(heads) != 1, f"{name} is checked with {heads} heads only: add a number that is not a power of two"
    own = citation(kind).strip()
    assert own.startswith("@") or name in ("none", "index", "unit-index"), f"{name} cites nothing"


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_row_says_what_it_is(name: str) -> None:
    kind = ENCODINGS[name]
    assert kind.kind in KINDS
    assert kind.evidence in {*EVIDENCE} - {"unknown"}
    assert kind.year or name in ("index", "unit-index")
    assert kind.same_function_as is None or kind.same_function_as in ENCODINGS


def test_the_headline_counts_functions_and_not_names() -> None:
    """Rows that compute the same as another, or that nothing but their formula speaks for, do not count."""
    counted = [e for e in ENCODINGS.values() if e.evidence != "formula" and e.same_function_as is None]
    assert len(ENCODINGS) >= 60
    assert len(counted) >= 45
