"""Which module an attention call belongs to, for the duration of a block: hooks on a model, a stack for its thread."""

from __future__ import annotations

import difflib
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch import functorch_active, in_backward_pass, is_compiled, never_compiled, without_function_modes
from ..errors import HeadwayError
from ..kernels import Call
from ..reductions import Reduction
from ._numbers import whole


class Source(Protocol):
    """A method of finding the attention calls of a model."""

    def is_layer(self, module: nn.Module) -> bool:
        """Whether it is known, before it runs, that a module computes attention that this source finds."""

    def watched_by(self, watch: Watch) -> AbstractContextManager[None]:
        """Hands each attention call to ``watch.found`` for the duration of a block, wherever ``watch.awake()``."""


Change = Callable[[Tensor], Tensor]
"""What becomes of the heads' outputs, [batch, heads, n, v_dim], before the output projection."""


class _Changes(threading.local):
    count = 0


changes = _Changes()
"""How many outputs have been changed in this thread, so that a check of what a model computes knows of it."""


@dataclass(eq=False)
class Frame:
    """A module of the model whose forward is running, with what it was given."""

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


@lru_cache(maxsize=1024)
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parts = inspect.signature(forward).parameters.values()
    return tuple([part.name for part in parts if part.kind in positional][1:])


@dataclass(eq=False)
class Site:
    """An attention call of a model that is about to be computed.

    Attributes:
        module: the module that it belongs to.
        source: how it was found: the name of one of ``SOURCES``.
        kind: "self" or "cross".
        call: the call as headway computes it.
        run: computes it as the model does, with a change of the heads' outputs if one is given.
        rows: of what ``run`` returned, the given queries: the heads' outputs [batch, heads, rows, v_dim], or what
            ``projected`` makes of them.
        projected: what the model makes of the heads' outputs before ``run`` returns.
        exact: whether ``call`` is the very call that is computed, rather than a translation of it.
        padding: the queries that are not padding, [batch, n] bool; None if that is not known.
        dropout: the share of the weights that the model drops.
        note: what a reader of the record should know.
        run_and_reduce: computes it as ``run`` does, bit for bit, and reductions of its weights in one pass; returns
            None where there is no such pass. None where no kernel of headway computes the call.
        replaces_output: whether the module computes its output once more, so that a change would be lost.
        output_weight: the weight of the output projection, [width, heads·v_dim], where ``run`` applies it itself.
    """

    module: nn.Module
    source: str
    kind: str
    call: Call
    run: Callable[[Change | None], Any]
    rows: Callable[[Any, list[int]], Tensor] = lambda result, rows: result
    projected: Callable[[Tensor], Tensor] = lambda out: out
    exact: bool = False
    padding: Tensor | None = None
    dropout: float = 0.0
    note: str = ""
    replaces_output: bool = False
    run_and_reduce: Callable[[Sequence[Reduction], Tensor | None], tuple[Any, list[Any]] | None] | None = None
    output_weight: Tensor | None = None


class Mode(TorchFunctionMode):
    """A mode that sees every function of torch which this thread calls, for the duration of a block, and takes one.

    Args:
        watch: the watch that it hands attention calls to.
        function: the function that it takes.
        site: makes the site of a call, from the watch and the function's arguments.
    """

    def __init__(self, watch: Watch, function: Callable[..., Any], site: Callable[..., Site]) -> None:
        super().__init__()
        self.watch, self.function, self.site = watch, function, site

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not self.function or not self.watch.awake():
            return function(*args, **kwargs)
        return self.watch.found(lambda: self.site(self.watch, *args, **kwargs))


def unwatched() -> AbstractContextManager[None]:
    """A block without the modes of sources, in which kernels take their quickest paths."""
    return without_function_modes(Mode)


