"""The table of tests/recent.py: its rows are of this repository, nothing slow is missing, and git is read right."""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

import pytest

import headway
import recent
from headway.positions import ENCODINGS
from recent import EVERYTHING, GROUPS, ROOMS, ROOT, Group

from .test_import_arrows import imports_in, sources

ALWAYS = {
    *(f"tests/cli/test_{name}.py" for name in ("doctor", "new_encoding", "options")),
    *("tests/test_extras.py", "tests/test_lean_import.py", "tests/test_site.py", "tests/test_torch.py"),
    *("tests/test_docs_run.py", "tests/test_jagged.py", "tests/test_public_surface.py"),
    *("tests/weights/test_fetch.py", "tests/weights/test_weights.py"),
}
"""Files with a few slow tests, or with a few that compile or export, that always run whole: they take seconds."""
WORDS = {"none", "index", "sink", "shape", "path"}
"""Names of encodings that tests use as other words."""
HEAVY = re.compile(
    r"mark\.slow|torch\.compile\(|torch\.export\.|onnx\.export|aot_module|flex_attention\(|\blearn\(|TRITON_INTERPRET"
)


@cache
def files() -> list[str]:
    """The files of the repository, as git names them."""
    folders = [ROOT / name for name in ("src", "tests", "examples", "docs", "cmake", ".ci", "viewer/src")]
    found = [path for folder in folders for path in folder.rglob("*")]
    found += [path for folder in (ROOT, ROOT / "viewer") for path in folder.iterdir()]
    return [path.relative_to(ROOT).as_posix() for path in found if path.is_file() and "__pycache__" not in path.parts]


def matching(pattern: str) -> list[str]:
    return [file for file in files() if recent._matches(pattern, file)]


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("src/headway/*.py", "src/headway/call.py", True),
        ("src/headway/*.py", "src/headway/nn/block.py", False),
        ("src/headway/nn/", "src/headway/nn/deep/block.py", True),
        ("src/headway/nn/", "src/headway/nn.py", False),
        ("positions/**/rope.py", "positions/rope.py", True),
        ("positions/**/rope.py", "positions/a/b/rope.py", True),
        ("positions/**/rope.py", "positions/p_rope.py", False),
        ("src/_**", "src/_a/b.py", True),
        ("src/_**", "src/a/_b.py", False),
        ("test_a.py::*one*", "test_a.py::test_one_graph", True),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert recent._matches(pattern, text) == expected


@pytest.mark.parametrize("name", GROUPS)
def test_paths_and_tests_of_a_row_exist(name: str) -> None:
    group = GROUPS[name]
    assert [pattern for pattern in (*EVERYTHING, *group.paths) if not matching(pattern)] == []
    for pattern in group.tests:
        file, _, test = pattern.partition("::")
        found = [file for file in matching(file) if not test or any(recent._matches(test, x) for x in functions(file))]
        assert found, pattern


def test_every_file_with_slow_tests_has_a_row() -> None:
    tests = [file for file in files() if re.fullmatch(r"tests/(.*/)?test_\w+\.py", file)]
    heavy = {
        file for file in tests if file != "tests/test_recent.py" and HEAVY.search((ROOT / file).read_text("utf-8"))
    }
    patterns = {pattern.partition("::")[0] for group in GROUPS.values() for pattern in group.tests} | ROOMS.keys()
    chosen = {file for pattern in patterns for file in matching(pattern)}
    assert sorted(heavy - chosen - ALWAYS) == [], "give them a row in tests/recent.py, or name them in ALWAYS"
    assert sorted(ALWAYS - heavy) == [], "they are not slow"


def own_files(group: Group) -> list[str]:
    """The group's test files, and what they import of tests and lessons; no other tests, and no claims on lessons."""
    tests = {file for test in group.tests for file in matching(test.partition("::")[0])}
    beside = {file for path in group.paths if path.startswith(("tests/", "examples/lesson")) for file in matching(path)}
    return sorted(tests | {file for file in beside if file.endswith(".py") and not Path(file).name.startswith("test_")})


@cache
def helpers() -> dict[str, str]:
    """What tests and lessons import of each other, by the names that they have in an import."""
    found = [Path(file) for file in files() if re.fullmatch(r"(tests|examples)/.*\.py", file)]
    named = [file.with_suffix("") for file in found if not file.name.startswith(("test_", "__", "conftest"))]
    return {".".join(name.parts[at:]): f"{name.as_posix()}.py" for name in named for at in range(1, len(name.parts))}


@cache
def modules() -> dict[str, str]:
    """The files of the package, tests and lessons by the names that they have in an import."""
    return {module: path.relative_to(ROOT).as_posix() for path, module, _ in sources()} | helpers()


