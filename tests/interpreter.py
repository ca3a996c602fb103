"""Triton's interpreter, faster and careful.

By itself it puts its operations into ``triton.language`` at every call of a function inside a program, which takes more
time than all operations; once for each program is enough. It describes the shape and dtype of every result anew,
decides anew how operands are converted, and computes twice what may overflow without looking at it. It rounds the
product of ``tl.fma`` before the sum, where a GPU rounds once. And it reads and writes at any address, where a GPU stops
or, worse, does not: a program may only touch what lies within the tensors that it is given.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from math import copysign
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch


class Addresses:
    """The bytes of the tensors that the running program was given."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.spans: set[tuple[int, int]] = set()
        self.edges: tuple[Any, Any] | None = None

    def add(self, x: torch.Tensor) -> None:
        """Adds the bytes from the first to the last number of a tensor."""
        if x.numel():
            reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
            self.spans.add((x.data_ptr(), x.data_ptr() + reach * x.element_size()))
            self.edges = None

    def check(self, what: str, pointers: Any, mask: Any) -> None:
        """Raises IndexError if any of the pointers that the mask chooses is outside of all tensors."""
        if self.edges is None:
            firsts, lasts = (np.array(side, dtype=np.uint64) for side in zip(*sorted(self.spans), strict=True))
            self.edges = firsts, np.maximum.accumulate(lasts)
        firsts, lasts = self.edges
        at = pointers.data[np.broadcast_to(mask, pointers.data.shape)].astype(np.uint64)
        if not at.size:
            return
        tensor = np.searchsorted(firsts, at, side="right") - 1
        size = pointers.get_element_ty().primitive_bitwidth // 8
        outside = (tensor < 0) | (at + np.uint64(size) > lasts[np.maximum(tensor, 0)])
        if outside.any():
            raise IndexError(f"a program {what} {outside.sum()} of {at.size} numbers outside of its tensors")


