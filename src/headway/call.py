"""Makes a ``Call`` from the arguments of ``attention``: checks and casts them, places tokens, prepares q, k and v."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor
from typing_extensions import Never

from .coordinates import Coordinates, stream
from .errors import HeadwayError, refuse, refuses_others
from .heads import EncodingOfHeads, HeadShard
from .kernels import KERNELS, Call
from .masks import AnyMask, Mask, as_mask, hiding_padding, is_python, looks_ahead
from .positions import PositionEncoding
from .positions._base import IN_ATTENTION, Restore, built_for_others
from .positions._naming import shared_encoding
from .records import Sizes
from .terms import NORMALIZERS, PRODUCTS, RelativeKeys, RelativeQueries, Rotation, Sink, SoftCap, Term
from .terms import check as check_terms
from .tracing import autocasts, holds, refuse_tracers, to_onnx

DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})

Steps = PositionEncoding | EncodingOfHeads
"""What has the steps of a call."""

LARGEST_SCALE = torch.finfo(torch.float32).max


class Arguments(TypedDict, total=False):
    """The keyword arguments of ``attention`` other than ``kernel``."""

    encoding: PositionEncoding | str | None
    terms: tuple[Term, ...] | list[Term] | None
    mask: AnyMask
    scale: float | None
    dropout: float
    sink: Tensor | None
    soft_cap: float | None
    q_positions: Tensor | Coordinates | None
    k_positions: Tensor | Coordinates | None
    q_input: Tensor | None
    k_input: Tensor | None
    prepared_by: PositionEncoding | None
    dropout_seed: int | Tensor | None
    head_shard: HeadShard | None


@refuses_others
def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
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
    prepared_by: PositionEncoding | None = None,
    dropout_seed: int | Tensor | None = None,
    head_shard: HeadShard | None = None,
    **others: Never,
) -> Call:
    """Makes the input of a kernel from the arguments of ``attention``, which describes them in full.

    The arguments are checked first. Then the encoding places the tokens, prepares q, k and v, and adds its terms. No
    score is computed.

    Args:
        q: queries, [batch, heads, n, head_dim].
        k: keys, [batch, kv_heads, m, head_dim].
        v: values, [batch, kv_heads, m, v_dim].
        encoding: the position encoding.
        terms: further terms of the scores.
        mask: which keys each query attends to.
        scale: the factor of the scores.
        dropout: the share of the weights that is dropped.
        sink: a logit for each head or query that takes part in the softmax.
        soft_cap: the bound of the scores.
        q_positions: positions of the queries.
        k_positions: positions of the keys.
        q_input: the layer's input for the queries.
        k_input: the layer's input for the keys.
        prepared_by: the encoding that has prepared k and v already.
        dropout_seed: decides which weights are dropped.
        head_shard: which heads q, k and v have.

    Raises:
        HeadwayError: for the first argument that does not fit.
    """
    if others:
        refuse("attention", make_call, others)
    refuse_tracers(q)
    prepared = prepared_by is not None
    _check_tensors(q, k, v, prepared=prepared)
    sizes = _sizes(q, k, v)
    if head_shard is not None:
        if not isinstance(head_shard, HeadShard):
            raise HeadwayError(f"head_shard is a {type(head_shard).__name__}: give HeadShard(first, count, total)")
        head_shard.check(q, k)
        sizes = head_shard.whole(sizes)
    _check_options(sizes, scale, dropout, sink)
    if isinstance(encoding, str):
        encoding = encoding_for(encoding, q, head_shard)
    if encoding is not None:
        _check_encoding(encoding, q)
    if prepared_by is not None and prepared_by is not encoding:
        _refuse_preparation(prepared_by, encoding)
    mask = _mask(mask, sizes)
    terms, of_softmax = _caller_terms(terms, sink, soft_cap, sizes)
    if head_shard is not None:
        mask = None if mask is None else head_shard.own_part(mask, k.shape[1])
        terms, of_softmax = (
            head_shard.own_terms(head_shard.shared_in(part), k.shape[1], "the call") for part in (terms, of_softmax)
        )
    read = encoding is not None or terms or (mask is not None and is_python(mask))
    if not read and (isinstance(q_positions, Tensor) or isinstance(k_positions, Tensor)):
        raise HeadwayError(
            "positions are given but no encoding, term or mask of your own reads them: give encoding=…, or Coordinates"
        )
    q, k, v = _autocast(q, k, v)
    scale = _scale(scale, encoding, q)
    seed = None if dropout_seed is None else _seed(dropout_seed, q)
    given = Given(
        q, k, v, encoding, prepared, terms, of_softmax, mask, scale, dropout, seed, q_positions, k_positions, q_input,
        k_input, head_shard,
    )  # fmt: skip
    placed = _placed(given)
    return _call(given, placed, _encoded(given, placed))


class Given(NamedTuple):
    """The arguments of a call, checked.

    Attributes:
        q: queries, in the dtype of autocast, as k and v.
        k: keys.
        v: values.
        encoding: the encoding.
        prepared: whether it has prepared k and v already.
        terms: the caller's terms.
        of_softmax: the cap and the sink, if they are given as arguments.
        mask: which keys each query attends to.
        scale: the factor of the scores.
        dropout: the share of the weights that is dropped.
        seed: decides which weights are dropped; None to draw one.
        q_positions: positions of the queries; None for the default.
        k_positions: positions of the keys.
        q_input: the layer's input for the queries.
        k_input: the layer's input for the keys.
        head_shard: which heads q, k and v have; None for all.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: PositionEncoding | None
    prepared: bool
    terms: tuple[Term, ...]
    of_softmax: tuple[Term, ...]
    mask: Mask | None
    scale: float
    dropout: float
    seed: Tensor | None
    q_positions: Tensor | Coordinates | None
    k_positions: Tensor | Coordinates | None
    q_input: Tensor | None
    k_input: Tensor | None
    head_shard: HeadShard | None


