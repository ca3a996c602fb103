"""The public surface: pinned by name, and every function of it is documented and typed."""

import importlib
import importlib.metadata
import inspect
import pydoc
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headway

SURFACE = {
    "Coordinates",
    "HeadwayError",
    "__version__",
    "ablate",
    "attention",
    "attention_statistics",
    "attention_steps",
    "attention_weights",
    "attention_with_lse",
    "varlen_attention",
    "capture",
    "checkpoints",
    "citation",
    "encoding",
    "explain",
    "inspection",
    "integrations",
    "load",
    "masks",
    "models",
    "nn",
    "parallel",
    "positions",
    "save",
    "study",
    "terms",
    "testing",
    "tune",
    "tuning",
    "vectors",
}
MODULES = [
    "checkpoints",
    "inspection",
    "inspection.roles",
    "inspection.texts",
    "integrations",
    "integrations.torch",
    "integrations.transformers",
    "parallel",
    "masks",
    "models",
    "nn",
    "parallel",
    "positions",
    "study",
    "study.engines",
    "terms",
    "testing",
    "tuning",
    "vectors",
]


def test_the_page_of_promises_names_every_public_module() -> None:
    page = (Path(__file__).parents[1] / "docs" / "stability.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("- **Python**")]
    assert set(re.findall(r"`([a-z.]+)`", line.partition("its modules")[2].partition(";")[0])) == set(MODULES)


def public_objects() -> Iterator[tuple[str, Any]]:
    """(dotted name, object) of every class and function of the surface and of the public modules."""
    owners: list[ModuleType] = [headway, *(importlib.import_module(f"headway.{name}") for name in MODULES)]
    for owner in owners:
        for name in owner.__all__:
            thing = getattr(owner, name)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                yield f"{owner.__name__}.{name}", thing


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, and every public method that a public class itself defines."""
    for name, thing in public_objects():
        if inspect.isroutine(thing):
            yield name, thing
            continue
        for key, member in vars(thing).items():
            function = getattr(member, "__func__", member)
            if not key.startswith("_") and inspect.isfunction(function):
                yield f"{name}.{key}", function


def test_surface_is_pinned() -> None:
    assert set(headway.__all__) == SURFACE
    assert len(headway.__all__) == len(SURFACE)


def tour() -> str:
    """The code in the docstring of the package, with which ``help(headway)`` begins."""
    text = inspect.getdoc(headway) or ""
    return textwrap.dedent(re.findall(r"::\n\n((?: {4}.*\n|\n)+)", text)[0])


def test_help_begins_with_a_tour(capsys: pytest.CaptureFixture[str]) -> None:
    assert 10 <= len([line for line in tour().splitlines() if line]) <= 12
    exec(compile(tour(), "the tour", "exec"), names := {})
    said = capsys.readouterr().out
    assert names["out"].shape == (2, 8, 100, 64)
    assert "kernel: " in said
    assert "entropy" in said
    shown = pydoc.plain(pydoc.render_doc(headway)).splitlines()[:30]
    assert {line.strip() for line in tour().splitlines()} <= {line.strip() for line in shown}


@pytest.mark.parametrize("name", ["", *MODULES])
def test_dir_is_what_a_module_offers(name: str) -> None:
    """What an editor completes: the public names, and neither imports nor a file beside the class in it."""
    module = importlib.import_module(f"headway.{name}".rstrip("."))
    assert dir(module) == sorted(set(module.__all__))
    assert len(module.__all__) == len(set(module.__all__))
    submodules = {entry for entry in dir(module) if inspect.ismodule(getattr(module, entry))}
    assert {f"{name}.{entry}".lstrip(".") for entry in submodules} <= set(MODULES)


def test_no_public_module_is_left_out() -> None:
    found, ahead = set(), [headway]
    while ahead:
        module = ahead.pop()
        below = [thing for entry in module.__all__ if inspect.ismodule(thing := getattr(module, entry))]
        found |= {thing.__name__.removeprefix("headway.") for thing in below}
        ahead += below
    assert found - set(MODULES) == set()


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_every_name_is_there(name: str) -> None:
    assert getattr(headway, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = headway.no_such_name


def test_version_is_the_installed_one() -> None:
    assert headway.__version__ == importlib.metadata.version("headway")


@pytest.mark.slow
def test_attention_is_the_function() -> None:
    """The function and the module it lives in share a name; the function wins, however it is imported."""
    code = "import headway.attention, headway.nn, headway as hw; assert callable(hw.attention)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_public_modules_offer_something(name: str) -> None:
    module = importlib.import_module(f"headway.{name}")
    assert "." in name or module is getattr(headway, name)
    assert inspect.getdoc(module)
    assert module.__all__
    assert [entry for entry in module.__all__ if not hasattr(module, entry)] == []


def test_everything_public_is_documented() -> None:
    things = dict(public_objects())
    assert things
    silent = [
        name
        for name, thing in things.items()
        # What a dataclass writes for itself is its signature, which says nothing.
        if not thing.__doc__ or thing.__doc__.startswith(f"{thing.__name__}(")
    ]
    assert not silent, "\n".join(silent)


def test_everything_public_is_typed() -> None:
    untyped = []
    for name, function in public_functions():
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        for parameter in parameters:
            if parameter.annotation is inspect.Parameter.empty:
                untyped.append(f"{name}({parameter.name})")
        if signature.return_annotation is inspect.Signature.empty:
            untyped.append(f"{name} -> ?")
    assert not untyped, "\n".join(untyped)
