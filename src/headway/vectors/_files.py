"""Files of vectors: headway's own, which hold a method with its options, and the formats of other programs."""

from __future__ import annotations

import codecs
import gzip
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from torch import Tensor

from .._common.files import atomic_write
from .._common.text_files import ending_of, mark_of, packed_as
from ..checkpoints._hub import hub_model
from ..errors import HeadwayError
from . import _fasttext_bin, _formats, _saved
from ._base import Vectors
from ._formats import naming
from ._pretrained import Pretrained, tokenizer_of
from ._table import VECTORS
from ._text import Tokenizer, tokenizer_from
from .bert import Bert
from .fasttext import FastText

PACKERS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}
"""The modules that read and write compressed files, by how their names end. Python may be built without some."""
START = 2**16
"""The number of first bytes by which a format is recognized."""


@dataclass(frozen=True)
class Format:
    """A format of other programs that ``write`` writes; files with this ``ending`` can hold no other format."""

    holds: str
    write: Callable[[Vectors, IO[bytes]], None]
    ending: str | None = None


def _write_text(vectors: Vectors, stream: IO[bytes], *, header: bool) -> None:
    _formats.write_text(_plain(vectors), stream, header)


def _write_binary(vectors: Vectors, stream: IO[bytes]) -> None:
    _formats.write_binary(_plain(vectors), stream)


def _plain(vectors: Vectors) -> _formats.WordRows:
    return _formats.WordRows(vectors.words, vectors.dim, vectors.rows)


def _write_fasttext(vectors: Vectors, stream: IO[bytes]) -> None:
    if not isinstance(vectors, FastText):
        raise HeadwayError(f"{vectors.name} has no sub-words, which fastText's .bin holds: write 'word2vec-binary'")
    _fasttext_bin.write(vectors._as_model(), stream)


FORMATS: dict[str, Format] = {
    "word2vec": Format("text behind a line of sizes", partial(_write_text, header=True), ".vec"),
    "word2vec-binary": Format("float32 behind a line of sizes", _write_binary),
    "glove": Format("text without a line of sizes", partial(_write_text, header=False)),
    "fasttext": Format("fastText's .bin, words and sub-words", _write_fasttext),
}
"""The formats by name. ``write`` needs the name, since .txt and .bin each stand for two of them."""


# ---------------------------------------------------------------- read


def load(
    path: str | Path, *, tokenizer: Tokenizer | None = None, limit: int | None = None, encoding: str = "utf-8"
) -> Vectors:
    """Reads vectors from a file of any known format, which it recognises by the content.

        load("vectors.safetensors")                      # written by save() → the method that it was
        load("GoogleNews-vectors-negative300.bin.gz")    # word2vec binary → Pretrained
        load("glove.6B.300d.txt", limit=100_000)         # GloVe text, word2vec text, .vec → Pretrained
        load("cc.en.300.bin")                            # fastText → FastText, with its n-grams
        load("folder")                                   # a BERT that save() wrote → Bert
        load("sentence-transformers/all-MiniLM-L6-v2")   # an encoder on the Hugging Face hub → Bert

    Text and word2vec's binary may be compressed (.gz, .bz2, .xz), and text may begin with a byte-order mark. If a word
    occurs twice, as in some published files, the first row is kept, which belongs to the more frequent one. A word may
    have spaces, such as "1 000" in some files of GloVe: if a row has one number too many and only that number is a
    whole one, it belongs to the word. Bytes that are not in the encoding, in at most one word of a hundred, are read as
    escapes such as \\xe4.

    Args:
        path: the file; the folder of a BERT; or its id on the Hugging Face hub, as for ``headway.load``.
        tokenizer: cuts a text into tokens; if None the saved one, or for other formats ``Words``, in lower case unless
            more than one word in ten has a capital.
        limit: the number of words to read, from the first on; all if None. Not for headway's own files.
        encoding: the encoding of the words in word2vec's and GloVe's formats, unless the file begins with a byte-order
            mark, which says it.

    Raises:
        HeadwayError: if the file is cut short, is empty, or has vectors of different widths, values that are not
            finite numbers, or other sizes than it states; if it is a pickle, which would run code, or a classifier or
            quantised model (.ftz) of fastText. The message names the file and the line or word.
    """
    given, path = path, Path(path)
    if limit is not None and limit < 1:
        raise HeadwayError(f"limit is {limit}: give at least 1")
    try:
        "".encode(encoding)
    except LookupError:
        raise HeadwayError(f"encoding is {encoding!r}, which Python does not know: give such as 'utf-8'") from None
    if os.path.isdir(path) or hub_model(given):
        _no_limit(path, limit)
        return Bert.read(given, tokenizer=tokenizer)
    if not os.path.isfile(path):
        raise HeadwayError(f"there is no file {path}: give one with vectors")
    with naming(path):
        return _load(path, tokenizer, limit, encoding)


def _load(path: Path, tokenizer: Tokenizer | None, limit: int | None, encoding: str) -> Vectors:
    with _opened(path) as (stream, compressed):
        start = stream.read(START)
        if not start:
            raise HeadwayError("it is empty: give a file with vectors")
        safetensors = start[4:9] == bytes(4) + b"{"  # its first bytes, the length of the header, may be a pickle's
        if not safetensors and start[0] == 0x80 and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
            raise HeadwayError(
                "it is a pickle, such as gensim's .model and .kv, and runs code when it is read: load it with gensim "
                "and write it with save_word2vec_format(path, binary=True), or save_facebook_model for fastText"
            )
        if (packed := packed_as(start)) is not None:
            raise HeadwayError(f"it is compressed, as {packed}: unpack it and give the file with the vectors")
        ours = path.suffix.lower() == ".safetensors" or safetensors
        if compressed and (ours or start.startswith(_fasttext_bin.MAGIC)):
            raise HeadwayError("it is compressed, which only word2vec's and GloVe's formats may be: unpack it")
        if ours:
            _no_limit(path, limit)
            return _read_ours(path, tokenizer)
        if start.startswith(_fasttext_bin.MAGIC):
            if encoding != "utf-8":
                raise HeadwayError("encoding is for other formats: fastText's sub-words are bytes of UTF-8")
            vectors = FastText._of_model(_fasttext_bin.read(path, limit))
            vectors.tokenizer = tokenizer or tokenizer_of(vectors.words)
            return vectors
        words, matrix = _read(*_behind_mark(stream, start, encoding), limit)
    return Pretrained.of(words, matrix, tokenizer)


