"""Writes the folder that Sphinx reads: links to the pages of the repository, and the pages made from the package.

The pages made are the reference of the public names, one page for each module and for each encoding, and the help of
each command.
"""

import ast
import contextlib
import importlib
import inspect
import io
import itertools
import json
import re
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import notebooks
import torch
import typer
from navigation import NAVIGATION

import headway
from headway import positions
from headway.cli import COMMANDS, main, vectors
from headway.cli.encodings import SIZES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LINK = re.compile(r"(?<=\]\()<?([^)>#\s]+)")
"""The target of a link in Markdown, without what follows #."""

MODULES = (
    *("headway", "headway.positions", "headway.masks", "headway.terms", "headway.nn", "headway.models"),
    *("headway.inspection", "headway.inspection.roles", "headway.inspection.texts", "headway.checkpoints"),
    *("headway.integrations", "headway.integrations.torch", "headway.integrations.transformers"),
    *("headway.parallel", "headway.vectors", "headway.study", "headway.study.engines", "headway.testing"),
    "headway.tuning",
)
"""The public modules; an object that several of them offer is documented in the first."""


def thing(full: str) -> object:
    """Returns what a dotted name in a public module stands for."""
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


def has_docstring(value: object) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def places() -> dict[str, str]:
    """Returns, for each public name that is not a module, the dotted name under which it is documented."""
    first: dict[int, str] = {}
    found = {}
    for module in MODULES:
        for full in (f"{module}.{name}" for name in importlib.import_module(module).__all__):
            value = thing(full)
            if not inspect.ismodule(value):
                found[full] = first.setdefault(id(value), full) if has_docstring(value) else full
    return found


def pages() -> dict[str, str]:
    """Returns the page of each name that is documented: an encoding's own, or that of its module."""
    own = {f"headway.positions.{cls.__name__}": f"encodings/{name}" for name, cls in positions.ENCODINGS.items()}
    return {full: own.get(full, full.rpartition(".")[0]) for full in places().values()}


# ---------------------------------------------------------------- one name


def said_of(full: str) -> str:
    """Returns the string below the assignment of a public constant, wherever it is assigned."""
    name, value = full.rpartition(".")[2], thing(full)
    for module in [one for key, one in sorted(sys.modules.items()) if key.split(".")[0] == "headway"]:
        if vars(module).get(name) is not value or not getattr(module, "__file__", None):
            continue
        body = ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body
        for node, below in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if name in [ast.unparse(one) for one in targets if one] and isinstance(below, ast.Expr):
                return inspect.cleandoc(ast.literal_eval(below.value))
    return ""


def rst(text: str) -> str:
    return f"```{{eval-rst}}\n{text.rstrip()}\n```\n"


def entry(full: str) -> str:
    """Returns the entry of a public name in the reference."""
    value = thing(full)
    if not has_docstring(value):
        lines = [f"   {line}".rstrip() for line in said_of(full).splitlines()]
        return rst("\n".join([f".. py:data:: {full}", "", *lines]))
    if not inspect.isclass(value):
        return rst(f".. autofunction:: {full}")
    kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    options = ["   :members:", "   :show-inheritance:"]
    if value in positions.ENCODINGS.values():  # what all encodings have, their base class describes
        options.append(f"   :exclude-members: {', '.join(vars(positions.PositionEncoding))}")
    return rst("\n".join([f".. {kind}:: {full}", *options]))


# ---------------------------------------------------------------- pages


def module_page(module: str) -> str:
    """Returns the page of a module: its docstring, the names that other pages document, then its own."""
    where = pages()
    names = {full: documented for full, documented in places().items() if full.rpartition(".")[0] == module}
    here = [full for full in names if where.get(full) == module]
    links = [f"[{full.rpartition('.')[2]}](#{documented})" for full, documented in names.items() if full not in here]
    parts = [f"# {module}\n", rst(f".. automodule:: {module}\n   :no-members:"), *map(entry, here)]
    if links:
        parts.insert(2, f"On pages of their own: {', '.join(links)}.\n")
    return "\n".join(parts)


def call(name: str) -> str:
    """Returns the call that makes an encoding of a name, for the sizes of `headway encodings`."""
    parameters = inspect.signature(positions.ENCODINGS[name]).parameters
    needed = {key: SIZES[key] for key, one in parameters.items() if key in SIZES and one.default is one.empty}
    made = f'hw.encoding("{name}"{"".join(f", {key}={value!r}" for key, value in needed.items())})'
    eval(made, {"hw": headway})
    return made


def encoding_page(name: str, folder: Path) -> str:
    """Returns the page of an encoding, what `headway encodings NAME` shows, and draws its picture beside it.

    The file that defines it is copied to where the page links to it.
    """
    picture, printed = folder / f"{name}.png", io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["encodings", name, "--json", *([] if name == "none" else ["--out", str(picture)])])
    if code:
        raise SystemExit(f"headway encodings {name} failed")
    facts = json.loads(printed.getvalue())["rows"][0]
    source = Path(inspect.getfile(positions.ENCODINGS[name])).resolve().relative_to(ROOT)
    copy = folder.parents[1] / source
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / source, copy)
    rows = {
        "in Python": f"`{call(name)}`",
        "code": f"[{source.name}](../../{source.as_posix()})",
        "year": facts["year"] or "–",
        "acts on": ", ".join(facts["acts_on"]) or "nothing",
        "kind": f"{facts['kind']}: {positions.KINDS[facts['kind']]}",
        "parameters": f"{facts['parameters']:,}, for 8 heads of 64 and a length of 512",
        "longer inputs": "extends to them by construction" if facts["beyond"] else "not by construction",
        "kernels": ", ".join(facts["kernels"]),
        "evidence": positions.EVIDENCE[facts["evidence"]],
    }
    full = f"headway.positions.{facts['class']}"
    parts = [f"# {name}\n", entry(full), *(f"- **{key}**: {value}" for key, value in rows.items()), ""]
    if picture.exists():
        parts.append(f"![{name}, drawn]({picture.name})\n")
    if "properties" in facts:
        measured = {
            one["demand"]: f"{one['verdict']} | {one['number']:.3g} | {one['measured']}"
            for one in facts["properties"].values()
        }
        head = "| property | holds | number | what is measured |\n| --- | --- | --- | --- |\n"
        parts += ["## Measured properties\n", head + "".join(f"| {key} | {row} |\n" for key, row in measured.items())]
    if facts["citation"]:
        parts += ["## Citation\n", f"```bibtex\n{inspect.cleandoc(facts['citation'])}\n```\n"]
    return "\n".join(parts)


