"""Computes the attention of a sequence that several processes share."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Never

from .._common.version import __version__
from ..attention import Computation, _check_kernel, _observed, observers
from ..call import Arguments, encoding_for, make_call, seeded
from ..constants import writes
from ..coordinates import Coordinates, Placed
from ..errors import HeadwayError, refuse, refuses_others, unknown
from ..heads import HeadShard
from ..kernels import KERNELS, Call, kernel_for
from ..kernels._ops import flatten
from ..masks import AnyMask, Mask, as_mask, hiding_padding
from ..positions import PositionEncoding
from ..terms import Term
from ..tracing import forward_mode, watched
from ._agree import agree
from ._call import SharedCall
from ._group import Place, gathered, same_seed, summed_over, tokens_in
from ._shards import Shards
from .methods import METHODS, Method, Traffic
from .methods.gather import as_one_call, with_all_keys

SHORT = 1024
"""The most tokens of a rank for which "auto" gathers: its messages are few, and its calls whole."""
READ = 1 << 24
"""The bytes of the largest tensor of a mask or of coordinates whose numbers are compared, which takes milliseconds."""
SIDES = ("encoding", "terms", "mask", "q_positions", "k_positions", "q_input", "k_input")
OPTIONS = ("scale", "dropout", "sink", "soft_cap", "head_shard")
"""The arguments of ``headway.attention`` that layers give: those that make a shared call, and its options."""
LOCAL = "local"
"""The name in place of a method if every rank has all keys and nothing is sent."""


@refuses_others
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    shards: Shards,
    method: str = "auto",
    k_shards: Shards | None = None,
    return_lse: bool = False,
    encoding: PositionEncoding | str | None = None,
    terms: tuple[Term, ...] | list[Term] | None = None,
    mask: AnyMask = None,
    scale: float | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
    soft_cap: float | None = None,
    q_positions: Tensor | Coordinates | None = None,
    k_positions: Tensor | Coordinates | None = None,
    q_input: Tensor | None = None,
    k_input: Tensor | None = None,
    dropout_seed: int | Tensor | None = None,
    kernel: str = "auto",
    head_shard: HeadShard | None = None,
    **others: Never,
) -> Any:
    """Computes the attention of a whole sequence whose tokens are divided among processes.

        shards = hw.parallel.Shards.zigzag(32768, mesh["sequence"])
        q, k, v, at = shards.take(q, k, v, dim=2)
        out = hw.parallel.attention(q, k, v, shards=shards, encoding=rope, mask=hw.masks.Causal())

    Every process of the group makes the same call with its own tokens, and runs the same backward pass. The results
    equal those of one process with all tokens, up to rounding. The gradients of parameters are this rank's part of a
    sum over the ranks, which ``DistributedDataParallel`` reduces.

    Args:
        q: this rank's queries, [batch, heads, n, head_dim].
        k: this rank's keys, [batch, kv_heads, m, head_dim].
        v: this rank's values, [batch, kv_heads, m, v_dim].
        shards: which tokens each rank has.
        method: "ring", "gather" or "heads", without a fallback, or "auto". "auto" takes the first method that can
            compute the call: gather if a rank has up to 1,024 tokens, otherwise ring, then heads, then gather.
        k_shards: which keys each rank has, in cross-attention. Default: ``shards``. If every rank has all keys, give
            ``Shards.contiguous(m, None)``, the shards of only this process: nothing is sent then.
        return_lse: whether to return the log-sum-exp too.
        encoding: as for ``headway.attention``.
        terms: further terms, of this rank's queries and keys.
        mask: the mask of the whole sequence. Its tensors cover all queries and keys.
        scale: as for ``headway.attention``.
        dropout: as for ``headway.attention``. The same weights are dropped as in one process with the same seed.
        sink: a logit for each head, [heads], or for each of this rank's queries, [batch, heads, n].
        soft_cap: as for ``headway.attention``.
        q_positions: positions of this rank's queries: a tensor, or the coordinates that ``Shards.take`` returns.
            Default: 0 … n − 1 over the whole sequence.
        k_positions: positions of this rank's keys. Default: those of the queries, unless there are ``k_shards``.
        q_input: the layer's input for this rank's queries, [batch, n, embed_dim].
        k_input: the layer's input for this rank's keys, [batch, m, embed_dim].
        dropout_seed: as for ``headway.attention``; the same on every rank. Default: drawn by the first rank.
        kernel: "auto", or the name of a kernel.
        head_shard: as for ``headway.attention``; the same on every process that shares the sequence.

    Returns:
        The output of this rank's queries, [batch, heads, n, v_dim] in q's dtype; with ``return_lse`` a tuple of it and
        their log-sum-exp, [batch, heads, n] in float32 (float64 for float64).

    Raises:
        HeadwayError: as ``headway.attention`` does; if the method cannot compute the call; if the backward pass is
            itself differentiated; and if the processes disagree on the call. On a CPU this is checked in each call,
            including positions, documents and small tensors of masks; on GPUs in the first call of each kind.
        RuntimeError: if another process died, or does not answer within the timeout of its group.

    References:
        Liu et al. 2023, Ring Attention; Jacobs et al. 2023, DeepSpeed Ulysses; Grattafiori et al. 2024, section 3.3.2.
    """
    if others:
        refuse("attention", attention, others)
    need_shards(shards)
    with shards.group.during(Place()):
        call = shared_call(
            q, k, v, shards, k_shards, return_lse, encoding, terms, mask, q_positions, k_positions, q_input, k_input,
            kernel, {
                "scale": scale, "dropout": dropout, "sink": sink, "soft_cap": soft_cap, "dropout_seed": dropout_seed,
                "head_shard": head_shard,
            },
        )  # fmt: skip
        out, lse = computed(call, method)
    return (out, lse) if return_lse else out


def computed(
    call: SharedCall, name: str, note: Callable[[str, Traffic], None] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Computes a call.

    Args:
        call: the call.
        name: the name of the method, or "auto".
        note: receives the method and what it sends.

    Returns:
        The output and the log-sum-exp, if the call wants it.

    Raises:
        HeadwayError: if the method cannot compute the call, or the processes disagree on it.
    """
    if observers():  # observers use a mode of torch
        _need_method(name)
        return _observed_here(call, note)
    if watched() or forward_mode():
        raise HeadwayError(
            "attention over several processes runs only in eager mode: leave torch.compile, torch.export, torch.func "
            "and forward-mode differentiation out, or compile what stands around it"
        )
    _need_method(name)
    if call.group.size == 1:
        whole = make_call(
            call.q, call.k, call.v, encoding=call.encoding, terms=call.terms, mask=call.mask, q_positions=call.q_at,
            k_positions=call.k_at, q_input=call.q_input, k_input=call.k_input, **call.options,
        )._with(wants_lse=call.wants_lse)  # fmt: skip
        if note is not None:
            note(LOCAL, Traffic(0, 0))
        return kernel_for(KERNELS, whole, call.kernel).run(seeded(whole))
    if call.has_all_keys:
        if note is not None:
            note(LOCAL, Traffic(0, 0))
        return with_all_keys(_with_seeds(call))
    chosen = _chosen(call, name)
    call.group.at(method=chosen.name)
    call.group.need_exchanges(call.q.device)
    agree(call.group, _facts(call, chosen))
    if note is not None:
        note(chosen.name, chosen.traffic(call))
    return chosen.run(_with_seeds(call))