def _behind_mark(stream: IO[bytes], start: bytes, encoding: str) -> tuple[IO[bytes], bytes, str]:
    """Returns a stream without its byte-order mark, how it begins, and its encoding, one with the bytes of ASCII."""
    named, mark = mark_of(start)
    encoding = named if mark else encoding
    stream.seek(len(mark))
    if not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return stream, start[len(mark) :], encoding
    start = codecs.EncodedFile(stream, "utf-8", encoding).read(START)
    stream.seek(len(mark))
    return cast("IO[bytes]", codecs.EncodedFile(stream, "utf-8", encoding)), start, "utf-8"


def _read(stream: IO[bytes], start: bytes, encoding: str, limit: int | None) -> tuple[list[str], Tensor]:
    """Reads word2vec's formats and GloVe's, which the first bytes distinguish."""
    first, _, behind = start.partition(b"\n")
    header = _formats.header_of(first)
    if header and not _formats.is_text(behind, header[1]):
        return _formats.read_binary(stream, limit, encoding)
    if not header and b"\0" in start:
        raise HeadwayError(
            "it has no known format; these are headway's safetensors, word2vec's text and binary, "
            "GloVe's text and fastText's .bin (since 2017)"
        )
    return _formats.read_text(stream, header is not None, limit, encoding)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """Returns the file's bytes, decompressed, and whether they were compressed."""
    with path.open("rb") as file:
        module = PACKERS.get(packed_as(file.read(10)) or "")
        file.seek(0)
        if module is None:
            yield file, False
            return
        packer = _packer(module)
        try:
            with packer.open(file) as stream:
                yield stream, True
        except getattr(packer, "LZMAError", EOFError) as error:
            raise EOFError(f"{error}") from error


def _packer(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise HeadwayError(f"it is compressed, and this Python has no {module}: unpack it") from error


def _no_limit(path: Path, limit: int | None) -> None:
    if limit is not None:
        raise HeadwayError(f"{path} holds a whole method: leave limit out, which is for others' formats")


def _read_ours(path: Path, tokenizer: Tokenizer | None) -> Vectors:
    """Returns the method that one of headway's own files holds."""
    saved = _saved.read(path)
    methods: dict[str, type[Vectors]] = {**VECTORS, Pretrained.name: Pretrained}
    if saved.method not in methods:
        raise HeadwayError(f"its method is {saved.method!r}, headway has {', '.join(methods)}: get a later headway")
    if tokenizer is None and saved.tokenizer is None:
        raise HeadwayError("it was saved with a tokenizer of your own: give it again, load(path, tokenizer=…)")
    try:
        vectors = methods[saved.method](**saved.options, tokenizer=tokenizer or tokenizer_from(saved.tokenizer or ""))
    except HeadwayError:
        raise
    except Exception as error:  # a modified file can raise anything
        raise _saved.unreadable(error) from error
    vectors._take(saved.words, saved.counts)
    vectors._restore(saved.tensors)
    return vectors


# ---------------------------------------------------------------- write


def write(vectors: Vectors, path: str | Path, format: str | None = None) -> None:
    """Writes vectors in a format that other programs read; ``save`` writes headway's own.

        write(vectors, "vectors.vec")                            # word2vec's and fastText's text
        write(vectors, "vectors.bin", format="word2vec-binary")
        write(vectors, "glove.txt.gz", format="glove")           # compressed
        write(vectors, "vectors.bin", format="fasttext")         # FastText with its n-grams

    If writing fails, an existing file stays as it was. Numbers are read back exactly. In fastText's file, the table of
    predicted words is zeros; only further training needs it.

    Args:
        vectors: the vectors.
        path: the file.
        format: "word2vec", "word2vec-binary", "glove" or "fasttext"; if None, the ending decides, which only .vec
            allows.

    Raises:
        HeadwayError: if the format is unknown or the ending allows several, a word does not fit the format (such as one
            with a space), or the format needs n-grams and the method has none.
    """
    path = Path(path)
    vectors._need_fitted()
    chosen = FORMATS[_format(path, format)]
    with atomic_write(path) as part, part.open("wb") as file:
        module = PACKERS.get(path.suffix.lower())
        if module is None:
            chosen.write(vectors, file)
        elif module == "gzip":  # without the time, so that the same vectors are the same file
            with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as compressed:
                chosen.write(vectors, cast("IO[bytes]", compressed))
        else:
            with _packer(module).open(file, "wb") as compressed:
                chosen.write(vectors, compressed)


def _format(path: Path, format: str | None) -> str:
    if format in FORMATS:
        return format
    if format is None:
        for name, of in FORMATS.items():
            if of.ending == ending_of(path):
                return name
    wrong = f"{path.name} does not say which format is meant" if format is None else f"format is {format!r}"
    names = ", ".join(f"{name!r} ({of.holds})" for name, of in FORMATS.items())
    raise HeadwayError(f"{wrong}: give format=, one of {names}; safetensors is what vectors.save(path) writes")
