"""Decoding steps of an attention layer, which reuse the preparation of an earlier step.

From one step to the next, hardly anything but the tensors and the number of keys changes. A step compares everything
else that its result depends on. This takes a fraction of the time of making coordinates, arguments and the key of a
plan. ``MultiHeadAttention`` computes the same bits without this module, and whatever a step does not foresee.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from .._torch import any_autocast
from ..attention import observers
from ..kernels._base import StoredStep
from ..masks import Mask
from ..plans import STEP_QUERIES, Request, Step, are_plain, of_cpu, plan_of_step, rotated_by_rows
from ..positions._base import PositionEncoding
from ..tracing import forward_mode, watched
from ._token_buffer import TokenBuffer
from .cache import KeyValueCache


class PreparedSteps:
    """What later steps of a cache reuse of one step. Neither a copy nor a file of the cache has it.

    Args:
        facts: the facts, other than tensors and the number of keys, that steps depend on.
        keys: the storage of the keys.
        values: that of the values.
        plan: the plan of the steps, or the reason why they have none.
        run: the kernel's part, which knows the addresses of the storages; None to compute steps without it.
    """

    __slots__ = ("facts", "keys", "places", "plan", "run", "values")

    def __init__(
        self, facts: tuple[Any, ...], keys: Tensor, values: Tensor, plan: Step | str, run: StoredStep | None
    ) -> None:
        self.facts, self.plan, self.run = facts, plan, run
        self.keys, self.values = weakref.ref(keys), weakref.ref(values)  # a cache that grows replaces them
        self.places = keys.data_ptr(), values.data_ptr()  # they change if memory becomes shared with a process

    def holds(self, facts: tuple[Any, ...], keys: TokenBuffer, values: TokenBuffer) -> bool:
        """Returns whether this holds for a step.

        Args:
            facts: those of the step.
            keys: the keys of its cache.
            values: the values of its cache.
        """
        k, v = keys.storage, values.storage
        if k is None or v is None or self.keys() is not k or self.values() is not v:
            return False
        return self.facts == facts and self.places == (k.data_ptr(), v.data_ptr())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None,
    cache: KeyValueCache,
    encoding: PositionEncoding | None,
    prepared_by: PositionEncoding | None,
    scale: float | None,
    kernel: str,
) -> Tensor | None:
    """Appends keys and values of the next tokens to a cache, and returns each head's output over all keys.

    Args:
        q: the queries of the tokens, [batch, heads, n, head_dim].
        k: their keys, [batch, kv_heads, n, head_dim].
        v: their values.
        mask: the mask.
        cache: the cache.
        encoding: the encoding.
        prepared_by: the encoding that prepares the keys of the cache; None if it holds them as projected.
        scale: the factor of the scores, as ``attention`` takes it.
        kernel: the name of the kernel, likewise.

    Returns:
        The output, [batch, heads, n, head_dim]; None if no earlier step has prepared this one; the cache is then
        unchanged.
    """
    if not cache._counts or torch.is_grad_enabled() or observers() or watched() or forward_mode() or any_autocast():
        return None
    keys, values, count = cache._keys, cache._values, q.shape[2]
    if not are_plain(q, k, v) or not 0 < count <= STEP_QUERIES or cache.prepared_by is not prepared_by:
        return None
    of_mask = () if mask is None else mask.plan_key() if isinstance(mask, Mask) else None
    of_encoding = () if encoding is None else encoding.plan_key()
    if of_mask is None or of_encoding is None or (scale is not None and type(scale) is not float):
        return None
    own_k, own_v = keys.next_slots(count), values.next_slots(count)
    if own_k is None or own_v is None or keys.start or values.start or cache._inputs.length:
        return None
    m = keys.length + count
    facts = (
        q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, of_mask, encoding, of_encoding, prepared_by, scale,
        kernel, torch.get_default_dtype(), torch.is_inference_mode_enabled(), of_cpu(q, k, v),
    )  # fmt: skip
    known: Any = cache._step
    if known is None or not known.holds(facts, keys, values):
        request = Request(q, keys.first(m), values.first(m), encoding, mask, scale, None, None, prepared_by, kernel)
        known = cache._step = _prepared(request, k, v, facts, keys, values)
    if known is None or known.run is None:
        return None
    if known.plan.preparing is None:
        own_k.copy_(k)
    elif rotated_by_rows(encoding, known.plan.kernel, "key", k, keys.length, own_k, of_encoding) is None:  # type: ignore[arg-type]
        return None
    own_v.copy_(v)
    out: Tensor | None = known.plan.of_storage(q, m, known.run, of_encoding)
    if out is not None:
        keys.take_slots(count)
        values.take_slots(count)
    return out


def _prepared(
    request: Request, k: Tensor, v: Tensor, facts: tuple[Any, ...], keys: TokenBuffer, values: TokenBuffer
) -> PreparedSteps | None:
    """Returns the facts that steps like this one share; None before the first one, which makes the plan.

    Args:
        request: the call of attention.
        k: the keys of the step's tokens.
        v: their values.
        facts: the facts that steps depend on.
        keys: the keys of the cache.
        values: its values.
    """
    plan = plan_of_step(request)
    if plan is None:
        return None
    run, storages = None, (keys.storage, values.storage)
    held = isinstance(plan, Step) and (plan.preparing is None or request.prepared_by is not None)
    if held and keys.takes(k) and values.takes(v):
        run = plan.run.of_storage(*storages)  # type: ignore[union-attr, arg-type]
    return PreparedSteps(facts, *storages, plan, run)  # type: ignore[arg-type]