def _observed_here(call: SharedCall, note: Callable[[str, Traffic], None] | None) -> tuple[Tensor, Tensor | None]:
    """Computes a call that inspection observes."""
    if note is not None:
        gather, shares = METHODS["gather"], call.group.size > 1 and not call.has_all_keys
        note(*((gather.name, gather.traffic(call)) if shares else (LOCAL, Traffic(0, 0))))
    one = _with_weights(call, {})
    total = None if call.group.size == 1 else partial(summed_over, call.group)
    return _observed(one, Computation(one, call.kernel, call.q_shards.runs if call.itself else (), total))


def _with_weights(call: SharedCall, facts: dict[str, object]) -> Call:
    """Returns the call of this rank's queries and all keys, which every rank gets in order to compute the weights.

    Args:
        call: the call.
        facts: further facts that must be the same on every rank, by name.
    """
    if call.group.size == 1:
        return as_one_call(call)
    if not call.has_all_keys:
        call.group.need_exchanges(call.q.device)
        agree(call.group, _facts(call, METHODS["gather"]) | facts)
    return as_one_call(_with_seeds(call))


def call_with_weights(
    q: Tensor, k: Tensor, v: Tensor, shards: Shards, wanted: Sequence[str], kernel: str, arguments: Arguments
) -> Call:
    """Returns the call of this rank's queries and all keys, which gives the same weights as one process.

    Args:
        q: this rank's queries.
        k: this rank's keys.
        v: this rank's values.
        shards: which tokens each rank has.
        wanted: the names of the reductions of the weights, the same on every rank.
        kernel: "auto", or the name of a kernel.
        arguments: the other arguments of ``headway.attention``, as ``attention`` of this room takes them.

    Raises:
        HeadwayError: as ``attention`` does; for prepared keys; for an encoding that reads the layer's input.
    """
    given: dict[str, Any] = {**arguments}
    if others := given.keys() - {*SIDES, *OPTIONS, "dropout_seed", "prepared_by"}:
        refuse("attention", make_call, dict.fromkeys(sorted(others)))
    if given.get("prepared_by") is not None:
        raise HeadwayError("prepared_by is given with shards: give keys as they were before the encoding")
    encoding, terms, mask, q_at, k_at, q_input, k_input = map(given.get, SIDES)
    options = dict.fromkeys((*OPTIONS, "dropout_seed")) | {"dropout": 0.0}
    options |= {name: one for name, one in given.items() if name in options}
    need_shards(shards)
    with shards.group.during(Place()), torch.no_grad():
        call = shared_call(
            q, k, v, shards, None, False, encoding, terms, mask, q_at, k_at, q_input, k_input, kernel, options
        )  # fmt: skip
        return _with_weights(call, {"statistics": list(wanted)})


