"""The text of a comparison, a file or the manual that comes with Python, and the parts that it is divided into."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from .._common.text_files import read_text
from ..errors import HeadwayError
from .tokenization import BYTES, Split, Tokens

DEFAULT_NAME = "pydoc_data.topics"
HELD_OUT = 10
"""One part in so many is held out: the last, in one piece."""
VALIDATION = 20
"""One part in so many is for choices such as that of the learning rate: the piece before the held-out part."""


@dataclass(frozen=True)
class Corpus:
    """A text as tokens: the training part, after it the validation part for choices, and the held-out part.

    ``name`` is the path of the file, or the name of the default text; ``sha256`` is the hash of all bytes.
    """

    name: str
    sha256: str
    tokens: Tokens
    train: Split
    validation: Split
    held_out: Split


def load(path: str | Path | None, *, train_length: int, longest: int, tokenizer: str = BYTES) -> Corpus:
    """Reads a file of UTF-8 text, or the topics of Python's help(), and divides it between characters.

    The last tenth is held out, and the twentieth before it is for choices. ``tokenizer`` is as for ``Tokens.named``.

    Raises:
        HeadwayError: if the file is missing, empty or not text, or too short for two training windows and one of
            validation, or its held-out part for the longest window with half a window before it; and as ``Tokens``
            does.
    """
    name, content = (DEFAULT_NAME, _topics()) if path is None else (str(path), read(Path(path)))
    held_out = _between(content, len(content) - len(content) // HELD_OUT)
    validation = _between(content, held_out - len(content) // VALIDATION)
    tokens = Tokens.named(tokenizer, content[:validation])
    parts = content[:validation], content[validation:held_out], content[held_out:]
    train, chosen_by, measured = map(tokens.encode, parts)
    room, chosen = longest + longest // 2 + 1, train_length + 1
    if len(measured) < room or len(chosen_by) < chosen or len(train) < 2 * chosen:
        each = len(content) / max(1, len(train) + len(chosen_by) + len(measured))
        needed = max(len(content) + 1, math.ceil(each * max(HELD_OUT * room, VALIDATION * chosen)))
        raise HeadwayError(
            f"corpus {name} has {len(content):,} bytes, too short for a length of {longest:,}: "
            f"give at least {needed:,} bytes, or shorter lengths"
        )
    return Corpus(name, hashlib.sha256(content).hexdigest(), tokens, train, chosen_by, measured)


def _between(content: bytes, place: int) -> int:
    """The last place up to this one that is between two characters."""
    while 0 < place < len(content) and content[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _topics() -> bytes:
    """The topics of Python's help() in alphabetical order: about 460 kB of English on one subject."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def read(path: Path) -> bytes:
    """Reads a file of text, in UTF-8 or with a byte-order mark, as bytes of UTF-8 without the mark.

    Raises:
        HeadwayError: if the file is missing, empty or not text.
    """
    content = read_text(path, f"corpus {path}").encode()
    if not content:
        raise HeadwayError(f"corpus {path} is empty: give a file with text in it")
    return content