class Places(NamedTuple):
    """Where the tokens of a call are.

    Attributes:
        q: coordinates of the queries, placed by the encoding.
        k: coordinates of the keys, likewise; the same object if queries and keys are the same tokens.
        mask: the mask. It also hides the padding that the coordinates state.
        aligned: whether it is known that the queries are the last of the keys, in the order of the slots.
    """

    q: Coordinates
    k: Coordinates
    mask: Mask | None
    aligned: bool


class Encoded(NamedTuple):
    """What an encoding makes of a call.

    Attributes:
        q: queries, prepared except for ``q_rotation``.
        k: keys, likewise.
        v: values, likewise.
        q_at: coordinates of the queries, relocated.
        k_at: those of the keys.
        terms: the encoding's terms.
        q_rotation: the rotation still to be applied to q.
        k_rotation: that of k.
        v_rotation: that of v.
        out_rotation: that of the output.
        restore: transforms the output back, if the values were transformed.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_at: Coordinates
    k_at: Coordinates
    terms: tuple[Term, ...] = ()
    q_rotation: Rotation | None = None
    k_rotation: Rotation | None = None
    v_rotation: Rotation | None = None
    out_rotation: Rotation | None = None
    restore: Restore | None = None


def _call(given: Given, placed: Places, encoded: Encoded) -> Call:
    """Returns the call, once its terms are known to go together."""
    terms = encoded.terms + given.terms + given.of_softmax
    own = [type(term).__name__ for term in terms if isinstance(term, NORMALIZERS)]
    if len(own) > 1:
        raise HeadwayError(f"terms hold {' and '.join(own)}, each of which replaces the softmax: keep one")
    if own and any(isinstance(term, Sink) for term in terms):
        raise HeadwayError(f"terms hold a {own[0]}, which replaces the softmax that a sink takes part in: drop one")
    products = [type(term).__name__ for term in terms if isinstance(term, PRODUCTS)]
    if len(products) > 1:
        raise HeadwayError(f"terms hold {' and '.join(products)}, each of which replaces ⟨q, k⟩: keep one")
    return Call._made({
        "q": encoded.q, "k": encoded.k, "v": encoded.v, "q_coordinates": encoded.q_at, "k_coordinates": encoded.k_at,
        "terms": terms, "mask": placed.mask, "scale": given.scale, "dropout": given.dropout, "seed": given.seed,
        "wants_lse": False, "include_sink": True, "aligned": placed.aligned, "q_rotation": encoded.q_rotation,
        "k_rotation": encoded.k_rotation, "v_rotation": encoded.v_rotation, "batch_offset": 0,
        "head_offset": 0 if given.head_shard is None else given.head_shard.first,
        "out_rotation": encoded.out_rotation, "restore": encoded.restore,
    })  # fmt: skip


def seeded(call: Call) -> Call:
    """Returns the call with a seed if it has dropout: the given one, or one drawn from torch's generator.

    Args:
        call: the call.
    """
    if not call.dropout or call.seed is not None:
        return call
    return call._with(seed=torch.randint(0, 1 << 62, (1,), device=call.q.device))


def prepared(encoding: PositionEncoding, side: str, x: Tensor, at: Coordinates, kernel: str = "auto") -> Tensor:
    """Prepares queries or keys, as a call does.

    Args:
        encoding: the encoding that prepares them.
        side: "query" or "key".
        x: queries or keys, [batch, heads, n, head_dim].
        at: their coordinates.
        kernel: the name of the kernel that applies rotations, or "auto".
    """
    x, rotation = _split(encoding, side, x, encoding.for_one_forward(at))
    # attention refuses an unknown name
    return x if rotation is None else KERNELS.get(kernel, KERNELS["cpu"]).rotate(x, rotation)


def prepared_keys_and_values(
    encoding: PositionEncoding,
    k: Tensor,
    v: Tensor,
    at: Coordinates,
    kernel: str = "auto",
    head_shard: HeadShard | None = None,
) -> tuple[Tensor, Tensor, Coordinates]:
    """Prepares keys and values for a cache.

    Args:
        encoding: the encoding that prepares them.
        k: keys, [batch, kv_heads, m, head_dim].
        v: values, [batch, kv_heads, m, v_dim].
        at: the coordinates of the keys.
        kernel: the name of the kernel that applies rotations, or "auto".
        head_shard: which heads the keys belong to; all if None.

    Returns:
        The prepared keys and values, and the coordinates as the encoding has placed them.
    """
    steps = encoding if head_shard is None else EncodingOfHeads(encoding, head_shard, k.shape[1])
    at = steps.for_one_forward(at)
    rotate = KERNELS.get(kernel, KERNELS["cpu"]).rotate  # attention refuses an unknown name
    k, k_rotation = _split(steps, "key", k, at)
    v, v_rotation = _split(steps, "value", v, at) if "values" in steps.acts else (v, None)
    k = k if k_rotation is None else rotate(k, k_rotation)
    v = v if v_rotation is None else rotate(v, v_rotation)
    return k, v, at


# ---------------------------------------------------------------- checks


def _check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise HeadwayError(f"{name} is a {type(x).__name__}: give a tensor [batch, heads, tokens, head_dim]")
    if x.is_nested:
        raise HeadwayError(
            f"{name} is a nested tensor, which attention, attention_with_lse and explain take: here give one "
            f"sequence at a time, such as {name}.unbind()[0][None]"
        )
    if x.ndim != 4:
        raise HeadwayError(f"{name} has shape {tuple(x.shape)}: give four dimensions [batch, heads, tokens, head_dim]")
    if x.dtype not in DTYPES:
        raise HeadwayError(f"{name} is {x.dtype}: give float64, float32, float16 or bfloat16")


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, *, prepared: bool) -> None:
    """Checks that q, k and v fit one another; a prepared k, from a cache, may be wider than q."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, x)
    batch, heads, _, head_dim = q.shape
    k_batch, kv_heads, m, k_dim = k.shape
    v_batch, v_heads, v_tokens, _ = v.shape
    if batch != k_batch:
        raise HeadwayError(f"k has shape {tuple(k.shape)} but q has a batch of {batch}: give k the batch of q")
    if k_batch != v_batch or kv_heads != v_heads or m != v_tokens:
        raise HeadwayError(
            f"v has shape {tuple(v.shape)} but k {tuple(k.shape)}: give v the batch, heads and tokens of k"
        )
    if head_dim != k_dim and not prepared:
        raise HeadwayError(f"k has shape {tuple(k.shape)} but q a head_dim of {head_dim}: give k the head_dim of q")
    if kv_heads == 0 or heads % kv_heads:
        raise HeadwayError(f"q has {heads} heads and k has {kv_heads}: the heads of k and v must divide those of q")
    if not (q.device == k.device == v.device):
        raise HeadwayError(f"q is on {q.device}, k on {k.device} and v on {v.device}: move them to one device")
    mixed = not (q.dtype == k.dtype == v.dtype)
    if mixed and (torch.float64 in (q.dtype, k.dtype, v.dtype) or not autocasts(q)):
        raise HeadwayError(f"q is {q.dtype}, k {k.dtype} and v {v.dtype}: cast them to one dtype")
    if head_dim == 0:
        raise HeadwayError(f"q has shape {tuple(q.shape)}, so a head_dim of 0: give at least 1")


