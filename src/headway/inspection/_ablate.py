"""Models with some of their heads silenced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import function_around
from ..errors import HeadwayError
from ._memory import heads_of
from ._numbers import index_of
from ._sources import SOURCES
from ._watch import Change, Found, Frame, Observer, changes

REPLACEMENTS = ("zero", "mean")


@contextmanager
def ablate(model: nn.Module, heads: Mapping[tuple[int | str, int], str]) -> Iterator[None]:
    """Replaces the outputs of some heads of a model for the duration of a block.

        with headway.ablate(model, {(3, 5): "zero", ("transformer.h.4.attn", 0): "mean"}):
            logits = model(ids)

    The output of a head is Σⱼ A[h,i,j]·vⱼ, before the output projection. "zero" replaces it by zeros, which is the same
    as zeroing the columns of the output projection that read it (Michel et al. 2019). "mean" replaces it, for every
    query of a call, by its mean over the queries of all rows of this call, and of all processes in
    ``headway.parallel.context``; known padding is left out (``AttentionRecord.padding``). Gradients flow through the
    mean.

    A forward pass that ``torch.utils.checkpoint`` computes again in a backward pass is ablated like the first one, even
    if the backward pass comes after the block.

    It takes the same models as ``capture``. Blocks of both may be nested in any order.

    Args:
        model: the model, as it was before ``torch.compile``.
        heads: "zero" or "mean" for each (layer, head). A layer is given by its dotted name, or by its number among the
            model's attention modules in the order of ``named_modules``. A module that attends several times in one call
            of the model is ablated each time; "name#2" ablates only the second time.

    Yields:
        None.

    Raises:
        HeadwayError: before the block, if a layer or head does not exist (the message names the nearest), or the model
            is compiled, scripted or divided by heads. In the block, if a mean would be over a single query, if an
            ``autograd.Function`` other than torch's checkpoint runs a layer for a gradient, or if a backward pass runs
            a layer for a forward pass that may be outside of the block. At the end of the block, if the model ran and a
            layer did not attend.

    References:
        Michel et al. 2019, "Are Sixteen Heads Really Better than One?".
    """
    observer = _Ablation(model, heads)
    with observer.watching():
        yield
    observer.check()


class _Ablation(Observer):
    def __init__(self, model: nn.Module, heads: Mapping[tuple[int | str, int], str]) -> None:
        super().__init__(model, "ablate", SOURCES.values())
        if not isinstance(heads, Mapping) or not heads:
            raise HeadwayError(f"heads is {heads!r}: give a dictionary such as {{(0, 5): 'zero'}}")
        self.replacements: dict[str, dict[int, str]] = {}
        for place, replacement in heads.items():
            if not isinstance(place, tuple) or len(place) != 2:
                raise HeadwayError(f"heads has {place!r}: give (layer, head)")
            if replacement not in REPLACEMENTS:
                raise HeadwayError(
                    f"heads has {replacement!r} for {place!r}: give {' or '.join(map(repr, REPLACEMENTS))}"
                )
            layer = self.layer_named(place[0], self.layers)
            known = heads_of(model.get_submodule(layer.partition("#")[0]))
            if known is not None:
                index_of(place[1], known, f"head of {layer!r}")
            self.replacements.setdefault(layer, {})[place[1]] = replacement
        self.applied: set[str] = set()
        self.modules = {layer.partition("#")[0] for layer in self.replacements}

    def around(self, found: Found) -> tuple[Any, Change | None]:
        layer, module, _ = self.label(found)
        replacements = {**self.replacements.get(module, {}), **self.replacements.get(layer, {})}
        self.applied |= {layer, module}
        if not replacements:
            return found.run(None), None
        if (function := function_around()) is not None:
            raise HeadwayError(
                f"it runs in the forward of {function.__name__}, an autograd.Function, whose backward would not be of "
                "the ablated heads: recompute with torch.utils.checkpoint"
            )
        site = found.look()
        if site.replaces_output:
            raise HeadwayError("it drops weights that it returns: call model.eval(), or give need_weights=False")
        batch, count, n, _ = site.call.q.shape
        for head in replacements:
            index_of(head, count, f"head of {layer!r}")
        if "mean" in replacements.values() and batch * n == 1 and site.total is None:
            raise HeadwayError(
                "the mean over a single query is its own output: give 'zero', or call the model with more tokens"
            )
        changes.count += 1
        change = partial(_replaced, replacements, site.padding, site.total)
        return found.run(change), change

    def begins(self, frame: Frame) -> None:
        if self.in_backward() and self.at_work() and frame.name in self.modules:
            raise HeadwayError(
                f"ablate of {frame.name!r}: a backward pass runs it for a forward pass that is not known to be of the "
                "block: call backward() after the block, and in the block use torch.utils.checkpoint to recompute"
            )

    def check(self) -> None:
        """Raises HeadwayError if the model ran and a layer did not attend."""
        idle = sorted(self.replacements.keys() - self.applied)
        if self.ran and idle:
            raise HeadwayError(
                f"{idle[0]!r} should be ablated but made no attention call: give one of "
                f"{', '.join(map(repr, sorted(self.applied))) or 'another model, in which attention is found'}"
            )


def _replaced(
    replacements: Mapping[int, str], counted: Tensor | None, total: Callable[[Tensor], Tensor] | None, out: Tensor
) -> Tensor:
    """out, [batch, heads, n, v_dim], with some heads replaced."""
    heads = list(out.unbind(1))
    averaged = [head for head, how in replacements.items() if how == "mean"]
    if averaged:
        for head, mean in zip(averaged, _means(out[:, averaged], counted, total), strict=True):
            heads[head] = mean.to(out.dtype).expand_as(heads[head])
    for head in replacements.keys() - {*averaged}:
        heads[head] = torch.zeros_like(heads[head])
    return torch.stack(heads, dim=1)


def _means(out: Tensor, counted: Tensor | None, total: Callable[[Tensor], Tensor] | None) -> Tensor:
    """The means of heads [batch, heads, n, v_dim] over the queries of all processes, [heads, v_dim]: one exchange."""
    wide = out.to(torch.promote_types(out.dtype, torch.float32))
    share = wide.new_ones(out.shape[0], out.shape[2]) if counted is None else counted.to(wide.dtype)
    sums = torch.cat([(wide * share[:, None, :, None]).sum((0, 2)).flatten(), share.sum()[None]])
    sums = sums if total is None else total(sums)
    return sums[:-1].unflatten(0, (-1, out.shape[3])) / sums[-1].clamp(min=1)
