"""Says what the wheel and the sdist in dist/ contain, and fails if one has what it must not have.

    python packaging/contents.py dist

A wheel has the package, its description and, where it is for one platform, the library; an sdist has what a build and a
reader need. Neither has tests, pictures, or a path of the machine that built it.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

MOST = {".whl": 5_000_000, ".gz": 3_500_000}
"""The largest size of a file, by its suffix."""
WHEEL = r"headway/(?!.*(?:/csrc/|/README\.md$)).*\.(?:py|bib|css|html|js|json|safetensors|so|dylib)|headway/py\.typed"
WHEEL += r"|headway/_common/templates/\w+\.md"
WHEEL += r"|headway-[^/]+\.dist-info/(?:METADATA|RECORD|WHEEL|entry_points\.txt|licenses/LICENSE)"
"""The files of a wheel."""
SDIST = r"PKG-INFO|(?!tests/|tuned/|benchmarks/results/|\.|.*\.(?:png|svg|so|dylib|pyc)$).+"
"""The files of an sdist, below its one folder."""
NEEDED = {
    ".whl": ["headway/__init__.py", "headway/py.typed", "headway/positions/references.bib"],
    ".gz": ["PKG-INFO", "LICENSE", "README.md", "pyproject.toml", "CMakeLists.txt", "src/headway/__init__.py"],
}


def contents(path: Path) -> dict[str, bytes]:
    """Returns the files of a wheel or of an sdist; those of an sdist without the name of its folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(path) as sdist:
        files = [member for member in sdist if not member.isdir()]
        found = {}
        for member in files:
            file = sdist.extractfile(member)
            found[member.name.partition("/")[2]] = file.read() if file else b""
        return found


def faults(path: Path, files: dict[str, bytes], folder: Path) -> list[str]:
    """Returns what is wrong with a wheel or an sdist that was built in a folder."""
    allowed = re.compile(WHEEL if path.suffix == ".whl" else SDIST)
    wrong = [f"{name} must not be in it" for name in files if not allowed.fullmatch(name)]
    wrong += [f"{name} is missing" for name in NEEDED[path.suffix] if name not in files]
    libraries = [name for name in files if name.endswith((".so", ".dylib"))]
    if re.search(r"-(?:manylinux|linux|macosx)[^-]*\.whl$", path.name):
        wrong += ["the library is missing"] * (not libraries)
        wrong += [f"{name} is not in its place" for name in libraries if not name.startswith("headway/kernels/cpu/_")]
    else:
        wrong += [f"{name} is for one platform, and the file is for others" for name in libraries]
    places = [f"{folder}/", f"{tempfile.gettempdir()}/", "/src/headway/"]
    for name in libraries:
        wrong += [f"{name} has a path of the build"] * any(place.encode() in files[name] for place in places)
    if (size := path.stat().st_size) > MOST[path.suffix]:
        wrong.append(f"it has {size:,} bytes, more than {MOST[path.suffix]:,}")
    return wrong


def table(files: dict[str, bytes]) -> str:
    """Returns a line for each folder: how many files it has, and their bytes."""
    folders = [folder_of(name) for name in files]
    count, size = Counter(folders), Counter[str]()
    for folder, data in zip(folders, files.values(), strict=True):
        size[folder] += len(data)
    return "\n".join(f"  {size[one]:>10,} {count[one]:>5}  {one}" for one, _ in size.most_common())


def folder_of(name: str) -> str:
    """Returns the folder under which a file is counted: a room of the package, or a folder of the repository."""
    parts = name.split("/")
    depth = 3 if name.startswith("src/headway/") else 2 if name.startswith("headway/") else 1
    return "/".join(parts[: min(depth, len(parts) - 1)]) or "."


def main(folder: Path) -> None:
    """Prints the contents of each file.

    Raises:
        SystemExit: if one is not as it must be, or there is none.
    """
    paths = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if not paths:
        sys.exit(f"{folder} has no wheel and no sdist")
    wrong = []
    for path in paths:
        files = contents(path)
        whole = sum(map(len, files.values()))
        print(f"{path.name}: {path.stat().st_size:,} bytes, {len(files)} files of {whole:,} bytes")
        print(table(files))
        wrong += [f"{path.name}: {fault}" for fault in faults(path, files, Path(os.getcwd()))]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