def _check_options(sizes: Mapping[str, int], scale: float | None, dropout: float, sink: Tensor | None) -> None:
    if isinstance(scale, Tensor):
        raise HeadwayError("scale is a tensor: give a number; a factor that is learned is terms.QueryScale")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise HeadwayError(f"dropout is {dropout!r}: give a share of at least 0 and below 1")
    if sink is None:
        return
    batch, heads, n = sizes["batch"], sizes["heads"], sizes["queries"]
    if not isinstance(sink, Tensor):
        raise HeadwayError(f"sink is a {type(sink).__name__}: give a tensor [{heads}], one logit for each head")
    if tuple(sink.shape) not in ((heads,), (batch, heads, n)):
        raise HeadwayError(
            f"sink has shape {tuple(sink.shape)} but q has {heads} heads: give [{heads}], or [{batch}, {heads}, {n}], "
            "one logit for each query"
        )


def encoding_for(name: str, q: Tensor, head_shard: HeadShard | None = None) -> PositionEncoding:
    """Returns the encoding of a name for calls with queries like ``q``.

    Args:
        name: the name.
        q: queries, [batch, heads, n, head_dim].
        head_shard: which heads q has; all if None.

    Raises:
        HeadwayError: if the name is unknown, or the encoding has parameters.
    """
    _check_tensor("q", q)
    return shared_encoding(name, index(q.shape[1]) if head_shard is None else head_shard.total, index(q.shape[3]))


