"""Finds the module of each attention call in a block: hooks on a model keep a stack of the modules that run."""

from __future__ import annotations

import difflib
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch import (
    backward_pass,
    functorch_active,
    is_compiled,
    never_compiled,
    recomputed_as,
    without_dispatch_modes,
    without_function_modes,
)
from ..errors import HeadwayError
from ..heads import HeadShard
from ..kernels import Call
from ..reductions import Reduction
from ._numbers import whole


class Source(Protocol):
    """A method of finding the attention calls of a model."""

    def is_layer(self, module: nn.Module) -> bool:
        """Whether this source knows, before a module runs, that it computes attention."""

    def found_by(self, finder: Finder) -> AbstractContextManager[None]:
        """For the duration of a block, passes each attention call to ``finder.found`` if ``finder.awake()``."""


Change = Callable[[Tensor], Tensor]
"""Changes the heads' outputs, [batch, heads, n, v_dim], before the output projection."""


class _Changes(threading.local):
    count = 0


changes = _Changes()
"""The number of outputs changed in this thread, so that a check of a model's output can allow for changes."""


@dataclass(eq=False)
class Frame:
    """A module of the model whose forward is running, with its inputs."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attended: bool = False
    """Whether an attention call was found while it ran."""

    def argument(self, *names: str) -> Any:
        """The first argument of ``forward`` of one of these names that is not None; else None."""
        for name in names:
            value, order = self.kwargs.get(name), _parameters(type(self.module).forward)
            if value is None and name in order[: len(self.args)]:
                value = self.args[order.index(name)]
            if value is not None:
                return value
        return None

    def declares(self, name: str) -> bool:
        """Whether ``forward`` has an argument of this name."""
        return name in self.kwargs or name in _parameters(type(self.module).forward)


def frame_of(stack: Sequence[Frame], module: nn.Module) -> Frame:
    """The innermost frame of a module; the innermost of all if it has none."""
    return next((frame for frame in reversed(stack) if frame.module is module), stack[-1])


@lru_cache(maxsize=1024)
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parts = inspect.signature(forward).parameters.values()
    return tuple([part.name for part in parts if part.kind in positional][1:])


@dataclass(eq=False)
class Site:
    """A description of an attention call that is about to be computed."""

    source: str
    """The name of one of ``SOURCES``."""
    kind: str
    """"self" or "cross"."""
    call: Call
    """The call as headway computes it."""
    rows: Callable[[Any, list[int]], Tensor] = lambda result, rows: result
    """Selects queries of what ``Found.run`` returned: the heads' outputs [batch, heads, rows, v_dim], or ``projected``
    of them."""
    projected: Callable[[Tensor], Tensor] = lambda out: out
    """What the model computes from the heads' outputs before ``Found.run`` returns."""
    exact: bool = False
    """Whether ``call`` is the very call that is computed, rather than a translation of it."""
    padding: Tensor | None = None
    """The queries that are not padding, [batch, n] bool; None if unknown."""
    total: Callable[[Tensor], Tensor] | None = None
    """Sums a tensor over the processes that have the other queries of the sequence; None if there are none."""
    dropout: float = 0.0
    note: str = ""
    """The note of the record."""
    replaces_output: bool = False
    """Whether the module computes its output once more, so that a change would be lost."""
    run_and_reduce: Callable[[Sequence[Reduction], Tensor | None], tuple[Any, list[Any]] | None] | None = None
    """Computes the same as ``Found.run``, bit for bit, and reductions of the weights in one pass. It returns None if
    there is no such pass, and is None if no kernel of headway computes the call."""
    output_weight: Tensor | None = None
    """The weight of the output projection, [width, heads·v_dim], if ``Found.run`` applies it."""


@dataclass(eq=False)
class Found:
    """An attention call of a model that is about to be computed."""

    module: nn.Module
    run: Callable[[Change | None], Any]
    """Computes the call as the model does, with a change of the heads' outputs if one is given."""
    site: Callable[[], Site]

    def look(self) -> Site:
        """Returns the description of the call, without an effect on the model."""
        with looking():
            return self.site()


