"""How the text of a comparison becomes tokens: its bytes, byte-pair encoding trained on it, or a tokenizer's file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._common.extras import need
from .._common.text_files import read_text
from ..checkpoints import tokenizer as tokenizer_of
from ..errors import HeadwayError

BYTES = "bytes"
BPE = "bpe:"
MOST_IDS = 4
"""How many times its tokens the ids of a tokenizer may be, since some leave ids out."""
FEWEST = 257
"""The least size of a byte-pair vocabulary: all bytes, and one merge."""


class Split(NamedTuple):
    """A part of a text as tokens, int [n], and the bytes of the part up to the end of each, int64 [n]."""

    ids: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def bytes_of(self, start: int, count: int) -> int:
        """Returns the bytes of ``count`` tokens from the token ``start``."""
        return int(self.ends[start + count - 1]) - (int(self.ends[start - 1]) if start else 0)


@dataclass(frozen=True)
class Tokens:
    """A way to cut a text into tokens of so many ids: bytes, or a ``tokenizers.Tokenizer``, the ``library``."""

    name: str
    vocabulary: int
    library: Any = None

    @classmethod
    def named(cls, name: str, train: bytes) -> Tokens:
        """Returns the tokens of a name.

        Args:
            name: "bytes"; "bpe:N" for a vocabulary of N tokens that byte-pair encoding finds in ``train``; or a
                tokenizer.json, the folder of a model, or its id on the Hugging Face hub.
            train: the training part of the text, UTF-8.

        Raises:
            HeadwayError: if N is not a number or is below 257, there is no such file, or tokenizers is not installed.
        """
        if name == BYTES:
            return cls(BYTES, 256)
        need("tokenizers", f"tokenizer {name!r}", "checkpoints")
        library = _trained(name, train.decode()) if name.startswith(BPE) else _read(name)
        ids = max(library.get_vocab().values(), default=0) + 1
        if ids > MOST_IDS * (library.get_vocab_size() + FEWEST):  # 10⁹ would be as many rows of the embedding
            raise HeadwayError(
                f"tokenizer {name} has {library.get_vocab_size():,} tokens and an id {ids - 1:,}: give another"
            )
        return cls(name, ids, library)

    @property
    def sha256(self) -> str | None:
        """The hash of the tokenizer's JSON; None for bytes."""
        return None if self.library is None else hashlib.sha256(self.library.to_str().encode()).hexdigest()

    def encode(self, text: bytes) -> Split:
        """Returns a text in UTF-8 as tokens.

        Raises:
            HeadwayError: if the tokens do not restore the text, since bits per byte would not count what they leave
                out.
        """
        if not text:
            return Split(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        if self.library is None:
            return Split(torch.frombuffer(bytearray(text), dtype=torch.uint8), torch.arange(1, len(text) + 1))
        words = text.decode()
        encoding = self.library.encode(words, add_special_tokens=False)
        if self.library.decode(encoding.ids, skip_special_tokens=False) != words:
            raise HeadwayError(
                f"tokenizer {self.name} does not restore the text, so bits per byte would not count what it "
                "leaves out: give bytes, bpe:1024, or a byte-level tokenizer such as GPT-2's"
            )
        up_to = torch.tensor([0, *accumulate(len(character.encode()) for character in words)])
        ends = up_to[[end for _, end in encoding.offsets]].cummax(0).values
        ends[-1] = len(text)
        return Split(torch.tensor(encoding.ids), ends)


def _trained(name: str, text: str) -> Any:
    """Byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019) of the size in the name."""
    size = int(name[len(BPE) :]) if name[len(BPE) :].isdecimal() else 0
    if size < FEWEST:
        raise HeadwayError(f"tokenizer is {name!r}: give bpe:N with N at least {FEWEST}, such as bpe:1024")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([text], trainer)
    return made


def _read(name: str) -> Any:
    path = Path(name)
    if path.suffix.lower() != ".json":
        library = tokenizer_of(name)
    else:
        from tokenizers import Tokenizer

        try:
            library = Tokenizer.from_str(read_text(path, f"tokenizer {name}"))
        except HeadwayError:
            raise
        except Exception as error:  # the package raises Exception itself
            raise HeadwayError(f"tokenizer {name} cannot be read ({error}): give a tokenizer.json") from None
    library.no_truncation()
    library.no_padding()
    return library