def _check_encoding(encoding: PositionEncoding, q: Tensor) -> None:
    """Checks that attention reads one of the hooks that an encoding acts through."""
    if not isinstance(encoding, PositionEncoding):
        raise HeadwayError(
            f"encoding is {encoding!r}: give a name or an object, such as headway.encoding('rope', "
            f"head_dim={q.shape[3]})"
        )
    acts = encoding.acts
    if "embed" in acts and not acts & IN_ATTENTION:
        name = type(encoding).__name__
        raise HeadwayError(
            f"{name} acts on embeddings and does nothing in attention: call {name}.embed(x) once at the model's input "
            "and leave encoding out here"
        )
    if acts == {"locate"}:
        name = type(encoding).__name__
        raise HeadwayError(
            f"{name} changes where tokens are and nothing here reads it: compose it with an encoding that does, such "
            f"as headway.positions.Compose({name}(…), RoPE({q.shape[3]}))"
        )


def _refuse_preparation(prepared_by: PositionEncoding, encoding: PositionEncoding | None) -> None:
    given = "without an encoding" if encoding is None else f"with a {type(encoding).__name__}"
    another = ", another object" if type(encoding) is type(prepared_by) else ""
    raise HeadwayError(
        f"prepared_by is a {type(prepared_by).__name__} and this is a call {given}{another}: give the encoding that "
        "has prepared k and v as encoding=, or prepare them again"
    )


