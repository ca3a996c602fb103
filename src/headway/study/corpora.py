"""The text of a comparison, as bytes: a file, or the manual that comes with Python; and its held-out part."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import HeadwayError

DEFAULT_NAME = "pydoc_data.topics"
HELD_OUT = 10
"""One part in so many is held out: the last, in one piece."""


@dataclass(frozen=True)
class Corpus:
    """A text as bytes.

    Attributes:
        name: the path of the file, or the name of the default text.
        sha256: the hash of all bytes.
        train: the training part, uint8 [bytes].
        validation: the held-out part behind it, uint8 [bytes].
    """

    name: str
    sha256: str
    train: Tensor
    validation: Tensor


def load(path: str | Path | None, *, train_length: int, longest: int) -> Corpus:
    """Reads a file of UTF-8 text, or the default text.

    Args:
        path: the file; the topics of Python's help() if None.
        train_length: bytes in a training window.
        longest: bytes in the longest window to measure.

    Returns:
        The text; its last tenth is held out.

    Raises:
        HeadwayError: if the file is missing, empty or not text, or too short for two training windows, or its held-out
            part for the longest window with half a window before it.
    """
    name, content = (DEFAULT_NAME, _topics()) if path is None else (str(path), read(Path(path)))
    held_out = len(content) // HELD_OUT
    needed = max(HELD_OUT * (longest + longest // 2 + 1), 2 * (train_length + 1))
    if len(content) < needed:
        raise HeadwayError(
            f"corpus {name} has {len(content):,} bytes, too short for a length of {longest:,}: "
            f"give at least {needed:,} bytes, or shorter lengths"
        )
    everything = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return Corpus(name, hashlib.sha256(content).hexdigest(), everything[:-held_out], everything[-held_out:])


def _topics() -> bytes:
    """The topics of Python's help() in alphabetical order: about 460 kB of English on one subject."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def read(path: Path) -> bytes:
    """Reads the bytes of a file of UTF-8 text.

    Args:
        path: the file.

    Raises:
        HeadwayError: if the file is missing, empty or not text.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise HeadwayError(f"corpus {path} does not exist: give a text file") from None
    except OSError as error:
        raise HeadwayError(f"corpus {path} cannot be read ({error.strerror}): give a text file") from None
    if not content:
        raise HeadwayError(f"corpus {path} is empty: give a file with text in it")
    wrong = content.find(b"\0")
    if wrong < 0:
        try:
            content.decode()
        except UnicodeDecodeError as error:
            wrong = error.start
    if wrong >= 0:
        raise HeadwayError(
            f"corpus {path} is not text: byte {wrong:,} is 0x{content[wrong]:02x}, which UTF-8 text does not "
            "have there; give a file of UTF-8 text"
        )
    return content