def _need_method(name: str) -> None:
    if name != "auto" and name not in METHODS:
        raise unknown("method", name, ("auto", *METHODS))


def _chosen(call: SharedCall, name: str) -> Method:
    """Returns the method of a call.

    Raises:
        HeadwayError: if the requested method cannot compute the call, or no method can.
    """
    if name != "auto":
        if (why := METHODS[name].why_not(call)) is not None:
            others = [other for other in METHODS if other != name and METHODS[other].why_not(call) is None]
            instead = f"give method='{others[0]}'" if others else "no other method can either"
            raise HeadwayError(f"method {name!r} cannot compute this call: {why}: {instead}")
        return METHODS[name]
    reasons = {}
    for method in _in_order(call):
        why = method.why_not(call)
        if why is None:
            return method
        reasons[method.name] = why
    raise HeadwayError("no method computes this call: " + "; ".join(f"{one}: {why}" for one, why in reasons.items()))


def _in_order(call: SharedCall) -> Sequence[Method]:
    """The methods in the order in which "auto" tries them."""
    longest = max(map(tokens_in, (*call.q_shards.layout, *call.k_shards.layout)))
    return sorted(METHODS.values(), key=lambda method: longest <= SHORT and method.name != "gather")


def _facts(call: SharedCall, method: Method) -> dict[str, object]:
    """Returns the facts of a call that must be the same on every rank, by name."""
    shard: HeadShard | None = call.options["head_shard"]
    facts: dict[str, object] = {
        "version": __version__,
        "the layer": call.layer,
        "what capture and other inspection observe": "all calls" if observers() else "nothing",
        "method": method.name,
        "kernel": call.kernel,
        "the number of tokens": call.q_shards.whole,
        "layout": call.q_shards.layout,
        "layout of the keys": call.k_shards.layout,
        "encoding": call.encoding,
        "mask": call.mask if call.mask is None else _spelled(call.mask),
        "log-sum-exp": call.wants_lse,
        "gradients": torch.is_grad_enabled() and _requiring(call),
        "terms": [type(term).__name__ for term in call.terms],
        "scale": call.options["scale"],
        "dropout": call.options["dropout"],
        "head_shard": None if shard is None else (shard.first, shard.count, shard.total),
        "soft_cap": call.options["soft_cap"],
        "training": call.encoding is not None and call.encoding.training,
    }
    for name, x in (("q", call.q), ("k", call.k), ("v", call.v), ("sink", call.options["sink"])):
        shape = None if x is None else [*x.shape[:2], *(x.shape[3:] if x.ndim == 4 else ())]
        facts[f"dtype of {name}"] = None if x is None else x.dtype
        facts[f"shape of {name}"] = shape if name != "sink" or x is None or x.ndim == 1 else "by query"
    for name, at in (("queries", call.q_at), ("keys", call.k_at)):
        facts[f"coordinates of the {name}"] = (
            at.position.dtype, list(at.position.shape), at.document is not None, at.ordered, at.start, at.padding,
            at.length if isinstance(at.length, int) else None,
        )  # fmt: skip
    if call.group.device is None:
        facts |= _contents(call)
    return facts


