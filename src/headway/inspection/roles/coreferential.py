"""Coreferential heads: attention from a mention to an earlier one of the same entity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import HeadwayError
from .._run import Statistics
from ..statistics import Statistic
from ..texts import EncodedText
from ._antecedents import KINDS, Cases, served
from ._base import Batch, Evidence, Role

KNOWN = tuple(kind.name for kind in KINDS)


@dataclass(frozen=True, eq=False)
class Coreferential(Role):
    """A head that attends from a mention to another one of the same person or thing.

    In texts with choices, such as those of GAP, for the "right name":

        figure = share of choices with W[h, mention, right name] > W[h, mention, wrong name]

    W are the weights between words, as for ``Syntactic``; a name has those of all its words together, and a tie is half
    a hit. The guesses are the name that is nearer, in characters from start to start, and the one with more tokens.
    Choices without a right one do not count as cases; ``left_out`` has their number.

    In texts with mentions, such as those of CoNLL-2012, whose heads are the words b:

        figure = share of mentions with antecedents where argmax over other words w of W[h,b,w] is an antecedent's head

    The paper leaves open which words these are, so there are two candidates, "antecedent of all words" and "antecedent
    of all mentions", that is of their heads. An antecedent is a mention of the same entity whose head is an earlier
    word. The guesses are the mention before, and the last one before whose head is the same word.

    Only words that have tokens and are in sight count.

    Args:
        of: some of the three candidates. Default: those for which the texts have annotation.
        threshold: the least figure.
        margin: the least distance from the best guess.

    Raises:
        HeadwayError: if ``of`` is empty or has something else.

    References:
        Clark et al. 2019, "What Does BERT Look At? An Analysis of BERT's Attention", section 4.3; Webster et al. 2018,
        "Mind the GAP: A Balanced Corpus of Gendered Ambiguous Pronouns".
    """

    name: ClassVar[str] = "coreferential"

    of: tuple[str, ...] | None = None
    threshold: float = 0.0
    margin: float = 0.1

    def __post_init__(self) -> None:
        if self.of is not None and (isinstance(self.of, str) or not self.of or not {*self.of} <= {*KNOWN}):
            raise HeadwayError(f"of is {self.of!r}: give some of {KNOWN}")

    def why_not(self, texts: Sequence[EncodedText], longest: int | None) -> str | None:
        there = served(texts)
        if self.of is None:
            return None if there else "mentions and choices: read a file of GAP or CoNLL-2012"
        missing = [one for one in self.of if one not in there]
        return f"cases of {' and '.join(map(repr, missing))}" if missing else None

    def fitted(self, texts: Sequence[EncodedText]) -> Coreferential:
        return replace(self, of=served(texts)) if self.of is None else self

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return self.of or served(texts)

    def left_out(self, texts: Sequence[EncodedText]) -> int:
        """Returns the number of mentions none of whose choices is right, such as 227 in gap-test.tsv.

        Args:
            texts: the texts.
        """
        return sum(len({choice.mention for choice in text.text.choices if choice.right is None}) for text in texts)

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return tuple(one.statistic() for one in self._kinds(batch))

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        each = [one.hits(found) for one in self._kinds(batch)]
        return Evidence(
            torch.stack([hits for hits, _ in each], -1), torch.stack([cases for _, cases in each], -1)[:, None]
        )

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        return torch.stack([one.guesses(found) for one in self._kinds(batch)], -1)[:, None]

    def _kinds(self, batch: Batch) -> list[Cases]:
        return [kind(batch) for kind in KINDS if kind.name in self.candidates(batch.texts)]
