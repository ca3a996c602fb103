"""The public surface: pinned by name, and every function of it is documented and typed."""

import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    "positions",
    "save",
    "study",
    "terms",
    "testing",
    "vectors",
}
MODULES = [
    "checkpoints",
    "inspection",
    "integrations.torch",
    "integrations.transformers",
    "masks",
    "models",
    "nn",
    "positions",
    "study",
    "terms",
    "testing",
    "vectors",
]


def names_of(module: ModuleType) -> list[str]:
    """What a public module offers: its __all__, or what it defines without a leading underscore."""
    own = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith(module.__name__)
    ]
    return list(getattr(module, "__all__", own))


def public_objects() -> Iterator[tuple[str, Any]]:
    """(dotted name, object) of every class and function of the surface and of the public modules."""
    owners: list[ModuleType] = [headway, *(importlib.import_module(f"headway.{name}") for name in MODULES)]
    for owner in owners:
        for name in names_of(owner):
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
    assert set(dir(headway)) >= SURFACE


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
    offered = names_of(module)
    assert offered
    assert [entry for entry in offered if not hasattr(module, entry)] == []


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