def _contents(call: SharedCall) -> dict[str, object]:
    """Returns the seed and checksums of the data that decide which keys are sent, as far as these are on a CPU."""
    seed = call.options["dropout_seed"]
    facts: dict[str, object] = {
        "dropout_seed": seed if isinstance(seed, int) else None,
        "how many contexts were entered": call.number,
    }
    for name, held in (
        ("positions and documents of the queries", call.q_at.as_given()),
        ("positions and documents of the keys", call.k_at.as_given()),
        ("numbers in the mask", call.mask),
    ):
        tensors = list[Tensor]()
        if not (isinstance(held, Coordinates) and held.is_stream):  # start and length describe a stream
            flatten(held, tensors)
        small = [x for x in tensors if x.is_cpu and x.nbytes <= READ]
        facts[name] = _checksum(call, small) if small else None
    return facts


def _checksum(call: SharedCall, tensors: Sequence[Tensor]) -> str:
    def compute() -> str:
        found = 0
        for x in tensors:
            x = x.detach().contiguous()
            found = zlib.crc32(ctypes.string_at(x.data_ptr(), x.nbytes), found)  # without numpy, which may be missing
        return f"{found:08x}"

    if any(x.is_inference() for x in tensors):  # writing into them leaves no trace
        return compute()
    return call.q_shards.fact(("checksum", *map(id, tensors), writes(tensors)), tensors, compute)


def _requiring(call: SharedCall) -> list[str]:
    """The names of the inputs that require a gradient. The messages of the backward pass depend on them."""
    named: dict[str, Tensor | None] = {"q": call.q, "k": call.k, "v": call.v}
    if call.encoding is not None:
        named |= dict(call.encoding.named_parameters())
        named |= {"q_input": call.q_input, "k_input": call.k_input} if call.encoding.reads_input else {}
    given: list[Tensor] = []
    flatten(call.terms, given)
    named |= {f"terms[{number}]": x for number, x in enumerate(given)}
    return [name for name, x in named.items() if x is not None and x.requires_grad]


def _spelled(mask: Mask) -> str:
    parts = getattr(mask, "masks", None)
    if parts:
        return f"{type(mask).__name__}({', '.join(map(_spelled, parts))})"
    held = {name: list(x.shape) if isinstance(x, Tensor) else x for name, x in vars(mask).items()}
    numbers = {name: x for name, x in held.items() if isinstance(x, (int, list, str))}
    return f"{type(mask).__name__}({', '.join(f'{name}={x}' for name, x in numbers.items())})"


def _with_seeds(call: SharedCall) -> SharedCall:
    """Returns the call with seeds that all ranks share, where something is drawn."""
    options, seed = call.options, None
    if options["dropout"] and options["dropout_seed"] is None:
        options = {**options, "dropout_seed": same_seed(call.group, call.q.device)}
    if call.encoding is not None and call.encoding.training and "locate" in call.encoding.acts:
        seed = same_seed(call.group, call.q.device)
    return replace(call, options=options, seed=seed)


# ---------------------------------------------------------------- the arguments


def need_shards(shards: object) -> None:
    """Raises HeadwayError unless it is given shards."""
    if not isinstance(shards, Shards):
        kind = type(shards).__name__
        raise HeadwayError(f"shards is a {kind}: give headway.parallel.Shards.zigzag(n, mesh) or another layout")


