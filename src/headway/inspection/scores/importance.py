"""Importance of heads by the gradient of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...errors import HeadwayError
from .._record import Records
from ._base import Score
from ._results import HeadScores

OVER = ("examples", "tokens")


@dataclass(frozen=True, eq=False)
class Importance(Score):
    """The expected change of the loss if a head is scaled, [1, heads] for each layer.

        I[h] = Eₓ |Att_h(x)ᵀ ∂L/∂Att_h(x)|

    Att_h(x) is the output of the head before the output projection, and L is what ``backward`` was called on, in the
    block of ``capture(model, keep="gradients")``. With several backward passes it is the sum of their losses; with
    several calls of the model, the expectation is over all of them. Padding is left out.

    Args:
        over: what x stands for. "examples" for a row of the batch, as in the text of the paper: the products of all
            tokens of a row are added up before the absolute value is taken. "tokens" for a token, as in the code of the
            authors.
        normalized: whether to divide by the ℓ2 norm of the layer's scores, as the paper does before it ranks heads.

    Raises:
        HeadwayError: if ``over`` is unknown.

    References:
        Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.1; its code,
        github.com/pmichel31415/are-16-heads-really-better-than-1 and fairseq.
    """

    name = "importance"

    over: str = "examples"
    normalized: bool = False

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise HeadwayError(f"over is {self.over!r}: give {' or '.join(map(repr, OVER))}")

    def of(self, seen: Records) -> HeadScores:
        if seen.keep != "gradients":
            raise HeadwayError(
                f"{self.name!r} needs gradients, and the capture kept {seen.keep!r}: capture with keep='gradients', "
                "and call loss.backward() within the block"
            )
        sums: dict[str, torch.Tensor] = {}
        counts: dict[str, int] = {}
        for record in seen.records:
            if record._products is None:
                raise HeadwayError(
                    f"no gradient reached the heads of {record.layer!r} in call {record.call}: call loss.backward() "
                    "within the block, of a model whose parameters or input require gradients"
                )
            products = record._products.double()
            real = torch.ones_like(products[:, 0]).bool() if record.padding is None else record.padding
            products = products.masked_fill(~real[:, None], 0)
            each = products.sum(-1).abs() if self.over == "examples" else products.abs().sum(-1)
            sums[record.layer] = sums.get(record.layer, 0) + each.sum(0)
            count = record.batch if self.over == "examples" else int(real.sum())
            counts[record.layer] = counts.get(record.layer, 0) + count
        scores = {layer: sums[layer] / counts[layer] for layer in seen.layers}
        if self.normalized:
            scores = {layer: value / value.norm() for layer, value in scores.items()}
        return HeadScores(self.name, {layer: value[None] for layer, value in scores.items()})
