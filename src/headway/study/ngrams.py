"""Models that count how well the last few tokens predict the next one, for comparison with models that learn."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import HeadwayError

ORDERS = (2, 5)
"""The orders of the n-gram models in a comparison."""


def ngram_bits(train: Tensor, text: Tensor, order: int, vocabulary: int) -> Tensor:
    """Computes the loss of each token of a text under an n-gram model that is counted on another.

        P_k(w | h) = (c_k(hw) − D(c_k(hw)) + P_{k−1}(w | h′)·Σ_v D(c_k(hv))) / Σ_v c_k(hv)

    It is the interpolated Kneser–Ney model with modified discounts: h is the k − 1 tokens before w, h′ is h without its
    first, and P_0 is uniform. c_k counts occurrences in ``train`` for the highest k, and below it the different tokens
    that stand before hw. A context that does not occur leaves P_{k−1}.

    Args:
        train: the ids that are counted, [n].
        text: the ids that are predicted, [m], each from at most order − 1 ids before it in ``text``.
        order: tokens in an n-gram, from 1.

    Returns:
        −log₂ P_order of each id, float64 [m].

    Raises:
        HeadwayError: if the order is below 1, or a text is empty.

    References:
        Chen and Goodman 1998, An empirical study of smoothing techniques for language modeling, section 3.
    """
    if order < 1:
        raise HeadwayError(f"order is {order}: give at least 1")
    if not len(train) or not len(text):
        raise HeadwayError("a text is empty: give one with tokens in it")
    both, end = torch.cat([train, text]).long(), len(train)
    contexts, grams = _numbered(both, order, vocabulary)
    probability = torch.full((len(text),), 1 / vocabulary, dtype=torch.float64)
    for known, (context, gram) in enumerate(zip(contexts, grams, strict=True)):
        size = int(gram.max()) + 1
        if known == order - 1:
            count = torch.bincount(gram[known:end], minlength=size)
        else:
            longer = grams[known + 1]
            inside = torch.zeros(int(longer.max()) + 1, dtype=torch.int64).scatter_(0, longer, gram)
            count = torch.bincount(inside[longer[known + 1 : end].unique()], minlength=size)
        discount = _discounts(count)[count.clamp(max=3)]
        context_of = torch.zeros_like(count).scatter_(0, gram, context)
        none = torch.zeros(int(context.max()) + 1, dtype=torch.float64)
        total = none.index_add(0, context_of, count.double())
        left = none.index_add(0, context_of, discount)
        h, hw = context[end + known :], gram[end + known :]
        lower = probability[known:]
        here = (count[hw] - discount[hw] + left[h] * lower) / total[h]
        probability[known:] = torch.where(total[h] > 0, here, lower)
    return -probability.log2()


def _numbered(ids: Tensor, order: int, vocabulary: int) -> tuple[list[Tensor], list[Tensor]]:
    """A number for the context of each place and for the context with its token, for each length of context.

    Equal numbers are equal n-grams. The numbers of the first places, whose context is shorter, have no meaning.
    """
    contexts, grams = [torch.zeros_like(ids)], []
    for known in range(order):
        if known:
            context = contexts[-1].clone()
            context[known:] = context[known:] * vocabulary + ids[:-known]
            contexts.append(context.unique(return_inverse=True)[1])
        grams.append((contexts[-1] * vocabulary + ids).unique(return_inverse=True)[1])
    return contexts, grams


def _discounts(count: Tensor) -> Tensor:
    """The discounts of counts 0, 1, 2, and 3 or more; one for all if a text is too small to estimate three."""
    one, two, three, four = (int((count == times).sum()) for times in (1, 2, 3, 4))
    if not one or not two:
        return torch.tensor([0, 0.5, 0.5, 0.5], dtype=torch.float64)
    y = one / (one + 2 * two)
    if not three or not four:
        return torch.tensor([0, y, y, y], dtype=torch.float64)
    discounts = [0, 1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three]
    return torch.tensor([max(0.0, value) for value in discounts], dtype=torch.float64)
