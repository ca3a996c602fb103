"""Public docstrings are in Google style and complete: a first sentence, every parameter, every error.

Others describe what a signature does not say, and nothing that it does not have.
"""

import ast
import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import torch
from typing_extensions import Unpack

import headway
from headway.checkpoints import FAMILIES

ROOMS = [
    "headway",
    *("headway.attention", "headway.call", "headway.coordinates", "headway.masks", "headway.records"),
    *("headway.reductions", "headway.terms"),
    *("headway.biases", "headway.properties"),
    *("headway._common.extras", "headway._common.files", "headway._common.fonts"),
    *("headway._common.lines", "headway._common.progress", "headway._common.store", "headway._common.table"),
    *("headway._common.templates", "headway._common.training"),
    "headway.bench",
    "headway.checkpoints",
    *("headway.integrations.torch", "headway.integrations.transformers"),
    *("headway.inspection", "headway.inspection.roles", "headway.inspection.texts"),
    "headway.kernels",
    "headway.models",
    "headway.nn",
    "headway.parallel",
    "headway.positions",
    *("headway.study", "headway.study.extension", "headway.study.planted", "headway.study.tasks"),
    "headway.study.word_vectors",
    "headway.testing",
    "headway.vectors",
]
"""Modules whose public names, those of ``__all__`` or else all that they define, keep to this style.

Of a room such as ``headway.bench`` this is what it exports; functions of its files are its own, and need one sentence.
"""

UNDOCUMENTED = {"extra_repr"}
"""Methods that torch documents, and that do here what it says."""


def things() -> dict[str, tuple[Any, Any]]:
    """Each class, function, method and property of the rooms by its dotted name, with the method it overrides if any.

    Only what headway defines.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        kinds = (type, types.FunctionType)
        own = (name for name, x in vars(module).items() if isinstance(x, kinds) and x.__module__ == room)
        for name in getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]:
            found |= described(name, getattr(module, name))
    for family in FAMILIES.values():  # their methods are those of Family
        found[f"{family.__module__}.{family.__name__}"] = family, None
    return found


def described(name: str, thing: Any) -> dict[str, tuple[Any, Any]]:
    if not getattr(thing, "__module__", "").startswith("headway") or not callable(thing):
        return {}
    found: dict[str, tuple[Any, Any]] = {f"{thing.__module__}.{name}": (thing, None)}
    own = [base for base in thing.__mro__ if base.__module__.startswith("headway")] if inspect.isclass(thing) else []
    for base in own:
        for key in vars(base):
            function = method(base, key)
            if inspect.isfunction(function) and not key.startswith("_") and key not in UNDOCUMENTED:
                parents = [parent for parent in own if parent in base.__mro__[1:]]
                overridden = next((method(parent, key) for parent in parents if key in vars(parent)), None)
                found[f"{base.__module__}.{base.__name__}.{key}"] = function, overridden
    return found


def method(owner: type, name: str) -> Any:
    """The function of a method or of a property that a class defines itself."""
    member = vars(owner)[name]
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def parameters(function: Callable[..., Any]) -> Iterator[str]:
    """The parameters of a function; those of a TypedDict under ``**`` by their own names, unless it is described."""
    if inspect.isclass(function) and (
        function.__init__ is torch.nn.Module.__init__
        or issubclass(function, Exception)
        or getattr(function, "_is_protocol", False)
    ):
        return  # the inherited signature takes anything
    if is_typeddict(function):
        return  # the functions that unpack it describe its fields
    if any(name.startswith("**") for name in section(function, "Args")):
        code = inspect.unwrap(function.__init__ if inspect.isclass(function) else function).__code__
        count = code.co_argcount + code.co_kwonlyargcount
        stars = ["*", "**"] if code.co_flags & inspect.CO_VARARGS else ["**"]
        yield from (name for name in code.co_varnames[:count] if name not in ("self", "cls"))
        yield from map("".join, zip(stars, code.co_varnames[count:], strict=False))
        return
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            hint = get_type_hints(function).get(parameter.name)
            if get_origin(hint) is Unpack and f"**{parameter.name}" not in section(function, "Args"):
                yield from get_args(hint)[0].__annotations__
                continue
            yield f"**{parameter.name}"
        elif parameter.name not in ("self", "cls"):
            yield f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name


def section(thing: Any, title: str) -> list[str]:
    """The names that a section of a docstring describes, one at the beginning of each entry."""
    lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
    if f"{title}:" not in lines:
        return []
    names = []
    for line in lines[lines.index(f"{title}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        names += re.findall(r"^ {4}(\S+): ", line)
    return names


def own_code(thing: Any) -> str:
    """The source that raises on behalf of a thing: of a class its constructor."""
    if not inspect.isclass(thing):
        return inspect.getsource(thing)
    makers = [vars(thing)[name] for name in ("__init__", "__post_init__") if name in vars(thing)]
    written = [maker for maker in makers if inspect.unwrap(maker).__code__.co_filename == inspect.getsourcefile(thing)]
    return "".join(map(inspect.getsource, written))  # a dataclass has an __init__ without source


def faults(name: str, thing: Any, overridden: Any = None) -> list[str]:
    """What is missing from the docstring of a class or a function; a method shares that of the one it overrides."""
    documentation = inspect.cleandoc(thing.__doc__ or "")
    first, _, rest = documentation.partition("\n")
    if not documentation and overridden is None:
        return [f"{name}: there is no docstring"]
    found = []
    one_sentence = first.endswith(".") and not re.search(r"[.!?] [A-Z]", first) and (not rest or rest[0] == "\n")
    if documentation and not one_sentence:
        found.append(f"{name}: the first line is not one sentence that ends in a full stop: {first}")
    if re.search(r"^Cite:", documentation, re.MULTILINE):
        found.append(f"{name}: 'Cite:' is now a section 'References:'")
    described_by = thing if documentation or overridden is None else overridden
    if "raise HeadwayError" in own_code(thing) and not section(described_by, "Raises"):
        found.append(f"{name}: it raises HeadwayError, and there is no section 'Raises:'")
    wanted, entries = list(parameters(thing)), section(thing, "Args") or section(thing, "Attributes")
    bases = getattr(thing, "__mro__", ())[1:]
    inherited = [entry for base in bases for title in ("Args", "Attributes") for entry in section(base, title)]
    found += [
        f"{name}: 'Args:' describes {entry}, which is not a parameter" for entry in entries if entry not in wanted
    ]
    if is_method(thing):  # of a method, the text may describe a parameter
        entries += re.findall(r"``(\w+)``", documentation)
        wanted = wanted[1:] if thing.__name__ == "forward" else wanted
        entries += [] if overridden is None else parameters(overridden)
    found += [
        f"{name}: 'Args:' does not describe {parameter}" for parameter in wanted if parameter not in entries + inherited
    ]
    return found


def is_method(thing: Any) -> bool:
    return not inspect.isclass(thing) and thing.__qualname__ != thing.__name__


THINGS = things()


@pytest.mark.parametrize("name", THINGS)
def test_a_docstring_is_complete(name: str) -> None:
    assert not faults(name, *THINGS[name])


def described_in_vain(source: str) -> list[str]:
    """What sections "Args" describe that the function, or the constructor of the class, does not take."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        makers = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        taker = node if isinstance(node, ast.FunctionDef) else makers[0] if makers else None
        if taker is None or (taker.args.kwarg and "Unpack" in ast.unparse(taker.args.kwarg)):
            continue
        its = taker.args
        taken = {one.arg for one in (*its.posonlyargs, *its.args, *its.kwonlyargs)}
        taken |= {star + one.arg for star, one in (("*", its.vararg), ("**", its.kwarg)) if one}
        documented = types.SimpleNamespace(__doc__=ast.get_docstring(node))
        found += [f"{node.name}: {name}" for name in section(documented, "Args") if name not in taken]
    return found


