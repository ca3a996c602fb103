"""File formats of word vectors: word2vec's text and binary, and GloVe's text."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import HeadwayError

if TYPE_CHECKING:
    import numpy as np

BLOCK = 2**23
"""The bytes read at once."""
MOST_NUMBERS = 2**20
LONGEST_LINE = 2**25
"""The most bytes of a line, which is a word and at most MOST_NUMBERS numbers."""
"""The most numbers in a vector; a header with more is refused as damaged."""

# readers return plain data, and their errors name the line or byte; callers add the name of the file by ``naming``


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of the file to errors."""
    try:
        yield
    except HeadwayError as error:
        raise HeadwayError(f"{path}: {error}") from error.__cause__
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise HeadwayError(f"{path} cannot be read ({error}): get the whole file") from error


class WordRows(NamedTuple):
    """Words, the numbers in a vector, and the vectors of words by their ids, int64 [n] → float32 [n, dim]."""

    words: Sequence[str]
    dim: int
    rows: Callable[[Tensor], Tensor]


def header_of(line: bytes) -> tuple[int, int] | None:
    """The number of words and of numbers each, if the line holds only these two."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def is_text(start: bytes, dim: int) -> bool:
    """Whether the bytes after a header are text and not floats as in memory."""
    fields = start.partition(b"\n")[0].split()
    if len(fields) > dim and _number(fields[-1]) is not None:
        return True
    try:
        start[:-4].decode()  # the last character may be incomplete
    except UnicodeDecodeError:
        return False
    return not _CONTROL.search(start)


_UNFIT = re.compile("[ \n\ud800-\udfff]")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")


# ---------------------------------------------------------------- text


def read_text(stream: IO[bytes], header: bool, limit: int | None, encoding: str) -> tuple[list[str], Tensor]:
    """Reads lines of a word and its numbers, after the header if there is one."""
    line = 1
    count, dim = _believed(header_of(stream.readline())) if header else (None, None)
    line += header
    words_read: list[bytes] = []
    places: list[int] = []
    rows: _GrowingMatrix | None = None
    blocks = _lines_of(stream)
    while (limit is None or len(words_read) < limit) and (block := next(blocks, [])):
        lines = [(place, text.rstrip()) for place, text in enumerate(block, line) if not text.isspace()]
        line += len(block)
        lines = lines[: None if limit is None else limit - len(words_read)]
        if count is not None and len(words_read) + len(lines) > count:
            place = lines[count - len(words_read)][0]
            raise HeadwayError(f"line {place}: the header promises {count:,} words and here is one more: correct it")
        if not lines:
            continue
        if dim is None:
            dim = _first(*lines[0])
        rows = rows or _GrowingMatrix(dim)
        words, numbers = _parse(lines, dim)
        rows.add(numbers, _row_of_line(lines, words))
        words_read += words
        places += [place for place, _ in lines]
    if count is not None and len(words_read) < min(count, limit or count):
        raise HeadwayError(f"the header promises {count:,} words and {len(words_read):,} are there: get the whole file")
    if rows is None:
        raise HeadwayError("no words are in it: give a file with vectors")
    return _together(words_read, rows, encoding, lambda number: f"line {places[number]}")


def _lines_of(stream: IO[bytes]) -> Iterator[list[bytes]]:
    """Yields lines in blocks; raises HeadwayError if no line ends, as in 10⁹ bytes that were compressed to few."""
    rest = b""
    while block := stream.read(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise HeadwayError(f"a line has more than {LONGEST_LINE:,} bytes: give a file of words and their vectors")
        if lines:
            yield [line + b"\n" for line in lines]
    if rest:
        yield [rest]


def _row_of_line(lines: Sequence[tuple[int, bytes]], words: Sequence[bytes]) -> Callable[[int], str]:
    return lambda row: f"line {lines[row][0]}: the vector of {show(words[row])}"


def _row_of_word(words: Sequence[bytes], first: int) -> Callable[[int], str]:
    return lambda row: f"word {first + row + 1}: the vector of {show(words[first + row])}"


def _first(place: int, line: bytes) -> int:
    """Returns how many numbers the first line has, whose word may be a space."""
    fields = line.split()
    dim = len(fields) - (_space_of(line) is None or _number(fields[0]) is None)
    if not dim:
        raise HeadwayError(f"line {place}: {show(line)} has no numbers: give a file of words and their vectors")
    return dim


def _parse(lines: Sequence[tuple[int, bytes]], dim: int) -> tuple[list[bytes], np.ndarray]:
    """Returns the words of some lines, and their numbers, [lines, dim]."""
    import numpy as np

    parts = [line.partition(b" ") for _, line in lines]
    if all(word and numbers.count(b" ") == dim - 1 for word, _, numbers in parts):
        try:
            with warnings.catch_warnings():  # older versions of numpy only warn if they leave a part unread
                warnings.simplefilter("error", DeprecationWarning)
                floats = np.fromstring(b" ".join(numbers for _, _, numbers in parts), dtype=np.float32, sep=" ")
        except (ValueError, DeprecationWarning):  # a field is not a number
            floats = np.empty(0, dtype=np.float32)
        if floats.size == len(lines) * dim:
            return [word for word, _, _ in parts], floats.reshape(-1, dim)
    slowly = [_fields(place, line, dim) for place, line in lines]
    return [word for word, _ in slowly], np.array([numbers for _, numbers in slowly], dtype=np.float32)


def _fields(place: int, line: bytes, dim: int) -> tuple[bytes, list[float]]:
    """Splits one line, which may have tabs, and spaces within the word, as some files of GloVe do."""
    fields = line.split()
    if (space := _space_of(line)) is not None and _number(fields[0]) is not None:
        if not space:
            raise HeadwayError(f"line {place}: no word stands before the {len(fields)} numbers: give it")
        fields.insert(0, space)
    more = len(fields) - 1 - dim
    numbers = [_number(field) for field in fields[more + 1 :]]
    if more < 0 or (more > 0 and _number(fields[more]) is not None and not _in_word(fields, more)):
        raise HeadwayError(
            f"line {place}: the vector of {show(fields[0])} has length {len(fields) - 1} instead of {dim}: "
            "give vectors of one length"
        )
    if None in numbers:
        wrong = fields[more + 1 + numbers.index(None)]
        raise HeadwayError(f"line {place}: {show(wrong)} is not a number: give a file of words and their vectors")
    return b" ".join(fields[: more + 1]), numbers  # type: ignore[return-value]


def _space_of(line: bytes) -> bytes | None:
    """The white space that is the word of a line which begins so; empty if it only separates."""
    start = line[: len(line) - len(line.lstrip())]
    return start[:-1] if start else None


def _in_word(fields: Sequence[bytes], more: int) -> bool:
    """Whether a number after a word's first part belongs to the word: 000 of "1 000", 10 of "windows 10", not 0.25."""
    return fields[more].isdigit() and not any(number.isdigit() for number in fields[more + 1 :])


