"""What a small model must have learned to come with headway, or to be chosen among several trainings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from ..._common.progress import Share, nobody
from ...inspection import capture
from ._cases import Cases
from ._grammar import Language, Sentence
from ._heads import best_head, links_found

SENTENCES = 500
"""The sentences of each relation in which a model is measured."""


@dataclass(frozen=True)
class Criteria:
    """The bounds of the measurements.

    They were fixed before a model was measured by them. Two were loosened after some models had been measured:
    ``beside`` was ``weight``, and ``astray`` held for every decided word.

    Attributes:
        accuracy: the least accuracy of a relation, in new sentences with nouns that were held out from their templates.
        found: the least share of the links that the head of a relation finds, in the same sentences.
        weight: the least weight that the decided word of an example gives to its noun in the head of its relation, as
            the sentence is written and with [MASK] in its place.
        beside: the same for a noun next to it, which a head that looks at a place finds too.
        astray: the most weight that a pronoun gives to another noun in any head of the last layer, in the unmasked
            sentence.
        likely: the least probability of the decided word where it is masked.
    """

    accuracy: float = 0.95
    found: float = 0.6
    weight: float = 0.8
    beside: float = 0.5
    astray: float = 0.5
    likely: float = 0.9

    def lacks(self, measured: dict[str, Any], examples: bool = True) -> list[str]:
        """Returns a sentence for each criterion that a model misses.

        Args:
            measured: the result of ``measured``.
            examples: whether the examples count too, or only the relations.
        """
        lacking = []
        for relation, figures in measured["relations"].items():
            for name in ("accuracy", "found"):
                if figures[name] < (least := getattr(self, name)):
                    lacking.append(f"{relation}: {name} {figures[name]:.3f} < {least}")
        for one in measured["examples"] if examples else ():
            place = f"{one['text']} ({one['word']})"
            weight = self.beside if abs(one["offset"]) == 1 else self.weight
            for name, least in (("weight", weight), ("weight_masked", weight), ("likely", self.likely)):
                if one[name] < least:
                    lacking.append(f"{place}: {name} {one[name]:.3f} < {least}")
            if one["astray"] > self.astray and one["relation"].endswith("pronoun"):
                lacking.append(f"{place}: astray {one['astray']:.3f} > {self.astray}")
        return lacking

    def as_dict(self) -> dict[str, float]:
        """Returns the bounds by name."""
        return asdict(self)


CRITERIA = Criteria()
"""The criteria of the models that come with headway."""


def measured(model: nn.Module, language: Language, watch: Share = nobody) -> dict[str, Any]:
    """Measures what the criteria judge, and calls ``watch`` with the share that is done.

    Returns:
        By "relations", for each relation its ``accuracy``, its ``head`` as "layer.head", which finds most links in new
        sentences of the training kind, and the share ``found`` that it finds in those with held-out nouns. By
        "examples", for each link of the language's examples ``text``, ``relation``, ``word``, ``noun``, its
        ``offset``, ``head``, and the fields of the criteria.
    """
    relations: dict[str, dict[str, Any]] = {}
    for number, relation in enumerate(one.name for one in language.relations):
        watch(number / len(language.relations))
        train, held_out = (
            Cases.of(language, language.sentences(SENTENCES, -1, split, relation), relation)
            for split in ("train", "words")
        )
        layer, head = best_head(links_found(model, train))
        relations[relation] = {
            "accuracy": float(held_out.right(model).double().mean()),
            "head": f"{layer}.{head}",
            "found": float(links_found(model, held_out)[:, layer, head].double().mean()),
        }
    return {"relations": relations, "examples": examples(model, language, relations)}


def examples(model: nn.Module, language: Language, relations: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the measurements in the language's examples, with the ``head`` that ``measured`` chose for each."""
    return [
        _example(model, language, sentence, link.relation, relations[link.relation]["head"])
        for sentence in language.examples
        for link in sentence.links
    ]


@torch.no_grad()
def _example(model: nn.Module, language: Language, sentence: Sentence, relation: str, place: str) -> dict[str, Any]:
    cases, link = Cases.of(language, [sentence], relation), sentence.link(relation)
    layer, head = map(int, place.split("."))
    at, noun = link.word + 1, link.noun + 1  # [CLS] comes first
    weights = []
    for ids in (cases.written, cases.ids):
        with capture(model, keep="weights") as seen:
            logits = model(ids)
        weights.append([seen.weights(number)[0, :, at] for number in range(len(seen.layers))])  # [heads, n]
    others = [i + 1 for i, word in enumerate(sentence.words) if word in language.any and i != link.noun]
    return {
        "text": "".join(sentence.words) if not language.spaced else " ".join(sentence.words),
        "word": sentence.words[link.word],
        "noun": sentence.words[link.noun],
        "offset": link.offset,
        "relation": relation,
        "head": place,
        "weight": float(weights[0][layer][head, noun]),
        "weight_masked": float(weights[1][layer][head, noun]),
        "astray": float(weights[0][-1][:, others].max()) if others else 0.0,
        "likely": float(logits[0, at].softmax(-1)[cases.written[0, at]]),
    }