def test_nothing_is_described_that_a_function_does_not_take() -> None:
    sources = Path(headway.__file__).parent.rglob("*.py")
    assert [fault for path in sources for fault in described_in_vain(path.read_text())] == []
    assert described_in_vain(
        'def f(a, *b):\n    """Fs.\n\n    Args:\n        a: a.\n        *b: b.\n        c: c.\n    """'
    ) == ["f: c"]


def test_every_room_has_something() -> None:
    for room in ROOMS:
        assert [name for name in THINGS if name.startswith(room)]


# ---------------------------------------------------------------- the test can fail


class HeadwayError(ValueError):
    pass


class Good:
    """Computes something.

    Args:
        size: how large it is,
            on two lines: at least 1.
        **options: anything.

    Raises:
        HeadwayError: if the size is below 1.
    """

    def __init__(self, size: int, **options: Any) -> None:
        if size < 1:
            raise HeadwayError

    def forward(self, x: float, scale: float) -> None:
        """Scales x.

        Args:
            scale: the factor.
        """

    def crop(self, length: int) -> None:
        """Removes all but ``length`` tokens."""


class Better(Good):
    def forward(self, x: float, scale: float, shift: float = 0.0) -> None:
        if scale < 0:
            raise HeadwayError

    def crop(self, length: int) -> None:
        pass


class Bad:
    """Computes something. Computes more.

    Cite: Nobody 2000.

    Args:
        width: what it no longer has.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise HeadwayError

    def forward(self, x: float, scale: float) -> None:
        """[batch, n] → [batch, n]"""

    def crop(self, length: int) -> None:
        pass


def test_a_good_class_has_no_faults() -> None:
    for thing in (Good, Good.forward, Good.crop):
        assert not faults("good", thing)


def test_an_override_shares_a_docstring() -> None:
    assert not faults("better", Better.crop, Good.crop)
    assert faults("better", Better.crop) == ["better: there is no docstring"]
    errors, shift = faults("better", Better.forward, Good.forward)
    assert "it raises HeadwayError" in errors
    assert "does not describe shift" in shift


@pytest.mark.parametrize(
    ("thing", "messages"),
    [
        (
            Bad,
            [
                "the first line is not one sentence",
                "'Cite:' is now",
                "it raises HeadwayError",
                "describes width, which is not a parameter",
                "does not describe size",
            ],
        ),
        (Bad.forward, ["the first line is not one sentence", "does not describe scale"]),
        (Bad.crop, ["there is no docstring"]),
    ],
)
def test_faults_are_found(thing: Any, messages: list[str]) -> None:
    found = faults("bad", thing)
    assert len(found) == len(messages)
    for fault, message in zip(found, messages, strict=True):
        assert fault.startswith("bad: ")
        assert message in fault
