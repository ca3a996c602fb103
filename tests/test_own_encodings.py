"""Every encoding that a document shows works as a reader would try it: checked, compared, drawn."""

from pathlib import Path

import pytest

from headway.cli import main
from headway.positions import encoding
from headway.study.candidates import candidates
from headway.study.protocol import Protocol
from headway.testing import ENCODING_CHECKS

from .test_docs_run import DOCUMENTS, blocks, saved_as

SNIPPETS = {
    f"{document}:{block.line}": block
    for document in DOCUMENTS
    for block in blocks(document)
    if block.language == "python" and "(PositionEncoding)" in block.text
}
ONE_IN = {"keeps_the_promise_in_every_dtype": 3, "compiles_as_one_graph": 9}
SIZES = {"num_heads": 8, "head_dim": 8, "embed_dim": 64, "max_length": 32}


@pytest.fixture
def file(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file that a reader copies a snippet into, in the working directory."""
    monkeypatch.chdir(tmp_path)
    name = saved_as(SNIPPETS[snippet])
    assert name, f"{snippet} defines an encoding: begin it with the name of a file, such as # mine.py"
    Path(name).write_text(SNIPPETS[snippet].text, encoding="utf-8")
    return name


def test_the_readers_snippets_are_found() -> None:
    assert {snippet.partition(":")[0] for snippet in SNIPPETS} >= {"README.md", "README.zh-CN.md", "docs/extending.md"}


@pytest.mark.parametrize(
    "check", [pytest.param(name, marks=pytest.mark.one_in(ONE_IN.get(name, 1))) for name in ENCODING_CHECKS]
)
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_it_passes_every_check(file: str, check: str) -> None:
    ENCODING_CHECKS[check](encoding(file, **SIZES))


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_it_can_be_compared(file: str) -> None:
    (candidate,) = candidates([file], [], Protocol().fixed("text", ""))
    assert candidate.name == file


@pytest.mark.one_in(3)
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_it_can_be_drawn(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = type(encoding(file, **SIZES)).__name__
    assert main(["encodings", f"{file}:{name}", "--out", "x.png"]) == 0, capsys.readouterr().err
    assert Path("x.png").stat().st_size > 1000