def shared_call(
    q: Tensor, k: Tensor, v: Tensor, shards: Shards, k_shards: Shards | None, wants_lse: bool,
    encoding: PositionEncoding | str | None, terms: Any, mask: AnyMask, q_positions: Any, k_positions: Any,
    q_input: Tensor | None, k_input: Tensor | None, kernel: str, options: dict[str, Any],
) -> SharedCall:  # fmt: skip
    _check_kernel(kernel)
    need_shards(shards)
    if k_shards is not None:
        need_shards(k_shards)
    if k_shards is not None and k_shards.group is not shards.group and k_shards.group.size > 1:
        raise HeadwayError("k_shards are of another group of processes than shards: make both with one mesh")
    shard = options["head_shard"]
    if not isinstance(shard, (HeadShard, type(None))):
        raise HeadwayError(f"head_shard is a {type(shard).__name__}: give HeadShard(first, count, total)")
    if isinstance(encoding, str):
        encoding = encoding_for(encoding, q, shard)
    k_side = shards if k_shards is None else k_shards
    for name, x, side in (("q", q, shards), ("k", k, k_side), ("v", v, k_side)):
        if not isinstance(x, Tensor) or x.ndim != 4 or x.is_nested:
            raise HeadwayError(
                f"{name} is not a tensor [batch, heads, tokens, head_dim]: give this rank's tokens as one"
            )
        side.need(x, 2, name)
    for name, given, side in (("q_input", q_input, shards), ("k_input", k_input, k_side)):
        if given is not None:
            side.need(given, 1, name)
    if k_shards is None and k_positions is None:
        k_positions = q_positions
    if k_shards is None and q_positions is None:
        q_positions = k_positions
    q_at = whole_coordinates(q_positions, shards, q.device, "q_positions")
    same = k_side is shards and (k_positions is q_positions)
    k_at = q_at if same else whole_coordinates(k_positions, k_side, k.device, "k_positions")
    checked = as_mask(mask)
    if checked is not None:
        n, m = q_at.index.shape[1], k_at.index.shape[1]
        heads = q.shape[1] if shard is None else shard.total
        checked.check(q.shape[0], heads, n, m)
        checked = checked.for_call(q.shape[0], heads)
    return SharedCall(
        q, k, v, shards, k_side, q_at, k_at, encoding, hiding_padding(checked, k_at), tuple(terms or ()), q_input,
        k_input, options, kernel, wants_lse, mask,
    )  # fmt: skip


def whole_coordinates(
    positions: Tensor | Coordinates | None, shards: Shards, device: torch.device, name: str
) -> Coordinates:
    """Returns the coordinates of all tokens of one side.

    Args:
        positions: those of this rank's tokens; None for 0 … n − 1 over the whole sequence.
        shards: which tokens each rank has.
        device: where the tokens are.
        name: their name in messages.

    Raises:
        HeadwayError: for coordinates that belong to no shard or to other shards, or were changed after they were taken.
    """
    if positions is None:
        return shards.span(device)
    if isinstance(positions, Tensor):
        at = Coordinates.of(positions, shards.length, name=name)
        whole = gathered(at.position, shards.group, shards.layout, 1)
        return Coordinates.of(whole, shards.whole, name=name)
    if positions.shard is None:
        if shards.group.size > 1:
            raise HeadwayError(f"{name} are not coordinates of a shard: give those of Shards.take")
        return positions
    if positions.shard.runs != shards.runs or positions.shard.whole.index.shape[1] != shards.whole:
        raise HeadwayError(f"{name} are those of other shards: give those that take of these shards returns")
    positions.shard.need_unchanged(positions)
    whole_at = positions.shard.whole
    if isinstance(positions, Placed) and (given := positions.as_given().shard) is not None:
        return given.whole.placed_by(positions.by, position=whole_at.position)
    return whole_at


# ---------------------------------------------------------------- explaining a call


