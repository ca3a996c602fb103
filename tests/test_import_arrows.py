"""Imports point one way, between parts and between files. Read from the source, so that an import inside a function or
for annotations alone counts as well.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "headway"

# From the ground up: a part may import what stands in an earlier layer, and its neighbours in its own layer
# as long as that makes no circle.
LAYERS = [
    ["errors"],
    ["_common"],
    ["_torch", "tracing"],
    ["constants", "records"],
    ["coordinates", "householder", "decay", "terms", "masks", "biases", "reductions", "sharing"],
    ["positions", "kernels"],
    ["heads"],
    ["call"],
    ["plans", "jagged"],
    ["attention"],
    ["properties"],
    ["nn"],
    ["models"],
    ["parallel"],
    ["checkpoints", "integrations"],
    ["inspection"],
    ["vectors"],
    ["testing"],
    ["study"],
    ["bench"],
    ["tuning"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
STRANGERS = {frozenset({"positions", "kernels"})}  # neighbours that never import each other
ROOT = "headway"  # the public surface: the file headway/__init__.py
SIDE_ROOMS = {
    "vectors",
    "study",
    "bench",
    "tuning",
    "cli",
    "__main__",
}  # nothing of the core imports them; `testing` checks both
ABOVE_THE_ROOT = {"cli"}  # it may use `import headway`, as a user does

LATE = {
    ("headway.masks._base", "headway.masks._joined.both"),
    ("headway.masks._base", "headway.masks._joined.either"),
    ("headway.models.transformer", "headway.models.generate.generate"),
    ("headway.parallel._shards", "headway.parallel._attention.attention"),
    ("headway.positions._base", "headway.properties.measure"),
}
"""(module, what it imports) of methods that call a function built on their class. The import stands in the method, with
its reason, and counts neither as an arrow nor in a circle.
"""


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; `from a import b` gives a.b, whatever b is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            for alias in node.names:
                yield node.lineno, ".".join([*above, *filter(None, [node.module]), alias.name])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


@cache
def imports_in(source: str, module: str, *, is_package: bool) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of what a module imports, without what is ``LATE``."""
    package = module if is_package else module.rpartition(".")[0]
    found = imported_names(ast.parse(source), package)
    return tuple((line, name) for line, name in found if (module, name) not in LATE)


def part_of(name: str) -> str | None:
    """The part that a dotted name lies in: headway.nn.block is in nn, headway.encoding in the root."""
    first, *rest = name.split(".")
    if first != "headway":
        return None
    return rest[0] if rest and rest[0] in HEIGHT else ROOT


def arrows(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str, str]]:
    """(line, part that imports, part imported) of every import that crosses from one part into another."""
    origin = part_of(module) or ROOT
    for line, name in imports_in(source, module, is_package=is_package):
        target = part_of(name)
        if target is not None and target != origin:
            yield line, origin, target


def refusal(origin: str, target: str) -> str | None:
    """Why `origin` may not import `target`; None where it may."""
    if origin == ROOT:
        return "the command line is for the shell alone" if target == "cli" else None
    if target == ROOT:
        return None if origin in ABOVE_THE_ROOT else "import from the part that owns it, not from the root"
    if {origin, target} in STRANGERS:
        return f"{origin} and {target} never import each other"
    if HEIGHT[target] > HEIGHT[origin]:
        return f"{target} stands above {origin}"
    return None


def sources() -> Iterator[tuple[Path, str, bool]]:
    """(file, dotted name of its module, whether that is a package) of the whole package."""
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE.parent).with_suffix("")
        is_package = inside.name == "__init__"
        yield path, ".".join(inside.parent.parts if is_package else inside.parts), is_package


def all_arrows() -> Iterator[tuple[str, str, str]]:
    """(place, part that imports, part imported) over the whole package."""
    for path, module, is_package in sources():
        for line, origin, target in arrows(path.read_text(encoding="utf-8"), module, is_package=is_package):
            yield f"{path.relative_to(SOURCE)}:{line}", origin, target


def files_imported(source: str, module: str, known: Collection[str], *, is_package: bool) -> set[str]:
    """The modules that a module imports, by the files they are in: of a name in a package, the package's own."""
    names = [name for _, name in imports_in(source, module, is_package=is_package)]
    return {name if name in known else name.rpartition(".")[0] for name in names} & set(known) - {module}


