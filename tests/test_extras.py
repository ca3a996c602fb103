"""Packages that only some parts need: imported if they are there, else named with the command that installs them."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomllib

from headway import HeadwayError
from headway._common import extras
from headway._common.extras import PACKAGES, install_command, library_command, need, pip_install

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_is_there_is_imported() -> None:
    assert need("json.decoder", "this") is sys.modules["json.decoder"]


def test_what_is_missing_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(HeadwayError) as error:
        need("no_such_package.part", "counting")
    assert str(error.value) == f"counting needs no_such_package: {install_command('vectors')}"


def test_what_a_package_itself_lacks_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"json\.no_such_part"):
        need("json.no_such_part", "counting")


def names(extra: str) -> set[str]:
    """The packages that an extra of pyproject.toml installs, in lower case with underscores."""
    found = set()
    for line in PROJECT["optional-dependencies"][extra]:
        name, _, within = line.partition(">=")[0].partition("[")
        if name == "headway":
            for inner in within.rstrip("]").split(","):
                found |= names(inner)
        else:
            found.add(name.lower().replace("-", "_"))
    return found


def test_the_table_has_every_package_of_a_users_extras() -> None:
    users = set(PROJECT["optional-dependencies"]) - {"test", "peers", "dev", "docs"}
    known = {package.name.replace("-", "_") for package in PACKAGES.values()}
    assert set().union(*map(names, users)) <= known
    assert known - set().union(*map(names, users)) <= {"scipy"}  # scikit-learn brings it


@pytest.mark.parametrize("module", [module for module in PACKAGES if module != "scipy"])
def test_the_extra_of_a_package_installs_it(module: str) -> None:
    package = PACKAGES[module]
    assert package.name.replace("-", "_") in names(package.extra)


# ---------------------------------------------------------------- the command, by the origin of the installation

GIT = "https://example.org/headway.git"
ORIGINS: dict[str, tuple[Any, list[str]]] = {
    "editable": ({"url": "{folder}", "dir_info": {"editable": True}}, ["-e", "{place}[study]"]),
    "folder": ({"url": "{folder}", "dir_info": {}}, ["{place}[study]"]),
    "folder that is gone": ({"url": "file:///no/such/place", "dir_info": {}}, ["headway[study]"]),
    "git": (
        {"url": GIT, "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
        [f"headway[study] @ git+{GIT}"],
    ),
    "git at a tag": (
        {"url": GIT, "vcs_info": {"vcs": "git", "commit_id": "0" * 40, "requested_revision": "v1"}},
        [f"headway[study] @ git+{GIT}@v1"],
    ),
    "git in a subfolder": (
        {"url": GIT, "vcs_info": {"vcs": "git", "commit_id": "0" * 40}, "subdirectory": "lib"},
        [f"headway[study] @ git+{GIT}#subdirectory=lib"],
    ),
    "wheel": (
        {"url": "file:///srv/headway-1-py3-none-any.whl", "archive_info": {}},
        ["headway[study] @ file:///srv/headway-1-py3-none-any.whl"],
    ),
    "package index": (None, ["headway[study]"]),
    "damaged": ("{", ["headway[study]"]),
    "no object": ("[]", ["headway[study]"]),
    "not installed": (PackageNotFoundError, ["headway[study]"]),
}
"""What is in direct_url.json, and what pip must be told."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Path]:
    """installed(origin) is a folder, with spaces, that a copy of headway was installed from."""
    place = tmp_path / "my own place"
    place.mkdir()
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "headway" / "_common" / "extras.py"))
    monkeypatch.setattr(extras, "pip_install", lambda *what: shlex.join(["pip", "install", *what]))

    def at(origin: Any) -> Path:
        def distribution(name: str) -> Any:
            if origin is PackageNotFoundError:
                raise PackageNotFoundError(name)
            text = origin if isinstance(origin, str | None) else json.dumps(origin)
            return SimpleNamespace(
                read_text=lambda file: text and text.replace("{folder}", place.as_uri()) if "direct" in file else None
            )

        monkeypatch.setattr(extras, "distribution", distribution)
        return place

    return at


@pytest.mark.one_in(1)
@pytest.mark.parametrize("origin", ORIGINS)
def test_the_command_installs_from_where_headway_came(installed: Callable[[Any], Path], origin: str) -> None:
    facts, expected = ORIGINS[origin]
    place = installed(facts)
    wanted = [word.format(place=place) for word in expected]
    assert shlex.split(install_command("study")) == ["pip", "install", *wanted]
    again = shlex.split(library_command())
    assert again[:3] == ["pip", "install", "--force-reinstall"]
    assert again[5:] == [word.replace("[study]", "") for word in wanted]


def test_a_checkout_comes_before_what_was_installed(installed: Callable[[Any], Path], tmp_path: Path) -> None:
    installed(ORIGINS["git"][0])
    checkout = tmp_path / "pyproject.toml"
    checkout.write_text('[project]\nname = "headway"\n')
    root = tmp_path
    extras.__file__ = str(root / "src" / "headway" / "_common" / "extras.py")
    assert shlex.split(install_command("study")) == ["pip", "install", "-e", f"{root}[study]"]
    assert shlex.split(library_command()) == ["make", "-C", str(root), "library"]
    checkout.write_text('[project]\nname = "another"\n')
    assert shlex.split(install_command("study"))[-1] == f"headway[study] @ git+{GIT}"


@pytest.mark.parametrize(
    ("pip", "module", "uv", "expected"),
    [
        ("{bin}/pip", True, None, "pip install"),
        ("/usr/bin/pip", True, None, "{python} -m pip install"),
        (None, True, "/usr/bin/uv", "{python} -m pip install"),
        (None, False, "/usr/bin/uv", "uv pip install --python {python}"),
        (None, False, None, "{python} -m pip install"),
    ],
)
def test_pip_is_that_of_this_python(
    monkeypatch: pytest.MonkeyPatch, pip: str | None, module: bool, uv: str | None, expected: str
) -> None:
    where = {"pip": pip and pip.format(bin=Path(sys.executable).parent), "uv": uv}
    monkeypatch.setattr(extras.shutil, "which", where.get)
    monkeypatch.setattr(extras.PathFinder, "find_spec", lambda name: object() if module else None)
    assert pip_install("a>=1", "b") == expected.format(python=shlex.quote(sys.executable)) + " 'a>=1' b"


@pytest.mark.slow
def test_a_command_leaves_the_imports_of_others_as_they_are() -> None:
    """A search for pip by importlib.util.find_spec would make setuptools, and so torch's compiler, fail afterwards."""
    lines = "from headway._common.extras import install_command", "install_command('plot')", "import setuptools"
    environment = {**os.environ, "PATH": ""}
    subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(lines)], check=True, env=environment)