@dataclass(frozen=True)
class Explanation:
    """The method of a call, what it sends, and the reasons against the others.

    Attributes:
        method: the name of the method; None if the requested one cannot compute the call, or none can.
        traffic: the bytes that this rank sends, for each method that can compute the call.
        reasons: why each other method cannot compute it.
        shards: the shards of the queries.
    """

    method: str | None
    traffic: dict[str, Traffic]
    reasons: dict[str, str]
    shards: Shards = field(repr=False)

    def __str__(self) -> str:
        none = "that which is asked for cannot compute this call" if self.traffic else "none can compute this call"
        lines = [f"method: {self.method or none}   ({self.shards!r})"]
        for name in METHODS:
            if name in self.reasons:
                lines.append(f"  {name}: {self.reasons[name]}")
                continue
            lines.append(f"  {name}: {spoken(self.traffic[name])}")
        return "\n".join(lines)


def spoken(traffic: Traffic) -> str:
    """Describes what a rank sends.

    Args:
        traffic: what it sends.
    """
    skipped = f", {_bytes(traffic.skipped)} skipped" if traffic.skipped else ""
    return f"{_bytes(traffic.forward)} sent forward, {_bytes(traffic.backward)} backward{skipped}"


def _bytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count / 1024:,.1f} KiB"


@refuses_others
def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    shards: Shards,
    method: str = "auto",
    k_shards: Shards | None = None,
    return_lse: bool = False,
    encoding: PositionEncoding | str | None = None,
    terms: tuple[Term, ...] | list[Term] | None = None,
    mask: AnyMask = None,
    scale: float | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
    soft_cap: float | None = None,
    q_positions: Coordinates | None = None,
    k_positions: Coordinates | None = None,
    q_input: Tensor | None = None,
    k_input: Tensor | None = None,
    dropout_seed: int | Tensor | None = None,
    kernel: str = "auto",
    head_shard: HeadShard | None = None,
    **others: Never,
) -> Explanation:
    """Explains which method ``attention`` would choose for a call, what it sends, and why not the others.

    Nothing is sent, so a single process of a group may call it. The arguments are those of ``attention``.

    Args:
        q: this rank's queries.
        k: this rank's keys.
        v: this rank's values.
        shards: which tokens each rank has.
        method: "auto", or the name of a method.
        k_shards: which keys each rank has.
        return_lse: whether the log-sum-exp is wanted.
        encoding: the encoding.
        terms: further terms.
        mask: the mask of the whole sequence.
        scale: the factor of the scores.
        dropout: the share of the weights that is dropped.
        sink: the logits of a sink.
        soft_cap: the bound of the scores.
        q_positions: coordinates of this rank's queries.
        k_positions: those of the keys.
        q_input: the layer's input for the queries.
        k_input: that for the keys.
        dropout_seed: decides which weights are dropped.
        kernel: "auto", or the name of a kernel.
        head_shard: which heads q, k and v have.

    Returns:
        The explanation, which prints as a table.

    Raises:
        HeadwayError: if the arguments do not fit one another, or positions are tensors, since the other processes have
            other parts of these.
    """
    if others:
        refuse("explain", explain, others)
    if isinstance(q_positions, Tensor) or isinstance(k_positions, Tensor):
        raise HeadwayError("positions are tensors, and other processes hold the rest: give those of Shards.take")
    _need_method(method)
    call = shared_call(
        q, k, v, shards, k_shards, return_lse, encoding, terms, mask, q_positions, k_positions, q_input, k_input,
        kernel, {
            "scale": scale, "dropout": dropout, "sink": sink, "soft_cap": soft_cap, "dropout_seed": dropout_seed,
            "head_shard": head_shard,
        },
    )  # fmt: skip
    return explained(call, method)


def explained(call: SharedCall, method: str) -> Explanation:
    """Returns the explanation of a call, for which nothing is sent.

    Args:
        call: the call.
        method: "auto", or the name of a method.
    """
    shards = call.q_shards
    if call.group.size == 1 or call.has_all_keys:
        why = "one process has the whole sequence" if call.group.size == 1 else "every rank has all keys"
        return Explanation(LOCAL, {}, dict.fromkeys(METHODS, why), shards)
    reasons = {name: said for name, one in METHODS.items() if (said := one.why_not(call)) is not None}
    traffic = {name: one.traffic(call) for name, one in METHODS.items() if name not in reasons}
    order = [one.name for one in _in_order(call) if one.name not in reasons]
    chosen = (order[0] if order else None) if method == "auto" else (None if method in reasons else method)
    return Explanation(chosen, traffic, reasons, shards)