def circles(edges: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module: modules that reach each other by imports."""
    reached: dict[str, set[str]] = {}
    for origin in edges:
        seen, ahead = set(), list(edges[origin])
        while ahead:
            if (target := ahead.pop()) not in seen:
                seen.add(target)
                ahead += edges.get(target, ())
        reached[origin] = seen
    found = {
        tuple(sorted(target for target in targets if origin in reached.get(target, ())))
        for origin, targets in reached.items()
        if origin in targets
    }
    return sorted(map(list, found))


def test_every_part_has_its_layer() -> None:
    parts = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
    assert parts - {"__init__", "__main__", *HEIGHT} == set(), "give the new part a place in LAYERS"
    assert set(HEIGHT) - parts == set(), "LAYERS lists what is not there"


def test_imports_point_one_way() -> None:
    wrong = [
        f"{place}: {origin} imports {target}: {why}"
        for place, origin, target in all_arrows()
        if (why := refusal(origin, target))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_nothing_of_the_core_imports_a_side_room() -> None:
    above = SIDE_ROOMS | {"testing", ROOT}  # the root names them all, and test_lean_import sees that it loads none
    wrong = [
        f"{place}: {origin} imports {target}"
        for place, origin, target in all_arrows()
        if target in SIDE_ROOMS and origin not in above
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_what_the_parts_share_knows_nothing_of_attention() -> None:
    imported = {place: target for place, origin, target in all_arrows() if origin == "_common"}
    assert imported, "no import was found: the test reads the wrong folder"
    assert {place: target for place, target in imported.items() if target != "errors"} == {}


def test_no_circles_between_parts() -> None:
    edges: dict[str, set[str]] = {}
    for _, origin, target in all_arrows():
        if ROOT not in (origin, target):
            edges.setdefault(origin, set()).add(target)
    assert edges, "no import between parts was found: the test reads the wrong folder"
    assert circles(edges) == []


def test_no_circles_between_files() -> None:
    known = {module for _, module, _ in sources()}
    edges = {
        module: files_imported(path.read_text(encoding="utf-8"), module, known, is_package=is_package)
        for path, module, is_package in sources()
    }
    assert "headway.nn.attention" in edges["headway.nn"], "imports between files were not found"
    found = [
        [f"{module} imports {', '.join(sorted(edges[module].intersection(circle)))}" for module in circle]
        for circle in circles(edges)
    ]
    assert not found, "\n" + "\n\n".join(map("\n".join, found))


@pytest.mark.parametrize(("module", "name"), sorted(LATE))
def test_a_late_import_stands_in_a_function_with_its_reason(module: str, name: str) -> None:
    source = Path(SOURCE.parent, *module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    tree, package = ast.parse(source), module.rpartition(".")[0]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    [line] = [line for line, imported in imported_names(tree, package) if imported == name]
    assert any(function.lineno < line <= (function.end_lineno or 0) for function in functions)
    assert "  # here, since " in source.splitlines()[line - 1]


ROOM = {
    "headway.rooms": "from ._base import Base as Base\nfrom .one import One as One\nTABLE = {'one': One}",
    "headway.rooms._base": "from ..errors import HeadwayError",
    "headway.rooms.one": "from ._base import Base",
    "headway.errors": "",
}
"""A room without a circle, by module."""


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("headway.rooms._base", "", []),
        ("headway.rooms._base", "from .one import One", ["headway.rooms._base", "headway.rooms.one"]),
        ("headway.rooms._base", "import headway.rooms.one", ["headway.rooms._base", "headway.rooms.one"]),
        ("headway.rooms._base", "from . import one", ["headway.rooms._base", "headway.rooms.one"]),
        ("headway.rooms._base", "def f():\n    from .one import One", ["headway.rooms._base", "headway.rooms.one"]),
        ("headway.rooms.one", "def f():\n    from . import TABLE", ["headway.rooms", "headway.rooms.one"]),
        ("headway.rooms._base", "from . import TABLE", ["headway.rooms", "headway.rooms._base", "headway.rooms.one"]),
        (
            "headway.errors",
            "from .rooms.one import One",
            ["headway.errors", "headway.rooms._base", "headway.rooms.one"],
        ),
        (
            "headway.rooms._base",
            "if TYPE_CHECKING:\n    from .one import One",
            ["headway.rooms._base", "headway.rooms.one"],
        ),
    ],
)
def test_a_circle_between_files_is_seen(module: str, source: str, expected: list[str]) -> None:
    room = {**ROOM, module: f"{ROOM[module]}\n{source}"}
    edges = {name: files_imported(text, name, room, is_package=name == "headway.rooms") for name, text in room.items()}
    assert circles(edges) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("headway.positions._base", "from headway.kernels import reference", "kernels"),
        ("headway.positions._base", "from ..kernels.reference import run", "kernels"),
        ("headway.positions._base", "from .. import kernels", "kernels"),
        ("headway.kernels.sdpa", "import headway.positions._table as table", "positions"),
        ("headway._common.table", "from ..terms import Term", "terms"),
        ("headway._common.table", "from .. import _torch", "_torch"),
        ("headway.terms", "def f():\n    from headway.attention import attention", "attention"),
        ("headway.terms", "import importlib\nimportlib.import_module('headway.nn')", "nn"),
        ("headway.models.transformer", "from headway.study import corpora", "study"),
        ("headway.attention", "from headway import encoding", ROOT),
        ("headway.study.run", "from .. import __version__", ROOT),
        ("headway.masks", "if TYPE_CHECKING:\n    import headway.nn", "nn"),
        ("headway.positions._base", "def f():\n    from ..properties import Pairs", "properties"),
        ("headway.terms", "def f():\n    from .properties import measure", "properties"),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str, target: str) -> None:
    [(_, origin, seen)] = arrows(source, module, is_package=False)
    assert seen == target
    assert refusal(origin, seen)


def test_a_right_import_passes() -> None:
    source = "import torch\nfrom headway.errors import HeadwayError\nfrom headway import masks\n"
    seen = [target for _, _, target in arrows(source, "headway.positions._base", is_package=False)]
    assert seen == ["errors", "masks"]
    assert not any(refusal("positions", target) for target in seen)
