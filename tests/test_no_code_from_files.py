"""No file that headway reads can run code: there is no pickle. test_load.py has code that a config names."""

import ast
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway._common.files import read_checkpoint
from headway.errors import HeadwayError

SOURCES = Path(headway.__file__).parent
OWN_PICKLES = {"testing/encodings.py", "_common/engines/processes.py"}
"""What pickles things of its own and reads them again, in memory or from a process that it started."""
RUNS_CODE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


@functools.cache
def sources() -> dict[str, ast.Module]:
    """The files of the package, parsed."""
    return {
        path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCES.rglob("*.py"))
    }


@functools.cache
def calls() -> list[tuple[str, str, dict[str, ast.expr]]]:
    """Each call in the sources: the file, what is called, and its named arguments."""
    return [
        (file, ast.unparse(node.func), {one.arg: one.value for one in node.keywords if one.arg})
        for file, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]


def test_no_source_reads_a_pickle() -> None:
    for file, tree in sources().items():
        named = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
        named |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if file not in OWN_PICKLES:
            assert not named & RUNS_CODE, file


def test_torch_and_numpy_read_data_alone() -> None:
    loads = [(file, named) for file, called, named in calls() if called == "torch.load"]
    assert len(loads) >= 2, "torch.load is called by another name"
    for file, named in loads:
        assert ast.unparse(named.get("weights_only", ast.Constant(None))) == "True", file
    for file, called, named in calls():
        assert "allow_pickle" not in named, (file, called)
        assert ast.unparse(named.get("trust_remote_code", ast.Constant(False))) == "False", (file, called)


class Evil:
    """An object whose pickle writes a file when it is read."""

    def __reduce__(self) -> Any:
        return Path("ran").write_text, ("code",)


def test_a_checkpoint_of_a_training_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Evil()}, tmp_path / "state.pt")
    with pytest.raises(HeadwayError, match="cannot be read"):
        read_checkpoint(tmp_path / "state.pt")
    torch.load(tmp_path / "state.pt", weights_only=False)
    assert (tmp_path / "ran").exists(), "the file is not as evil as it should be"
