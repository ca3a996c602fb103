"""The sides of a case: headway, torch's SDPA with and without a dense bias, compiled FlexAttention, and a copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from .. import positions
from ..attention import attention, explain
from ..biases import distance_bias
from ..call import make_call
from ..coordinates import Coordinates
from ..errors import HeadwayError
from ..kernels import Call
from ..kernels.reference import OF_ROWS
from ..masks import Causal, Documents, Mask, Padding, Window
from ..positions._base import IN_ATTENTION
from ..terms import DistanceBias, Linear, Log
from . import statistics
from .cases import AUTO, BATCH, DTYPES, HEADS, WINDOW, Case

OURS = "headway"
PLAIN = "headway, no encoding"
REFERENCE = "headway, reference kernel"
"""The same call in torch operations on blocks of rows, for terms that torch has nothing like."""
FULL_CAUSAL = "headway, full causal"
CONTIGUOUS = "headway, contiguous"
SDPA = "SDPA"
DENSE = "SDPA, dense bias"
DENSE_GRADIENT = "SDPA, dense bias with its gradient"
FLEX = "FlexAttention, compiled"
COPY = "copy"
READ = "reading"
"""A dot product of all keys with all values, which reads each once."""
NOT_PREPACKED = "headway, not packed"  # the name in recorded results
HF_EAGER = "transformers, eager"
HF_SDPA = "transformers, sdpa"
HF_TABLE = "transformers, headway's bias table"

Run = Callable[[], list[Tensor]]
"""Runs one side; returns the output, or the gradients of q, k, v and the learned tensors."""


@dataclass
class Sides:
    """All sides of a case, and the kernel that headway takes; ``says`` has the reasons why other sides do not run.

    The sides in ``same`` compute the same as headway; each has a map from headway's tensors to its shape. ``expected``
    maps headway's tensors to those that other sides should compute, and is None if there is nothing to compare.
    """

    kernel: str
    runs: dict[str, Run]
    same: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    expected: Callable[[list[Tensor]], dict[str, list[Tensor]]] | None = None
    says: dict[str, str] = field(default_factory=dict)


def sides(case: Case, flex: Flex | None = None) -> Sides:
    """Returns the sides of a case; compiled FlexAttention is left out if ``flex`` is None."""
    kinds = {
        "attention": _against_torch,
        "window": _against_full_causal,
        "decoding": _against_a_copy,
        "cache": _against_reading,
        "packed": _against_contiguous,
        "left-padded": _against_contiguous,
        "statistics": _with_statistics,
    }
    return kinds[case.kind](case, flex)


# ---------------------------------------------------------------- one call


def mask_of(name: str) -> Mask | None:
    """Returns the mask of one of the names ``MASKS``."""
    return {"none": None, "causal": Causal(), "window": Causal() & Window(left=WINDOW - 1)}[name]


def encoded(case: Case) -> tuple[dict[str, Any], list[Tensor]]:
    """Returns the arguments of ``attention`` for the encoding of a case, and its learned parameters.

    Raises:
        HeadwayError: if the encoding is unknown or does nothing in attention.
    """
    if case.encoding == "none":
        return {}, []
    if case.encoding == "kerple" and case.encoding not in positions.ENCODINGS:
        weight, rate = (nn.Parameter(torch.linspace(0.5, 1.0, HEADS)) for _ in range(2))
        return {"terms": (DistanceBias(Log(weight, rate)),)}, [weight, rate]
    built = positions.encoding(
        case.encoding,
        num_heads=HEADS,
        head_dim=case.head_dim,
        embed_dim=HEADS * case.head_dim,
        max_length=case.n,
        bidirectional=case.mask == "none",
    )
    if not built.acts & {"locate", *IN_ATTENTION} or "embed" in built.acts:
        raise HeadwayError(f"encoding {case.encoding!r} does nothing in attention: there is nothing to measure")
    arguments: dict[str, Any] = {"encoding": built}
    if built.reads_input:
        x = torch.randn(BATCH, tokens(case), HEADS * case.head_dim, generator=torch.Generator().manual_seed(1))
        arguments |= {"q_input": x, "k_input": x}
    return arguments, [parameter for parameter in built.parameters() if parameter.requires_grad]


def asked(case: Case) -> tuple[dict[str, Any], list[Tensor]]:
    """Returns all arguments of ``attention`` in a case except q, k and v, and the learned parameters among them.

    Raises:
        HeadwayError: if the encoding is unknown or does nothing in attention.
    """
    arguments, learned = encoded(case)
    mask = mask_of(case.mask)
    if case.kind in ("packed", "left-padded"):
        packed = case.kind == "packed"
        coordinates = Coordinates.packed(case.lengths) if packed else Coordinates.padded(case.lengths, tokens(case))
        apart = Documents() if packed else Padding()
        mask = apart if mask is None else mask & apart
        arguments |= {"q_positions": coordinates, "k_positions": coordinates}
    return arguments | {"mask": mask, "scale": case.head_dim**-0.5}, learned


def tokens(case: Case) -> int:
    """Returns the number of keys in the row."""
    return sum(case.lengths) if case.kind == "packed" else case.n


def shapes(case: Case) -> list[tuple[int, ...]]:
    """Returns the shapes of q, k, v and of the output."""
    m = tokens(case)
    n = case.queries if case.kind in ("decoding", "cache") else m
    queries, keys = (BATCH, HEADS * case.group, n, case.head_dim), (BATCH, HEADS, m, case.head_dim)
    return [queries, keys, keys, queries]


def kernel_of(case: Case) -> str:
    """Returns the kernel that headway takes for a case; no tensor of its size is allocated.

    Statistics are measured on one kernel, never on a kernel that leaves them to another one.
    """
    backward = case.direction == "backward"
    q, k, v, _ = (torch.zeros((), dtype=DTYPES[case.dtype]).expand(shape) for shape in shapes(case))
    with torch.set_grad_enabled(backward):
        q, k, v = (x.requires_grad_(backward) for x in (q, k, v))
        choice = explain(q, k, v, kernel=case.kernel, **asked(case)[0])
    if case.part == "statistics":
        return "reference" if choice.reasons["cpu"] else "cpu"
    if choice.kernel is None and case.kernel != AUTO:
        raise HeadwayError(f"kernel {case.kernel!r} cannot run {case}: {'; '.join(choice.reasons[case.kernel])}")
    return choice.kernel or "none"


class Inputs:
    """The tensors of a case, the same in every process: q, k, v, and the gradient of the output."""

    def __init__(self, case: Case) -> None:
        draw = torch.Generator().manual_seed(0)
        self.q, self.k, self.v, self.upstream = (
            torch.randn(shape, generator=draw).to(DTYPES[case.dtype]) for shape in shapes(case)
        )
        self.backward = case.direction == "backward"
        self.arguments, self.learned = asked(case)
        self.scale = self.arguments["scale"]
        self.kernel = case.kernel

    def side(
        self,
        run: Callable[..., Tensor],
        learned: list[Tensor] | None = None,
        shaped: Callable[[Tensor], Tensor] | None = None,
        **arguments: Any,
    ) -> Run:
        """Returns a side that calls ``run(q, k, v, **arguments)``: forward, or only backward on a graph built once.

        ``learned`` holds the tensors with a gradient other than q, k and v. ``shaped`` maps q, k, v and the output to
        this side's shapes.
        """
        given = [self.q, self.k, self.v, self.upstream]
        q, k, v, upstream = given if shaped is None else [shaped(x).contiguous() for x in given]
        if not self.backward:

            def forward() -> list[Tensor]:
                with torch.no_grad():
                    return [run(q, k, v, scale=self.scale, **arguments)]

            return forward
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        graph: list[Tensor] = []

        def backward() -> list[Tensor]:
            if not graph:
                graph.append(run(*leaves, scale=self.scale, **arguments))
            return list(torch.autograd.grad(graph[0], [*leaves, *(learned or [])], upstream, retain_graph=True))

        return backward

    def ours(self, shaped: Callable[[Tensor], Tensor] | None = None, **changes: Any) -> Run:
        """Returns the side of headway, with ``changes`` to the arguments of the case; ``shaped`` as for ``side``."""
        given = {"kernel": self.kernel} | self.arguments | changes
        arguments = {name: value for name, value in given.items() if name != "scale"}
        return self.side(attention, self.learned, shaped, **arguments)

    def call(self) -> Call:
        """Returns the call of the case, as ``attention`` makes it."""
        with torch.no_grad():
            return make_call(self.q, self.k, self.v, **self.arguments)


def _as_it_is(x: Tensor) -> Tensor:
    return x


# ---------------------------------------------------------------- the kinds of cases


def _against_torch(case: Case, flex: Flex | None) -> Sides:
    inputs = Inputs(case)
    sides = Sides(kernel_of(case), {OURS: inputs.ours()})
    call = make_call(inputs.q, inputs.k, inputs.v, **inputs.arguments)
    alone = case.encoding == "none"
    by_distance = (
        bool(call.terms)
        and all(isinstance(term, DistanceBias) for term in call.terms)
        and call.q is inputs.q
        and call.q_rotation is None
    )
    seen = None if call.mask is None else call.mask.allowed(call.q_coordinates, call.k_coordinates)
    if not alone:
        sides.runs[PLAIN] = inputs.side(attention, mask=call.mask, kernel=case.kernel)
    if any(isinstance(term, OF_ROWS) for term in call.terms):
        sides.runs[REFERENCE] = inputs.ours(kernel="reference")
    plain: dict[str, Any] = {"is_causal": True} if case.mask == "causal" else {"attn_mask": seen}
    sides.runs[SDPA] = inputs.side(scaled_dot_product_attention, **plain)
    if alone:
        sides.same[SDPA] = _as_it_is
    if call.terms:
        bias = _dense_bias(call, seen, by_distance)
        wants = inputs.backward and bool(inputs.learned)
        name = DENSE_GRADIENT if wants else DENSE
        leaves = [bias.requires_grad_()] if wants else []
        sides.runs[name] = inputs.side(scaled_dot_product_attention, leaves, attn_mask=bias)
        if by_distance:
            sides.same[name] = _as_it_is
    if flex is not None and (alone or by_distance):
        compiled = flex.side(case, inputs, call)
        if isinstance(compiled, str):
            sides.says[FLEX] = compiled
        else:
            sides.runs[FLEX] = compiled
            sides.same[FLEX] = _as_it_is
    return sides


def _dense_bias(call: Call, seen: Tensor | None, by_distance: bool) -> Tensor:
    """Bias and mask in one tensor [1, heads, n, n] in q's dtype; zeros for relative terms, which cannot be a bias."""
    n = call.q.shape[2]
    bias = torch.zeros(1, HEADS, n, n)
    with torch.no_grad():
        for term in call.terms if by_distance else ():
            assert isinstance(term, DistanceBias)
            bias += distance_bias(term.values, call.q_coordinates, call.k_coordinates, torch.float32)
        if seen is not None:
            bias.masked_fill_(~seen, -torch.inf)
    return bias.to(call.q.dtype)