def _number(field: bytes) -> float | None:
    try:
        return None if b"_" in field else float(field)
    except ValueError:
        return None


def write_text(vectors: WordRows, stream: IO[bytes], header: bool) -> None:
    """Nine digits a number, which give back the same float32."""
    if header:
        stream.write(f"{len(vectors.words)} {vectors.dim}\n".encode())
    line = "%s" + " %.9g" * vectors.dim + "\n"
    for words, rows in _blocks(vectors):
        stream.write(
            "".join([line % (word, *row) for word, row in zip(words, rows.tolist(), strict=True)]).encode("utf-8")
        )


# ---------------------------------------------------------------- binary


def read_binary(stream: IO[bytes], limit: int | None, encoding: str) -> tuple[list[str], Tensor]:
    """A header, and then each word, a space and its numbers as float32, the lowest byte first."""
    import numpy as np

    count, dim = _believed(header_of(stream.readline()))
    wanted = min(count, limit or count)
    words: list[bytes] = []
    rows, held, at = _GrowingMatrix(dim), b"", 0
    while len(words) < wanted:
        block = stream.read(BLOCK)
        held, at = held[at:] + block, 0
        if len(held) > LONGEST_LINE + BLOCK:
            raise HeadwayError(f"a word has more than {LONGEST_LINE:,} bytes: give a file of words and their vectors")
        first, pieces = len(words), []
        while len(words) < wanted:
            space = held.find(b" ", at)
            if not held[at:space].strip(b"\n") and held[space + 1 : space + 2] == b" ":
                space += 1  # the word is a space
            end = space + 1 + 4 * dim
            if space < 0 or end > len(held):
                break
            words.append(held[at:space].lstrip(b"\n"))  # the C program ends each vector with a newline
            pieces.append(held[space + 1 : end])
            at = end
        numbers = np.frombuffer(b"".join(pieces), dtype="<f4").reshape(-1, dim)
        rows.add(numbers, _row_of_word(words, first))
        if not block and len(words) < wanted:
            word = held[at:].lstrip(b"\n").partition(b" ")[0]
            within = f" and ends within that of {show(word)}" if word else ""
            raise HeadwayError(
                f"the header promises {count:,} words, the file holds {len(words):,}{within}: get the whole file"
            )
    if wanted == count and (held[at:] + stream.read(BLOCK)).strip():
        raise HeadwayError(f"the header promises {count:,} words of {dim} numbers and more follows them: correct it")
    return _together(words, rows, encoding, lambda number: f"word {number + 1}")


