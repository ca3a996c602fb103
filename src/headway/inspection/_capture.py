"""Records a model's attention while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._torch import writes_of
from ..errors import HeadwayError
from ..kernels import KERNELS, Call, _ops, reduce
from ..kernels import reference as spec
from ..kernels._problem import without_tables
from ..terms import RelativeValues
from ..tracing import without_autocast
from ._memory import Estimate, Shape
from ._numbers import index_of, numbers_of, slots_of
from ._projection import Awaited, value_norms, weight_of, why_no_norms
from ._record import DEFAULT, Asked, AttentionRecord
from ._run import Wanted, chosen
from ._seen import Seen
from ._sources import SOURCES
from ._watch import Change, Found, Observer, Site, changes, looking
from ._weights import dense_weights, refuse_above_limit, size_of

KEEP = ("statistics", "qk", "qkv", "weights", "gradients")
CAPTURED = (*DEFAULT, "pooled_map")
"""The default statistics of a capture: those of a table, and those that ``Seen.plot`` draws."""


@contextmanager
def capture(
    model: nn.Module,
    keep: str = "statistics",
    *,
    statistics: Asked | None = None,
    layers: Collection[int | str] | None = None,
    heads: Sequence[int] | None = None,
    rows: slice | int | Sequence[int] | None = None,
) -> Iterator[Seen]:
    """Records every attention call of a model for the duration of a block.

        with headway.capture(model) as seen:
            model(ids)
        seen.table()                                      # one row for each head
        with headway.capture(model, keep="qk") as seen:
            model(ids)
        seen.weights("transformer.h.3.attn", head=5)      # [batch, n, m]

    It sees headway's layers and models, any model of transformers whose attention goes through its attention interface
    (with any ``attn_implementation``), ``nn.MultiheadAttention``, and every module that calls
    ``F.scaled_dot_product_attention``. The model computes the same numbers as without the block, bit by bit, with the
    same gradients. One exception: ``nn.MultiheadAttention`` and the layers of torch around it do not take their fast
    paths for inference. Their results are then equal up to rounding, and ``note`` of their records says so. A call that
    ``torch.utils.checkpoint`` computes again in a backward pass is not recorded again. headway checks each attention
    call that it did not compute itself: for three queries, it compares the output with that of the captured queries,
    keys and mask.

    A capture sees the calls of its own model in its own thread. Captures nest. Hooks are removed at the end of the
    block, even after an error.

    Args:
        model: the model, as it was before ``torch.compile``.
        keep: what to keep of each call: "statistics" of the weights, in memory that grows with the tokens; "qk", copies
            of the queries and keys with masks and terms, from which statistics and weights can be computed afterwards;
            "qkv", also the length of each value after the output projection; "weights", n·m for each head; or
            "gradients", the product of each head's output with its gradient in a backward pass within the block.
        statistics: with keep="statistics", names or objects, as for ``attention_statistics``. Default: entropy, the
            largest weight, and "pooled_map", which ``Seen.plot`` draws and which takes up to 32 KiB for each head and
            row.
        layers: the layers to keep, by name, or by number among the model's attention modules. Default: all.
        heads: with keep="weights", the heads to keep. Default: all.
        rows: with keep="weights", the queries to keep, as numbers or a slice; −1 is the last. Default: all.

    Yields:
        A ``Seen``, which fills while the model runs.

    Raises:
        HeadwayError: before the block, if an argument does not fit or the model is compiled, scripted or divided by
            heads. In the block, before anything is computed, if weights would take more than 1 GiB, or if an attention
            call cannot be captured. At the end of the block, if the model ran and no attention was found.
    """
    observer = _Capture(model, keep, statistics, layers, heads, rows)
    with observer.watching():
        yield observer.seen
    observer.check()  # not after an error in the block, which explains itself


class _Capture(Observer):
    def __init__(
        self,
        model: nn.Module,
        keep: str,
        statistics: Any,
        layers: Collection[int | str] | None,
        heads: Sequence[int] | None,
        rows: slice | int | Sequence[int] | None,
    ) -> None:
        super().__init__(model, "capture", SOURCES.values())
        if keep not in KEEP:
            raise HeadwayError(f"keep is {keep!r}: give one of {', '.join(map(repr, KEEP))}")
        for name, given, goes_with in (
            ("statistics", statistics, "statistics"),
            ("heads", heads, "weights"),
            ("rows", rows, "weights"),
        ):
            if given is not None and keep != goes_with:
                raise HeadwayError(f"{name} is given with keep={keep!r}: it goes with keep={goes_with!r}")
        if layers is not None and (isinstance(layers, str) or not isinstance(layers, Iterable)):
            layers = [layers]
        self.keep = keep
        self.statistics = chosen(CAPTURED if statistics is None else statistics)
        self.heads = None if heads is None else numbers_of(heads, "heads")
        self.rows = rows if rows is None or isinstance(rows, slice) else numbers_of(rows, "rows")
        self.wanted = None if layers is None else {self.layer_named(layer, self.layers) for layer in layers}
        self.seen = Seen(keep, [], self.missed)
        self.seen._model, self.seen._order = type(model).__name__, list(self.name_of.values())
        kept = [name for name in self.layers if self.wanted is None or name in self.wanted]
        dtype = next((part.dtype for part in model.parameters() if part.is_floating_point()), torch.float32)
        shapes = [Shape.of(model.get_submodule(name), name) for name in kept]
        self.seen._estimate = Estimate(
            type(model).__name__, shapes, keep, dtype, self.statistics, self.heads, self.rows
        )
        self._copies: dict[int, tuple[Tensor, int | None, Tensor]] = {}
        self._copied_in = -1
        self._awaited: Awaited | None = None
        self._of_gradients: list[RemovableHandle] | None = []
        """The hooks on heads' outputs; None after the block."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Also observes output projections and gradients, if they are wanted."""
        with super().watching(), ExitStack() as block:
            if self.keep == "qkv":
                for module in self.name_of:
                    if weight_of(module) is not None:
                        block.callback(module.register_forward_pre_hook(self._projecting).remove)
            try:
                yield
            finally:
                self._awaited = None
                hooks, self._of_gradients = self._of_gradients or [], None
                for hook in hooks:
                    hook.remove()

    def around(self, found: Found) -> tuple[Any, Change | None]:
        layer, module, number = self.label(found)
        if self.wanted is not None and not self.wanted & {layer, module}:
            return found.run(None), None
        site = found.look()
        call = site.call
        record = AttentionRecord(
            layer,
            module,
            site.kind,
            number,
            site.source,
            batch=call.q.shape[0],
            heads=call.q.shape[1],
            kv_heads=call.k.shape[1],
            n=call.q.shape[2],
            m=call.k.shape[2],
            padding=site.padding,
            note=site.note,
        )
        if self.keep == "weights":
            self._refuse_size(record, call)
        before = changes.count
        result, again = self._filled(record, found, site)
        if not site.exact and not site.dropout and changes.count == before:
            _check_translation(site, result)
        self.seen.records.append(record)
        return result, again

    def _filled(self, record: AttentionRecord, found: Found, site: Site) -> tuple[Any, Change | None]:
        """Computes a call and keeps the parts named by ``keep``. Also returns the change for recomputing it."""
        call = site.call
        with looking():
            if self.keep == "weights":
                record._heads, record._rows = self._chosen(call)
                record._weights = dense_weights(_detached(call), record._heads, record._rows)
            elif self.keep in ("qk", "qkv"):
                record._kept_call = self._owned(_without_values(call), record.call)
            elif self.keep == "statistics":
                wanted = Wanted(_detached(call), self.statistics, record.padding)
        if self.keep != "statistics":
            looks, again = self._on_outputs(record, site)
            return found.run(looks), again
        both = None if site.run_and_reduce is None else site.run_and_reduce(wanted.reductions, wanted.queries)
        with looking():
            values = reduce(KERNELS, wanted.call, wanted.reductions, wanted.queries) if both is None else both[1]
            record._statistics = wanted.found(values)
        return (found.run(None) if both is None else both[0]), None

    # ------------------------------------------------------------ output projections and gradients

    def _on_outputs(self, record: AttentionRecord, site: Site) -> tuple[Change | None, Change | None]:
        """The functions that read the heads' outputs, unchanged, in the first pass and when it is computed again.

        Reading the outputs may change how they are computed, so both passes need a function or neither.
        """
        self._awaited = None
        if self.keep == "gradients":
            if site.replaces_output:
                raise HeadwayError("it drops weights that it returns: call model.eval(), or give need_weights=False")
            return (partial(self._differentiated, record),) * 2
        if self.keep != "qkv":
            return None, None
        record._without_norms = why_no_norms(site.call)
        if record._without_norms:
            return None, None
        if site.output_weight is not None:
            with looking():
                record._value_norms = value_norms(site.call.v, site.output_weight, record.heads)
            return None, None
        record._without_norms = "no linear layer is given the outputs of its heads as they are"
        return partial(self._await_projection, record, site.call), _as_it_is

    def _await_projection(self, record: AttentionRecord, call: Call, out: Tensor) -> Tensor:
        with looking():
            self._awaited = Awaited(record, _detached(call), out.detach().transpose(1, 2).flatten(2))
        return out

    def _projecting(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A hook before each linear layer: the one that reads the heads' outputs is their projection."""
        awaited = self._awaited
        if awaited is None or not self.at_work() or not args or self.in_backward():
            return
        with looking():
            self._project(awaited, module, args[0])

    def _project(self, awaited: Awaited, module: nn.Module, x: Any) -> None:
        if not awaited.are_in(x):
            return
        record, weight = awaited.record, weight_of(module)
        adapted = self.name_of[module].endswith("base_layer")  # an adapter adds to its output
        if adapted or record._value_norms is not None:
            record._value_norms, record._without_norms = None, "several linear layers project the outputs of its heads"
            self._awaited = None
        elif weight is not None:
            record._value_norms, record._without_norms = value_norms(awaited.call.v, weight, record.heads), ""

    def _differentiated(self, record: AttentionRecord, out: Tensor) -> Tensor:
        """Accumulates Σ out·∂L/∂out of each query over the backward passes of the block."""
        if self._of_gradients is None:
            return out
        held = out.detach()

        def add(gradient: Tensor) -> None:
            product = (held.float() if held.dtype != torch.float64 else held).mul(gradient.detach()).sum(-1)
            record._products = product if record._products is None else record._products + product

        if out.requires_grad:
            self._of_gradients.append(out.register_hook(add))
        return out

    def _chosen(self, call: Call) -> tuple[list[int] | None, list[int] | None]:
        """The heads and rows of a call that are kept; None for all."""
        heads, n = call.q.shape[1:3]
        chosen = None if self.heads is None else [index_of(head, heads, "head") for head in self.heads]
        return chosen, None if self.rows is None else sorted(set(slots_of(self.rows, n)))

    def _refuse_size(self, record: AttentionRecord, call: Call) -> None:
        """Raises HeadwayError before the first layer if the weights of all layers like this one exceed the limit."""
        size = size_of(call, *self._chosen(call))
        kind = type(self.model.get_submodule(record.module))
        alike = [name for module, name in self.name_of.items() if type(module) is kind]
        to_come = [name for name in alike if self.wanted is None or name in self.wanted]
        before = [one for one in self.seen.records if one.call == record.call and one.module in to_come]
        left = max(1, len(to_come) - len(before))
        more = f" and those of {left - 1} more layer{'s' if left > 2 else ''}" if left > 1 else ""
        refuse_above_limit(self.seen.size + size * left, f"its weights{more}")

    def _owned(self, call: Call, number: int) -> Call:
        """The call with copies of its tensors, so that later writes do not reach it. Layers share copies."""
        if number != self._copied_in:
            self._copies, self._copied_in = {}, number
        tensors: list[Tensor] = []
        structure = _ops.flatten(call, tensors)
        copies = []
        for x in tensors:
            known, writes = self._copies.get(id(x)), None if x.is_inference() else writes_of(x)
            shared = known is not None and known[0] is x and known[1] == writes is not None
            copy = known[2] if known is not None and shared else x.detach().clone()
            if x is not call.q and x is not call.k:
                self._copies[id(x)] = x, writes, copy
            copies.append(copy)
        owned: Call = _ops.unflatten(structure, copies)
        return owned

    def check(self) -> None:
        """Raises HeadwayError if the model ran and no attention was captured."""
        if self.seen.records or not self.ran:
            self._warn()
            return
        if self.calls:
            raise HeadwayError(
                f"the model attended, but not in layers {sorted(self.wanted or ())}: give others, or leave layers out"
            )
        looked = self.missed or {
            name: type(module).__name__ for module, name in self.name_of.items() if not name.count(".")
        }
        said = ", ".join(f"{name or 'the model'} ({kind})" for name, kind in list(looked.items())[:6])
        raise HeadwayError(
            f"no attention was found in {type(self.model).__name__}, which ran {said}: capture sees headway's layers, "
            "transformers' attention interface, nn.MultiheadAttention and F.scaled_dot_product_attention"
        )

    def _warn(self) -> None:
        """Warns of modules that look like attention but were not captured."""
        names = [f"{name or 'the model'} ({kind})" for name, kind in self.missed.items()]
        if names and self.seen.records:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            warnings.warn(
                f"{', '.join(names[:3])}{more} ran and its attention could not be seen: see missed", stacklevel=5
            )


def _as_it_is(out: Tensor) -> Tensor:
    return out


def _detached(call: Call) -> Call:
    return call._with(q=call.q.detach(), k=call.k.detach(), v=call.v.detach())


def _without_values(call: Call) -> Call:
    """The call without the parts that only affect its output."""
    terms = tuple(term for term in call.terms if not isinstance(term, RelativeValues))
    return without_tables(call)._with(
        v=call.k[..., :0], terms=terms, v_rotation=None, dropout=0.0, seed=None, wants_lse=False
    )


# ---------------------------------------------------------------- the check of calls that headway did not compute


def _check_translation(site: Site, result: Any) -> None:
    """Raises HeadwayError if the model's output for three queries is not that of the captured call."""
    call = site.call
    n = call.q.shape[2]
    rows = sorted({0, n // 2, n - 1} & set(range(n)))
    if not rows or call.k.shape[2] == 0:
        return
    with looking(), without_autocast(call.q):
        computed = spec.computed(_detached(call))
        blocks = [spec.run_block(spec.QueryBlock(computed, row, row + 1)) for row in rows]
        ours = torch.cat([one.out for one in blocks], dim=2)
        sees = torch.cat([one.row_sum for one in blocks], dim=2) > 0
        theirs = site.rows(result, rows).detach().to(ours.dtype)
        largest = call.v.detach().abs().amax().to(ours.dtype)
        if theirs.ndim == ours.ndim:
            hidden = ~sees[..., None]
        else:  # projected, all heads together
            ours, hidden = site.projected(ours).to(ours.dtype), ~sees.all(1)[..., None]
            largest = torch.maximum(largest, ours.abs().amax())
        off = (ours - theirs).abs().masked_fill(hidden | ~theirs.isfinite() | ~ours.isfinite(), 0).amax()
        if bool(off > _tolerance(call.q) * largest):
            raise HeadwayError(
                f"its output differs by {float(off):.2g} from that of the queries, keys and mask that it is given, so "
                "they do not tell its weights: it computes something else, such as a bias of its own"
            )


def _tolerance(q: Tensor) -> float:
    if q.dtype in (torch.float16, torch.bfloat16):
        return 3e-2
    return 2e-4 if q.device.type == "cpu" else 2e-3  # other devices may multiply in TF32
