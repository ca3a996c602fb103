"""Imports of optional packages, and the commands that install them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import HeadwayError


class Package(NamedTuple):
    """An optional package.

    Args:
        name: its name for pip.
        extra: the extra of headway that installs it.
        needed_for: the feature that needs it.
    """

    name: str
    extra: str
    needed_for: str


PACKAGES = {
    "typer": Package("typer", "study", "the command line"),
    "rich": Package("rich", "study", "tables of the command line"),
    "jinja2": Package("jinja2", "study", "reports"),
    "numpy": Package("numpy", "study", "pictures, published models, word vectors"),
    "matplotlib": Package("matplotlib", "study", "pictures"),
    "safetensors": Package("safetensors", "checkpoints", "published models, files of word vectors"),
    "tokenizers": Package("tokenizers", "checkpoints", "tokenizers of published models"),
    "huggingface_hub": Package("huggingface_hub", "checkpoints", "models by their ids on the Hugging Face hub"),
    "gguf": Package("gguf", "checkpoints", "GGUF files"),
    "sklearn": Package("scikit-learn", "vectors", "word vectors that are counted"),
    "scipy": Package("scipy", "vectors", "word vectors that are counted"),
    "gensim": Package("gensim", "vectors", "word2vec and fastText"),
    "jieba": Package("jieba", "chinese", "Chinese text cut into words"),
    "zhplot": Package("zhplot", "plot", "Chinese in pictures"),
    "anywidget": Package("anywidget", "widget", "reports in notebooks whose kernel answers"),
    "submitit": Package("submitit", "slurm", "trainings as jobs of Slurm"),
    "ray": Package("ray", "ray", "trainings on a Ray cluster"),
    "debian": Package("python-debian", "lessons", "packages of Debian, whose messages a lesson translates"),
    "polib": Package("polib", "lessons", "catalogues of messages"),
    "sacrebleu": Package("sacrebleu", "lessons", "scores of translations"),
}
"""The optional packages by the names under which they are imported."""


def need(module: str, what: str, extra: str = "vectors") -> Any:
    """Imports a module of an optional package.

    Args:
        module: the name of the module.
        what: the feature that needs it, for the message.
        extra: the extra of headway that installs it.

    Raises:
        HeadwayError: if the package is not installed; the message has the command that installs it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise HeadwayError(f"{what} needs {package}: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """Returns the shell command that adds an extra to this installation, from the place that headway came from.

    headway is not on PyPI, so ``pip install 'headway[study]'`` alone would not find it.

    Args:
        extra: the name of the extra, or several names separated by commas.
    """
    return pip_install(*_headway(f"[{extra}]"))


def library_command() -> str:
    """Returns the shell command that builds the C++ library of the CPU kernel, once there is a compiler."""
    if (place := _checkout()) is not None:
        return f"make -C {shlex.quote(str(place))} library"
    # pip may have kept the wheel without the library
    return pip_install("--force-reinstall", "--no-deps", "--no-cache-dir", *_headway())


def pip_install(*what: str) -> str:
    """Returns the shell command with which pip installs something into the environment of this Python.

    Args:
        *what: options and requirements, which are quoted for the shell.
    """
    python = shlex.quote(sys.executable)
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        command = "pip install"
    # not importlib.util.find_spec: setuptools would then hand out another distutils, which torch's compiler refuses
    elif PathFinder.find_spec("pip") is None and shutil.which("uv") is not None:
        command = f"uv pip install --python {python}"
    else:
        command = f"{python} -m pip install"
    return " ".join([command, *map(shlex.quote, what)])


def _headway(extra: str = "") -> list[str]:
    """The requirement for pip: headway with an extra in brackets, from the place that it was installed from."""
    if (checkout := _checkout()) is not None:
        return ["-e", f"{checkout}{extra}"]
    unknown = [f"headway{extra}"]
    try:
        origin = json.loads(distribution("headway").read_text("direct_url.json") or "")
        url = str(origin["url"])
        if (folder := origin.get("dir_info")) is not None:
            path = url2pathname(urlsplit(url).path)
            options = ["-e"] if folder.get("editable") else []
            return [*options, f"{path}{extra}"] if Path(path).is_dir() else unknown
        if (repository := origin.get("vcs_info")) is not None:
            revision = repository.get("requested_revision")
            url = f"{repository['vcs']}+{url}" + (f"@{revision}" if revision else "")
        if subfolder := origin.get("subdirectory"):
            url += f"#subdirectory={subfolder}"
    except (PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # no such file, or a damaged one
        return unknown
    return [f"headway{extra} @ {url}"]


def _checkout() -> Path | None:
    """The checkout of the repository that headway runs from; None for an installed copy."""
    root = Path(__file__).parents[3]
    try:
        ours = 'name = "headway"' in (root / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return None
    return root if ours else None