def _against_full_causal(case: Case, flex: Flex | None) -> Sides:
    inputs = Inputs(case)
    return Sides(kernel_of(case), {OURS: inputs.ours(), FULL_CAUSAL: inputs.ours(mask=Causal())})


def _against_a_copy(case: Case, flex: Flex | None) -> Sides:
    inputs = Inputs(case)
    keys_and_values = torch.stack([inputs.k, inputs.v])
    beside = torch.empty_like(keys_and_values)
    runs: dict[str, Run] = {
        OURS: inputs.ours(),
        SDPA: inputs.side(scaled_dot_product_attention),
        COPY: lambda: [beside.copy_(keys_and_values)],
    }
    return Sides(kernel_of(case), runs, {SDPA: _as_it_is} if case.encoding == "none" else {})


def _against_reading(case: Case, flex: Flex | None) -> Sides:
    """Gives SDPA the heads that share keys as further queries of one head, since they see the same keys."""
    inputs = Inputs(case)
    q, k, v = inputs.q.reshape(BATCH, HEADS, -1, case.head_dim), inputs.k, inputs.v
    # 32-bit lanes, whatever they hold
    keys, values = (x.flatten().view(torch.float32) for x in (k, v))

    def folded() -> list[Tensor]:
        with torch.no_grad():
            return [scaled_dot_product_attention(q, k, v, scale=inputs.scale).reshape(inputs.q.shape)]

    runs: dict[str, Run] = {OURS: inputs.ours(), SDPA: folded, READ: lambda: [torch.dot(keys, values)]}
    return Sides(kernel_of(case), runs, {SDPA: _as_it_is})


