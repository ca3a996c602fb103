"""Block heads: those that stay within a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ... import reductions
from ...kernels import Call
from ...reductions import Reduction
from .._run import Statistics
from ..statistics import Statistic
from ..texts import AnnotatedText, EncodedText
from ._base import Batch, Evidence, Role, total

TOGETHER = 4


@dataclass(frozen=True, eq=False)
class WeightBeyond(Statistic):
    """The weight beyond a window around the query, [batch, H, n, 3].

    The three numbers are the weight within the query's sentence, the weight within its sentence among those that begin
    and end elsewhere, and the weight within all of them.
    """

    name = "weight beyond"

    sentences: Tensor
    """The number of each token's sentence, [batch, n]; −1 for tokens of none."""
    elsewhere: Tensor
    """The same for sentences that begin and end elsewhere."""
    window: int
    """The tokens on each side that do not count."""

    def reductions(self, call: Call) -> tuple[Reduction, ...]:
        by_label = [reductions.WeightsByLabel(x, int(x.max()) + 1) for x in (self.sentences, self.elsewhere)]
        return (*by_label, reductions.WeightsAt(self._nearby()))

    def result(self, call: Call, values: list[Any], counted: Tensor) -> Tensor:
        *of_sentences, nearby = values
        slots, parts = self._nearby(), []
        for sentences, weights in zip((self.sentences, self.elsewhere), of_sentences, strict=True):
            at = sentences.clamp(min=0)
            own = weights.gather(-1, at[:, None, :, None].expand(-1, weights.shape[1], -1, 1))[..., 0]
            near = sentences.gather(1, slots.clamp(min=0).flatten(1)).view_as(slots).masked_fill(slots < 0, -1)
            parts.append(own - (nearby * (near == sentences[..., None])[:, None]).sum(-1))
        every = of_sentences[0].sum(-1) - (nearby * (near >= 0)[:, None]).sum(-1)
        return torch.stack([*parts, every], -1).clamp(min=0)

    def _nearby(self) -> Tensor:
        """The slots within the window of each query, [batch, n, 2·window + 1]; −1 for none."""
        batch, n = self.sentences.shape
        at = torch.arange(n, device=self.sentences.device)
        slots = at[:, None] + torch.arange(-self.window, self.window + 1, device=at.device)
        return slots.masked_fill((slots < 0) | (slots >= n), -1).expand(batch, -1, -1)


@dataclass(frozen=True, eq=False)
class Block(Role):
    """A head that stays within the sentence of the query, in texts of several sentences.

        figure = Σᵢ Σⱼ A[h,i,j], j in i's sentence, / Σᵢ Σⱼ A[h,i,j], j in any sentence,   both over |j − i| > window

    Near tokens are mostly in the same sentence, whatever the head does with sentences, so they do not count. Tokens
    that the model adds belong to no sentence. If no text has several sentences, every four texts are read as one. A
    case is a weight of 1. The guesses are equal weights, and the head's own weights with sentences that begin and end
    in the middles of these: a head that attends to what is near, wherever sentences end, has the same figure in both.

    Args:
        window: the tokens on each side that do not count.
        threshold: the least figure.
        margin: the least distance from the best guess.

    References:
        Kovaleva et al. 2019, "Revealing the Dark Secrets of BERT" (block patterns); Pande et al. 2021, "The Heads
        Hypothesis".
    """

    name: ClassVar[str] = "block"

    window: int = 2
    threshold: float = 0.9
    margin: float = 0.1

    def why_not(self, texts: Sequence[EncodedText], longest: int | None) -> str | None:
        return None if len(_of_sentences(texts, longest)) > 1 else "texts of several sentences that the model can read"

    def probes(
        self, texts: Sequence[EncodedText], longest: int | None, generator: torch.Generator
    ) -> Sequence[EncodedText]:
        return _of_sentences(texts, longest)

    def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
        return ("sentence",)

    def statistics(self, batch: Batch) -> tuple[str | Statistic, ...]:
        return (WeightBeyond(*_sentences(batch), self.window),)

    def evidence(self, batch: Batch, found: Statistics) -> Evidence:
        own, _, every = self._totals(batch, found)
        return Evidence(own, every)

    def guesses(self, batch: Batch, found: Statistics, equal: Statistics) -> Tensor:
        hits, cases = self.evidence(batch, equal)
        _, elsewhere, every = self._totals(batch, found)
        spread = (hits / cases * every).nan_to_num(0.0)  # the hits if the same weight were spread equally
        return torch.stack([spread, elsewhere], 2)

    def _totals(self, batch: Batch, statistics: Statistics) -> list[Tensor]:
        weights = statistics["weight beyond"]
        return [total(weights[..., i], batch.words)[..., None] for i in range(3)]


def _several(text: EncodedText) -> bool:
    return len(set(text.text.sentences)) > 1


def _of_sentences(texts: Sequence[EncodedText], longest: int | None) -> list[EncodedText]:
    """The texts of several sentences; if there are none, each four as one, or as many as the model can read."""
    if any(map(_several, texts)):
        return [text for text in texts if _several(text)]
    kept: list[EncodedText] = []
    together: list[EncodedText] = []
    for text in texts:
        length = sum(map(len, together)) + len(text)
        if together and (len(together) == TOGETHER or (longest is not None and length > longest)):
            kept += [_joined(together)] if len(together) > 1 else []
            together = []
        together.append(text)
    return [*kept, _joined(together)] if len(together) > 1 else kept


def _joined(texts: Sequence[EncodedText]) -> EncodedText:
    """Texts as one, with a sentence for each; the tokens that the model adds stand at the ends of the whole."""
    ids: list[int] = []
    tokens: list[str] = []
    word_of: list[int] = []
    words: list[tuple[int, int]] = []
    sentences: list[int] = []
    written = ""
    for number, text in enumerate(texts):
        inner = [i for i, word in enumerate(text.word_of) if word >= 0]
        start = 0 if number == 0 else inner[0]
        stop = len(text.ids) if number == len(texts) - 1 else inner[-1] + 1
        ids += text.ids[start:stop]
        tokens += text.tokens[start:stop]
        word_of += [word if word < 0 else word + len(words) for word in text.word_of[start:stop]]
        words += [(a + len(written), b + len(written)) for a, b in text.text.words]
        sentences += [number] * len(text.text.words)
        written += text.text.text + " "
    said = AnnotatedText(written, tuple(words), tuple(sentences), name=texts[0].text.name)
    return EncodedText(tuple(ids), tuple(tokens), tuple(word_of), said)


def _sentences(batch: Batch) -> tuple[Tensor, Tensor]:
    """The number of each token's sentence in its text, and the same of sentences from middle to middle of these.

    Each is [batch, n], with −1 for tokens that the model adds.
    """
    within: list[list[int]] = []
    elsewhere: list[list[int]] = []
    for text in batch.texts:
        numbers = {sentence: number for number, sentence in enumerate(dict.fromkeys(text.text.sentences))}
        of_words = [*(numbers[sentence] for sentence in text.text.sentences), -1]  # word −1 is the last
        within.append([of_words[word] for word in text.word_of])
        lengths, before = Counter(within[-1]), Counter[int]()
        elsewhere.append([])
        for one in within[-1]:
            elsewhere[-1].append(one if one < 0 else one + (2 * before[one] >= lengths[one]))
            before[one] += 1
    return torch.tensor(within, device=batch.device), torch.tensor(elsewhere, device=batch.device)
