"""What lesson 14 finds, and that its data leak nothing, its dictionary learns, and its training resumes."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import catalogues
import lesson_14_translation as lesson
import translator
from catalogues import Pair
from headway.errors import HeadwayError
from lesson import measured

from .conftest import Learn

TOY = [
    Pair("the file is old", "文件很旧"),
    Pair("the file is new", "文件很新"),
    Pair("the disk is old", "磁盘很旧"),
    Pair("a new disk", "新磁盘"),
    Pair("a new file", "新文件"),
]


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_14_translation")
    assert found["bleu"]["model"] > max(found["bleu"]["nearest"], found["bleu"]["words"])
    assert found["known"] == 0
    assert len(found["ours"]) == len(lesson.OURS)
    assert sum(found["data"]["classes"]) == found["data"]["held_out"] == catalogues.HELD_OUT
    for layer in found["weights"]:
        assert len(layer) == len(found["target"])
        assert all(len(row) == len(found["source"]) for row in layer)
        assert torch.tensor(layer).sum(-1).sub(1).abs().max() < 0.005


def test_the_pages_say_what_is_stored() -> None:
    found = lesson.measure()
    for page in ("docs/lessons.md", "docs/zh-CN/lessons.md"):
        text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
        for name, bleu in found.bleu.items():
            row = f"| {bleu:.1f} ± {found.bleu_range[name]:.1f} | {found.chrf[name]:.1f} | {found.exact[name]:.1%} |"
            assert row in text, (page, name)
        assert all(made.strip("。") in text for _, made in found.ours)
        assert f"{found.data['pairs']:,}" in text
        assert f"{found.training['minutes']:.0f} " in text


def test_rows_are_complete_and_hold_no_message_of_others() -> None:
    rows = measured(lesson.__file__)
    assert [row["system"] for row in rows if row["row"] == "scores"] == ["model", "shuffled", "words", "nearest"]
    assert [row["english"] for row in rows if row["row"] == "ours"] == list(lesson.OURS)
    (data,) = (row for row in rows if row["row"] == "data")
    assert data["packages"] == len(catalogues.named())
    assert {row["row"] for row in rows} == {"training", "data", "scores", "ours", "attention"}


# ---------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("pair", "cleaned"),
    [
        (("_Open File", "打开文件(_O)"), ("Open File", "打开文件")),
        (("  &Quit\n", "退出(&Q)…"), ("Quit", "退出…")),
        (("variable some_name", "变量 some_name"), ("variable some_name", "变量 some_name")),
        (("two\nlines", "两行"), None),
        (("%s: %d", "%s：%d"), None),
        (("Name", "Name"), None),
        (("word " * 40, "词"), None),
    ],
)
def test_cleaned(pair: tuple[str, str], cleaned: tuple[str, str] | None) -> None:
    assert catalogues.cleaned(Pair(*pair)) == (cleaned and Pair(*cleaned))


def test_no_message_is_in_two_parts_not_even_with_other_numbers() -> None:
    pairs = [
        Pair(f"{verb} the {noun} {mark}", f"{mark}")
        for verb in ("open", "close", "read", "Open")
        for noun in ("file now", "old disk", "door of it")
        for mark in ("%s", "'%.250s'", "3", "%d!")
    ]
    parts = catalogues.split(pairs, 2, 3)
    keys = [{catalogues.key(pair.english) for pair in part} for part in parts]
    assert [len(each) for each in keys] == [4, 2, 3]
    assert len(set.union(*keys)) == 9
    assert [len(parts.validation), len(parts.held_out)] == [2, 3]
    assert parts == catalogues.split(pairs, 2, 3)


def package(folder: Path, messages: dict[str, str]) -> Path:
    """Writes a package with one catalogue, as dpkg-deb does: an ar archive of tar files."""
    import polib

    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    catalogue.extend(polib.POEntry(msgid=english, msgstr=chinese) for english, chinese in messages.items())
    catalogue.save_as_mofile(str(folder / "it.mo"))

    def packed(names: dict[str, bytes]) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:xz") as archive:
            for name, content in names.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return made.getvalue()

    content = (folder / "it.mo").read_bytes()
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": packed({"./control": b"Package: it\n"}),
        "data.tar.xz": packed(
            {f"./usr/share/locale/{language}/LC_MESSAGES/it.mo": content for language in ("de", "zh_CN")}
        ),
    }
    archive = b"!<arch>\n"
    for name, part in parts.items():
        archive += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode() + part + b"\n" * (len(part) % 2)
        )
    made = folder / "it_1_all.deb"
    made.write_bytes(archive)
    return made


def test_messages_of_a_package(tmp_path: Path) -> None:
    found = catalogues.read([package(tmp_path, {"_Open": "打开(_O)", "a\nb": "甲\n乙", "Close it": "关闭它"})])
    assert sorted(found) == [Pair("Close it", "关闭它"), Pair("Open", "打开")]


def test_packages_are_downloaded_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(address: str, timeout: float) -> Any:
        asked.append(address)
        if address.startswith(catalogues.SERVERS[0]):
            raise OSError("404")
        return io.BytesIO(b"content")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(catalogues.urllib.request, "urlopen", answer)
    monkeypatch.setattr(catalogues, "named", lambda: {"i/it/it_1+b1.deb": hashlib.sha256(b"content").hexdigest()})
    assert [file.read_bytes() for file in catalogues.fetch()] == [b"content"]
    assert catalogues.fetch()
    assert asked == [f"{server}/pool/main/i/it/it_1%2Bb1.deb" for server in catalogues.SERVERS]
    monkeypatch.setattr(catalogues, "named", lambda: {"i/it/it_2.deb": "0" * 64})
    with pytest.raises(HeadwayError, match=r"it_2.deb cannot be downloaded: .*404; .*SHA-256"):
        catalogues.fetch()


# ---------------------------------------------------------------- translators


def test_the_dictionary_finds_what_goes_with_what() -> None:
    best = lesson.dictionary([(lesson.words(english), lesson.chinese_words(chinese)) for english, chinese in TOY])
    assert {word: best[word] for word in ("file", "disk", "new", "old")} == {
        "file": "文件",
        "disk": "磁盘",
        "new": "新",
        "old": "旧",
    }
    assert lesson.word_by_word(TOY, ["old file %s"]) == ["旧 文件 %s"]


def test_the_nearest_message() -> None:
    made, cosines = lesson.nearest(TOY, ["the disk is old", "a file", "zebra"])
    assert made[:2] == ["磁盘很旧", "新文件"]
    assert cosines[0] == pytest.approx(1)
    assert 0 < cosines[1] < 1
    assert cosines[2] == 0


def test_scores() -> None:
    right = ["文件无法打开，因为磁盘已满。", "请输入名称。"]
    assert lesson.scores(right, right)["bleu"] == pytest.approx(100)
    assert lesson.scores(right, right)["exact"] == 1
    reversed_ = lesson.scores([text[::-1] for text in right], right)
    assert reversed_["bleu"] < 5
    assert reversed_["exact"] == 0


def test_each_epoch_has_every_pair_once_in_another_order() -> None:
    epochs = translator.Epochs([i % 7 for i in range(200)])
    steps = -(-200 // translator.BATCH)
    first, second = ([epochs.at(step) for step in range(start, start + steps)] for start in (0, steps))
    for epoch in (first, second):
        assert sorted(i for batch in epoch for i in batch) == list(range(200))
    assert first != second
    assert translator.Epochs([i % 7 for i in range(200)]).at(steps + 1) == second[1]


def test_pieces_have_all_characters_once() -> None:
    tokenizer = translator.byte_pairs(TOY)
    for text in ("the new disk", "新文件很龘"):
        assert "".join(translator.pieces(tokenizer, text)).replace("·", "").replace("␣", " ") == text


class Stopped(Exception):  # noqa: N818
    pass


@pytest.mark.slow
def test_training_resumes_and_the_model_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle, and gone on with, it ends as one that was not; the toy pairs are learned by heart."""
    monkeypatch.setattr(translator, "STEPS", 160)
    monkeypatch.setattr(translator, "WARM_UP", 10)
    monkeypatch.setattr(translator, "RATE", 1e-2)
    monkeypatch.setattr(translator, "VOCABULARY", 300)
    monkeypatch.setattr(translator, "Sizes", partial(translator.Sizes, 32, 1, 2, 0.0))
    monkeypatch.setattr(translator.Course, "EVERY", 40)
    monkeypatch.setattr("headway._common.training.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("headway._common.training.SECONDS_OF_WRITING", 1e9)
    parts = catalogues.Parts(TOY, TOY[:2], TOY[3:])
    ended = []
    for name, stop in (("undisturbed", None), ("stopped", 50)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        catalogues.home().mkdir(parents=True)
        if stop is not None:
            with monkeypatch.context() as patch:
                patch.setattr(translator.Translator, "losses", stopping(stop))
                with pytest.raises(Stopped):
                    translator.learned(parts)
        made, row = translator.learned(parts)
        ended.append((row["validation"], made.translate([pair.english for pair in TOY])))
    assert ended[0] == ended[1]
    assert ended[0][1] == [pair.chinese for pair in TOY]
    assert [step for step, _ in ended[0][0]] == [40, 80, 120, 160]


def stopping(after: int) -> Any:
    """The losses of a translator; those for training raise after some calls."""
    losses, calls = translator.Translator.losses, iter(range(after))

    def stop(self: Any, model: Any, *words: Any, **options: Any) -> Any:
        if model.training and next(calls, None) is None:
            raise Stopped
        return losses(self, model, *words, **options)

    return stop


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
