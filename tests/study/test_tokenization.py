"""Texts as tokens: all of the text is in them, and every byte is counted once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headway.errors import HeadwayError
from headway.study import corpora
from headway.study.tokenization import Tokens

TEXT = "The same again, the same again. " * 40 + "小明吃苹果，小红也吃苹果。" * 30 + "naïve — 🙂🙂 done\r\n\n" * 5


@pytest.mark.parametrize("name", ["bytes", "bpe:257", "bpe:400"])
def test_the_tokens_give_the_text_back_and_their_bytes_add_up(name: str) -> None:
    tokens = Tokens.named(name, TEXT.encode())
    part = tokens.encode(TEXT.encode())
    assert int(part.ends[-1]) == len(TEXT.encode())
    assert bool((part.ends.diff() >= 0).all())
    assert int(part.ids.max()) < tokens.vocabulary
    if tokens.library is None:
        assert bytes(part.ids.tolist()) == TEXT.encode()
        return
    assert tokens.library.decode(part.ids.tolist()) == TEXT
    assert 257 <= tokens.vocabulary <= int(name[4:])  # a short text has few pairs
    for start, count in ((0, 7), (3, 50), (len(part) - 9, 9)):
        piece = tokens.library.decode(part.ids[start : start + count].tolist())
        if "\ufffd" not in piece:  # no character is cut
            assert part.bytes_of(start, count) == len(piece.encode())


def test_byte_pairs_are_found_in_the_training_part_alone_and_are_the_same_each_time(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a quick brown fox " * 300 + "zzzyyyxxxzzzyyyxxx" * 45)
    first, again = (corpora.load(path, train_length=16, longest=32, tokenizer="bpe:300") for _ in range(2))
    assert first.tokens.sha256 == again.tokens.sha256
    assert torch.equal(first.held_out.ids, again.held_out.ids)
    assert "zz" not in "".join(first.tokens.library.get_vocab())


def test_parts_are_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("小明吃苹果。" * 331)
    corpus = corpora.load(path, train_length=16, longest=32)
    parts = [bytes(part.ids.tolist()) for part in (corpus.train, corpus.validation, corpus.held_out)]
    assert b"".join(parts) == path.read_bytes()
    for part in parts:
        part.decode()


def tokenizer_file(path: Path, **changes: object) -> str:
    library = json.loads(Tokens.named("bpe:300", TEXT.encode()).library.to_str())
    path.write_text(json.dumps({**library, **changes}))
    return str(path)


def test_a_file_is_read_without_its_limits(tmp_path: Path) -> None:
    limits = {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}}
    tokens = Tokens.named(tokenizer_file(tmp_path / "tokenizer.json", **limits), b"")
    part = tokens.encode(TEXT.encode())
    assert int(part.ends[-1]) == len(TEXT.encode())
    assert torch.equal(part.ids, Tokens.named("bpe:300", TEXT.encode()).encode(TEXT.encode()).ids)


def test_an_id_of_10_to_the_9_is_refused(tmp_path: Path) -> None:
    """The embedding would have as many rows."""
    name = tokenizer_file(tmp_path / "tokenizer.json")
    whole = json.loads(Path(name).read_text())
    whole["model"]["vocab"][next(iter(whole["model"]["vocab"]))] = 10**9
    Path(name).write_text(json.dumps(whole))
    with pytest.raises(HeadwayError, match="tokens and an id 1,000,000,000: give another"):
        Tokens.named(name, b"")


def test_what_leaves_something_out_is_refused(tmp_path: Path) -> None:
    tokens = Tokens.named(tokenizer_file(tmp_path / "lower.json", normalizer={"type": "Lowercase"}), b"")
    with pytest.raises(HeadwayError, match=r"lower\.json does not restore the text"):
        tokens.encode(b"The Same")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bpe:100", "tokenizer is 'bpe:100': give bpe:N with N at least 257"),
        ("bpe:many", "tokenizer is 'bpe:many'"),
        ("none.json", "tokenizer none.json cannot be read"),
        ("none", "none"),
    ],
)
def test_what_is_no_tokenizer(name: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=said) as raised:
        Tokens.named(name, TEXT.encode())
    assert "\n" not in str(raised.value)