def write_binary(vectors: WordRows, stream: IO[bytes]) -> None:
    stream.write(f"{len(vectors.words)} {vectors.dim}\n".encode())
    for words, rows in _blocks(vectors):
        numbers = rows.numpy().astype("<f4")
        stream.write(
            b"".join(b"%s %s\n" % (word.encode(), row.tobytes()) for word, row in zip(words, numbers, strict=True))
        )


# ---------------------------------------------------------------- shared


class _GrowingMatrix:
    """A matrix that grows with the rows read, whatever the header says."""

    def __init__(self, dim: int) -> None:
        import numpy as np

        self.held, self.count = np.empty((0, dim), dtype=np.float32), 0

    def add(self, block: np.ndarray, whose: Callable[[int], str]) -> None:
        check_finite(block, whose)
        after = self.count + len(block)
        if after > len(self.held):
            self.held.resize((max(after, len(self.held) * 5 // 4), block.shape[1]), refcheck=False)
        self.held[self.count : after] = block
        self.count = after

    def matrix(self) -> Tensor:
        self.held.resize((self.count, self.held.shape[1]), refcheck=False)
        return torch.from_numpy(self.held)


def check_finite(block: np.ndarray, whose: Callable[[int], str]) -> None:
    """Raises HeadwayError if a number is not finite. ``whose`` names the row."""
    import numpy as np

    if not np.isfinite(block).all():
        row = int(np.isfinite(block).all(1).argmin())
        raise HeadwayError(f"{whose(row)} holds nan or infinity: leave it out")


def _believed(header: tuple[int, int] | None) -> tuple[int, int]:
    """Raises HeadwayError for a header with impossible sizes."""
    if header is None:
        raise HeadwayError(
            "line 1 does not say how many words there are and how many numbers each: give the whole file"
        )
    count, dim = header
    if count < 1 or not 1 <= dim <= MOST_NUMBERS:
        raise HeadwayError(f"the header promises {count:,} words of {dim:,} numbers: give at least one of each")
    return count, dim


def _together(
    encoded: list[bytes], rows: _GrowingMatrix, encoding: str, place: Callable[[int], str]
) -> tuple[list[str], Tensor]:
    """Returns words and vectors; of a word that occurs twice, the first, more frequent one, as gensim does."""
    words, matrix = _decoded(encoded, encoding, place), rows.matrix()
    if len(set(words)) < len(words):
        index: dict[str, int] = {}
        for number, word in enumerate(words):
            index.setdefault(word, number)
        words, matrix = list(index), matrix[list(index.values())]
    return words, matrix


def _decoded(encoded: Sequence[bytes], encoding: str, place: Callable[[int], str]) -> list[str]:
    r"""Decodes the words from UTF-8.

    The word2vec program truncates long words, even within a character, and published files have a few other invalid
    bytes; such bytes become \xe4. If more than one word in a hundred has them, not counting truncated ones, the file is
    in another encoding, and HeadwayError is raised.
    """
    words = []
    broken: list[int] = []
    for number, word in enumerate(encoded):
        try:
            words.append(word.decode(encoding))
        except UnicodeDecodeError as error:
            words.append(word.decode(encoding, errors="backslashreplace"))
            if not (error.end == len(word) and error.reason == "unexpected end of data"):
                broken.append(number)
    if len(broken) > len(encoded) // 100:
        first = broken[0]
        raise HeadwayError(
            f"{place(first)}: {show(encoded[first])} is not {encoding}: give encoding=, such as 'latin-1' or 'gbk'"
        )
    return words


def _blocks(vectors: WordRows) -> Iterator[tuple[Sequence[str], Tensor]]:
    """Returns the words and their vectors in blocks.

    Raises HeadwayError, before the first block, for a word that these formats cannot hold.
    """
    for word in vectors.words:
        if not word or _UNFIT.search(word):
            raise HeadwayError(
                f"the word {word!r} is empty, is not UTF-8 or holds a space or a line's end, which end a word in "
                "this format: save(path) keeps it"
            )
    for ids in torch.arange(len(vectors.words)).split(1024):
        yield [vectors.words[i] for i in ids.tolist()], vectors.rows(ids).float().cpu()


def show(word: bytes) -> str:
    """The start of a word as an error shows it, on one line."""
    return repr(word[:60].decode("utf-8", errors="backslashreplace")).replace(r"\\x", r"\x")
