"""Reads the texts of users: in UTF-8, or in another encoding that a byte-order mark names."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from ..errors import HeadwayError

MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""The byte-order marks that a text may begin with, and the encodings that they name."""

COMPRESSED = {
    b"\x1f\x8b": ".gz",
    **{b"BZh%d" % size + block: ".bz2" for size in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")},
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
}
"""How compressed files begin, and how their names end. In bzip2 a block follows, or the end of an empty file."""


def mark_of(start: bytes) -> tuple[str, bytes]:
    """Returns the encoding of a text by its first four bytes, and its byte-order mark, by default UTF-8 and none."""
    return next(((encoding, mark) for mark, encoding in MARKS.items() if start.startswith(mark)), ("utf-8", b""))


def packed_as(start: bytes) -> str | None:
    """Returns how the name of a compressed file ends, by its first ten bytes; None if it is not compressed."""
    return next((ending for magic, ending in COMPRESSED.items() if start.startswith(magic)), None)


def ending_of(path: Path) -> str:
    """Returns how a file's name ends, in lower case and without that of a compressed file: .vec of a.VEC.gz."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED.values() else suffix


def decoded(content: bytes, called: str, kind: str = "text", *, zeros: bool = False) -> str:
    """Returns the text of bytes, without a byte-order mark.

    Args:
        content: the bytes.
        called: their name in messages, such as the path of the file.
        kind: the kind of text that is wanted, such as "GAP".
        zeros: whether it may have the character U+0000, as a vocabulary has. Else it is refused, since text in UTF-16
            without a mark is full of it.

    Raises:
        HeadwayError: if it is compressed, or no text in UTF-8 or the encoding that its mark names.
    """
    encoding, mark = mark_of(content)
    if (packed := packed_as(content)) is not None:
        raise HeadwayError(f"{called} cannot be read (it is compressed, as {packed}): unpack it")
    try:
        text = content[len(mark) :].decode(encoding)
        wrong = content.find(b"\0") if encoding == "utf-8" and not zeros else -1
    except UnicodeDecodeError as error:
        wrong = len(mark) + error.start
    if wrong >= 0:
        line = content.count(b"\n", 0, wrong) + 1
        raise HeadwayError(
            f"{called} cannot be read (line {line}: byte {wrong:,} is 0x{content[wrong]:02x}, which "
            f"{encoding.upper()} text does not have there): give a {kind} file in UTF-8"
        )
    return text


def read_text(path: Path, called: str | None = None, kind: str = "text", *, zeros: bool = False) -> str:
    """Returns the text of a file, with the ends of its lines as they are.

    Args:
        path: the file.
        called: its name in messages; None for its path.
        kind: the kind of text that is wanted, such as "GAP".
        zeros: as for ``decoded``.

    Raises:
        HeadwayError: if it cannot be read, or as ``decoded`` does.
    """
    called = str(path) if called is None else called
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError for a name with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise HeadwayError(f"{called} cannot be read ({reason}): give a {kind} file") from error
    return decoded(content, called, kind, zeros=zeros)


def lines_of(path: Path, kind: str = "text") -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file with their numbers, from 1 on, without their ends.

    Raises:
        HeadwayError: as ``read_text`` does.
    """
    lines = read_text(path, kind=kind).split("\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
        yield number, line.removesuffix("\r")