def _scale(scale: float | None, encoding: PositionEncoding | None, q: Tensor) -> float:
    if scale is None:
        head_dim = index(q.shape[3])  # a plain number even if the compiler turns every size into a symbol
        scale = float(head_dim) ** -0.5 if encoding is None else encoding.default_scale(head_dim)
    try:
        representable = abs(scale) <= LARGEST_SCALE
    except TypeError:
        representable = False
    if not representable:
        raise HeadwayError(f"scale is {scale!r}: give a finite number that float32 can hold, or None for head_dim^−½")
    return scale


def _check_causal(encoding: PositionEncoding, mask: Mask | None, *, one_at_the_end: bool) -> None:
    if looks_ahead(mask) and not one_at_the_end:
        raise HeadwayError(
            f"{type(encoding).__name__} is only for queries that see no later keys, but the mask shows later ones: "
            "give mask=headway.masks.Causal(), alone or joined with others by &"
        )


def _check_inputs(
    encoding: PositionEncoding, q: Tensor, k: Tensor, q_input: Tensor | None, k_input: Tensor | None
) -> None:
    """Checks that the layer's inputs are given, with one row for each query and key."""
    for name, x, side in (("q_input", q_input, q), ("k_input", k_input, k)):
        if x is None:
            raise HeadwayError(
                f"{name} is None but {type(encoding).__name__} reads the layer's input: give {name} "
                f"[{side.shape[0]}, {side.shape[2]}, embed_dim]"
            )
        if x.ndim != 3 or x.shape[0] != side.shape[0] or x.shape[1] != side.shape[2]:
            raise HeadwayError(
                f"{name} has shape {tuple(x.shape)}: give [{side.shape[0]}, {side.shape[2]}, embed_dim], the input of "
                "each token"
            )


# ---------------------------------------------------------------- masks, terms, dtypes, the seed


def _mask(mask: AnyMask, sizes: Mapping[str, int]) -> Mask | None:
    mask = as_mask(mask)
    if mask is None:
        return None
    batch, heads, n, m = (sizes[name] for name in ("batch", "heads", "queries", "keys"))
    mask.check(batch, heads, n, m)
    return mask.for_call(batch, heads)