@cache
def needed(file: str) -> set[str]:
    """The files that a test or lesson imports, has from ``hw`` or ``headway``, and those of encodings that it names."""
    text = (ROOT / file).read_text(encoding="utf-8")
    imported = {one for _, one in imports_in(text, "", is_package=True)}
    imported |= {one.rpartition(".")[0] for one in imported}
    public = (getattr(headway, name, None) for name in re.findall(r"\b(?:hw|headway)\.(\w+)", text))
    imported |= {str(getattr(one, "__name__" if inspect.ismodule(one) else "__module__", "")) for one in public}
    named = ENCODINGS.keys() & set(re.findall(r"[\"']([a-z0-9-]+)[\"']", text))
    imported |= {ENCODINGS[one].__module__ for one in named - WORDS}
    return {modules()[one] for one in imported if one in modules()}


@pytest.mark.parametrize("name", GROUPS)
def test_a_row_has_what_its_tests_import_and_name(name: str) -> None:
    wanted = set().union(*map(needed, own_files(GROUPS[name])))
    assert sorted(wanted - set(GROUPS[name].touched(wanted))) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_what_its_tests_import_and_name(room: str) -> None:
    assert [path for path in ROOMS[room] if not matching(path)] == []
    tests = [file for file in matching(room) if re.fullmatch(r".*/test_\w+\.py", file)]
    assert tests
    for file in tests:
        groups = recent.groups_of(f"{file}::test_of_no_group")
        found = {path for group in groups for path in group.touched(needed(file))}
        assert sorted(needed(file) - found) == [], file


@pytest.mark.parametrize(
    "path", ["tests/conftest.py", "pyproject.toml", "constraints.txt", "CMakeLists.txt", "cmake/inplace/CMakeLists.txt"]
)
def test_what_concerns_all_runs_all(path: str) -> None:
    assert all(group.touched([path]) for group in GROUPS.values())


@pytest.mark.parametrize("path", ["Makefile", ".ci/run", "tests/recent.py", "README.zh-CN.md"])
def test_how_tests_are_started_runs_none_whole(path: str) -> None:
    assert (ROOT / path).exists()
    assert not any(group.touched([path]) for group in GROUPS.values())


@pytest.mark.parametrize(
    "path",
    [
        *("attention.py", "call.py", "coordinates.py", "masks/_base.py", "terms.py", "positions/_base.py"),
        *("kernels/_choose.py", "kernels/reference.py", "kernels/cpu/__init__.py", "kernels/cpu/csrc/kernel.cpp"),
    ],
)
def test_the_path_of_a_call_runs_all_that_calls(path: str) -> None:
    assert (ROOT / "src/headway" / path).exists()
    untouched = {name for name, group in GROUPS.items() if not group.touched([f"src/headway/{path}"])}
    assert untouched <= {"damaged files"}


def test_a_room_runs_what_depends_on_it() -> None:
    def whole(*paths: str) -> set[str]:
        return {name for name, group in GROUPS.items() if group.touched(paths)}

    assert whole("src/headway/vectors/glove.py", "CHANGELOG.md") == {
        *("training, and what is killed", "training of word vectors", "damaged files"),
        *("code of the pages that compiles or trains", "pages of lessons in a browser"),
        *("lesson 10", "lesson 11", "lesson 14"),
    }
    assert whole("tests/study/conftest.py") >= {"small models that come along", "training, and what is killed"}
    assert whole("examples/lesson_1_weighted_lookup.py") == {"lesson 1", "pages of lessons in a browser"}
    assert whole("tests/families/inputs.py") == {"architectures of transformers"}
    assert whole("tests/vectors/test_glove.py", "docs/zh-CN/claims.md") == set()


def test_an_encoding_runs_its_own_cases() -> None:
    test = "tests/conformance/test_encodings.py::test_encoding"

    def few(name: str, *changed: str) -> bool:
        parameters = {"encoding": ENCODINGS[name].examples()[0]}
        return recent.chooser(changed)(test, parameters)

    def file(name: str) -> str:
        return Path(str(sys.modules[ENCODINGS[name].__module__].__file__)).relative_to(ROOT).as_posix()

    assert few("yarn")
    assert few("yarn", file("rope"))
    assert not few("yarn", file("yarn"))
    assert not few("yarn", file("ntk-by-parts")), "its class inherits"
    assert not few("path-fox", file("forgetting")), "a part of it"
    assert not few("repo-rope", file("repo")), "functions of another file"
    assert not few("yarn", "src/headway/positions/_base.py")
    assert not recent.chooser([])("tests/test_kinds.py::test_anything", {})