def commands_page() -> str:
    """Returns the help of each command, and of each command of a group."""
    group = [f"vectors {name}" for name in typer.main.get_command(vectors.run).commands]
    parts = ["# The commands\n", "What `headway COMMAND --help` prints.\n"]
    for command in [*COMMANDS, *group]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            main([*command.split(), "--help"])
        lines = [line.rstrip() for line in printed.getvalue().strip().splitlines()]
        parts.append(f"## headway {command}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def write_lesson_pages(source: Path) -> str:
    """Writes the pages of lessons that answer to the hand, and returns the page that lists them."""
    sys.path.insert(0, str(ROOT / "examples"))
    pages = importlib.import_module("pages")
    folder = source / "extra" / "lesson-pages"
    folder.mkdir(parents=True)
    parts = [
        "# Lessons that answer to the hand\n",
        "Each of these pages is one file in English and in Chinese, which needs no network. It computes the numbers of "
        "its lesson while you move sliders, drag points or type a sentence.\n",
    ]
    scripts = (ROOT / "examples" / "pages").glob("lesson_*.js")
    for name in sorted((path.stem for path in scripts), key=lambda name: int(name.split("_")[1])):
        data = importlib.import_module(name).page_data()
        pages.write(folder / f"{name}.html", name, data)
        english, chinese = data["title"]
        parts.append(f'- <a href="../lesson-pages/{name}.html">{english}<br>{chinese}</a>')
    pages.write(folder / "claims.html", "claims", importlib.import_module("claims._guess").page_data())
    parts.append(
        "\nThe claims of the tutorials, to guess first and to print:\n\n"
        '- <a href="../lesson-pages/claims.html">What the tutorials claim: guess first<br>教程里的说法：先猜一猜</a>'
    )
    return "\n".join(parts) + "\n"


def write_notebooks(source: Path) -> str:
    """Writes the lessons as notebooks, and returns the page that lists them."""
    parts = [
        "# Lessons as notebooks\n",
        "The [lessons](../docs/lessons.md) to change and run: a notebook for each in English and in Chinese, with all "
        "that its cells print and draw. It needs headway with the extra `lessons`, and Jupyter or an editor that opens "
        "notebooks. The last cell runs the script of the lesson; start Jupyter in a checkout of headway, or name its "
        "folder `examples` in that cell.\n",
        "A notebook is made from the section of the page and the script of the lesson, and run by `make site`. Scripts "
        "that take longer than twenty seconds are left for you to run.\n",
    ]
    for written in notebooks.write_all(source / "extra" / "notebooks"):
        links = [f'<a href="../notebooks/{file}" download>{title}</a>' for file, title in written]
        parts.append(f"- {'<br>'.join(links)}")
    return "\n".join(parts) + "\n"


def toctree(names: list[str], **options: object) -> str:
    given = "".join(f":{key}: {value}\n" for key, value in options.items())
    return f"```{{toctree}}\n{given}\n" + "\n".join(names) + "\n```\n"


def put(page: Path, source: Path) -> None:
    """Puts a page of the repository into the folder, with the files that it shows or links to."""

    def linked(match: re.Match[str]) -> str:
        target = (page.parent / match[1]).resolve()
        if target.is_file() and target.suffix != ".md":
            copy = source / target.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
        return match[0].replace("README.md", "index.md") if target == README else match[0]

    copy = source / ("index.md" if page == README else page.relative_to(ROOT))
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(LINK.sub(linked, page.read_text(encoding="utf-8")), encoding="utf-8")


def write(source: Path) -> None:
    """Writes the folder anew."""
    shutil.rmtree(source, ignore_errors=True)
    reference = source / "reference"
    encodings = reference / "encodings"
    encodings.mkdir(parents=True)
    put(README, source)
    with (source / "index.md").open("a", encoding="utf-8") as index:
        for caption, names in NAVIGATION.items():
            tree = [page.removesuffix(".md") for page in names]
            index.write("\n" + toctree(tree, hidden="", caption=caption, maxdepth=2))
    for page in (page for names in NAVIGATION.values() for page in names if not page.startswith("reference/")):
        put(ROOT / page, source)

    texts = {
        "index": "# The public names\n\nA page for each module, with all that it offers.\n\n"
        + toctree(list(MODULES), maxdepth=1),
        "encodings": "# Encodings, one by one\n\n[The list](../docs/encodings.md) compares them.\n\n"
        + toctree([f"encodings/{name}" for name in positions.ENCODINGS], maxdepth=1),
        "commands": commands_page(),
        "lesson-pages": write_lesson_pages(source),
        "notebooks": write_notebooks(source),
        **{module: module_page(module) for module in MODULES},
    }
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        drawn = pool.map(encoding_page, positions.ENCODINGS, [encodings] * len(positions.ENCODINGS))
        texts |= {f"encodings/{name}": page for name, page in zip(positions.ENCODINGS, drawn, strict=True)}
    for name, text in texts.items():
        (reference / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
