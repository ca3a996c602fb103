"""Each check fails on a way that is broken in just its way: a check that cannot fail checks nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway._common.progress import Share
from headway.testing.vectors import VECTOR_CHECKS, Trial, check_vectors
from headway.vectors import MatrixVectors, Vocabulary, WordCorpus

TEXTS = [
    "the cat sat on the mat and the dog sat on the rug",
    "a king and a queen sat in the palace, the man and the woman in the house",
    "the dog saw the cat, the cat saw the king and the king saw the queen",
]


class Neighbours(MatrixVectors):
    """How often a word stands beside each other one, seen from 8 directions drawn at random; nothing is wrong with it.

    dim, seed: of the directions
    """

    name = "neighbours"

    def __init__(self, *, size: int = 8, seed: int = 0, **shared: Any) -> None:
        super().__init__(**shared)
        self.size, self.seed = size, seed

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        beside = torch.eye(len(corpus.words))
        for document in corpus.documents():
            for left, right in itertools.pairwise(document.tolist()):
                beside[left, right] += 1
                beside[right, left] += 1
        watch(0.5)
        generator = torch.Generator().manual_seed(self.seed)
        self._set(beside @ torch.randn(len(corpus.words), self.size, generator=generator))
        watch(1.0)


class Undocumented(Neighbours):
    pass


Undocumented.__doc__ = None


class LosesAnOption(Neighbours):
    """Does not keep its seed."""

    def __init__(self, *, seed: int = 0, **shared: Any) -> None:
        super().__init__(**shared)
        del self.seed


class InAnyOrder(Neighbours):
    """Words by the alphabet."""

    def _take(self, words: Sequence[str], counts: Tensor | None = None) -> None:
        super()._take(sorted(words), counts)


class LosesAWord(Neighbours):
    """Leaves out the rarest word."""

    def _take(self, words: Sequence[str], counts: Tensor | None = None) -> None:
        super()._take(words[:-1], None if counts is None else counts[:-1])

    def _set(self, matrix: Tensor) -> None:
        super()._set(matrix[: len(self.words)])


class Miscounts(Neighbours):
    """Counts each word once."""

    def _take(self, words: Sequence[str], counts: Tensor | None = None) -> None:
        super()._take(words, None if counts is None else torch.ones_like(counts))


class NeverEnds(Neighbours):
    """Its progress stops at a half."""

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        super()._fit(corpus, lambda part: watch(part / 2))


class GoesBack(Neighbours):
    """Its progress runs back and forth."""

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        super()._fit(corpus, watch)
        for part in (0.2, 1.0):
            watch(part)


class InDouble(Neighbours):
    """Gives float64."""

    def rows(self, ids: Tensor) -> Tensor:
        return super().rows(ids).double()


class WrongDim(Neighbours):
    """Says that its vectors are longer than they are."""

    @property
    def dim(self) -> int:
        return super().dim + 1


class DeniesItsWords(Neighbours):
    """Says that it has none."""

    def __contains__(self, word: object) -> bool:
        return False


class SwapsTokens(Neighbours):
    """Gives the tokens of a text from the last to the first."""

    def _vectors(self, tokens: Sequence[str]) -> Tensor:
        return super()._vectors(tokens).flip(0)


class MakesUpStrangers(Neighbours):
    """Gives a word without a vector ones."""

    def _vectors(self, tokens: Sequence[str]) -> Tensor:
        found = super()._vectors(tokens)
        found[[place for place, token in enumerate(tokens) if token not in self.index]] = 1.0
        return found


class ReadsNoContext(Neighbours):
    """Has an encode of its own, which gives a word the same vector anywhere."""

    def encode(self, text: str) -> Tensor:
        return super().encode(text)


class LongerInTexts(Neighbours):
    """Doubles the vectors of a text."""

    def _vectors(self, tokens: Sequence[str]) -> Tensor:
        return 2 * super()._vectors(tokens)


class SaysSomethingOfNothing(Neighbours):
    """A document without a known word is ones."""

    def document(self, text: str) -> Tensor:
        found = super().document(text)
        return found if found.any() else torch.ones(self.dim)


class OrderMatters(Neighbours):
    """Weighs the words of a document by their place."""

    def document(self, text: str) -> Tensor:
        found = self.encode(text)
        return (found * torch.arange(1.0, len(found) + 1)[:, None]).sum(0)


class SumsUnnormed(Neighbours):
    """Calls products cosines."""

    def cosines(self, vectors: Tensor) -> Tensor:
        return vectors @ self.matrix.T / 100


class SlightlyOff(Neighbours):
    """Cosines one in a thousand too large."""

    def cosines(self, vectors: Tensor) -> Tensor:
        return 1.001 * super().cosines(vectors)


class FindsItself(Neighbours):
    """Forgets to leave the word itself out."""

    def most_similar(self, word: str | Tensor, count: int = 10) -> list[tuple[str, float]]:
        return super().most_similar(self.vector(word) if isinstance(word, str) else word, count)


class Unsorted(Neighbours):
    """The farthest first."""

    def _nearest(self, vector: Tensor, count: int, out: Sequence[str]) -> list[tuple[str, float]]:
        return super()._nearest(vector, count, out)[::-1]


class RawAnalogies(Neighbours):
    """Adds the vectors as they are, not of length one."""

    def analogy(
        self, a: str, b: str, c: str, count: int = 10, *, keep_question: bool = False
    ) -> list[tuple[str, float]]:
        return self._nearest(self.vector(b) - self.vector(a) + self.vector(c), count, (a, b, c))


class AnswersWithTheQuestion(Neighbours):
    """Does not leave out the words that were asked with."""

    def analogy(
        self, a: str, b: str, c: str, count: int = 10, *, keep_question: bool = False
    ) -> list[tuple[str, float]]:
        units = nn.functional.normalize(torch.stack([self.vector(word) for word in (a, b, c)]), dim=1)
        return self._nearest(units[1] - units[0] + units[2], count, ())


class TurnsItAround(Neighbours):
    """Takes a for b."""

    def analogy(
        self, a: str, b: str, c: str, count: int = 10, *, keep_question: bool = False
    ) -> list[tuple[str, float]]:
        return super().analogy(b, a, c, count)


class Embeds(Neighbours):
    """Its embedding is changed by ``change``."""

    def change(self, made: nn.Embedding) -> nn.Embedding:
        return made

    def embedding(self, vocabulary: Any = None, *, trained: bool = False) -> nn.Embedding:
        return self.change(super().embedding(vocabulary, trained=trained))


class NoRowForOthers(Embeds):
    """Has no row for other words."""

    def change(self, made: nn.Embedding) -> nn.Embedding:
        return nn.Embedding.from_pretrained(made.weight[:-1].detach(), freeze=not made.weight.requires_grad)


class NeverFrozen(Embeds):
    """Rows take part in training whatever was asked for."""

    def change(self, made: nn.Embedding) -> nn.Embedding:
        return made.requires_grad_()


class NeverTrained(Embeds):
    """Rows stay as they are whatever was asked for."""

    def change(self, made: nn.Embedding) -> nn.Embedding:
        return made.requires_grad_(False)


class OwnOrder(Neighbours):
    """Rows in the order of its own vocabulary."""

    def embedding(self, vocabulary: Any = None, *, trained: bool = False) -> nn.Embedding:
        if isinstance(vocabulary, Vocabulary):
            vocabulary = sorted(vocabulary.words, key=lambda word: self.index.get(word, -1))
        return super().embedding(vocabulary, trained=trained)


class HandsOutItsOwn(Neighbours):
    """Its embedding is the matrix itself."""

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        super()._fit(corpus, watch)
        self.behind = torch.cat([self.matrix, torch.zeros(1, self.dim)])
        self._set(self.behind[:-1])

    def embedding(self, vocabulary: Any = None, *, trained: bool = False) -> nn.Embedding:
        if vocabulary is None:
            return nn.Embedding.from_pretrained(self.behind, freeze=not trained)
        return super().embedding(vocabulary, trained=trained)


class LosesTheGradient(Embeds):
    """The layer looks rows up in a copy."""

    def change(self, made: nn.Embedding) -> nn.Embedding:
        made.register_forward_hook(lambda module, ids, out: out.detach())
        return made


class NotANumber(Embeds):
    """One number of every row is none."""

    def change(self, made: nn.Embedding) -> nn.Embedding:
        with torch.no_grad():
            made.weight[:, 0] = torch.nan
        return made


class RoundsInFiles(Neighbours):
    """Saves halves of float32."""

    def _tensors(self) -> dict[str, Tensor]:
        return {"vectors": self.matrix.half()}


class SavesUnits(Neighbours):
    """Forgets, when it is read, the cosines of what it was before."""

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        super()._restore(tensors)
        self._units = torch.ones_like(self.matrix)


class ForgetsCounts(Neighbours):
    """Takes no counts from a file."""

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        super()._restore(tensors)
        self.counts = None


class DrawsAnew(Neighbours):
    """Draws by the seed of whoever calls."""

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        super()._fit(corpus, watch)
        self._set(torch.randn(len(corpus.words), self.size))


class ReadsNoSeed(Neighbours):
    """Takes a seed and reads it not."""

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        given, self.seed = self.seed, 0
        super()._fit(corpus, watch)
        self.seed = given


class WorksUnfitted(Neighbours):
    """Gives zeros before it was fitted."""

    def document(self, text: str) -> Tensor:
        return super().document(text) if self.words else torch.zeros(8)


class RaisesKeyError(Neighbours):
    """Does not say what is wrong."""

    def id_of(self, word: str) -> int:
        self._need_fitted()
        return self.index[word]


class TakesOneText(Neighbours):
    """Reads a text letter by letter."""

    def fit(self, texts: Any, *, watch: Share | None = None) -> Any:
        return super().fit(list(texts), watch=watch)


class TakesAnyVector(Neighbours):
    """Cuts a vector that is too long."""

    def most_similar(self, word: str | Tensor, count: int = 10) -> list[tuple[str, float]]:
        return super().most_similar(word if isinstance(word, str) else word[: self.dim], count)


BROKEN: dict[str, list[type[Neighbours]]] = {
    "is_documented": [Undocumented, LosesAnOption],
    "knows_the_words": [InAnyOrder, LosesAWord, Miscounts],
    "tells_how_far_it_is": [NeverEnds, GoesBack],
    "gives_each_word_a_vector": [InDouble, WrongDim, DeniesItsWords],
    "encodes_token_by_token": [SwapsTokens, MakesUpStrangers, ReadsNoContext],
    "sums_up_a_document": [LongerInTexts, SaysSomethingOfNothing, OrderMatters],
    "finds_the_nearest": [SumsUnnormed, SlightlyOff, FindsItself, Unsorted],
    "solves_analogies": [RawAnalogies, AnswersWithTheQuestion, TurnsItAround],
    "makes_an_embedding": [NoRowForOthers, NeverFrozen, NeverTrained, OwnOrder, HandsOutItsOwn],
    "feeds_a_transformer": [LosesTheGradient, NotANumber, NeverFrozen],
    "survives_saving": [RoundsInFiles, SavesUnits, ForgetsCounts],
    "repeats_itself": [DrawsAnew, ReadsNoSeed],
    "refuses_what_it_cannot": [WorksUnfitted, RaisesKeyError, TakesOneText, TakesAnyVector],
}


def test_a_right_way_passes() -> None:
    assert check_vectors(Neighbours, TEXTS, seed=3) == list(VECTOR_CHECKS)


def test_every_check_is_broken() -> None:
    assert list(BROKEN) == list(VECTOR_CHECKS)


@pytest.mark.parametrize(("check", "kind"), [(check, kind) for check, kinds in BROKEN.items() for kind in kinds])
def test_check_fails_on_a_broken_way(check: str, kind: type[Neighbours]) -> None:
    with pytest.raises(AssertionError):
        VECTOR_CHECKS[check](Trial(kind, TEXTS))


def test_check_vectors_names_the_check() -> None:
    with pytest.raises(AssertionError, match=r"^SlightlyOff fails finds_the_nearest: most_similar"):
        check_vectors(SlightlyOff, TEXTS)