def _against_contiguous(case: Case, flex: Flex | None) -> Sides:
    """Compares a row of documents, or of padding and tokens, with the same tokens as a batch."""
    inputs = Inputs(case)
    count, length = len(case.lengths), case.lengths[0]

    def apart(x: Tensor) -> Tensor:
        if case.kind == "packed":
            return x[0].unflatten(1, (count, length)).transpose(0, 1)
        return x[:, :, x.shape[2] - length :]

    contiguous = inputs.ours(apart, mask=mask_of(case.mask), q_positions=None, k_positions=None)
    return Sides(kernel_of(case), {OURS: inputs.ours(), CONTIGUOUS: contiguous}, {CONTIGUOUS: apart})


def _with_statistics(case: Case, flex: Flex | None) -> Sides:
    """Attention alone, with statistics in its pass, statistics alone, and the same from weights that torch stores."""
    inputs, kernel = Inputs(case), kernel_of(case)
    call = inputs.call()
    seen = None if call.mask is None else call.mask.allowed(call.q_coordinates, call.k_coordinates)
    torch_side = statistics.Materialized(call, _dense_bias(call, seen, True) if call.terms else None)
    ours = statistics.headway_sides(inputs.call, kernel)
    runs = {OURS: inputs.ours(kernel=kernel), **ours, statistics.MATERIALIZED: torch_side.run}
    sides = Sides(kernel, runs, expected=lambda out: torch_side.expected(out, list(ours)))
    if statistics.ALL not in ours:
        sides.says[statistics.ALL] = f"the kernel {kernel} computes no statistics in the pass of attention"
    return sides


