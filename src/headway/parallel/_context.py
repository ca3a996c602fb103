"""Runs layers and whole models on a sequence that several processes share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .._torch import is_compiled, recomputed_as
from ..coordinates import Coordinates
from ..errors import HeadwayError, unknown
from ..nn import KeyValueCache
from ..plans import prepared_keys_and_values
from ..positions import PositionEncoding
from ..sharing import entered, libraries
from ._attention import OPTIONS, SIDES, computed, shared_call, spoken, whole_coordinates
from ._call import SharedCall, drawing_with, located_by
from ._decoding import attention_to_shares, last_rank, need_decodes
from ._group import LostError, Place, same_seed
from ._reach import unreached
from ._shards import Shards
from .methods import METHODS, Traffic

ALIKE = 1e-2
"""The share by which a context that every rank has may differ between them: that of kernels, not of other tokens."""
PROJECTIONS = 4
"""The random projections by which it is compared."""
SHOWN = 4
"""The most layers that a message names."""

_lock = threading.Lock()


@contextmanager
def context(
    model: nn.Module, shards: Shards, *, method: str = "auto", context_shards: Shards | None = None
) -> Iterator[Context]:
    """Makes every attention layer of a model attend to a whole sequence whose tokens are divided among processes.

        mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("data", "sequence"))
        shards = hw.parallel.Shards.zigzag(32768, mesh["sequence"])
        ids, targets, at = shards.take(ids, targets, coordinates=hw.Coordinates.packed(lengths))
        model = DDP(model)                                   # kept, since it reduces gradients while it exists
        with hw.parallel.context(model, shards) as shared:
            logits = model(ids, positions=at, mask=hw.masks.Documents())
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") * world / tokens
            loss.backward()
        print(shared)                                        # the method of each layer, and what it sends

    The outputs, and the gradients summed over the processes, equal those of one process with all tokens, up to
    rounding. A context works with ``MultiHeadAttention``, ``Block``, ``Stack``, the models of ``headway.models``,
    layers that ``swap_attention`` has swapped, and models of transformers with ``attn_implementation="headway"``.

    Give the positions of this process's tokens: a tensor, or the coordinates that ``Shards.take`` returns. Without
    positions, the tokens stand at their places 0 … n − 1 in the whole sequence. Tensors in masks cover all tokens.
    Models of transformers take positions as ``position_ids``, which start at 0 again for each packed document.

    In cross-attention, every process has either the whole context or, with ``context_shards``, some of its tokens. The
    encoder of an ``EncoderDecoder`` or ``nn.Transformer`` then has the same tokens.

    A loss is a sum over this process's tokens. The gradients of parameters are this process's part of a sum.
    ``DistributedDataParallel`` and ``fully_shard`` average them, hence the factor ``world``, the number of processes
    that they reduce over. ``tokens`` counts the targets of all processes. Outside of attention, every process draws its
    own dropout.

    Layers that ``torch.utils.checkpoint`` computes again are in the context then, even after the block. The end of the
    block restores the previous state, even after an error. If contexts are nested, the inner one applies. Inside a
    context, a model takes no memory and must not be compiled.

    With a cache, the first call gets this process's tokens of the prompt. Later calls get the tokens that follow, the
    same on every process. Keys stay where they were computed. ``generate`` takes the whole prompt on every process.

    Args:
        model: the model, or one layer.
        shards: which tokens each process has.
        method: "ring", "gather", "heads" or "auto", as for ``headway.parallel.attention``.
        context_shards: which tokens of the context in cross-attention each process has. Default: every process has all
            of them.

    Yields:
        The context, which prints as a table of the layers that have been called.

    Raises:
        HeadwayError: if the model has no attention; if a context does not reach some of its layers, which the message
            names; if the model is compiled or in the context of another thread; if a method is unknown.
    """
    with layers_asking(Context, model, shards, method, context_shards) as one:
        yield one


C = TypeVar("C", bound="Context")


@contextmanager
def layers_asking(
    kind: type[C], model: nn.Module, shards: Shards, method: str, context_shards: Shards | None
) -> Iterator[C]:
    """Lets the layers of a model ask a context of some kind."""
    _check(model, shards, method, context_shards)
    one = kind(shards, method, context_shards)
    of_context = _modules_of_context(model)
    _need_reach(model, of_context if context_shards is None else set())
    for name, module in model.named_modules():
        one._names[id(module)] = name
    others = one if context_shards is None else kind(context_shards, method, None)
    others._follow(one)
    held: Held = []
    for module in model.modules():
        if id(module) not in of_context:
            held.append((module, one))
        elif context_shards is not None:
            held.append((module, others))
    _need_one_thread(held)
    one._begin()
    others._number = one._number

    def computed_again(function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_within, held, function) if threading.get_ident() == one._thread else function

    with ExitStack() as block:
        block.enter_context(recomputed_as(computed_again))
        block.enter_context(_entered(held))
        for library in libraries.values():
            block.enter_context(library.entered(model, one))
        try:
            yield one
        except BaseException as error:
            one._left_by(error)
            raise


class Context:
    """The layers of a ``context``, whose attention covers a sequence that several processes share.

    Args:
        shards: which tokens each process has.
        method: the method, or "auto".
        context_shards: which tokens of the context in cross-attention each process has; None if it has all of them.

    Attributes:
        rows: the method of the first call of each layer by its name, and what the call sends.
    """

    def __init__(self, shards: Shards, method: str, context_shards: Shards | None) -> None:
        self.shards, self.method, self.context_shards = shards, method, context_shards
        self.rows: dict[str, tuple[str, Traffic]] = {}
        self._names: dict[int, str] = {}
        self._compared = False
        self._thread = threading.get_ident()
        self._number = 0

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} layers   ({self.shards!r})"]
        width = max(map(len, self.rows), default=0)
        lines += [f"  {name:{width}}  {method}: {spoken(traffic)}" for name, (method, traffic) in self.rows.items()]
        return "\n".join(lines)

    # ------------------------------------------------------------ answers to layers; see ``Sharing``

    def attention(self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, cross: bool, **arguments: Any) -> Tensor:
        """Returns the attention of this rank's queries, as ``headway.attention`` does for the whole sequence.

        Args:
            layer: the layer that calls.
            q: this rank's queries.
            k: this rank's keys, or all keys of a context that every rank holds whole.
            v: the values.
            cross: whether the keys are those of the context of cross-attention.
            **arguments: those of ``headway.attention``. Positions are those of this rank's tokens; None for their
                place in the whole sequence.

        Raises:
            HeadwayError: as ``headway.parallel.attention`` does, and if ranks have different contexts that should be
                the same.
        """
        name = self._name(layer)

        def note(method: str, traffic: Traffic) -> None:
            self.rows[name] = method, traffic

        with self.shards.group.during(Place(name)):
            if cross and self.context_shards is None:
                self._need_same_context(layer, k)
            call = replace(self._call(q, k, v, cross, arguments), layer=name, number=self._number)
            out, _ = computed(call, self.method, None if name in self.rows else note)
        return out

    def _call(self, q: Tensor, k: Tensor, v: Tensor, cross: bool, arguments: dict[str, Any]) -> SharedCall:
        """Returns the call of a layer; the arguments are those of ``attention``."""
        keys = (self.context_shards or Shards.contiguous(k.shape[2], None)) if cross else None
        encoding, terms, mask, q_at, k_at, q_input, k_input = map(arguments.get, SIDES)
        options = {"dropout": 0.0} | {name: arguments[name] for name in OPTIONS if name in arguments}
        return shared_call(
            q, k, v, self.shards, keys, False, encoding, terms, mask, q_at, k_at, q_input, k_input,
            arguments.get("kernel", "auto"), dict.fromkeys((*OPTIONS, "dropout_seed")) | options,
        )  # fmt: skip

    @property
    def tokens(self) -> Shards:
        """Which tokens each rank has, as given to the context."""
        return self.shards

    def cached_attention(
        self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, cache: KeyValueCache,
        prepared_by: PositionEncoding | None, attended: Callable[[Tensor], Tensor], **arguments: Any,
    ) -> Tensor:  # fmt: skip
        """Returns the attention to a cache in which each rank keeps the keys of its tokens.

        The call that fills the cache gets this rank's tokens of the prompt. Later calls get the tokens that follow, the
        same on every rank; the rank with the last token of the prompt appends their keys.

        Args:
            layer: the layer that calls.
            q: the queries.
            k: their keys.
            v: their values, as the cache holds them.
            cache: the cache of this rank's keys.
            prepared_by: the encoding, if the cache has keys as it prepares them.
            attended: returns values in the form that attention takes.
            **arguments: those of ``headway.attention``, with coordinates of all keys.

        Raises:
            HeadwayError: for an encoding that depends on other tokens or may draw positions, for gradients, for
                dropout, and for steps that inspection observes.
        """
        encoding, mask, q_at, k_at = (arguments[name] for name in ("encoding", "mask", "q_positions", "k_positions"))
        fills = not len(cache)
        need_decodes(encoding, arguments["dropout"], fills)
        cache.need_prepared_by(prepared_by)
        if fills:
            out = self.attention(layer, q, k, attended(v), cross=False, **{**arguments, "k_positions": q_at})
        if fills or self.shards.group.rank == last_rank(self.shards):
            if prepared_by is not None:
                k, v, _ = prepared_keys_and_values(
                    prepared_by,
                    k,
                    v,
                    q_at._with(shard=None),
                    arguments["kernel"],
                    head_shard=arguments.get("head_shard"),
                )
            cache.append(k, v)
        if fills:
            return out
        options = {name: arguments.get(name) for name in OPTIONS if name != "dropout"}
        with self.shards.group.during(Place(self._name(layer), "a shared cache")):
            return attention_to_shares(
                q, cache.keys, attended(cache.values), self.shards, encoding, mask, q_at, k_at, prepared_by,
                arguments["kernel"], options,
            )  # fmt: skip

    def prompt(self, ids: Tensor, at: Coordinates | None) -> tuple[Tensor, Coordinates]:
        """Returns this rank's tokens of a prompt, and where they are.

        Args:
            ids: the whole prompt, [batch, n].
            at: the coordinates of the whole prompt; None for 0 … n − 1.

        Raises:
            HeadwayError: for another number of tokens than the shards have.
        """
        own, local = self.shards.take(ids, coordinates=at)
        return own, local

    def common(self, x: Tensor, *, of_last: bool) -> Tensor:
        """Returns one rank's tensor on every rank; all ranks give a tensor of the same shape.

        Args:
            x: this rank's.
            of_last: whether to take that of the rank with the last token; otherwise that of the first rank.
        """
        group, source = self.shards.group, last_rank(self.shards) if of_last else 0
        found = x.clone()
        outgoing = [x if group.rank == source else None] * group.size
        group.exchange(outgoing, [found if rank == source else None for rank in range(group.size)])
        return found

    def coordinates(self, positions: Tensor | Coordinates | None, count: int, device: torch.device) -> Coordinates:
        """Returns the coordinates of this rank's tokens.

        Args:
            positions: the positions of these tokens; None for their place in the whole sequence.
            count: the number of tokens.
            device: where they are.

        Raises:
            HeadwayError: for another number of tokens than the rank has, and for positions that belong to no shard.
        """
        return _of_shard(positions, self.shards, count, device, "positions")

    def context_coordinates(self, positions: Tensor | Coordinates | None, context: Tensor) -> Coordinates:
        """Returns the coordinates of this rank's tokens of the context in cross-attention.

        Args:
            positions: the positions of these tokens; None for their place in the whole context.
            context: the context, [batch, m, …].

        Raises:
            HeadwayError: as ``coordinates`` does.
        """
        shards = self.context_shards or Shards.contiguous(context.shape[1], None)
        return _of_shard(positions, shards, context.shape[1], context.device, "context_positions")

    def whole_sizes(self, n: int, m: int, *, cross: bool) -> tuple[int, int]:
        """Returns the total numbers of queries and keys of a call.

        Args:
            n: the queries of this rank.
            m: its keys.
            cross: whether the keys are those of the context of cross-attention.
        """
        keys = self.context_shards if cross else self.shards
        return self.shards.whole, m if keys is None else keys.whole

    def placed(self, encoding: PositionEncoding, at: Coordinates) -> Coordinates:
        """Returns where an encoding sees the tokens of a stack.

        The whole stream is placed, so that every rank draws the same numbers; then this rank's tokens are cut out.

        Args:
            encoding: the encoding.
            at: the coordinates of this rank's tokens.
        """
        if at.shard is None:
            return encoding.for_one_forward(at)
        if "locate" not in encoding.acts:
            return at
        device = at.position.device
        with drawing_with(self._seed(device) if encoding.training else None, device):
            return located_by(encoding, at.shard.whole).take(at.shard.runs)

    def refuse(self, layer: nn.Module, **parts: object) -> None:
        """Refuses arguments that layers of a context do not support.

        Args:
            layer: the layer that calls.
            **parts: the arguments, by name; None if they are not given.

        Raises:
            HeadwayError: if one is given.
        """
        for name, given in parts.items():
            if given is not None:
                raise HeadwayError(
                    f"{self._name(layer)} is called with {name}= in headway.parallel.context, whose layers compute "
                    "whole sequences: leave it out, or call the model outside of the context with all tokens"
                )

    # ------------------------------------------------------------

    def _follow(self, other: Self) -> None:
        """Writes the notes about layers to another context too."""
        self._names, self.rows = other._names, other.rows

    def _begin(self) -> None:
        """Counts the context, so that ranks notice if they are in different contexts."""
        group = self.shards.group
        group.contexts += 1
        self._number = group.contexts

    def _left_by(self, error: BaseException) -> None:
        """Tells the other processes of an error, and adds their errors to it."""
        group = self.shards.group
        group.tell(error)
        # one of torch's own exchanges, such as those of data parallelism, says nothing of its cause
        if (
            isinstance(error, RuntimeError)
            and not isinstance(error, (HeadwayError, LostError))
            and (told := group.told())
        ):
            notes = [*getattr(error, "__notes__", []), told]
            setattr(error, "__notes__", notes)  # noqa: B010 -- as ``add_note`` of Python 3.11 does

    def _seed(self, device: torch.device) -> int:
        """A seed that all ranks share."""
        return same_seed(self.shards.group, device)

    def _name(self, layer: nn.Module) -> str:
        return self._names.get(id(layer), "") or type(layer).__name__

    def _need_same_context(self, layer: nn.Module, k: Tensor) -> None:
        """Checks in the first call that every rank has the same keys, which must hold if each has the whole context."""
        group = self.shards.group
        if self._compared or group.size == 1:
            return
        self._compared = True
        own = _projected(k)
        own = own if group.device is not None else own.cpu()
        others = group.all_of(own)
        first = others[0]
        if any(one[0] != first[0] or bool(((one - first).abs() > ALIKE * first[1]).any()) for one in others):
            tokens = ", ".join(str(int(one[0])) for one in others)
            raise HeadwayError(
                f"{self._name(layer)} attends to a context that differs between the processes ({tokens} tokens): give "
                "context_shards=, or the whole context on every process"
            )


def _projected(k: Tensor) -> Tensor:
    """Returns the number of keys, their norm and a few random projections, in which different keys differ."""
    generator = torch.Generator().manual_seed(0)
    x = k.detach().transpose(1, 2).flatten(2).float().sum(0)
    by_token, by_feature = (torch.randn(PROJECTIONS, size, generator=generator).to(x.device) for size in x.shape)
    numbers = ((by_token @ x) * by_feature).sum(1)
    return torch.cat([x.new_tensor([float(len(x))]), x.norm()[None], numbers])


def _of_shard(
    positions: Tensor | Coordinates | None, shards: Shards, count: int, device: torch.device, name: str
) -> Coordinates:
    """Returns the coordinates of this rank's tokens, which know the whole sequence."""
    if count != shards.length:
        raise HeadwayError(
            f"there are {count} tokens but rank {shards.group.rank} has {shards.length} of {shards.whole}: give the "
            "result of Shards.take"
        )
    whole = whole_coordinates(positions, shards, device, name)
    if isinstance(positions, Coordinates):
        return positions
    return whole if shards.group.size == 1 else whole.take(shards.runs)


