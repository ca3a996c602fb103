"""The documents do what they say: their Python runs and prints what they show, their commands exist.

The Python blocks of one file run in their order, in one namespace, in an empty folder. A block that begins
with a comment like `# mine.py` is also saved under that name. A ```text block right below a Python block is
what it prints. A translation runs as far as its code or output differs from the original's. Commands are checked
against the Makefile and the --help of the command line; cheap ones run.
"""

import ast
import contextlib
import importlib
import io
import itertools
import os
import re
import shlex
import sys
import textwrap
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from headway._common.language import LANGUAGES
from headway.cli import main
from headway.positions import ENCODINGS

ROOT = Path(__file__).parents[1]
MUST_EXIST = ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "DESIGN.md", "BENCHMARKS.md"]
FOUND = [
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "src/**/README.md", "tests/README.md", "examples/README.md")
    for path in ROOT.glob(pattern)
]
DOCUMENTS = sorted({*MUST_EXIST, *FOUND})

SHELL = {"sh", "console"}
SHOWN = {"text", "bibtex", "toml", "diff", "mermaid"}  # languages that are only looked at
CHEAP = {"encodings"}  # verbs of the command line that are run as they stand
GROUPS = {"vectors"}  # verbs with verbs of their own
BASELINES = {"lstm", "rnn"}  # what `compare` trains beside the encodings
LONG = ("docs/decoding.md", "lessons.md")  # whose blocks compile or train


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # of its first line in the document, counted from 1
    below: str  # the block's text right below, where that is ```text; else ""


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document, in their order."""
    lines = (ROOT / document).read_text(encoding="utf-8").split("\n")
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    assert len(fences) % 2 == 0, f"{document}: a fence is not closed"
    found: list[Block] = []
    for start, end in reversed(list(zip(fences[::2], fences[1::2], strict=True))):
        language = lines[start].strip().removeprefix("```").strip()
        text = textwrap.dedent("\n".join(lines[start + 1 : end]))
        following = next((n for n in range(end + 1, len(lines)) if lines[n].strip()), None)
        output = found[-1].text if following is not None and lines[following].strip() == "```text" else ""
        found.append(Block(language, text, start + 2, output))
    return found[::-1]


def code(document: str) -> list[tuple[str, str, str | None]]:
    """What decides how the Python blocks of a document run: code without comments and docstrings, output, and file."""
    return [
        (ast.dump(without_docstrings(ast.parse(block.text))), block.below, saved_as(block))
        for block in blocks(document)
        if block.language == "python"
    ]


def without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return tree


def own_code(document: str) -> int:
    """How many of the Python blocks are to run: those of a translation up to the last that is not the original's."""
    found, english = code(document), original(document)
    if english is None:
        return len(found)
    pairs = itertools.zip_longest(found, code(english))
    return max((number for number, (own, other) in enumerate(pairs, 1) if own != other), default=0)


def saved_as(block: Block) -> str | None:
    named = re.match(r"# ([\w-]+\.py)\b", block.text)
    return named[1] if named else None


def original(document: str) -> str | None:
    """The document that this one translates."""
    path = document.replace(".zh-CN.md", ".md").replace("docs/zh-CN/", "docs/")
    return path if path != document else None


def commands(document: str) -> list[tuple[int, list[str]]]:
    """(line, words) of every command that a document tells the reader to type."""
    found = []
    for block in blocks(document):
        if block.language not in SHELL:
            continue
        text = block.text.replace("\\\n", "  ")
        for line in text.split("\n"):
            if block.language == "console":  # a session: what follows a prompt is typed, the rest is printed
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                found.append((block.line, words))
    return found


@cache
def headway(*arguments: str) -> str:
    """What the command line prints for these arguments."""
    printed = io.StringIO()
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(arguments)
    assert code == 0, f"headway {shlex.join(arguments)}\n{printed.getvalue()}"
    return printed.getvalue()


def names_in(encodings: str) -> list[str]:
    """The names in a list like "rope,rope(base=500000, half=True),mine.py:Mine", without their arguments."""
    return [name.strip() for name in re.sub(r"\([^()]*\)", "", encodings).split(",")]


