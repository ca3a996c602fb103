"""A folder whose things are chosen by name has one hand-written table, and every file of the folder is in it."""

import ast
import importlib
import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "headway"

TABLES = {
    "headway.positions": "ENCODINGS",
    "headway.kernels": "KERNELS",
    "headway.nn.parts": "PARTS",
    "headway.inspection._sources": "SOURCES",
    "headway.inspection.statistics": "STATISTICS",
    "headway.inspection.scores": "SCORES",
    "headway.inspection.roles": "ROLES",
    "headway.checkpoints": "FAMILIES",
    "headway.parallel.methods": "METHODS",
    "headway.vectors": "VECTORS",
    "headway.cli": "COMMANDS",
    "headway.study.tasks": "TASKS",
}

FILES = dict.fromkeys(
    (
        "headway.positions",
        "headway.checkpoints",
        "headway.vectors",
        "headway.inspection.statistics",
        "headway.inspection.scores",
        "headway.inspection.roles",
        "headway.study.tasks",
    ),
    "_table.py",
)
"""The file of a folder that has the table, where it is not ``__init__.py``."""

OF_IMPORTS = {
    "headway.positions",
    "headway.inspection.statistics",
    "headway.inspection.scores",
    "headway.inspection.roles",
}
"""Folders whose table has a row for each class that its file imports, under the name that the class says."""

FOLDERS = {"headway.positions": "headway.positions._encodings"}
"""Where the things of a table have a folder of their own."""

ROOMS = {"headway.kernels": {"lowering"}}
"""What the things of a folder share, where it is a folder itself."""


def folder(package: str) -> Path:
    return SOURCE.parent.joinpath(*package.split("."))


def files_of(package: str) -> set[str]:
    """The public modules and packages that lie in the folder; a name that starts with _, and a room, is a helper."""
    found = {
        path.stem
        for path in folder(package).iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").is_file())
    }
    return found - ROOMS.get(package, set())


def module_of(entry: Any) -> str:
    """The module that an entry of a table comes from: a class, function, module, object or "module:name"."""
    if isinstance(entry, str):
        return entry.partition(":")[0]
    if isinstance(entry, (tuple, list)):
        return module_of(entry[0])
    if isinstance(entry, partial):
        return module_of(entry.func)
    if inspect.ismodule(entry):
        return entry.__name__
    if inspect.isclass(entry) or inspect.isroutine(entry):
        return entry.__module__
    return type(entry).__module__


def entries(package: str, table: str) -> list[Any]:
    value = getattr(importlib.import_module(package), table)
    return list(value.values() if isinstance(value, Mapping) else value)


def tables_in(path: Path) -> dict[str, ast.expr]:
    """What a file assigns to names in capitals at its top level."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_"):
                    found[target.id] = node.value
    return found


@pytest.mark.parametrize(("package", "table"), TABLES.items())
def test_table_is_complete(package: str, table: str) -> None:
    modules = {module_of(entry) for entry in entries(package, table)}
    place = FOLDERS.get(package, package)
    outside = {module for module in modules if not module.startswith(f"{place}.")}
    assert not outside, f"{table} names {outside}, which is not in {place}"
    named = {module.removeprefix(f"{place}.").split(".")[0] for module in modules}
    files = files_of(place)
    assert files, f"{place} has no file"
    assert place == package or not files_of(package), f"files that belong into {place}"
    assert files - named == set(), f"files that are missing from {table}"
    assert named - files == set(), f"entries of {table} whose module is a helper"


@pytest.mark.parametrize(
    ("package", "table"), [(package, table) for package, table in TABLES.items() if package not in OF_IMPORTS]
)
def test_table_is_written_by_hand(package: str, table: str) -> None:
    value = tables_in(folder(package) / FILES.get(package, "__init__.py")).get(table)
    assert isinstance(value, (ast.Dict, ast.Tuple, ast.List)), f"{package} writes {table} out as a literal"
    if isinstance(value, ast.Dict):
        keys = [ast.unparse(key) for key in value.keys if key is not None]
        assert len(keys) == len(value.values), "a table spells out every line: no ** in it"
        assert len(set(keys)) == len(keys), "a name stands twice"


@pytest.mark.parametrize("package", sorted(OF_IMPORTS))
def test_every_import_is_a_row(package: str) -> None:
    """In the order of the imports, under a name of the class's own: two of one name would be one row."""
    source = (folder(package) / FILES[package]).read_text(encoding="utf-8")
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    imported = [alias.name for node in imports for alias in node.names if node.module != "_base"]
    table = getattr(importlib.import_module(package), TABLES[package])
    assert [cls.__name__ for cls in table.values()] == imported
    assert {name: cls.__dict__.get("name") for name, cls in table.items()} == {name: name for name in table}


def test_no_table_is_left_out() -> None:
    """A folder that gains a table of its own is to be checked here like the others."""
    found = {
        ".".join(path.parent.relative_to(SOURCE.parent).parts)
        for path in (*SOURCE.rglob("__init__.py"), *SOURCE.rglob("_table.py"))
        if any(isinstance(value, ast.Dict) for value in tables_in(path).values())
    }
    assert found - set(TABLES) == set()