# ---------------------------------------------------------------- enter and leave


def _check(model: nn.Module, shards: Shards, method: str, context_shards: Shards | None) -> None:
    if not isinstance(model, nn.Module):
        raise HeadwayError(f"model is {model!r:.60}: give a torch.nn.Module")
    for name, one in (("shards", shards), ("context_shards", context_shards)):
        if not isinstance(one, Shards) and not (one is None and name == "context_shards"):
            raise HeadwayError(f"{name} is {one!r:.60}: give headway.parallel.Shards.zigzag(n, mesh) or another layout")
    if context_shards is not None and context_shards.group is not shards.group and shards.group.size > 1:
        raise HeadwayError("context_shards are of another group of processes than shards: make both with one mesh")
    if method != "auto" and method not in METHODS:
        raise unknown("method", method, ("auto", *METHODS))
    for name, module in model.named_modules():
        if is_compiled(module):
            raise HeadwayError(
                f"{name or type(module).__name__} is compiled, but attention over several processes runs only in eager "
                "mode: give the model before torch.compile"
            )


def _need_reach(model: nn.Module, without: set[int]) -> None:
    reached, left = unreached(model, without)
    if left:
        more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        raise HeadwayError(f"the model has layers that a context does not reach: {'; '.join(left[:SHOWN])}{more}")
    if not reached:
        raise HeadwayError(f"{type(model).__name__} has no attention of headway: there is nothing to share")