def _caller_terms(
    terms: tuple[Term, ...] | list[Term] | None, sink: Tensor | None, soft_cap: float | None, sizes: Sizes
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Returns the caller's terms, and the SoftCap and the Sink that are given as arguments; all checked."""
    if terms is not None and not isinstance(terms, (tuple, list)):
        raise HeadwayError(f"terms is a {type(terms).__name__}: give a tuple of headway.terms, such as (Sink(logits),)")
    own, of_softmax = tuple(terms or ()), () if soft_cap is None else (SoftCap(soft_cap),)
    of_softmax = of_softmax if sink is None else (*of_softmax, Sink(sink))
    check_terms(own + of_softmax, sizes)
    return own, of_softmax


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    batch, heads, n, head_dim = q.shape
    _, kv_heads, m, v_dim = v.shape
    return {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": n, "keys": m,
        "head_dim": head_dim, "v_dim": v_dim,
    }  # fmt: skip


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not autocasts(q) or q.dtype == torch.float64:
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _seed(seed: int | Tensor, q: Tensor) -> Tensor:
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 1 << 62:
        return torch.tensor([seed], device=q.device)
    if isinstance(seed, Tensor) and seed.dtype == torch.int64 and seed.shape == (1,) and seed.device == q.device:
        return seed
    said = f"{seed.dtype} of shape {tuple(seed.shape)} on {seed.device}" if isinstance(seed, Tensor) else repr(seed)
    raise HeadwayError(
        f"dropout_seed is {said}: give a whole number from 0 to 2⁶² − 1, or an int64 tensor [1] on q's device"
    )


# ---------------------------------------------------------------- coordinates


def _coordinates(given: Given) -> tuple[Coordinates, Coordinates]:
    """Returns the coordinates of queries and keys, as given.

    Without positions the last query stands at the last key. If there are more queries than keys, the first queries then
    have positions below 0, where masks show them no key and not every encoding is defined.
    """
    q, encoding, q_positions, k_positions = given.q, given.encoding, given.q_positions, given.k_positions
    n, m = q.shape[2], given.k.shape[2]
    acts = encoding is not None and bool(encoding.acts)
    more_queries = holds(n > m) if to_onnx() else n > m  # an exported program checks it when it runs, ONNX does not
    if acts and q_positions is None and k_positions is None and more_queries:
        raise HeadwayError(
            f"there are {n} queries and {m} keys, so the first queries would stand below 0: give q_positions and "
            "k_positions"
        )
    one_side = (q_positions is None) != (k_positions is None)
    read = acts or q_positions is None  # masks read the positions of keys, by default 0 … m − 1
    if one_side and read and not holds(n == m):
        one, missing = ("k_positions", "q_positions") if q_positions is None else ("q_positions", "k_positions")
        raise HeadwayError(f"{one} are given but {missing} are not, and n = {n} differs from m = {m}: give both")
    if holds(n == m) and (q_positions is None or k_positions is None or q_positions is k_positions):
        name = "k_positions" if q_positions is None and k_positions is not None else "q_positions"
        both = _side(k_positions if q_positions is None else q_positions, n, 0, n, name, q)
        return both, both
    return _side(q_positions, n, m - n, m, "q_positions", q), _side(k_positions, m, 0, m, "k_positions", q)


def _side(
    positions: Tensor | Coordinates | None, count: int, start: int, total: int, name: str, q: Tensor
) -> Coordinates:
    """Returns the coordinates of queries or keys, after checking that they have q's batch and device."""
    if positions is None:
        return stream(count, start, total, q.device)
    side = Coordinates.of(positions, count, name=name, start=start)
    if side.shard is not None:
        side.shard.connected()
    rows = side.position.shape[0]
    if rows not in (1, q.shape[0]):
        raise HeadwayError(
            f"{name} are for a batch of {rows} but q has a batch of {q.shape[0]}: give 1 or {q.shape[0]}"
        )
    if side.position.device != q.device:
        raise HeadwayError(f"{name} are on {side.position.device} but q is on {q.device}: move them there")
    return side


def _aligned(q: Coordinates, k: Coordinates) -> bool:
    """Returns whether the queries are known to be the last of the keys, in the order of the slots."""
    if not (q.ordered and k.ordered):
        return False
    if q is k:
        return True
    if q.start is None or k.start is None:
        return False
    n, m = q.index.shape[1], k.index.shape[1]
    # "if" makes a plain bool, where a compiler would return a symbol for the comparison of symbolic sizes
    return True if holds(n <= m) and holds(q.start - k.start == m - n) else False  # noqa: SIM210


# ---------------------------------------------------------------- the encoding


def placed_keys(encoding: PositionEncoding, at: Coordinates, *, read: bool) -> Coordinates:
    """Returns the coordinates of keys placed by an encoding, or as given if nothing reads the places.

    Args:
        encoding: the encoding.
        at: the coordinates of the keys.
        read: whether anything but the encoding's terms reads the places, as preparing keys does.
    """
    return encoding.place(at) if read or "terms" in encoding.acts else at.as_given()


def _placed(given: Given) -> Places:
    """Returns where the tokens are, placed by the encoding."""
    encoding = given.encoding
    q_at, k_at = _coordinates(given)
    mask, aligned = hiding_padding(given.mask, k_at), _aligned(q_at, k_at)
    if encoding is None:
        return Places(q_at, k_at, mask, aligned)
    if encoding.causal_only:
        _check_causal(encoding, mask, one_at_the_end=aligned and given.q.shape[2] == 1)
    if encoding.reads_input:
        _check_inputs(encoding, given.q, given.k, given.q_input, given.k_input)
    if q_at is k_at:
        at = encoding.place(q_at)
        return Places(at, at, mask, aligned)
    default = given.q_positions is None and given.k_positions is None
    if aligned and default and encoding.training and "locate" in encoding.acts:
        n, m = q_at.index.shape[1], k_at.index.shape[1]
        k_at = encoding.place(k_at)  # random numbers of a token are drawn once
        q_at = k_at.rows(m - n, m)
    read = not given.prepared or bool(given.terms)
    return Places(encoding.place(q_at), placed_keys(encoding, k_at, read=read), mask, aligned)


def _encoded(given: Given, placed: Places) -> Encoded:
    """Returns what the encoding makes of the call: relocated sides, its terms, and prepared q, k and v."""
    q, k, v, prepared = given.q, given.k, given.v, given.prepared
    if given.encoding is None:
        return Encoded(q, k, v, placed.q, placed.k)
    encoding: Steps = given.encoding
    if given.head_shard is not None:
        encoding = EncodingOfHeads(given.encoding, given.head_shard, k.shape[1])
    q_at, k_at = encoding._relocated(placed.q, placed.k, given.q_input, given.k_input)
    one_side = q_at is k_at
    q_at = encoding.for_one_forward(q_at)
    if not prepared:
        k_at = q_at if one_side else encoding.for_one_forward(k_at)
    terms = encoding._terms_of(q_at, k_at, given.q_input, given.k_input)
    q, q_rotation = _split(encoding, "query", given.q, q_at)
    k, k_rotation = (k, None) if prepared else _split(encoding, "key", given.k, k_at)
    if q.shape[3] != k.shape[3]:
        raise HeadwayError(
            f"the prepared q is {q.shape[3]} wide and k {k.shape[3]}: "
            + ("prepare cached keys with the same encoding" if prepared else "prepare both to one width")
        )
    q_before = None if q is given.q and q_rotation is None else given.q
    k_before = None if k is given.k and k_rotation is None else given.k
    cached = prepared and "prepare" in encoding.acts
    terms = tuple(_unprepared(term, q_before, k_before, cached) for term in terms)
    v_rotation = out_rotation = restore = None
    if "values" in encoding.acts:
        if not prepared:
            v, v_rotation = _split(encoding, "value", v, k_at)
        like = q.new_empty_strided((*q.shape[:3], v.shape[3]), (0, 0, 0, 0))
        out_rotation, restore = encoding._split_output_of(like, q_at)
    try:
        check_terms(terms, _sizes(q, k, v))
    except HeadwayError as error:
        remedy = "" if given.head_shard is not None else built_for_others(given.encoding, _sizes(given.q, given.k, v))
        if not remedy:
            raise
        raise HeadwayError(f"{error}; {remedy}") from None
    return Encoded(q, k, v, q_at, k_at, terms, q_rotation, k_rotation, v_rotation, out_rotation, restore)


def _split(encoding: Steps, side: str, x: Tensor, at: Coordinates) -> tuple[Tensor, Rotation | None]:
    """Prepares x except for a last rotation, and returns that rotation unless its angles require a gradient."""
    prepared, rotation = encoding._split_of(side, x, at)
    if rotation is None:
        return prepared, None
    if rotation.cos.requires_grad and torch.is_grad_enabled():
        return rotation._of(prepared), None
    return prepared, rotation


def _unprepared(term: Term, q: Tensor | None, k: Tensor | None, cached: bool) -> Term:
    """Returns a relative term with the q or k that it reads, from before ``prepare``, if that changes them."""
    if isinstance(term, RelativeKeys) and term.query is None and q is not None:
        return term._with(query=q)
    if isinstance(term, RelativeQueries) and term.key is None:
        if cached:
            raise HeadwayError(
                "the encoding reads keys as they were before prepare, which a cache of prepared keys does not hold: "
                "set cache_prepared = False on it"
            )
        return term if k is None else term._with(key=k)
    return term
