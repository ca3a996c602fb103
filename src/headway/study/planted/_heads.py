"""Measures what the heads of a model do: which words they look at, and what the model loses without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...inspection import ablate, capture
from ...inspection._bootstrap import interval
from ._baselines import by_bag, by_offset, chance, linked_by_offset
from ._cases import Cases
from ._grammar import SPLITS, Language, Sentence
from ._languages import named_language

REPLACEMENTS = ("zero", "mean")
HELD_OUT = [split for split in SPLITS if split != "train"]
FINDS = 0.5
"""The share of the links that a head finds to be one of the heads that find them."""

Row = dict[str, Any]
Where = tuple[str, str]
"""A relation and a split."""


def measure(
    model: nn.Module,
    language: str | Language,
    *,
    seed: int = 0,
    sentences: int = 1000,
    watch: Callable[[str], None] | None = None,
) -> list[Row]:
    """Measures what each head of a model does with the planted relations.

    Every decided word of a sentence is masked. A head finds a link if, of all other words, the one to which the masked
    word gives most weight is the noun that decides it. [CLS] is not a word. The baseline is the best fixed offset.
    The offset, the head of each relation, which is the one that finds most links, and all heads that find at least half
    of them are chosen in new sentences of the training kind. Then each head is replaced by zeros, or by its mean over
    the tokens of a batch; and all heads that find a relation are replaced by zeros together.

    Args:
        model: maps ids [batch, n] to logits, and takes ``mask``, such as ``trained`` returns.
        language: the language, or its name.
        seed: the seed of the sentences. Trainings draw other sentences.
        sentences: the sentences of each relation and split.
        watch: a function that is called with the name of the next measurement.

    Returns:
        Rows of four kinds, with ``relation``, ``split``, ``n``, and an interval ``low`` to ``high`` that covers 95 % of
        the bootstrap samples of the sentences:

        - "accuracy": ``accuracy`` of the masked word; ``chance``; ``by_offset`` and ``by_bag``, what the word at the
          best fixed ``offset`` and the words in any order tell of it.
        - "attention": of each ``layer`` and ``head``, ``found``, the share of links; ``as_written``, the same if no
          word is masked; ``baseline``, the share of links at the best fixed ``offset``; ``chosen``, whether it is the
          head of this relation.
        - "ablation": of each layer, head and ``replacement``, the accuracy ``before`` and ``after``, and ``change``,
          whose interval is that of the difference in the same sentences.
        - "together": the same for all ``heads`` that find the relation ``of``, as "layer.head", replaced by zeros.
    """
    language = named_language(language)
    drawn, known = _drawn(language, seed, sentences)
    cases = {where: Cases.of(language, some, where[0]) for where, some in drawn.items()}
    voters = {relation: _voter(some, drawn[relation, "train"], relation) for relation, some in known.items()}
    before: dict[Where, Tensor] = {}
    links: dict[Where, Tensor] = {}
    rows: list[Row] = []
    for where, one in cases.items():
        relation, split = where
        if watch is not None:
            watch(f"{relation}, {split}")
        before[where], links[where] = one.right(model), links_found(model, one)
        rows.append(_accuracy(where, before[where], drawn, known[relation], voters[relation]))
        rows += _attention(where, links, links_found(model, one, as_written=True), drawn)
    held_out = {where: one for where, one in cases.items() if where[1] in HELD_OUT}
    for layer, head in _places(links):
        if watch is not None:
            watch(f"without {layer}.{head}")
        for replacement in REPLACEMENTS:
            for where, changed in _without(model, {(layer, head): replacement}, held_out, before):
                chosen = (layer, head) == best_head(links[where[0], "train"])
                place = {"layer": layer, "head": head, "chosen": chosen, "replacement": replacement}
                rows.append({"kind": "ablation", **changed, **place})
    for relation in (one.name for one in language.relations):
        shares = links[relation, "train"].double().mean(0)
        finders = [(layer, head) for layer, head in _places(links) if shares[layer, head] >= FINDS]
        if watch is not None:
            watch(f"without all heads of {relation}")
        for _, changed in _without(model, dict.fromkeys(finders, "zero"), held_out, before) if finders else ():
            rows.append({"kind": "together", **changed, "of": relation, "heads": [f"{i}.{h}" for i, h in finders]})
    return rows


@torch.no_grad()
def links_found(model: nn.Module, cases: Cases, *, as_written: bool = False) -> Tensor:
    """Returns whether the other word with most weight from the decided word is its noun, bool [cases, layers, heads].

    The order is that of the ``batches`` of the cases. The sentences have the decided words if ``as_written``, and
    [MASK] otherwise.
    """
    hits = []
    for some in cases.batches():
        with capture(model, keep="weights") as seen:
            model(some.written if as_written else some.ids, mask=some.padding)
        rows, layers = torch.arange(len(some.ids)), []
        for layer in seen.layers:
            weights = seen.weights(layer)[rows, :, some.word].clone()  # [cases, heads, n]
            weights[:, :, 0] = -1  # [CLS]
            weights[rows, :, some.word] = -1
            layers.append(weights.argmax(-1) == some.noun[:, None])
        hits.append(torch.stack(layers, dim=1))
    return torch.cat(hits)


def best_head(links: Tensor) -> tuple[int, int]:
    """Returns the layer and the head that find the most links, the first of several, from ``links_found``."""
    layer, head = divmod(int(links.double().mean(0).argmax()), links.shape[-1])
    return layer, head


def _drawn(language: Language, seed: int, count: int) -> tuple[dict[Where, list[Sentence]], dict[str, list[Sentence]]]:
    """The sentences of each relation and split, and those of each relation that baselines learn from."""
    drawn, known = {}, {}
    for relation in (one.name for one in language.relations):
        of_training = language.sentences(10 * count, -1 - seed, "train", relation)
        drawn[relation, "train"], known[relation] = of_training[:count], of_training[count:]
        for split in HELD_OUT:
            drawn[relation, split] = language.sentences(count, -1 - seed, split, relation)
    return drawn, known


def _voter(known: list[Sentence], chosen_on: list[Sentence], relation: str) -> int:
    """The offset at which words predict the decided word best."""
    votes = by_offset(known, chosen_on, relation)
    return max(votes, key=lambda offset: votes[offset])


def _accuracy(
    where: Where, right: Tensor, drawn: Mapping[Where, list[Sentence]], known: list[Sentence], offset: int
) -> Row:
    relation, split = where
    return {
        "kind": "accuracy",
        "relation": relation,
        "split": split,
        "n": len(right),
        **_share("accuracy", right),
        "chance": chance(known, drawn[where], relation),
        "by_offset": by_offset(known, drawn[where], relation, [offset])[offset],
        "offset": offset,
        "by_bag": by_bag(known, drawn[where], relation),
    }


def _attention(
    where: Where, links: Mapping[Where, Tensor], as_written: Tensor, drawn: Mapping[Where, list[Sentence]]
) -> Iterator[Row]:
    relation, split = where
    on_training = linked_by_offset(drawn[relation, "train"], relation)
    offset = max(on_training, key=lambda d: on_training[d])
    for layer, head in _places(links):
        yield {
            "kind": "attention",
            "relation": relation,
            "split": split,
            "n": len(links[where]),
            "layer": layer,
            "head": head,
            "chosen": (layer, head) == best_head(links[relation, "train"]),
            **_share("found", links[where][:, layer, head]),
            "as_written": float(as_written[:, layer, head].double().mean()),
            "baseline": linked_by_offset(drawn[where], relation)[offset],
            "offset": offset,
        }


def _without(
    model: nn.Module,
    heads: Mapping[tuple[int | str, int], str],
    cases: Mapping[Where, Cases],
    before: Mapping[Where, Tensor],
) -> Iterator[tuple[Where, Row]]:
    """The accuracies without some heads."""
    for where, one in cases.items():
        with ablate(model, heads):
            after = one.right(model)
        yield (
            where,
            {
                "relation": where[0],
                "split": where[1],
                "n": len(after),
                "before": float(before[where].double().mean()),
                "after": float(after.double().mean()),
                **_share("change", after.double() - before[where].double()),
            },
        )


def _places(links: Mapping[Where, Tensor]) -> list[tuple[int, int]]:
    """Each layer and head."""
    _, layers, heads = next(iter(links.values())).shape
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def _share(name: str, values: Tensor) -> dict[str, float]:
    """The mean of values, one for each sentence, with its interval."""
    low, high = interval(values, torch.ones_like(values, dtype=torch.float64))
    return {name: float(values.double().mean()), "low": float(low), "high": float(high)}