def check_headway(words: list[str]) -> None:
    if words[0] == "--language":  # it stands before the command
        assert words[1] in LANGUAGES, f"headway has no language {words[1]}"
        words = words[2:]
    verb, *rest = words
    if verb.startswith("-") or verb in CHEAP:
        headway(*words)
        return
    known = headway(verb, *(rest[:1] if verb in GROUPS else ()), "--help")
    for option in [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", known), f"headway {verb} has no {option}"
    for option, value in itertools.pairwise(rest):
        if option == "--encodings":
            unknown = {n for n in names_in(value) if ":" not in n} - set(ENCODINGS) - BASELINES
            assert not unknown, f"no encoding is called {unknown}"


def check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "headway":
        check_headway(rest)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in [word for word in rest if "=" not in word]:
            assert re.search(rf"^{re.escape(target)}:", makefile, re.M), f"the Makefile has no target {target}"
    elif program == "pip":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extras in re.findall(r"(?:headway|\.)\[([\w,]+)\]", " ".join(rest)):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, re.M), f"pyproject.toml has no extra {extra}"
    elif program in ("python", "python3"):
        if rest[0] == "-c":
            ast.parse(rest[1])
        elif rest[0] == "-m" and rest[1].startswith("headway."):
            importlib.import_module(f"{rest[1]}.__main__").parser().parse_args(rest[2:])
        elif rest[0] == "-m" and rest[1].startswith("gpu."):  # with tests/ on PYTHONPATH
            assert (ROOT / "tests" / f"{rest[1].replace('.', '/')}.py").is_file(), f"tests/ has no module {rest[1]}"
        elif rest[0] == "-m":
            assert rest[1] in ("pip", "pytest", "venv"), f"python -m {rest[1]}: teach this test to check it"
        else:
            assert (ROOT / rest[0]).is_file(), f"{rest[0]} is not there"
    elif program in ("torchrun", "accelerate"):
        assert any(word.endswith(".py") for word in rest), f"{program} starts no script"
    else:
        assert program in ("git", "cd", "apt-get", "dpkg-deb", "sed", "xcode-select"), (
            f"{program}: teach this test to check it"
        )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_say_what_they_are(document: str) -> None:
    for block in blocks(document):
        assert block.language in {"python", *SHELL, *SHOWN}, f"{document}:{block.line}: {block.language!r}"


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if not one.endswith(LONG)])
def test_python_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(document, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("document", [one for one in DOCUMENTS if one.endswith(LONG)])
def test_python_blocks_of_long_pages_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(document, tmp_path, monkeypatch)


def run_blocks(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the Python blocks of a document in a folder, and compares what they print."""
    python = [block for block in blocks(document) if block.language == "python"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = types.ModuleType(re.sub(r"\W", "_", document))  # the compiler remembers modules by name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in python[: own_code(document)]:
        if named := saved_as(block):
            Path(named).write_text(block.text, encoding="utf-8")
        # Compiled as if it stood in the document, so that a traceback shows the document's own line.
        compiled = compile("\n" * (block.line - 1) + block.text, str(ROOT / document), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, module.__dict__)
        if block.below:
            shown, got = (
                [line.rstrip() for line in text.strip().split("\n")] for text in (block.below, printed.getvalue())
            )
            assert got == shown, f"{document}:{block.line} prints something else"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist(document: str) -> None:
    for line, words in commands(document):
        try:
            check_command(words)
        except AssertionError as error:
            raise AssertionError(f"{document}:{line}: {shlex.join(words)}: {error}") from error


def test_the_readmes_teach_something() -> None:
    """If no block were found the tests above would pass on nothing."""
    for document in ("README.md", "README.zh-CN.md"):
        assert len([block for block in blocks(document) if block.language == "python"]) >= 3, document
        assert [words for _, words in commands(document) if words[:2] == ["headway", "compare"]], document


def test_both_readmes_have_the_same_code() -> None:
    """Comments may be translated; the order of blocks and every command are the same."""
    english, chinese = blocks("README.md"), blocks("README.zh-CN.md")
    assert [block.language for block in english] == [block.language for block in chinese]
    assert [words for _, words in commands("README.md")] == [words for _, words in commands("README.zh-CN.md")]
