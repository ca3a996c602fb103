"""A call as tensors and a structure, and the operators that the compiler sees."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.kernels import KERNELS, Call, _ops, reference
from headway.testing import kernels as checks
from headway.testing.inputs import term_examples


def same(a: Any, b: Any) -> bool:
    """Equal in every field, tensors by identity."""
    if isinstance(a, Tensor):
        return a is b
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a).__name__ in _ops.PARTS:
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


def call_of(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Call:
    return reference.computed(make_call(q, k, v, **arguments))


def flattened(call: Call) -> tuple[Any, list[Tensor]]:
    tensors: list[Tensor] = []
    return _ops.flatten(call, tensors), tensors


MASKS = [
    None,
    M.Causal() & (M.Window(3, 1) | M.KeepFirst(1)),
    M.Prefix(torch.tensor([1, 2])) | M.Chunked(2),
    M.Padding([3, 5], "left") & M.Dilated(2),
    M.Documents.lengths([2, 3]),
    M.Boolean(torch.ones(5, 5, dtype=torch.bool)),
]


def shapes() -> dict[str, int]:
    return {"batch": 2, "heads": 4, "kv_heads": 2, "n": 5, "m": 5, "head_dim": 8, "v_dim": 6}


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)


NAMES = list(term_examples(torch.randn, **shapes()))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_call_survives_packing_and_writing(name: str, mask: M.Mask | None) -> None:
    terms = term_examples(torch.randn, **shapes())[name]
    positions = torch.stack([torch.arange(5), torch.arange(5) % 2], -1)[None]
    sink = None if checks.replaces_softmax(name) else torch.randn(4)
    call = call_of(*qkv(), terms=terms, mask=mask, sink=sink, dropout=0.1, q_positions=positions)
    structure, tensors = flattened(call)
    assert same(_ops.unflatten(structure, tensors), call)
    has_function = name in ("product", "score map", "normalizer", "dense bias, function") or any(
        isinstance(term, reference.OF_ROWS) for term in terms
    )
    assert _ops.is_plain(structure) is not has_function
    if not has_function:
        assert same(_ops.unflatten(_ops.read(_ops.write(structure)), tensors), call)


def test_a_tensor_that_occurs_twice_is_carried_once() -> None:
    x = torch.randn(1, 4, 5, 8)
    structure, tensors = flattened(call_of(x, x, x))
    assert sum(t is x for t in tensors) == 1
    call = _ops.unflatten(structure, tensors)
    assert call.q is call.k
    assert call.k is call.v


@pytest.mark.parametrize("number", [0.1, 1 / 3, -1e-300, 1e300, math.pi, math.inf, 2, -7, 0, True, False, None, "left"])
def test_numbers_and_words_are_written_exactly(number: object) -> None:
    found = _ops.unflatten(_ops.read(_ops.write(("()", number))), [])
    assert found == (number,)
    assert type(found[0]) is type(number)


def test_every_term_and_mask_can_be_packed() -> None:
    parts = [
        *T.TERMS,
        T.Clip,
        T.Bucketize,
        T.Classes,
        T.Grid,
        T.Rows,
        T.Linear,
        T.Log,
        T.Power,
        T.Piecewise,
        T.Sinusoids,
    ]
    parts += [kind for kind in M.Mask.__subclasses__() if not kind.foreign and kind.__name__ in M.__all__]
    assert {part.__name__ for part in parts} <= set(_ops.PARTS)


LAYOUTS = {
    "contiguous": lambda: qkv(),
    "tokens before heads": lambda: tuple(torch.randn(2, 5, h, d).transpose(1, 2) for h, d in ((4, 8), (2, 8), (2, 6))),
    "expanded": lambda: (
        torch.randn(1, 1, 5, 8).expand(2, 4, 5, 8),
        *(torch.randn(1, 1, 5, d).expand(2, 2, 5, d) for d in (8, 6)),
    ),
    "every other": lambda: (
        torch.randn(2, 4, 5, 16)[..., ::2],
        torch.randn(2, 2, 10, 8)[:, :, ::2],
        torch.randn(2, 2, 6, 5).mT,
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["none", "distance bias, steps", "relative keys, sinusoids", "relative values"])
def test_operators_do_what_the_compiler_is_told(name: str, layout: str) -> None:
    """Schema, fake shapes, dtypes and strides of both operators."""
    terms = () if name == "none" else term_examples(torch.randn, **shapes())[name]
    q, k, v = LAYOUTS[layout]()
    call = call_of(q, k, v, terms=terms, mask=M.Causal() & M.Padding([2, 5]), sink=torch.randn(4))
    structure, tensors = flattened(call)
    text = _ops.write(structure)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.headway.reference_forward.default, (tensors, text), test_utils=tests)
    results = torch.ops.headway.reference_forward(tensors, text)
    wanted = [number for number, tensor in enumerate(tensors) if tensor.is_floating_point()]
    upstream = torch.randn_like(results[0]), torch.randn_like(results[1])
    arguments = ([*tensors, *results], text, wanted, *upstream)
    torch.library.opcheck(torch.ops.headway.reference_backward.default, arguments, test_utils=tests)


def test_the_operators_compute_what_the_kernel_computes() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    call = call_of(q, k, v, mask=M.Causal())._with(wants_lse=True)
    structure, tensors = flattened(call)
    out, lse = KERNELS["reference"].run(call)
    assert lse is not None
    bare = [t.detach() for t in tensors]
    found = reference.ForwardResults(*torch.ops.headway.reference_forward(bare, _ops.write(structure)))
    torch.testing.assert_close((found.out, found.log_sum_exp), (out.detach(), lse.detach()))
    upstream = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    wanted = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    found_grads = torch.ops.headway.reference_backward([*bare, *found], _ops.write(structure), wanted, upstream, None)
    torch.testing.assert_close(tuple(found_grads), grads)