def install() -> None:
    """From now on programs are interpreted so."""
    from triton.runtime import interpreter

    addresses = Addresses()
    _put_in_place_once(interpreter, addresses.clear)
    _describe_once(interpreter)
    _convert_once(interpreter)
    _call_directly(interpreter)
    interpreter.InterpreterBuilder.create_fma = _fused
    interpreter.TritonSemantic.binary_op_sanitize_overflow_impl = _refuse_overflow
    convert, builder = interpreter._implicit_cvt, interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def converted(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            addresses.add(argument)
        return convert(argument)

    def loaded(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        addresses.check("reads", pointers, mask.data)
        return load(self, pointers, mask, *others)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        addresses.check("writes", pointers, mask.data)
        return store(self, pointers, value, mask, *others)

    interpreter._implicit_cvt = converted
    builder.create_masked_load, builder.create_masked_store = loaded, stored


def _put_in_place_once(interpreter: Any, end: Callable[[], None]) -> None:
    """Lets a program's functions find the operations that were put in place when it began; ``end`` is called behind."""
    whole, modules_of = interpreter._patch_lang, cache(_modules)
    here: set[frozenset[str]] = set()
    """The modules whose operations are in place."""

    def once(fn: FunctionType) -> Any:
        modules = modules_of(fn)
        if modules in here:
            return None  # inside a program, where nothing is to be restored
        outermost = not here
        scope = whole(fn)
        here.add(modules)
        # what numpy 2.4 refuses triton 3.6, which converts arrays of one number
        scope.set_attr(interpreter.tl.tensor, "__index__", lambda x: int(x.handle.data.squeeze()))
        if outermost:
            restore = scope.restore

            def restored() -> None:
                here.clear()
                end()
                restore()

            scope.restore = restored
        return scope

    interpreter._patch_lang = once


def _describe_once(interpreter: Any) -> None:
    """Keeps what triton works out of the shape and dtype of a block; names tell them apart."""
    block, tensor, numpy_dtype = interpreter.tl.block_type, interpreter.tl.tensor, interpreter._get_np_dtype
    describe, fill = block.__init__, tensor.__init__
    of_blocks: dict[Any, dict[str, Any]] = {}
    of_tensors: dict[str, dict[str, Any]] = {}
    dtypes: dict[str, Any] = {}

    def described(self: Any, element: Any, shape: Any) -> None:
        key = element.name, *(getattr(size, "value", size) for size in shape)
        if key not in of_blocks:
            describe(self, element, shape)
            of_blocks[key] = dict(vars(self))
        else:
            vars(self).update(of_blocks[key])

    def filled(self: Any, handle: Any, kind: Any) -> None:
        if kind.name not in of_tensors:
            fill(self, handle, kind)
            of_tensors[kind.name] = {name: x for name, x in vars(self).items() if name not in ("handle", "type")}
        else:
            vars(self).update(of_tensors[kind.name], handle=handle, type=kind)

    def dtype_of(kind: Any) -> Any:
        if kind.name not in dtypes:
            dtypes[kind.name] = numpy_dtype(kind)
        return dtypes[kind.name]

    block.__init__, tensor.__init__, interpreter._get_np_dtype = described, filled, dtype_of


def _convert_once(interpreter: Any) -> None:
    """Keeps how operands are converted and broadcast, which their types and a number's value decide."""
    semantic, tensor, handle = interpreter.TritonSemantic, interpreter.tl.tensor, interpreter.TensorHandle
    convert, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    as_they_are: set[Any] = set()
    constants: dict[Any, Any] = {}
    plans: dict[Any, list[tuple[Any, ...] | None]] = {}

    def converted(self: Any, x: Any, y: Any, *rules: bool, **named: bool) -> Any:
        if named:
            return convert(self, x, y, *rules, **named)
        key = _key(tensor, x), _key(tensor, y), rules
        if key in as_they_are:
            return x, y
        if key in constants:
            return (x, constants[key]) if type(x) is tensor else (constants[key], y)
        found = convert(self, x, y, *rules)
        kept = [new is old for new, old in zip(found, (x, y), strict=True)]
        if all(kept):
            as_they_are.add(key)
        elif any(kept) and not (type(x) is tensor and type(y) is tensor) and len(constants) < 10_000:
            constants[key] = found[kept.index(False)]
            constants[key].handle.data.setflags(write=False)
        return found

    def spread(self: Any, x: Any, y: Any) -> Any:
        key = x.type.name, y.type.name
        if key not in plans:
            found = broadcast(self, x, y)
            plans[key] = [
                None if new is old else (new.type, new.handle.data.shape, new.handle.data.dtype, new.handle.dtype)
                for new, old in zip(found, (x, y), strict=True)
            ]
            return found
        return tuple(
            one if plan is None else spread_one(one, *plan) for one, plan in zip((x, y), plans[key], strict=True)
        )

    def spread_one(x: Any, kind: Any, shape: tuple[int, ...], numbers: Any, element: Any) -> Any:
        data = x.handle.data if x.type.is_block() else x.handle.data.astype(numbers, copy=False)
        return tensor(handle(np.broadcast_to(data, shape), element), kind)

    semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value = converted, spread


def _key(tensor: type, x: Any) -> Any:
    """What decides how an operand is converted."""
    if type(x) is tensor:
        return x.type.name
    return type(x), x, x == 0 and copysign(1, x)


def _call_directly(interpreter: Any) -> None:
    """Lets operations be called, compared and unwrapped in fewer steps."""
    core, semantic = interpreter.tl.core, interpreter.interpreter_semantic
    unwrap, equal = core._unwrap_if_constexpr, core.dtype.__eq__
    plain = frozenset({core.tensor, core.dtype, core.block_type, core.pointer_type, int, float, bool, str, type(None)})

    def put(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        operation = getattr(member, "__wrapped__", member)  # which asks again for _semantic

        def called(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return operation(*args, **kwargs)

        scope.set_attr(owner, name, called)

    interpreter._patch_attr = put
    core._unwrap_if_constexpr = lambda x: x if type(x) in plain else unwrap(x)
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def _fused(self: Any, x: Any, y: Any, z: Any) -> Any:
    """x·y + z of float32, rounded once: the product of two of them is exact in float64."""
    with np.errstate(all="ignore"):
        found = x.data.astype(np.float64) * y.data + z.data
        return type(x)(found.astype(z.data.dtype), z.dtype.scalar)


def _refuse_overflow(self: Any, a: Any, b: Any, operation: Any) -> None:
    """Raises OverflowError if a sum, difference or product is too large for its signed integers."""
    kind = a.type.scalar
    if kind.int_bitwidth >= 64 or not kind.is_int_signed():
        return
    exact = getattr(operator, operation.__name__)(*(x.handle.data.astype(np.int64) for x in (a, b)))
    if exact.size and not kind.get_int_min_value() <= exact.min() <= exact.max() <= kind.get_int_max_value():
        raise OverflowError(f"a program computes {exact.min()} to {exact.max()} by {operation.__name__} in {kind}")


def _modules(fn: FunctionType) -> frozenset[str]:
    return frozenset(x.__name__ for x in fn.__globals__.values() if isinstance(x, ModuleType))