class Mode(TorchFunctionMode):
    """Passes the calls of one function of torch in this thread to a finder, for the duration of a block.

    ``found`` describes the call, from the stack of running modules and the function's arguments.
    """

    def __init__(self, finder: Finder, function: Callable[..., Any], found: Callable[..., Found]) -> None:
        super().__init__()
        self.finder, self.function, self.found = finder, function, found

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not self.function or not self.finder.awake():
            return function(*args, **kwargs)
        return self.finder.found(self.found(self.finder.stack, *args, **kwargs))


def unwatched() -> AbstractContextManager[None]:
    """A block without the modes of sources, in which kernels take their quickest paths."""
    return without_function_modes(Mode)


@contextmanager
def looking() -> Iterator[None]:
    """A block of computations about a model that its graph and its modes do not see.

    A checkpoint therefore saves and recomputes the same as without them.
    """
    with torch.no_grad(), without_dispatch_modes(), unwatched():
        yield


class Finder:
    """Finds the attention calls of one model in one thread, while ``finding``.

    ``purpose`` is the name of the block in messages, such as "capture". Of the ``finders`` of a block, the last one of
    each thread is active. ``stack`` has the modules that run, the innermost last.
    """

    def __init__(
        self,
        purpose: str,
        sources: Collection[Source],
        name_of: dict[nn.Module, str],
        finders: list[Finder],
        stack: Sequence[Frame] = (),
    ) -> None:
        self.purpose, self.sources, self.name_of, self.finders = purpose, sources, name_of, finders
        self.stack = [*stack]
        self._thread = threading.get_ident()
        self._busy = False
        # compiled code that runs a module of the model breaks its graph here
        self.awake, self.found = never_compiled(self._awake), never_compiled(self._found)

    def computed(self, found: Found) -> Any:
        """Computes an attention call and performs the block's purpose on it."""
        raise NotImplementedError

    def recomputation(self, stack: Sequence[Frame]) -> Callable[[], Recomputation]:
        """Returns a function that creates the finder for recomputing the next attention calls."""
        raise NotImplementedError

    def begins(self, frame: Frame) -> None:
        """Is called for each module whose forward begins."""

    def ends(self, frame: Frame, returned: bool) -> None:
        """Is called for each module whose forward has returned or raised."""

    def at_work(self) -> bool:
        """Whether this finder is the active one of its thread."""
        here = threading.get_ident()
        return next((one for one in reversed(self.finders) if one._thread == here), None) is self

    # ------------------------------------------------------------ called by sources

    def _awake(self) -> bool:
        """Whether an attention call at this point belongs to the model, and no source has taken it."""
        if self._busy or not self.stack or not self.at_work():
            return False
        if torch.compiler.is_compiling():
            raise HeadwayError(
                f"{self.purpose} cannot look into code that torch.compile compiles: call the model as it was before"
            )
        if functorch_active():
            raise HeadwayError(f"{self.purpose} cannot look into a transform of torch.func: call the model without it")
        return True

    def _found(self, found: Found) -> Any:
        """Computes an attention call of a source; other sources do not see it again."""
        self._busy = True
        try:
            return self.computed(found)
        except HeadwayError as error:
            if str(error).startswith(self.purpose):
                raise
            raise HeadwayError(f"{self.purpose} of {_said(self.name(found))}: {error}") from error
        finally:
            self._busy = False

    def name(self, found: Found) -> str:
        """The name of the module that an attention call belongs to."""
        return self.name_of.get(found.module, self.stack[-1].name)

    # ------------------------------------------------------------ the block

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Finds attention calls for the duration of a block, and removes every hook at its end."""
        with ExitStack() as block:
            self.finders.append(self)
            block.callback(self.finders.remove, self)
            block.enter_context(recomputed_as(self._recomputed))
            for source in self.sources:
                block.enter_context(source.found_by(self))
            enter, leave = _hook(self._enter), _hook(self._leave)
            for module in self.name_of:
                before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                block.callback(before.remove)
                block.callback(module.register_forward_hook(leave, always_call=True).remove)
            yield

    def _recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that recomputes one of a checkpoint with the same changes as now."""
        if self._busy or not self.at_work():
            return function
        made = self.recomputation([Frame(frame.name, frame.module, (), {}) for frame in self.stack])

        def again(*args: Any, **kwargs: Any) -> Any:
            with made().finding():
                return function(*args, **kwargs)

        return again

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Is called before a module's forward."""
        self.stack.append(Frame(self.name_of[module], module, args, kwargs))
        self.begins(self.stack[-1])

    def _leave(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        """Is called after a module's forward, also where that raises."""
        while self.stack:
            frame = self.stack.pop()
            if frame.module is module:
                self.ends(frame, out is not None)
                break


def _hook(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a module's hook that calls a function only in this thread, and that compiled code does not look into."""
    here = threading.get_ident()

    def hook(*args: Any) -> None:
        if threading.get_ident() == here:
            function(*args)

    hook = never_compiled(hook)
    hook.thread = here  # type: ignore[attr-defined]
    return hook


@dataclass(eq=False, slots=True)
class Turn:
    """An attention call that a block has computed, or the one that it computes next.

    A checkpoint holds the turn with which it begins, and each turn the next one, so that Python frees calls that no
    checkpoint can compute again. All fields are None before the call is computed.
    """

    module: nn.Module | None = None
    change: Change | None = None
    after: Turn | None = None


class Observer(Finder):
    """Looks at the attention calls of one model in one thread, or changes them, while ``watching``.

    ``around`` gets each call once. If a backward pass computes a call again, for ``torch.utils.checkpoint``, a
    ``Recomputation`` applies the same change as the first time, also after the block and in the threads of autograd.
    Raises HeadwayError if the model is not a module, is compiled or scripted, or has a layer with some of its heads.
    """

    def __init__(self, model: nn.Module, purpose: str, sources: Collection[Source]) -> None:
        if not isinstance(model, nn.Module):
            raise HeadwayError(f"model is a {type(model).__name__}: {purpose} takes an nn.Module")
        for name, module in model.named_modules():
            if is_compiled(module):
                raise HeadwayError(
                    f"{_said(name)} is compiled, and compiled code does not show its attention: {purpose} takes the "
                    "model as it was before torch.compile"
                )
            if isinstance(module, torch.jit.ScriptModule):
                raise HeadwayError(
                    f"{_said(name)} is scripted, which does not show its attention: {purpose} takes the nn.Module"
                )
            shard = getattr(module, "head_shard", None)
            if isinstance(shard, HeadShard) and shard.count < shard.total:  # its first head here is not head 0
                raise HeadwayError(
                    f"{_said(name)} computes heads {shard.first} to {shard.first + shard.count - 1} of {shard.total}, "
                    f"and {purpose} counts those of whole layers: give the model as it was before parallelize_module"
                )
        super().__init__(purpose, sources, {module: name for name, module in model.named_modules()}, [])
        self.model = model
        self.calls = 0
        """Calls of the model in which attention was found, including the current one."""
        self.ran = False
        """Whether the model, or a part of it, was called."""
        self.missed: dict[str, str] = {}
        """The class of each module, by name, that looks like attention and ran without an attention call."""
        self._outermost: Frame | None = None
        self._turns: Counter[str] = Counter()
        self._turn = Turn()
        """The attention call that is computed next."""
        self._begun_in = backward_pass()  # the block may be inside of a checkpointed function

    def in_backward(self) -> bool:
        """Whether this thread runs a backward pass inside the block, whose forward pass is unknown."""
        return backward_pass() != self._begun_in

    def around(self, found: Found) -> tuple[Any, Change | None]:
        """Computes an attention call and performs the block's purpose on it.

        Returns what ``found.run`` returned, and the change for computing it again in a backward pass.
        """
        raise NotImplementedError

    def computed(self, found: Found) -> Any:
        if self.in_backward():
            return found.run(None)
        result, change = self.around(found)
        turn, self._turn = self._turn, Turn()
        turn.module, turn.change, turn.after = found.module, change, self._turn
        return result

    def recomputation(self, stack: Sequence[Frame]) -> Callable[[], Recomputation]:
        return partial(Recomputation, self, self._turn, stack)

    def _recomputed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.in_backward() else super()._recomputed(function)

    def ends(self, frame: Frame, returned: bool) -> None:
        if self.in_backward():
            return
        self.ran = True
        if returned and not frame.attended and "attention" in type(frame.module).__name__.lower():
            self.missed[frame.name] = type(frame.module).__name__

    def watching(self) -> AbstractContextManager[None]:
        """Observes a model for the duration of a block, and removes every hook at its end."""
        return self.finding()

    def label(self, found: Found) -> tuple[str, str, int]:
        """A name of the layer that is unique in this call of the model, the module's name, and the number of the call.

        A module that attends several times in one call is "name", "name#2", "name#3", …
        """
        if self.stack[0] is not self._outermost:
            self._outermost, self.calls = self.stack[0], self.calls + 1
            self._turns.clear()
        for frame in self.stack:
            frame.attended = True
        name = self.name(found)
        self._turns[name] += 1
        turn = self._turns[name]
        return (name if turn == 1 else f"{name}#{turn}"), name, self.calls - 1

    @cached_property
    def layers(self) -> list[str]:
        """The names of the modules that are known to compute attention, in the order of ``named_modules``."""
        return [name for module, name in self.name_of.items() if any(one.is_layer(module) for one in self.sources)]

    def layer_named(self, layer: int | str, layers: Sequence[str]) -> str:
        """The name of a layer that is given by name, or by its number in ``layers``.

        Raises HeadwayError if there is no such layer; the message names the nearest.
        """
        return layer_named(layer, layers, set(self.name_of.values()))


class Recomputation(Finder):
    """Recomputes attention calls for a checkpoint, with the changes of the first time and without observing them.

    ``stack`` has the modules that ran when the checkpoint first began.
    """

    def __init__(self, of: Finder, turn: Turn | None, stack: Sequence[Frame]) -> None:
        super().__init__(of.purpose, of.sources, of.name_of, of.finders, stack)
        self._turn = turn

    def computed(self, found: Found) -> Any:
        if (turn := self._turn) is None or turn.module is not found.module:
            raise HeadwayError(
                "torch.utils.checkpoint calls it where it called another layer at first: give it a function that calls "
                "the same layers each time"
            )
        self._turn = turn.after
        return found.run(turn.change)

    def recomputation(self, stack: Sequence[Frame]) -> Callable[[], Recomputation]:
        return partial(Recomputation, self, self._turn, stack)


def layer_named(layer: int | str, layers: Sequence[str], others: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """The name of a layer that is given by name, or by its number in ``layers``; ``others`` are taken by name too.

    Raises HeadwayError if there is no such layer; the message names the nearest.
    """
    number = whole(layer)
    if number is not None:
        if not layers:
            raise HeadwayError(f"layer {number}: the layers of attention are not known by number, give a module's name")
        if -len(layers) <= number < len(layers):
            return layers[number]
        raise HeadwayError(
            f"there is no layer {number}: the nearest is {0 if number < 0 else len(layers) - 1}, "
            f"{layers[0 if number < 0 else -1]!r}"
        )
    if isinstance(layer, str) and (layer in layers or layer.partition("#")[0] in others):
        return layer
    known = [*layers] or sorted(others)
    near = difflib.get_close_matches(str(layer), known, 1, 0.0)
    raise HeadwayError(
        f"there is no layer {layer!r}" + (f": the nearest is {near[0]!r}" if near else ": no attention was found")
    )


def _said(name: str) -> str:
    return repr(name) if name else "the model"
