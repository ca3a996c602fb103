"""The classes of terms that the kernel supports, and of the parts that terms hold: reasons against them, and words.

Each class is a row of a table. After the words of a tensor that requires a gradient come the words of the buffer into
which the kernel writes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...terms import (
    SCANS,
    Bucketize,
    ChannelDecay,
    Classes,
    Clip,
    ContentSlope,
    ContextualPositions,
    Cosines,
    DenseBias,
    DistanceBias,
    GatedPath,
    Grid,
    HeadNetwork,
    HouseholderPath,
    LimitedRotation,
    Linear,
    Log,
    Piecewise,
    Power,
    QueryScale,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    Rows,
    Sink,
    Sinusoids,
    SoftCap,
    StickWeights,
    Stretched,
    TokenBias,
)
from .._problem import wants_gradient
from ..lowering.terms import PastSlopes
from ._descriptor import ABSENT, MAX_WIDTH, CallDescriptor, double_bits, whole

MAX_TERMS, MAX_MAPS = 32, 4
MAX_HIDDEN, MAX_NETWORK_WIDTH = 1 << 12, 25
MAX_KNOTS, MAX_WAVES, MAX_CLASSES, MAX_POSITIONS = 1 << 20, 1 << 16, 1 << 15, 1 << 20
BOUNDARIES = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})
QUERY_SCALE, TOKEN_QUERIES, TOKEN_KEYS, DISTANCE = 1, 2, 3, 4
RELATIVE_KEYS, RELATIVE_QUERIES, RELATIVE_VALUES = 5, 6, 7
DENSE, QUERY_SLOPES, KEY_SLOPES = 8, 9, 10
SINK, SOFT_CAP, STICK_WEIGHTS, CONTEXTUAL_POSITIONS, GATED_PATH, HEAD_NETWORK = 11, 12, 13, 14, 15, 16
ROWS, LINEAR, LOG, POWER, PIECEWISE, COSINES, STRETCHED = 0, 1, 2, 3, 4, 5, 6
CLIP, BUCKETIZE, CLASSES = 0, 1, 2


def _nothing(part: Any) -> Iterator[str]:
    yield from ()


def _one(term: Any) -> int:
    return 1


class Row(NamedTuple):
    """The support for one class.

    Attributes:
        words: appends the words of a part of this class, and of the buffers for its gradients.
        against: yields every reason why the kernel cannot run a call with such a part.
        count: returns how many terms the library counts for it.
    """

    words: Callable[[CallDescriptor, Any], None]
    against: Callable[[Any], Iterator[str]] = _nothing
    count: Callable[[Any], int] = _one


def reasons_against(terms: tuple[Any, ...]) -> Iterator[str]:
    """Yields every reason why the kernel cannot run a call with these terms.

    Args:
        terms: the terms.
    """
    count = 0
    for term in terms:
        row = TERMS.get(type(term))
        if row is None:
            yield f"it has no {type(term).__name__}"
        else:
            yield from row.against(term)
            count += row.count(term)
    scans = [type(term).__name__ for term in terms if type(term) in SCANS]
    if len(scans) > 1:
        yield f"it does not combine {' and '.join(scans)}: each depends on the order of all keys"
    networks = [type(term).__name__ for term in terms if type(term) is HeadNetwork]
    if networks and len(scans + networks) > 1:
        yield f"it does not combine {' and '.join(scans + networks)}: HeadNetwork reads the scores of all heads"
    if count > MAX_TERMS:
        yield f"it takes at most {MAX_TERMS} terms, where a TokenBias or ContentSlope may count as two"


def write_terms(descriptor: CallDescriptor, terms: tuple[Any, ...], sizes: Mapping[str, int]) -> None:
    """Appends the words of terms.

    Args:
        descriptor: the descriptor.
        terms: the terms, lowered.
        sizes: the sizes of the call by the names of dimensions.
    """
    words = descriptor.words
    descriptor.sizes = sizes
    at = descriptor.terms_at = len(words)
    words.append(0)
    for term in terms:
        row = TERMS[type(term)]
        words[at] += row.count(term)
        row.words(descriptor, term)


# ---------------------------------------------------------------- terms


def _query_scale(d: CallDescriptor, term: QueryScale) -> None:
    d.words.append(QUERY_SCALE)
    d.parameter(term, "factor")


def _token_bias(d: CallDescriptor, term: TokenBias) -> None:
    for kind, name in ((TOKEN_QUERIES, "queries"), (TOKEN_KEYS, "keys")):
        if getattr(term, name) is not None:
            d.words.append(kind)
            d.parameter(term, name)


def _past_slopes(d: CallDescriptor, term: PastSlopes) -> None:
    d.need_axis(term.axis)
    for kind, name in ((QUERY_SLOPES, "queries"), (KEY_SLOPES, "keys")):
        if getattr(term, name) is not None:
            d.words += (kind, term.axis)
            d.parameter(term, name)


def _count_tokens(term: TokenBias | PastSlopes) -> int:
    return (term.queries is not None) + (term.keys is not None)


def _count_slopes(term: ContentSlope) -> int:
    return (term.query_weight is not None) + (term.key_weight is not None)


def _distance_bias(d: CallDescriptor, term: DistanceBias) -> None:
    d.words.append(DISTANCE)
    FORMS[type(term.values)].words(d, term.values)


def _against_distance_bias(term: DistanceBias) -> Iterator[str]:
    row = FORMS.get(type(term.values))
    if row is None:
        yield f"it has no DistanceBias of {type(term.values).__name__}"
    else:
        yield from row.against(term.values)


def _relative_keys(d: CallDescriptor, term: RelativeKeys) -> None:
    _vectors(d, RELATIVE_KEYS, term.rows)
    d.parameter(term, "query_bias")
    d.parameter(term, "query")


def _relative_queries(d: CallDescriptor, term: RelativeQueries) -> None:
    _vectors(d, RELATIVE_QUERIES, term.rows)
    d.parameter(term, "key")


def _relative_values(d: CallDescriptor, term: RelativeValues) -> None:
    _vectors(d, RELATIVE_VALUES, term.rows)


def _vectors(d: CallDescriptor, kind: int, rows: Rows | Sinusoids) -> None:
    """Appends the table of a relative term, and the width of its rows."""
    assert isinstance(rows, Rows)
    d.words.append(kind)
    _maps(d, rows)
    d.words.append(rows.table.shape[2])
    d.parameter(rows, "table")


def _against_relative(term: RelativeKeys | RelativeQueries | RelativeValues) -> Iterator[str]:
    if type(term.rows) is Rows:
        yield from _against_rows(term.rows)
    elif type(term) is not RelativeKeys or type(term.rows) is not Sinusoids:
        yield f"it has no {type(term).__name__} of {type(term.rows).__name__}"


def _dense_bias(d: CallDescriptor, term: DenseBias) -> None:
    assert isinstance(term.values, Tensor)
    values = term.values.float()
    d.words.append(DENSE)
    d.broadcast(values, 4 - values.ndim)
    if d.backward and values.requires_grad:
        # the kernel sums it, since one for each head and row could take batch·heads·n·m items; it sums in float64 if
        # several pairs share an item, since their gradients may cancel
        shape = tuple([d.sizes[word] for word in ("batch", "heads", "queries", "keys")])
        shared = (1,) * (4 - values.ndim) + values.shape != shape
        gradient = torch.zeros(values.shape, dtype=torch.float64 if shared else torch.float32)
        d.gradients.append((values, gradient))
        d.broadcast(gradient, 4 - values.ndim)
    else:
        d.words += ABSENT


def _against_dense_bias(term: DenseBias) -> Iterator[str]:
    if not isinstance(term.values, Tensor):
        yield "it cannot call the Python function of a DenseBias"


def _sink(d: CallDescriptor, term: Sink) -> None:
    """Appends logits [heads] or [b, heads or 1, n or 1], and a buffer for their gradients of all queries."""
    d.words.append(SINK)
    logits = term.logits
    by_head = logits.ndim == 1
    if logits.dtype != torch.float32:
        logits = logits.float()
    d.broadcast(logits, 1 if by_head else 0)
    if d.backward and logits.requires_grad:
        gradient = logits.new_empty([d.sizes[word] for word in ("batch", "heads", "queries")])
        d.gradients.append((logits, gradient.mT if by_head else gradient))  # heads last, like the logits
        d.fresh(gradient)
    else:
        d.words += ABSENT


def _soft_cap(d: CallDescriptor, term: SoftCap) -> None:
    d.words += (SOFT_CAP, double_bits(term.cap))


def _stick_weights(d: CallDescriptor, term: StickWeights) -> None:
    d.words += (STICK_WEIGHTS, int(term.attend_current), int(term.remainder))


def _contextual_positions(d: CallDescriptor, term: ContextualPositions) -> None:
    d.words += (CONTEXTUAL_POSITIONS, term.vectors.shape[1])
    d.parameter(term, "vectors")


def _against_contextual_positions(term: ContextualPositions) -> Iterator[str]:
    if term.vectors.shape[1] > MAX_POSITIONS:
        yield f"ContextualPositions has more than {MAX_POSITIONS:,} positions"


def _gated_path(d: CallDescriptor, term: GatedPath) -> None:
    d.words += (GATED_PATH, term.query.shape[3])
    d.tensor(term.slope.detach().float())
    d.parameter(term, "query")
    d.parameter(term, "path")


def _against_gated_path(term: GatedPath) -> Iterator[str]:
    if wants_gradient(term.slope):
        yield "it computes no gradient of the slope of GatedPath"
    if term.query.shape[3] > MAX_WIDTH:
        yield f"GatedPath is wider than {MAX_WIDTH:,}"


def _head_network(d: CallDescriptor, term: HeadNetwork) -> None:
    hidden, _, width = term.into.shape
    d.words += (HEAD_NETWORK, hidden, width, len(term.biases))
    for name in ("into", "into_bias", "out", "out_bias"):
        d.parameter(term, name)
    for bias in term.biases:
        _distance_bias(d, bias)


def _against_head_network(term: HeadNetwork) -> Iterator[str]:
    hidden, _, width = term.into.shape
    if hidden > MAX_HIDDEN:
        yield f"HeadNetwork has more than {MAX_HIDDEN:,} hidden units"
    if width > MAX_NETWORK_WIDTH:
        yield f"HeadNetwork reads more than {MAX_NETWORK_WIDTH} keys"
    for bias in term.biases:
        yield from _against_distance_bias(bias)


def _count_head_network(term: HeadNetwork) -> int:
    return 1 + len(term.biases)


def _simplified(d: CallDescriptor, term: Any) -> None:
    raise AssertionError(f"{type(term).__name__} is lowered to other terms, or to several calls")


TERMS: dict[type, Row] = {
    QueryScale: Row(_query_scale),
    TokenBias: Row(_token_bias, count=_count_tokens),
    PastSlopes: Row(_past_slopes, count=_count_tokens),
    DistanceBias: Row(_distance_bias, _against_distance_bias),
    RelativeKeys: Row(_relative_keys, _against_relative),
    RelativeQueries: Row(_relative_queries, _against_relative),
    RelativeValues: Row(_relative_values, _against_relative),
    DenseBias: Row(_dense_bias, _against_dense_bias),
    Sink: Row(_sink),
    SoftCap: Row(_soft_cap),
    StickWeights: Row(_stick_weights),
    ContextualPositions: Row(_contextual_positions, _against_contextual_positions),
    GatedPath: Row(_gated_path, _against_gated_path),
    HeadNetwork: Row(_head_network, _against_head_network, _count_head_network),
    LimitedRotation: Row(_simplified),
    HouseholderPath: Row(_simplified),
    ChannelDecay: Row(_simplified),
    ContentSlope: Row(_simplified, count=_count_slopes),
}

# ---------------------------------------------------------------- values of a DistanceBias


def _rows(d: CallDescriptor, rows: Rows) -> None:
    d.words.append(ROWS)
    _maps(d, rows)
    d.parameter(rows, "table")


def _of_two(form: int, first: str, second: str) -> Callable[[CallDescriptor, Any], None]:
    """Returns the function that appends a form with two parameters for each head."""

    def words(d: CallDescriptor, values: Any) -> None:
        d.need_axis(values.axis)
        d.words += (form, values.axis)
        d.parameter(values, first)
        d.parameter(values, second)

    return words


def _of_points(form: int, points: str, parameter: str, most: int) -> Row:
    """Returns the row of a form with a parameter at each of several points, such as knots. Points have no gradient."""

    def words(d: CallDescriptor, values: Any) -> None:
        at: Tensor = getattr(values, points)
        d.need_axis(values.axis)
        d.words += (form, values.axis, at.shape[0])
        d.tensor(at.detach().double())
        d.parameter(values, parameter)

    def against(values: Any) -> Iterator[str]:
        at: Tensor = getattr(values, points)
        if wants_gradient(at):
            yield f"it computes no gradient of the {points} of {type(values).__name__}"
        if at.shape[0] > most:
            yield f"{type(values).__name__} has more than {most:,} {points}"

    return Row(words, against)


def _stretched(d: CallDescriptor, values: Stretched) -> None:
    d.need_axis(values.axis)
    d.words += (STRETCHED, values.axis, values.edges.shape[0] + 1)
    d.tensor(values.edges.detach().float())
    d.parameter(values, "intercept")
    d.parameter(values, "slope")
    batch, heads, n = (d.sizes[word] for word in ("batch", "heads", "queries"))
    d.summed(values.rate, (heads,))
    d.summed(values.stretch[:, None], (batch, heads, n))


def _against_stretched(values: Stretched) -> Iterator[str]:
    if values.edges.shape[0] >= MAX_KNOTS:
        yield f"Stretched has more than {MAX_KNOTS:,} pieces"


def _against_rows(rows: Rows) -> Iterator[str]:
    if type(rows.map) not in MAPS and type(rows.map) is not Grid:
        yield f"it has no rows by {type(rows.map).__name__}"
        return
    if len(rows.maps) > MAX_MAPS:
        yield f"a Grid has more than {MAX_MAPS} maps"
    for part in rows.maps:
        row = MAPS.get(type(part))
        if row is None:
            yield f"it has no rows by a Grid of {type(part).__name__}"
        else:
            yield from row.against(part)


FORMS: dict[type, Row] = {
    Rows: Row(_rows, _against_rows),
    Linear: Row(_of_two(LINEAR, "past", "future")),
    Log: Row(_of_two(LOG, "weight", "rate")),
    Power: Row(_of_two(POWER, "weight", "exponent")),
    Piecewise: _of_points(PIECEWISE, "knots", "values", MAX_KNOTS),
    Cosines: _of_points(COSINES, "frequencies", "weight", MAX_WAVES),
    Stretched: Row(_stretched, _against_stretched),
}

# ---------------------------------------------------------------- maps from a pair of tokens to a row


def _maps(d: CallDescriptor, rows: Rows) -> None:
    maps = rows.maps
    d.words.append(len(maps))
    for part in maps:
        MAPS[type(part)].words(d, part)


def _clip(d: CallDescriptor, part: Clip) -> None:
    d.need_axis(part.axis)
    d.words += (CLIP, part.axis, part.low, part.high)


def _bucketize(d: CallDescriptor, part: Bucketize) -> None:
    d.need_axis(part.axis)
    d.words += (BUCKETIZE, part.axis, part.boundaries.shape[0] + 1)
    d.tensor(part.boundaries.long() if part.boundaries.dtype == torch.int32 else part.boundaries)


def _against_bucketize(part: Bucketize) -> Iterator[str]:
    if part.boundaries.dtype not in BOUNDARIES:
        yield f"boundaries of Bucketize are {part.boundaries.dtype}"


def _classes(d: CallDescriptor, part: Classes) -> None:
    d.words += (CLASSES, part.classes)
    d.broadcast(whole(part.q_class))
    d.broadcast(whole(part.k_class))


def _against_classes(part: Classes) -> Iterator[str]:
    if part.classes > MAX_CLASSES:
        yield f"there are more than {MAX_CLASSES:,} classes"


MAPS: dict[type, Row] = {
    Clip: Row(_clip),
    Bucketize: Row(_bucketize, _against_bucketize),
    Classes: Row(_classes, _against_classes),
}
