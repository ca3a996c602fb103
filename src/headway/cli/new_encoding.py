"""``headway new-encoding``: writes a file with an encoding to start from, and its test."""

from __future__ import annotations

import keyword
import re
from enum import Enum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .._common.language import said
from ._console import console


class Kind(str, Enum):
    """What an encoding does to scores; the value names the example to start from."""

    bias = "bias"
    rotary = "rotary"
    gate = "gate"


CLASS = {Kind.bias: "Near", Kind.rotary: "Turn", Kind.gate: "Gate"}

TEST = '''"""{kind} passes the checks that headway's own encodings pass."""

import pytest
from {module} import {kind}

from headway.positions import PositionEncoding
from headway.testing import ENCODING_CHECKS


@pytest.mark.parametrize("check", ENCODING_CHECKS)
@pytest.mark.parametrize("encoding", {kind}.examples(), ids=repr)
def test_it_passes(encoding: PositionEncoding, check: str) -> None:
    ENCODING_CHECKS[check](encoding)
'''


def run(
    name: Annotated[str, typer.Argument(help="A name for the encoding, such as my-bias.")],
    kind: Annotated[
        Kind,
        typer.Option(
            help="What to start from: a learned bias by distance, a rotation of queries and keys, or a gate computed "
            "from the tokens."
        ),
    ] = Kind.bias,
    out: Annotated[Path, typer.Option(help="Folder to write both files to. Existing files are not replaced.")] = Path(),
) -> None:
    """Write a file with a working position encoding, to be changed into your own, and its test.

    Examples:
        headway new-encoding my-bias
        headway new-encoding my-rotation --kind rotary --out mine
    """
    from .._common.files import make_folder, need_folder_place, write_text
    from ..errors import HeadwayError
    from ..positions import ENCODINGS

    if not re.fullmatch(r"[A-Za-z]+([-_]?[A-Za-z0-9]+)*", name):
        raise HeadwayError(f"name is {name!r}: give letters, digits and hyphens, beginning with a letter: my-bias")
    need_folder_place(out)
    module = name.lower().replace("-", "_")
    known = module.replace("_", "-")
    if known in ENCODINGS:
        raise HeadwayError(f"name is {name!r}, which headway has: give another, or see headway encodings {known}")
    class_name = "".join(part[:1].upper() + part[1:] for part in re.split("[-_]", name))
    sources = {out / f"{module}.py": encoding_file(kind, module, class_name)}
    sources[out / f"test_{module}.py"] = TEST.format(kind=class_name, module=module)
    for path in sources:
        if path.exists():
            raise HeadwayError(f"{path} exists: give another name, or another folder with --out")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise HeadwayError(f"name is {name!r}, and {module}.py would hide the module {module}: give another")
    make_folder(out)
    for path, text in sources.items():
        write_text(path, text)
    file, test = sources
    console().print(
        said("{file}: {name}, a working encoding to change", file=file, name=class_name)
        + "\n"
        + said("{test}: its test", test=test)
        + f"\n\npython -m pytest {test}    # {said('after pip install pytest')}\n"
        f"headway encodings {file}:{class_name} --out {module}.png\n"
        f"headway compare --encodings {file}:{class_name},alibi,rope --out compare-{known}",
        markup=False,
        soft_wrap=True,
    )


def example(kind: Kind) -> str:
    """Returns the source of the example of a kind, as docs/extending.md shows it."""
    return (files("headway.cli._examples") / f"{kind.value}.py").read_text(encoding="utf-8")


def encoding_file(kind: Kind, module: str, class_name: str) -> str:
    """Returns the example of a kind as ``module``.py, in which the class is called ``class_name``."""
    old = CLASS[kind]
    text = example(kind).replace(f"class {old}(", f"class {class_name}(")
    text = text.replace(f'name = "{old.lower()}"', f'name = "{module.replace("_", "-")}"')
    text = re.sub(r"citation = .*", 'citation = ""', text)
    return f"# {module}.py\n{text}"