def _modules_of_context(model: nn.Module) -> set[int]:
    """The ids of the modules that compute the context of cross-attention, and so have its tokens.

    Raises:
        HeadwayError: if the rest of the model shares one of their attention layers, whose tokens would then be unknown.
    """
    parts: list[nn.Module] = []
    for module in model.modules():
        names = ("encoder",) if isinstance(module, nn.Transformer) else getattr(module, "context_parts", ())
        parts += filter(None, (getattr(module, name) for name in names))
    found = {id(module) for part in parts for module in part.modules()}
    for name, module in _apart(model, set(map(id, parts))):
        if id(module) in found and hasattr(module, "why_not_shared"):
            raise HeadwayError(
                f"{name} ({type(module).__name__}) is a layer of the encoder, too, whose tokens are others: give each "
                "side layers of its own, or do without a context"
            )
    return found


def _apart(model: nn.Module, parts: set[int], name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model, with their names, except those that are only within some parts."""
    yield name, model
    for child, module in model.named_children():
        if id(module) not in parts:
            yield from _apart(module, parts, f"{name}.{child}".lstrip("."))


Held = list[tuple[nn.Module, "Context"]]
"""Modules, each with the context that it asks."""


def _need_one_thread(held: Held) -> None:
    for module, one in held:
        if any(isinstance(other, Context) and other._thread != one._thread for other in entered.get(id(module), [])):
            raise HeadwayError("the model is in a context of another thread: give each thread a model of its own")


@contextmanager
def _entered(held: Held) -> Iterator[None]:
    with _lock:
        for module, one in held:
            entered.setdefault(id(module), []).append(one)
    try:
        yield
    finally:
        with _lock:
            for module, one in held:
                contexts = entered[id(module)]
                contexts.remove(one)
                if not contexts:
                    del entered[id(module)]


def _within(held: Held, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _entered(held):
        return function(*args, **kwargs)
