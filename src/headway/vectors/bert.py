"""BERT: the vectors of words in their sentences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .. import checkpoints
from .._common.files import atomic_folder, write_text
from .._common.progress import Share, nobody, part_of
from ..errors import HeadwayError, need_positive
from ..masks import Padding
from ..models import Encoder
from ..positions import Learned
from . import _saved
from ._base import MatrixVectors
from ._formats import naming
from ._pretrained import Pretrained
from ._text import SubWords, Tokenizer, WordCorpus, Words, described, need_texts, tokenizer_from
from ._train_bert import Settings, train_bert

TABLE, OPTIONS = "vectors.safetensors", "vectors.json"
"""The files of a saved folder that do not belong to the checkpoint."""
LONGEST = 512
"""The most tokens of a window, even if the model has more positions."""
OVERLAP = 4
"""Consecutive windows of a long text share one in this many of their tokens."""
BATCH = 8192
"""The tokens read at once."""
CHUNK = 2**20
"""The characters whose windows are sorted by length together."""
TRAINING = 0.8
"""The share of training in the work, if there is training."""


class Bert(MatrixVectors):
    """Vectors that are hidden states of an encoder, so a word has a different vector in every sentence.

        v(w, text) = mean over the pieces t of w of hidden[t],   hidden = encoder([CLS] text [SEP])
        v(w)       = mean over the occurrences of w in the fitted texts of v(w, text)

    The encoder reads the text unchanged. The tokenizer finds the words in it, and each word gets the mean of the pieces
    at its place. Pieces unknown to the encoder's tokenizer do not count, and a word that consists only of
    these has no vector. ``vector`` returns v(w) for words of the vocabulary, and v(w, w) for any other word.
    ``document`` is the mean over all tokens, special ones included, which sentence encoders are trained for. A text
    longer than the model reads is cut into windows that overlap by a quarter. Each token comes from the window in which
    it is further from the edge. The same seed and texts give the same vectors.

    Args:
        path: the folder of a checkpoint that ``headway.load`` reads as an encoder, such as BERT, MiniLM or RoBERTa,
            with its tokenizer.json or vocab.txt. ``encode``, ``vector`` and ``document`` then work before ``fit``. If
            None, ``fit`` trains an encoder on the texts.
        architecture: the name in ``headway.checkpoints.ARCHITECTURES`` to read the checkpoint as, if given.
        layer: the hidden state: 0 is the input of the first layer, i the output of layer i, −1 the last. In higher
            layers, the vectors of a word differ more from text to text (Ethayarajh 2019).
        occurrences: the largest number of occurrences of a word that are read, evenly spread. More of them make better
            static vectors (Bommasani et al. 2020).
        out: the folder in which training works, and continues after a stop; a temporary one if None.
        dim: the width of the encoder to train; this and the next eight options have no effect if ``path`` is given.
        num_layers: its number of layers.
        num_heads: its number of heads.
        vocab_size: its largest number of pieces.
        length: the number of tokens of a row of training.
        steps: the number of steps of training.
        batch: the number of rows of a step.
        learning_rate: the highest rate.
        seed: the seed of parameters, rows and hidden tokens.
        min_count: words that occur less often are left out.
        max_words: only this many words are kept, the most frequent; all of them if None.
        tokenizer: cuts a text into words; ``Words()`` if None.

    Raises:
        HeadwayError: if an option is out of range, the folder has no tokenizer, or the model is not an encoder of ids,
            such as GPT-2.

    References:
        Devlin et al. 2019; Bommasani et al. 2020 (static vectors); Reimers and Gurevych 2019 (documents).

    Example:
        vectors = Bert(path="all-MiniLM-L6-v2")
        vectors.vector_in("bank", "he sat on the bank of the river")   # float32 [dim], of this occurrence
        vectors.encode("the cat sat")                                  # float32 [3, dim], each word in this text
        vectors.fit(texts).most_similar("bank")                        # by v(w)
    """

    name = "bert"

    model: Encoder | None = None
    """The encoder, once it has been loaded or trained."""

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        architecture: str | None = None,
        layer: int = -1,
        occurrences: int = 100,
        out: str | Path | None = None,
        dim: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        vocab_size: int = 8000,
        length: int = 128,
        steps: int = 5000,
        batch: int = 8,
        learning_rate: float = 2e-3,
        seed: int = 0,
        min_count: int = 1,
        max_words: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(min_count=min_count, max_words=max_words, tokenizer=tokenizer)
        need_positive(occurrences=occurrences)
        self.path = None if path is None else str(path)
        self.out = None if out is None else str(out)
        self.architecture, self.layer, self.occurrences = architecture, layer, occurrences
        self._dim, self.num_layers, self.num_heads, self.vocab_size = dim, num_layers, num_heads, vocab_size
        self.length, self.steps, self.batch, self.learning_rate, self.seed = length, steps, batch, learning_rate, seed
        if path is not None:
            self._read_with(checkpoints.load(path, architecture=architecture, dtype=torch.float32), path)
            return
        if dim < 1 or dim % max(1, num_heads):
            raise HeadwayError(f"dim is {dim}: give a multiple of num_heads, which is {num_heads}")
        Settings(vocab_size, dim, num_layers, num_heads, length, steps, batch, learning_rate, seed)
        self._check_layer(num_layers)

    def _read_with(self, model: nn.Module, folder: str | Path) -> None:
        """Sets a model and the tokenizer of its folder or id; raises HeadwayError if they cannot be used."""
        if not isinstance(model, Encoder):
            raise HeadwayError(
                f"{folder} is a {type(model).__name__}, in which words do not see later words or which writes "
                "texts: give an encoder such as BERT, or architecture= for the encoder of a whole model"
            )
        self._check_layer(len(model.stack.layers))
        self._pieces = checkpoints.tokenizer(folder)
        self._before, self._behind = _frame(self._pieces)
        self._unknown = _unknown(self._pieces)
        tables = [module.table.shape[0] for module in model.modules() if isinstance(module, Learned)]
        self._longest = min(LONGEST, *tables)
        self.model = model
        try:
            self._dim = self._hidden([[*self._before, 0, *self._behind]]).shape[-1]
        except (HeadwayError, IndexError, RuntimeError) as error:
            self.model = None
            raise HeadwayError(f"{folder} does not read the ids of its tokenizer ({error}): give a BERT") from None

    def _check_layer(self, layers: int) -> None:
        if not -layers - 1 <= self.layer <= layers:
            raise HeadwayError(f"layer is {self.layer}: the model has {layers}, give {-layers - 1} … {layers}")

    # ---------------------------------------------------------------- from texts

    def fit(self, texts: Iterable[str], *, watch: Share | None = None) -> Self:
        """Finds the vocabulary of ``texts`` and the mean vector of each word in them.

        Without a path, an encoder is trained on the texts first. ``watch`` is called as by ``Vectors.fit``.

        Raises:
            HeadwayError: as ``Vectors.fit`` and ``train_bert`` do.
        """
        need_texts(texts)
        texts = list(texts)
        corpus = WordCorpus.of(texts, self.tokenizer, min_count=self.min_count, max_words=self.max_words)
        tell = watch or nobody
        if self.path is None:
            self._take(())
            self._train(texts, part_of(tell, 0.0, TRAINING))
            self._average(texts, corpus, part_of(tell, TRAINING, 1 - TRAINING))
        else:
            self._average(texts, corpus, tell)
        return self

    def _fit(self, corpus: WordCorpus, watch: Share) -> None:
        raise NotImplementedError("fit needs the texts themselves")

    def _train(self, texts: Sequence[str], watch: Share) -> None:
        with TemporaryDirectory() if self.out is None else nullcontext(self.out) as folder:
            out = Path(folder)
            model = train_bert(
                texts,
                out,
                vocab_size=self.vocab_size,
                embed_dim=self._dim,
                num_layers=self.num_layers,
                num_heads=self.num_heads,
                length=self.length,
                steps=self.steps,
                batch=self.batch,
                learning_rate=self.learning_rate,
                seed=self.seed,
                watch=watch,
            )
            self._read_with(model, out)

    def _average(self, texts: Sequence[str], corpus: WordCorpus, watch: Share) -> None:
        """Computes the vocabulary, and the mean vector of each word over the occurrences that are read."""
        index = {word: number for number, word in enumerate(corpus.words)}
        total, met = corpus.counts.tolist(), [0] * len(index)
        sums, read = torch.zeros(len(index), self.dim), torch.zeros(len(index))
        done, characters = 0, sum(map(len, texts)) or 1
        for chunk in _chunks(texts):
            asked = []
            for ids, words, pieces in self._aligned(chunk):
                links = []
                for word, its in zip(words, pieces, strict=True):
                    if (number := index.get(word)) is None:
                        continue
                    j, met[number] = met[number], met[number] + 1
                    if its and _evenly(j, total[number], self.occurrences):
                        links += [(number, len(self._before) + piece, 1 / len(its)) for piece in its]
                        read[number] += 1
                asked.append(_Asked(ids, links))
            size = sum(map(len, chunk))
            self._add(sums, asked, part_of(watch, done / characters, size / characters))
            done += size
        kept = read.nonzero()[:, 0]  # other words consist of pieces that the encoder does not know
        if not len(kept):
            raise HeadwayError(f"the encoder's tokenizer knows none of the {len(index):,} words: give another path")
        self._take([corpus.words[number] for number in kept.tolist()], corpus.counts[kept])
        self._set(sums[kept] / read[kept, None])
        watch(1.0)

    # ---------------------------------------------------------------- words and vectors

    def __contains__(self, word: object) -> bool:
        """Whether the word is in the vocabulary or has a piece that the encoder knows."""
        if not isinstance(word, str):
            return False
        return word in self.index or (self.model is not None and bool(self._known(word)))

    def vector(self, word: str) -> Tensor:
        """Returns the mean vector of a word over the fitted texts.

        A word outside the vocabulary is read by itself, without a sentence.

        Args:
            word: any word.

        Returns:
            float32 [dim].

        Raises:
            HeadwayError: if the encoder knows none of the word's pieces.
        """
        self._need_model()
        if word not in self:
            raise HeadwayError(f"the word {word!r} has no piece that the encoder's tokenizer knows: give another word")
        return self._vectors([word])[0]

    def vector_in(self, word: str, text: str, occurrence: int = 0) -> Tensor:
        """Returns the vector that a word has in a text.

        Args:
            word: a word as written in the text, or several in a row, whose pieces are averaged.
            text: the text.
            occurrence: the number of the occurrence of the word in the text, from 0 on.

        Returns:
            float32 [dim].

        Raises:
            HeadwayError: if the word does not occur that often, or the encoder knows none of its pieces.
        """
        self._need_model()
        wanted = self.tokenizer(word)
        [(ids, words, pieces)] = self._aligned([text])
        starts = [i for i in range(len(words)) if words[i : i + len(wanted)] == wanted] if wanted else []
        if not 0 <= occurrence < len(starts):
            times = f"{len(starts)} times" if starts else "nowhere"
            raise HeadwayError(
                f"the word {word!r} stands {times} among the {len(words)} words of the text, and occurrence "
                f"{occurrence} is wanted: give a word as written in the text"
            )
        its = [piece for of_word in pieces[starts[occurrence] :][: len(wanted)] for piece in of_word]
        if not its:
            raise HeadwayError(f"the word {word!r} has no piece that the encoder's tokenizer knows: give another word")
        sums = torch.zeros(1, self.dim)
        self._add(sums, [_Asked(ids, [(0, len(self._before) + piece, 1 / len(its)) for piece in its])])
        return sums[0]

    def encode(self, text: str) -> Tensor:
        """Returns the vector that each word of a text has there.

        Args:
            text: any text.

        Returns:
            float32 [words, dim]; zeros for words of unknown pieces.
        """
        self._need_model()
        [(ids, words, pieces)] = self._aligned([text])
        sums = torch.zeros(len(words), self.dim)
        links = [(n, len(self._before) + piece, 1 / len(its)) for n, its in enumerate(pieces) for piece in its]
        self._add(sums, [_Asked(ids, links)])
        return sums

    def document(self, text: str) -> Tensor:
        """Returns the mean of the hidden states of all tokens of a text, special ones included.

        Args:
            text: any text.

        Returns:
            float32 [dim]; zeros for a text without tokens.
        """
        self._need_model()
        ids = self._pieces.encode(text, add_special_tokens=False).ids
        sums = torch.zeros(1, self.dim)
        if ids:
            n = len(self._before) + len(ids) + len(self._behind)
            self._add(sums, [_Asked(ids, [(0, place, 1 / n) for place in range(n)])])
        return sums[0]

    def _remedy(self, word: str) -> str:
        return "and the encoder's tokenizer knows none of its pieces: give another word"

    def _vectors(self, tokens: Sequence[str]) -> Tensor:
        """Returns the vectors of words, [n, dim]: from the table, or else of each word by itself."""
        out = super()._vectors(tokens)
        asked = []
        for n, token in enumerate(tokens):
            if token not in self.index and (known := self._known(token)):
                ids, its = self._pieces.encode(token, add_special_tokens=False).ids, known
                asked.append(_Asked(ids, [(n, len(self._before) + piece, 1 / len(its)) for piece in its]))
        self._add(out, asked)
        return out

    def _known(self, word: str) -> list[int]:
        """Returns the ids of the known pieces of a word by itself."""
        ids = self._pieces.encode(word, add_special_tokens=False).ids
        return [number for number, piece in enumerate(ids) if piece != self._unknown]

    def _need_model(self) -> None:
        if self.model is None:
            raise HeadwayError("Bert has no encoder yet: call fit(texts) to train one, or give path=, a model's folder")

    # ---------------------------------------------------------------- reading

    def _aligned(self, texts: Sequence[str]) -> Iterator[tuple[list[int], list[str], list[list[int]]]]:
        """Yields, for each text, the ids of its pieces, its words, and the pieces of each word."""
        for text, encoding in zip(texts, self._pieces.encode_batch(list(texts), add_special_tokens=False), strict=True):
            words, spans = spans_of(text, self.tokenizer)
            pieces = [
                (number, start, stop)
                for number, (piece, (start, stop)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True))
                if piece != self._unknown and stop > start
            ]
            yield encoding.ids, words, _overlaps(spans, pieces)

    def _add(self, sums: Tensor, asked: Sequence[_Asked], watch: Share | None = None) -> None:
        """Adds weight·hidden[place] to sums[target] for every request, with windows of similar length together."""
        room = self._longest - len(self._before) - len(self._behind)
        windows = []
        for one in asked:
            for start, stop, first, end in _windows(len(one.ids), room, len(self._before)):
                links = [(to, at - start, weight) for to, at, weight in one.links if first <= at < end]
                if links:
                    windows.append(([*self._before, *one.ids[start:stop], *self._behind], links))
        windows.sort(key=lambda window: len(window[0]))
        done = 0
        while done < len(windows):
            count = 1
            while done + count < len(windows) and (count + 1) * len(windows[done + count][0]) <= BATCH:
                count += 1
            batch = windows[done : done + count]
            hidden = self._hidden([ids for ids, _ in batch])
            to, row, at, weight = zip(
                *((to, row, at, weight) for row, (_, links) in enumerate(batch) for to, at, weight in links),
                strict=True,
            )
            picked = hidden[torch.tensor(row), torch.tensor(at)]
            sums.index_add_(0, torch.tensor(to), picked * torch.tensor(weight)[:, None])
            done += count
            if watch is not None:
                watch(done / len(windows))

    @torch.no_grad()
    def _hidden(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Returns the hidden states of rows of ids, padded on the right, [rows, longest, dim]."""
        assert self.model is not None
        lengths = [len(row) for row in rows]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        mask = Padding(lengths) if min(lengths) < max(lengths) else None
        layers = len(self.model.stack.layers)
        layer = self.layer % (layers + 1)
        if layer == layers:
            return self.model.hidden(ids, mask=mask)
        states: list[Tensor] = []  # the input of each layer, even if layers share a module
        hooks = [
            block.register_forward_pre_hook(lambda module, args: states.append(args[0]))
            for block in self.model.stack.blocks
        ]
        try:
            self.model.hidden(ids, mask=mask)
        finally:
            for hook in hooks:
                hook.remove()
        return states[layer]

    # ---------------------------------------------------------------- in a folder

    def save(self, path: str | Path) -> None:
        """Writes a folder, which ``Bert.read`` and ``headway.vectors.load`` read.

        The folder holds the checkpoint with its tokenizer, which transformers reads too, the options, and the table
        of the vocabulary. A new folder appears when it is complete; in an existing one, files of the same names are
        replaced. A tokenizer that is neither Words nor SubWords is left out: pass it to ``read`` again.

        Args:
            path: the folder.

        Raises:
            HeadwayError: if there is no encoder yet, or the folder cannot be written.
        """
        self._need_model()
        # until all is written, an existing folder is a checkpoint without a table
        with atomic_folder(Path(path), last=(TABLE, OPTIONS)) as part:
            self._write(part)

    def _write(self, folder: Path) -> None:
        assert self.model is not None
        checkpoints.save(self.model, folder)
        write_text(folder / "tokenizer.json", self._pieces.to_str(pretty=True))
        if self.words:
            table = Pretrained.of(self.words, self.matrix, self.tokenizer)
            table.counts = self.counts
            table.save(folder / TABLE)
        options = {**self.options, "out": None}  # readers have no use for the folder in which it was trained
        about = {"options": options, "tokenizer": described(self.tokenizer)}
        write_text(folder / OPTIONS, json.dumps(about, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> Bert:
        """Reads a folder that ``save`` wrote, or any other checkpoint of an encoder, which is then not fitted.

        Args:
            folder: the folder.
            tokenizer: cuts a text into words; the saved one if None.

        Raises:
            HeadwayError: if the folder is not a checkpoint of an encoder, or its table is damaged.
        """
        if not (Path(folder) / OPTIONS).is_file():
            return cls(path=folder, tokenizer=tokenizer)
        folder = Path(folder)
        try:
            about = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
            options, described_as = about["options"], about["tokenizer"]
            if tokenizer is None and described_as is None:
                raise HeadwayError(f"{folder} was saved with a tokenizer of your own: give it again, tokenizer=")
            vectors = cls(**{**options, "path": folder}, tokenizer=tokenizer or tokenizer_from(described_as))
        except HeadwayError:
            raise
        except Exception as error:  # a modified file can raise anything
            raise HeadwayError(f"{folder / OPTIONS} cannot be read ({error}): save the vectors again") from error
        if (folder / TABLE).is_file():
            dim = vectors.dim
            with naming(folder / TABLE):
                table = _saved.read(folder / TABLE)
                vectors._take(table.words, table.counts)
                vectors._restore(table.tensors)
            if vectors.dim != dim:
                raise HeadwayError(
                    f"{folder / TABLE} has vectors of {vectors.dim} numbers and the encoder beside it makes {dim}: "
                    "save the vectors again"
                )
        return vectors


@dataclass(frozen=True)
class _Asked:
    """The pieces of a text, and the requests for them.

    Each link has the row of the sums, the place of the token after the special tokens at the start, and the weight.
    """

    ids: list[int]
    links: list[tuple[int, int, float]]


def spans_of(text: str, tokenizer: Tokenizer) -> tuple[list[str], list[tuple[int, int]]]:
    """Returns the words of a text and the characters start … stop − 1 of each.

    Raises HeadwayError if a word of a user's tokenizer does not occur in the text.
    """
    if isinstance(tokenizer, SubWords):
        encoding = tokenizer.tokenizer.encode(text, add_special_tokens=False)
        return encoding.tokens, encoding.offsets
    words = tokenizer(text)
    if isinstance(tokenizer, Words):
        return words, tokenizer.spans(text)
    for lower in (False, True):
        spans = _found(text.lower() if lower else text, words)
        if spans is not None:
            return words, _undone(text, spans) if lower else spans
    raise HeadwayError(f"the tokenizer {tokenizer!r} makes words that do not occur in the text: give Words()")


def _found(text: str, words: Sequence[str]) -> list[tuple[int, int]] | None:
    """Returns the positions of the words in a text, in order; None if one does not occur."""
    spans, at = [], 0
    for word in words:
        start = text.find(word, at)
        if start < 0:
            return None
        at = start + len(word)
        spans.append((start, at))
    return spans


def _undone(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Converts positions in text.lower() to positions in text, since letters such as İ become two characters."""
    sizes = [len(letter.lower()) for letter in text]
    if sum(sizes) == len(text):
        return spans
    origin = [place for place, size in enumerate(sizes) for _ in range(size)]
    return [(origin[start], origin[stop - 1] + 1) for start, stop in spans]


def _overlaps(spans: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Returns for each span the pieces (number, start, stop) that overlap it; both are in the order of the text."""
    out, first = [], 0
    for start, stop in spans:
        while first < len(pieces) and pieces[first][2] <= start:
            first += 1
        its, at = [], first
        while at < len(pieces) and pieces[at][1] < stop:
            its.append(pieces[at][0])
            at += 1
        out.append(its)
    return out


def _windows(count: int, room: int, before: int) -> list[tuple[int, int, int, int]]:
    """Returns windows start … stop − 1 of at most ``room`` pieces, and the places first … end − 1 used of each.

    Places include the special tokens ``before`` the pieces. The first window uses those, the last those after them.
    """
    if count <= room:
        return [(0, count, 0, count + before + room)]
    step = max(1, room - room // OVERLAP)
    starts = [*range(0, count - room, step), count - room]
    middles = [before + (one + other + room) // 2 for one, other in pairwise(starts)]
    firsts, ends = [0, *middles], [*middles, before + count + room]
    return [(start, start + room, first, end) for start, first, end in zip(starts, firsts, ends, strict=True)]


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts in chunks."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text) + 1
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _evenly(j: int, total: int, most: int) -> bool:
    """Returns whether the j-th of a total is among the ``most`` that are chosen at even distances."""
    return total <= most or (j + 1) * most // total > j * most // total


def _frame(pieces: Any) -> tuple[list[int], list[int]]:
    """Returns the special tokens that the tokenizer puts before and after a text."""
    encoding = pieces.encode("a")
    own = [number for number, special in enumerate(encoding.special_tokens_mask) if not special]
    if not own:
        return encoding.ids, []
    return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]


def _unknown(pieces: Any) -> int | None:
    """Returns the id of the token for unknown pieces, if there is one."""
    model = pieces.model
    if (token := getattr(model, "unk_token", None)) is not None:
        number: int | None = pieces.token_to_id(token)
        return number
    number = json.loads(pieces.to_str())["model"].get("unk_id") if type(model).__name__ == "Unigram" else None
    return number