def test_a_room_runs_whole_if_it_or_one_below_it_changed() -> None:
    def whole(test: str, *changed: str) -> bool:
        return not recent.chooser(changed)(f"tests/{test}", {})

    test = "nn/test_block.py::test_anything"
    assert not whole(test, "src/headway/inspection/_capture.py", "tests/nn/test_cache.py", "docs/gpu.md")
    for changed in ("src/headway/nn/block.py", "src/headway/positions/_encodings/rope.py", "tests/nn/test_block.py"):
        assert whole(test, changed)
    assert whole(test, "tests/conftest.py")
    assert whole("nn/test_prepacked.py::test_anything", "src/headway/checkpoints/gpt2.py")
    assert whole("inspection/test_plot.py::test_anything", "src/headway/nn/block.py")
    assert whole("kernels/test_cpu_tokens.py::test_anything", "src/headway/nn/block.py")
    assert not whole("kernels/test_cpu.py::test_anything", "src/headway/nn/block.py"), "nothing of it is in a kernel"
    triton = "kernels/test_triton.py::test_interpreted"
    assert not whole(triton, "src/headway/nn/block.py"), "its group goes before its room"


# ---------------------------------------------------------------- what changed, by git

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def git(root: Path, *words: str, hours_ago: float = 0) -> None:
    """Runs git in a repository, as if it were so many hours before NOW."""
    date = (NOW - timedelta(hours=hours_ago)).isoformat()
    who = {f"GIT_{role}_{what}": "someone" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": os.devnull}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *words], cwd=root, env=kept | who | dates, check=True, capture_output=True)


def commit(root: Path, name: str, hours_ago: float) -> None:
    (root / name).write_text(f"{hours_ago}\n", encoding="utf-8")
    git(root, "add", name)
    git(root, "commit", "-m", name, hours_ago=hours_ago)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With a commit of ten hours ago, one of nine, and one of seven."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-b", "main")
    for name, hours_ago in (("a.py", 10), ("b.py", 9), ("c.py", 7)):
        commit(root, name, hours_ago)
    return root


def test_recent_is_what_differs_from_eight_hours_ago(repository: Path) -> None:
    assert recent.changed(repository, NOW) == ["c.py"]
    assert recent.changed(repository, NOW + timedelta(hours=1, minutes=1)) == []
    (repository / "b.py").write_text("in the working tree", encoding="utf-8")
    (repository / "names with spaces, é.py").touch()
    (repository / ".gitignore").write_text("ignored.py", encoding="utf-8")
    (repository / "ignored.py").touch()
    git(repository, "mv", "a.py", "moved.py")
    expected = [".gitignore", "a.py", "b.py", "c.py", "moved.py", "names with spaces, é.py"]
    assert recent.changed(repository, NOW) == expected


def test_a_branch_that_was_merged_is_recent(repository: Path) -> None:
    git(repository, "checkout", "-b", "side", "HEAD~2")
    commit(repository, "side.py", 8.5)
    git(repository, "checkout", "main")
    git(repository, "merge", "side", hours_ago=1)
    assert recent.changed(repository, NOW) == ["c.py", "side.py"]


def test_where_nothing_is_known_everything_is_recent(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recent.changed(repository, NOW - timedelta(hours=3)) is None, "no commit is older"
    shallow = repository.parent / "shallow"
    git(repository, "clone", "--depth", "2", repository.as_uri(), str(shallow))
    assert recent.changed(shallow, NOW) is None
    inside = repository / "inside"
    inside.mkdir()
    assert recent.changed(inside, NOW) is None, "the repository of another project"
    assert recent.changed(repository.parent, NOW) is None, "no repository"
    monkeypatch.setenv("PATH", "")
    assert recent.changed(repository, NOW) is None, "no git"


def test_it_tells_what_ran_whole_and_why() -> None:
    assert [line.partition(":")[0] for line in recent.told(None)] == ["everything"]
    told = list(recent.told(["src/headway/vectors/glove.py", "src/headway/vectors/one_hot.py"]))
    assert len(told) == len(GROUPS) + len(ROOMS)
    assert "cross-section: other tests of tests/nn/, since nothing changed on which it depends" in told
    assert "cross-section: FlexAttention, since nothing changed on which it depends" in told
    assert "whole: lesson 10, since src/headway/vectors/glove.py and 1 more changed" in told


def test_the_command_names_what_changed_and_needs_no_environment(repository: Path) -> None:
    """`.ci/run` asks it before there is one."""
    (repository / "tests").mkdir()
    shutil.copy(recent.__file__, repository / "tests")
    (repository / "viewer").mkdir()
    for name in ("viewer/one.ts", "two.ts"):
        (repository / name).touch()

    def said(*paths: str) -> str:
        command = [sys.executable, "-I", "-S", "tests/recent.py", *paths]
        return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.strip()

    assert said("viewer/") == "viewer/one.ts"
    assert said("docs/") == ""
    shutil.rmtree(repository / ".git")
    assert said("viewer/") == "everything"


@pytest.mark.slow
def test_the_closing_line_comes_last() -> None:
    """In processes of xdist as well, which are told what changed."""
    command = [sys.executable, "-m", "pytest", "--recent", "-n", "1", "-p", "no:cacheprovider", "tests/test_kinds.py"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *_, last = ran.stdout.splitlines()
    assert re.search(r"\d+ passed.* in ", last)
    assert "chosen by what changed recently" in ran.stdout
