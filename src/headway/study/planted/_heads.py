"""What the heads of a model do: which words they look at, and what is lost without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...inspection import ablate, capture
from ._baselines import by_bag, by_offset, chance, linked_by_offset
from ._cases import Cases
from ._grammar import SPLITS, Language
from ._languages import named_language

RESAMPLES = 1000
"""The bootstrap samples of an interval."""
REPLACEMENTS = ("zero", "mean")
HELD_OUT = [split for split in SPLITS if split != "train"]


def measure(
    model: nn.Module,
    language: str | Language,
    *,
    seed: int = 0,
    sentences: int = 1000,
    watch: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures what each head of a model does with the planted relations.

    Every decided word of a sentence is masked. A head finds a link if, of all other words, the one to which the masked
    word gives most weight is the noun that decides it; [CLS] is no word. The best fixed offset is what such a share is
    compared with. It is chosen in new sentences of the training kind, and so is the head of each relation: the one that
    finds most links. Then each head is replaced by zeros, or by its mean over all tokens.

    Args:
        model: maps ids [batch, n] to logits, and takes ``mask``, such as ``trained`` returns.
        language: the language, or its name.
        seed: the seed of the sentences, none of which is drawn by a training.
        sentences: the sentences of each relation and split.
        watch: is called with what is measured next.

    Returns:
        Rows of three kinds, with ``relation``, ``split``, ``n``, and an interval ``low`` to ``high`` that covers 95 %
        of bootstrap samples of the sentences:

        - "accuracy": ``accuracy`` of the masked word; ``chance``; ``by_offset`` and ``by_bag``, what the word at the
          best fixed offset and the words in any order tell of it.
        - "attention": of each ``layer`` and ``head``, ``found``, the share of links; ``as_written``, the same if no
          word is masked; ``baseline`` and ``offset``; ``chosen``, whether it is the head of this relation.
        - "ablation": of each layer, head and ``replacement``, the accuracy ``before`` and ``after``, and ``change``,
          whose interval is that of the difference in the same sentences.
    """
    language = named_language(language)
    rows: list[dict[str, Any]] = []
    for relation in (one.name for one in language.relations):
        if watch is not None:
            watch(relation)
        drawn = {split: language.sentences(sentences, -1 - seed, split, relation) for split in HELD_OUT}
        known = language.sentences(10 * sentences, -1 - seed, "train", relation)
        drawn["train"], known = known[:sentences], known[sentences:]
        votes = by_offset(known, drawn["train"], relation)
        linked = linked_by_offset(drawn["train"], relation)
        voter, place = max(votes, key=lambda d: votes[d]), max(linked, key=lambda d: linked[d])
        cases = {split: Cases.of(language, some, relation) for split, some in drawn.items()}
        found = {split: links_found(model, one, one.ids) for split, one in cases.items()}
        best = int(found["train"].double().mean(0).argmax())
        heads = found["train"].shape[-1]
        for split, one in cases.items():
            shared = {"relation": relation, "split": split, "n": len(drawn[split])}
            before = one.right(model)
            rows.append(
                {"kind": "accuracy", **shared, **_share("accuracy", before)}
                | {"chance": chance(known, drawn[split], relation)}
                | {"by_offset": by_offset(known, drawn[split], relation, [voter])[voter], "offset": voter}
                | {"by_bag": by_bag(known, drawn[split], relation)}
            )
            as_written = links_found(model, one, one.written).double().mean(0)
            at_place = linked_by_offset(drawn[split], relation)[place]
            for layer, head in torch.cartesian_prod(*map(torch.arange, found[split].shape[1:])).tolist():
                where = {**shared, "layer": layer, "head": head, "chosen": layer * heads + head == best}
                rows.append(
                    {"kind": "attention", **where, **_share("found", found[split][:, layer, head])}
                    | {"as_written": float(as_written[layer, head]), "baseline": at_place, "offset": place}
                )
                for replacement in REPLACEMENTS if split in HELD_OUT else ():
                    with ablate(model, {(layer, head): replacement}):
                        after = one.right(model)
                    rows.append(
                        {"kind": "ablation", **where, "replacement": replacement}
                        | {"before": float(before.double().mean()), "after": float(after.double().mean())}
                        | _share("change", after.double() - before.double())
                    )
    return rows


@torch.no_grad()
def links_found(model: nn.Module, cases: Cases, ids: Tensor) -> Tensor:
    """Returns whether the other word with most weight from the decided word is its noun, bool [cases, layers, heads].

    Args:
        model: the model.
        cases: the cases.
        ids: the cases' ids, masked or as written.
    """
    with capture(model, keep="weights") as seen:
        model(ids, mask=cases.padding)
    rows = torch.arange(len(ids))
    found = []
    for layer in seen.layers:
        weights = seen.weights(layer)[rows, :, cases.word].clone()  # [cases, heads, n]
        weights[:, :, 0] = -1  # [CLS]
        weights[rows, :, cases.word] = -1
        found.append(weights.argmax(-1) == cases.noun[:, None])
    return torch.stack(found, dim=1)


def _share(name: str, values: Tensor) -> dict[str, float]:
    """The mean of values, one for each sentence, with its interval."""
    values = values.double()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    low, high = values[drawn].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return {name: float(values.mean()), "low": low, "high": high}