# ---------------------------------------------------------------- FlexAttention


class Flex:
    """Compiled FlexAttention for each shape; compiling has its own budget of time."""

    def __init__(self, seconds: float) -> None:
        self.budget = self.left = seconds
        self._refused: dict[str, str] = {}

    def side(self, case: Case, inputs: Inputs, call: Call) -> Run | str:
        """Returns the side of a ``case``, compiled and run once, or the reason why there is none.

        ``inputs`` and ``call`` are those of the case.
        """
        if case.direction in self._refused:
            return self._refused[case.direction]
        if self.left <= 0:
            return f"not compiled: the {self.budget:g} s for compiling are spent"
        began = time.perf_counter()
        try:
            run = self._compiled(case, inputs, call)
            run()
        except Exception as error:  # any error is the result
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            if isinstance(error, NotImplementedError):
                self._refused[case.direction] = said
            return said
        finally:
            self.left -= time.perf_counter() - began
        return run

    def _compiled(self, case: Case, inputs: Inputs, call: Call) -> Run:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.reset()
        block_mask = None
        if case.mask != "none":
            reach = WINDOW if case.mask == "window" else case.n
            block_mask = create_block_mask(
                lambda b, h, i, j: (i >= j) & (i - j < reach), None, None, case.n, case.n, device="cpu"
            )
        return inputs.side(
            torch.compile(flex_attention, dynamic=False),
            score_mod=_score_mod(call, case.n),
            block_mask=block_mask,
        )


def _score_mod(call: Call, n: int) -> Callable[..., Tensor] | None:
    """The biases as FlexAttention's users would write them: ALiBi in closed form, all others as a table by distance."""
    if not call.terms:
        return None
    values = [term.values for term in call.terms if isinstance(term, DistanceBias)]
    if len(values) == 1 and isinstance(values[0], Linear):
        past, future = (slope.detach().float() for slope in (values[0].past, values[0].future))

        def linear(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - torch.where(j > i, future[h], past[h]) * (j - i).abs()

        return linear
    q, k = Coordinates.span(1, start=n - 1, length=2 * n - 1), Coordinates.span(2 * n - 1)
    with torch.no_grad():
        strip = sum(distance_bias(value, q, k, torch.float32) for value in values)
    assert isinstance(strip, Tensor)
    table = strip.expand(1, HEADS, 1, 2 * n - 1)[0, :, 0].contiguous()

    def by_distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table[h, j - i + n - 1]

    return by_distance