class Watch:
    """Looks on at the attention calls of one model in one thread, while ``watching``.

    Args:
        model: the model.
        purpose: what messages call the block, such as "capture".
        sources: the methods of finding attention calls.

    Raises:
        HeadwayError: if the model is not a module, or is compiled or scripted.
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
        self.model, self.purpose, self.sources = model, purpose, sources
        self.name_of = {module: name for name, module in model.named_modules()}
        self.stack: list[Frame] = []
        self.calls = 0
        """Calls of the model in which attention was found; the current one included."""
        self.ran = False
        """Whether the model, or a part of it, was called."""
        self.missed: dict[str, str] = {}
        """The class of each module that seems to be attention and ran without an attention call, by name."""
        self._thread = threading.get_ident()
        self._busy = False
        self._outermost: Frame | None = None
        self._turns: Counter[str] = Counter()
        # compiled code that runs a module of the model breaks its graph here, and what it finds is right
        self.awake, self.found = never_compiled(self._awake), never_compiled(self._found)

    def around(self, site: Site) -> Any:
        """Computes an attention call, and does with it what the block is for."""
        raise NotImplementedError

    # ------------------------------------------------------------ what sources ask

    def _awake(self) -> bool:
        """Whether an attention call of this thread, here and now, is one of the model's that is not known yet."""
        if self._thread != threading.get_ident() or self._busy or not self.stack:
            return False
        if torch.compiler.is_compiling():
            raise HeadwayError(
                f"{self.purpose} cannot look into code that torch.compile compiles: call the model as it was before"
            )
        if functorch_active():
            raise HeadwayError(f"{self.purpose} cannot look into a transform of torch.func: call the model without it")
        return not in_backward_pass()  # there, checkpointed modules compute what has been seen once more

    def _found(self, make: Callable[[], Site]) -> Any:
        """Computes an attention call that a source has found; other sources do not see it again."""
        self._busy = True
        try:
            return self.around(make())
        except HeadwayError as error:
            name = self.stack[-1].name if self.stack else ""
            if str(error).startswith(self.purpose):
                raise
            raise HeadwayError(f"{self.purpose} of {_said(name)}: {error}") from error
        finally:
            self._busy = False

    def frame_of(self, module: nn.Module | None) -> Frame:
        """The innermost frame of a module; the innermost of all if it has none."""
        return next((frame for frame in reversed(self.stack) if frame.module is module), self.stack[-1])

    def label(self, site: Site) -> tuple[str, str, int]:
        """A name of the layer that no other attention call of this call of the model has, the module's name and the
        number of the model's call.

        A module that attends several times in one call is "name", "name#2", "name#3", …
        """
        if self.stack[0] is not self._outermost:
            self._outermost, self.calls = self.stack[0], self.calls + 1
            self._turns.clear()
        for frame in self.stack:
            frame.attended = True
        name = self.name_of.get(site.module, self.stack[-1].name)
        self._turns[name] += 1
        turn = self._turns[name]
        return (name if turn == 1 else f"{name}#{turn}"), name, self.calls - 1

    # ------------------------------------------------------------ the block

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks on for the duration of a block, and takes every hook out at its end."""
        with ExitStack() as block:
            for source in self.sources:
                block.enter_context(source.watched_by(self))
            for module, name in self.name_of.items():
                enter, leave = self._hooks(name)
                before = module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                block.callback(before.remove)
                block.callback(module.register_forward_hook(leave, always_call=True).remove)
            yield

    def _hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        """What is called before and after a module's forward; the second also where that raises."""

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._thread == threading.get_ident():
                self.ran = True
                self.stack.append(Frame(name, module, args, kwargs))

        def leave(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if self._thread != threading.get_ident():
                return
            while self.stack:
                frame = self.stack.pop()
                if frame.module is module:
                    if out is not None and not frame.attended and self._seems_attention(module):
                        self.missed[name] = type(module).__name__
                    break

        return never_compiled(enter), never_compiled(leave)

    def _seems_attention(self, module: nn.Module) -> bool:
        return "attention" in type(module).__name__.lower() and not in_backward_pass()

    @cached_property
    def layers(self) -> list[str]:
        """The names of the modules that are known to compute attention, in the order of ``named_modules``."""
        return [name for module, name in self.name_of.items() if any(one.is_layer(module) for one in self.sources)]

    def layer_named(self, layer: int | str, layers: Sequence[str]) -> str:
        """The name of a layer that is given by name, or by its number in ``layers``.

        Raises HeadwayError if there is no such layer; the message names the nearest.
        """
        return layer_named(layer, layers, set(self.name_of.values()))


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
