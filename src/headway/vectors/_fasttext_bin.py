"""The binary files of the fastText program, with the rows of words and of n-grams."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import HeadwayError
from ._formats import check_finite, show

MAGIC = struct.pack("<i", 793712314)
VERSION = 12
ARGUMENTS = struct.Struct("<12id")
"""dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t."""
SIZES = struct.Struct("<3i2q")
"""Entries, words, labels, tokens, and pruned n-grams or −1."""
ENTRY = struct.Struct("<qb")
"""What follows a word and a zero byte: its count, and 0 for a word, 1 for a label."""
SHAPE = struct.Struct("<?2q")
"""Whether a matrix is quantized, its rows and its columns."""
ARCHITECTURES = {1: "cbow", 2: "skip-gram"}
NEGATIVE_SAMPLING = 2
CLASSIFIER = 3


@dataclass(frozen=True)
class Model:
    """The words and n-grams of such a file.

    words     their bytes, since fastText hashes those: published files hold some that are not UTF-8
    counts    int64 [words]: how often each occurred
    own       float32 [words, dim]: the rows of the words themselves
    ngrams    float32 [rows, dim]: those of the n-grams
    buckets   int64 [rows], ascending: which each is of; the rows of the others are zeros
    bucket    how many there are
    options   window, epochs, min_count, architecture, negative, subsample, min_n and max_n, as FastText takes them
    """

    words: Sequence[bytes]
    counts: Tensor
    own: Tensor
    ngrams: Tensor
    buckets: Tensor
    bucket: int
    options: dict[str, Any]


def read(path: Path, limit: int | None) -> Model:
    """Compares every size that the file states with the size of the file before it takes memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        at = len(MAGIC)
        (version,), at = _unpack(struct.Struct("<i"), mapped, at)
        if not 11 <= version <= VERSION:
            raise HeadwayError(f"its version is {version}: give a file of fastText 0.1 … 0.9, version 11 or {VERSION}")
        (dim, window, epochs, least, negative, _, _, model, bucket, min_n, max_n, _, subsample), at = _unpack(
            ARGUMENTS, mapped, at
        )
        (entries, count, labels, _, pruned), at = _unpack(SIZES, mapped, at)
        if labels or model == CLASSIFIER:
            raise HeadwayError(f"it holds a classifier with {labels:,} labels: give a model of words, cbow or skipgram")
        if count < 1 or entries != count or dim < 1 or bucket < 0:
            raise HeadwayError(f"it states {count:,} words of {dim:,} numbers and {bucket:,} n-grams: it is damaged")
        words, counts, at = _words(mapped, at, count)
        if pruned > 0:
            raise HeadwayError(f"its n-grams are pruned to {pruned:,}, as in .ftz: give the .bin it was made from")
        (quantised, rows, columns), at = _unpack(SHAPE, mapped, at)
        if quantised:
            raise HeadwayError("its numbers are quantised, as in .ftz: give the .bin it was made from")
        if (rows, columns) != (count + bucket, dim):
            raise HeadwayError(
                f"its matrix is {rows:,} × {columns:,} for {count:,} words, {bucket:,} n-grams and {dim} numbers: "
                "it is damaged"
            )
        if 4 * rows * columns > len(mapped) - at:
            whole = max(len(mapped) - at, 0) // (4 * dim)
            raise HeadwayError(f"it ends within row {whole + 1:,} of {rows:,}: get the whole file")
    kept = min(count, limit or count)
    own = _matrix(path, at, kept, dim)
    ngrams = _matrix(path, at + 4 * dim * count, bucket, dim)
    check_finite(own.numpy(), lambda row: f"the row of word {row + 1:,}, {show(words[row])},")
    check_finite(ngrams.numpy(), lambda row: f"the row of n-gram {row:,}")
    options: dict[str, Any] = {"window": window, "epochs": epochs, "min_count": least, "negative": max(negative, 1)}
    options |= {"architecture": ARCHITECTURES.get(model, "skip-gram"), "subsample": subsample}
    options |= {"min_n": min_n, "max_n": max_n}
    if len(set(words[:kept])) < kept:
        raise HeadwayError("a word stands twice in it: it is damaged")
    return Model(words[:kept], torch.tensor(counts[:kept]), own, ngrams, torch.arange(bucket), bucket, options)


def _unpack(form: struct.Struct, mapped: mmap.mmap, at: int) -> tuple[tuple[int, ...], int]:
    if at + form.size > len(mapped):
        raise HeadwayError(f"it ends at byte {len(mapped):,}, before its numbers: get the whole file")
    return form.unpack_from(mapped, at), at + form.size


def _words(mapped: mmap.mmap, at: int, count: int) -> tuple[list[bytes], list[int], int]:
    words, counts = [], []
    for number in range(1, count + 1):
        end = mapped.find(b"\0", at)
        if end < 0 or end + 1 + ENTRY.size > len(mapped):
            raise HeadwayError(f"it ends within word {number:,} of {count:,}: get the whole file")
        many, kind = ENTRY.unpack_from(mapped, end + 1)
        if kind:
            raise HeadwayError(f"its word {number:,}, {show(mapped[at:end])}, is a label: it is damaged")
        words.append(mapped[at:end])
        counts.append(many)
        at = end + 1 + ENTRY.size
    return words, counts, at


def _matrix(path: Path, at: int, rows: int, columns: int) -> Tensor:
    import numpy as np

    floats = np.fromfile(path, dtype="<f4", count=rows * columns, offset=at)
    return torch.from_numpy(floats.astype(np.float32, copy=False).reshape(rows, columns))


def write(model: Model, stream: IO[bytes]) -> None:
    """Writes zeros for the table of the predicted words, which was not kept and which only further training needs."""
    count, dim = model.own.shape
    options = model.options
    architecture = next(number for number, name in ARCHITECTURES.items() if name == options["architecture"])
    bucket = model.bucket if options["max_n"] else 0
    stream.write(MAGIC + struct.pack("<i", VERSION))
    first = [options[name] for name in ("window", "epochs", "min_count", "negative")]
    ngrams = (bucket, options["min_n"], options["max_n"])
    stream.write(ARGUMENTS.pack(dim, *first, 1, NEGATIVE_SAMPLING, architecture, *ngrams, 100, options["subsample"]))
    counts = model.counts.tolist()
    stream.write(SIZES.pack(count, count, 0, sum(counts), -1))
    for word, many in zip(model.words, counts, strict=True):
        stream.write(word + b"\0" + ENTRY.pack(many, 0))
    stream.write(SHAPE.pack(False, count + bucket, dim))
    _floats(stream, model.own)
    for block in _all_buckets(model, bucket):
        _floats(stream, block)
    stream.write(SHAPE.pack(False, count, dim))
    for _ in range(count):
        stream.write(bytes(4 * dim))


AT_ONCE = 1 << 16


def _all_buckets(model: Model, bucket: int) -> Iterator[Tensor]:
    """Returns the rows of all buckets, zeros for those that are not stored."""
    for start in range(0, bucket, AT_ONCE):
        block = torch.zeros(min(AT_ONCE, bucket - start), model.own.shape[1])
        low, high = torch.searchsorted(model.buckets, torch.tensor([start, start + len(block)])).tolist()
        block[model.buckets[low:high] - start] = model.ngrams[low:high]
        yield block


def _floats(stream: IO[bytes], rows: Tensor) -> None:
    stream.write(rows.numpy().astype("<f4", copy=False).tobytes())
