"""English messages of free programs and their Chinese translations, from the packages of Debian 12.

A package's translations are catalogues of the GNU gettext format, pairs of an English message and the Chinese one. The
packages are those that ``catalogues.sha256`` names, in the format of sha256sum; ``fetch`` downloads them, 62 MB, from
Debian's mirrors into headway's cache folder. Their licences are those of the programs.

    pairs = read(fetch())
    training, validation, held_out = split(pairs)
"""

from __future__ import annotations

import hashlib
import random
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from headway._common.files import atomic_write
from headway._common.scripts import HAN
from headway.errors import HeadwayError
from lesson import cache

SERVERS = ("https://deb.debian.org/debian", "https://snapshot.debian.org/archive/debian/20261101T000000Z")
"""The first has the packages of today, the second also those that an update has replaced."""
NAMED = Path(__file__).with_suffix(".sha256")
LOCALE = "/zh_CN/LC_MESSAGES/"

LONGEST = 160
"""Characters of the longest English message that is kept."""
WORDS = 4
"""Words that a message of the validation or held-out part has at least."""
VALIDATION, HELD_OUT = 500, 1000

CHINESE = re.compile(f"[{HAN}]")
DIRECTIVE = re.compile(r"%(?:\d+\$)?[-+ #0]*[\d*]*(?:\.[\d*]+)?[hlqjzt]*[a-zA-Z%<>{}@']|%|\{\w*\}|\d+")
WORD = re.compile(r"[^\W\d_]+")
SHORTCUT = re.compile(r"\s*\([_&][A-Za-z0-9]\)")


class Pair(NamedTuple):
    """A message and its translation."""

    english: str
    chinese: str


class Parts(NamedTuple):
    """Pairs for three uses; no English message is in two of them, even with other numbers or placeholders."""

    training: list[Pair]
    validation: list[Pair]
    held_out: list[Pair]


def home() -> Path:
    """Returns the folder of the cache for translation."""
    return cache("translation")


def named() -> dict[str, str]:
    """Returns the SHA-256 of each package by its path in the pool of Debian's main archive."""
    return {path: sha256 for sha256, path in (line.split() for line in NAMED.read_text().splitlines())}


def fetch() -> list[Path]:
    """Downloads the packages that are not here yet, and returns the files of all.

    Raises:
        HeadwayError: if one cannot be had, or is not the one named.
    """
    from rich.progress import track

    folder = home() / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    missing = {path: sha256 for path, sha256 in named().items() if not (folder / Path(path).name).is_file()}
    for path, sha256 in track(missing.items(), "packages of Debian", disable=not missing):
        content = _downloaded(path, sha256)
        with atomic_write(folder / Path(path).name) as part:
            part.write_bytes(content)
    return [folder / Path(path).name for path in named()]


def _downloaded(path: str, sha256: str) -> bytes:
    reasons = []
    for server in SERVERS:
        address = f"{server}/pool/main/{urllib.parse.quote(path)}"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                content: bytes = answer.read()
        except OSError as error:
            reasons.append(f"{address}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
        reasons.append(f"{address}: its SHA-256 is not {sha256}")
    raise HeadwayError(f"{Path(path).name} cannot be downloaded: {'; '.join(reasons)}")


def read(packages: Sequence[Path]) -> list[Pair]:
    """Returns the pairs of the packages' catalogues, cleaned, each once, in the order of the packages."""
    return list(dict.fromkeys(pair for package in packages for pair in map(cleaned, _messages(package)) if pair))


def _messages(package: Path) -> Iterator[Pair]:
    import polib
    from debian.debfile import DebFile

    with DebFile(str(package)) as archive, TemporaryDirectory() as scratch:
        files = archive.data.tgz()
        for member in files:
            if LOCALE in member.name and member.name.endswith(".mo") and member.isfile():
                catalogue = Path(scratch) / "messages.mo"
                catalogue.write_bytes(files.extractfile(member).read())
                for entry in polib.mofile(str(catalogue)):
                    plural = entry.msgstr_plural
                    yield Pair(entry.msgid_plural or entry.msgid, plural[0] if plural else entry.msgstr)


def cleaned(pair: Pair) -> Pair | None:
    """Returns a pair without the marks of keyboard shortcuts, or None if it is no pair of one line in two languages.

    A shortcut stands as "_Open" or "&Open" on the English side, and as "打开(_O)" on the Chinese side.
    """
    english, chinese = (side.strip() for side in pair)
    shortened = SHORTCUT.sub("", chinese)
    if shortened != chinese:
        english, chinese = re.sub(r"[_&](?=\w)", "", english, count=1), shortened
    if "\n" in english or "\n" in chinese or len(english) > LONGEST or len(chinese) > LONGEST:
        return None
    if not WORD.search(english) or CHINESE.search(english) or not CHINESE.search(chinese):
        return None
    return Pair(re.sub(r"\s+", " ", english), re.sub(r"\s+", " ", chinese))


def key(english: str) -> str:
    """Returns what is left of a message without case, punctuation, numbers and placeholders such as %s."""
    return " ".join(WORD.findall(DIRECTIVE.sub(" ", english).lower()))


def split(pairs: Sequence[Pair], validation: int = VALIDATION, held_out: int = HELD_OUT) -> Parts:
    """Splits pairs by the ``key`` of the English side, so that none is in two parts.

    The validation and held-out parts have one pair of each key, of at least ``WORDS`` words. The order of keys is
    random with the seed 0.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(key(pair.english), []).append(pair)
    long = sorted(one for one in groups if len(one.split()) >= WORDS)
    random.Random(0).shuffle(long)
    tried, kept = long[:held_out], long[held_out : held_out + validation]
    taken = {*tried, *kept}
    training = [pair for one, group in groups.items() if one not in taken for pair in group]
    return Parts(training, [groups[one][0] for one in kept], [groups[one][0] for one in tried])
