"""Reports of a capture: checked first, then made, then written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._common.files import given_path, need_file_place
from ..._common.progress import Tell, notebook_bar, part_of
from ..._common.version import __version__
from ...errors import HeadwayError
from ..roles._results import HeadRoles
from ..texts import EncodedText
from ._live import HEIGHT, widget
from ._page import LANGUAGES, page
from ._plan import octets_in
from ._subject import Subject, subject_of
from ._write import Report, checked_exact, made, write_page

if TYPE_CHECKING:
    from .._record import Records

Head = tuple[int | str, int]
"""A layer, by name or number, and the number of a head."""
Text = EncodedText | str
Offsets = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Options:
    """The options of a report; ``Records.report`` describes them."""

    budget: str | int | None
    exact: Iterable[Head] | None
    text: Text | None
    tokens: Sequence[str] | None
    offsets: Offsets | None
    example: int
    call: int | None
    language: str | None


def reported(
    seen: Records, options: Options, roles: HeadRoles | None = None, name: str | None = None, tell: Tell | None = None
) -> Report:
    """Makes the report of a capture.

    Raises HeadwayError, before anything is measured, for arguments that do not fit; and for a budget that is too small.
    """
    budget = octets_in(options.budget)
    check_language(options.language)
    subject = _subject(seen, options, roles, name)
    exact = checked_exact(options.exact, subject)
    if tell is not None:
        return made(subject, budget, exact, options.language, tell)
    with notebook_bar() as bar:
        return made(subject, budget, exact, options.language, bar)


def write(
    seen: Records,
    path: str | Path,
    options: Options,
    roles: HeadRoles | None = None,
    name: str | None = None,
    tell: Tell | None = None,
) -> Path:
    """Writes the report of a capture, and returns its path."""
    place = checked_place(path)
    report = reported(seen, options, roles, name, tell)
    write_page(page(report.json, report.chunks.items(), report.title, options.language), place)
    return place


def write_pair(
    both: tuple[Records, Records],
    path: str | Path,
    options: Sequence[Options],
    names: tuple[str, str],
    roles: tuple[HeadRoles | None, HeadRoles | None],
    tell: Tell | None = None,
) -> Path:
    """Writes two reports into one page, each with half of the budget, and returns its path."""
    place = checked_place(path)
    (budget, _), language = (octets_in(one.budget) for one in options), options[0].language
    check_language(language)
    half = None if budget is None else budget // 2
    subjects = [_subject(*one) for one in zip(both, options, roles, names, strict=True)]
    exact = [checked_exact(one.exact, subject) for one, subject in zip(options, subjects, strict=True)]

    def pair(bar: Tell) -> list[Report]:
        reports = []
        for number, (subject, heads) in enumerate(zip(subjects, exact, strict=True)):

            def told(doing: str, share: float, number: int = number) -> None:
                part_of(lambda whole: bar(doing, whole), number / 2, 0.5)(share)

            reports.append(made(subject, half, heads, language, told, prefix="ab"[number] + "-"))
        return reports

    if tell is not None:
        reports = pair(tell)
    else:
        with notebook_bar() as bar:
            reports = pair(bar)
    difference = _difference(*subjects)
    json: dict[str, Any] = {
        "format": 1,
        "version": __version__,
        "names": list(names),
        "reports": [one.json for one in reports],
        "aligned": difference is None,
        "difference": difference,
    }
    chunks = [chunk for one in reports for chunk in one.chunks.items()]
    write_page(page(json, chunks, f"{names[0]} and {names[1]}", language), place)
    return place


def _difference(one: Subject, other: Subject) -> str | None:
    """Why the weights of two reports cannot be subtracted; None if they can."""
    if one.told.text != other.told.text:
        return "they read different texts"
    if one.told.layout != other.told.layout:
        return "they divide the text into different tokens"
    return None


def _subject(seen: Records, options: Options, roles: HeadRoles | None, name: str | None) -> Subject:
    return subject_of(seen, options.text, options.tokens, options.offsets, roles, options.example, options.call, name)


def checked_place(path: str | Path) -> Path:
    """Returns the path of a report. Raises HeadwayError if it cannot be written."""
    place = given_path(path)
    need_file_place(place)
    return place


def check_language(language: str | None) -> None:
    """Raises HeadwayError for a language that the viewer does not have."""
    if language is not None and language not in LANGUAGES:
        raise HeadwayError(f"language is {language!r}: give 'en', 'zh', or None for that of the reader")


def live_widget(
    seen: Records,
    options: Options,
    roles: HeadRoles | None = None,
    name: str | None = None,
    height: int = HEIGHT,
    tell: Tell | None = None,
) -> Any:
    """Makes the widget of a capture; ``Seen.widget`` describes it."""
    check_language(options.language)
    subject = _subject(seen, options, roles, name)
    if tell is not None:
        return widget(subject, options.language, height, tell)
    with notebook_bar() as bar:
        return widget(subject, options.language, height, bar)


def compare_reports(
    one: Records,
    other: Records,
    path: str | Path,
    budget: str | int | None = "15 MB",
    *,
    names: tuple[str, str] = ("A", "B"),
    text: Text | tuple[Text, Text] | None = None,
    tokens: Sequence[str] | None = None,
    offsets: Offsets | None = None,
    roles: tuple[HeadRoles | None, HeadRoles | None] = (None, None),
    exact: Iterable[Head] | None = None,
    language: str | None = None,
    example: int = 0,
    watch: Tell | None = None,
) -> Path:
    """Writes a page that shows two captures of one text side by side, and the difference of their weights.

        compare_reports(before, after, "report.html", names=("step 0", "step 1000"), text=text)

    The captures may be of two models, checkpoints or encodings. If both have the same tokens, the page subtracts
    weights pair by pair.

    Args:
        one: the first capture, with keep="qk".
        other: the second capture.
        path: the file, in a folder that exists.
        budget: the most bytes of the file, half for each; as for ``Seen.report``.
        names: the names of the two.
        text: the text, as for ``Seen.report``; or two texts, if the models divide it into different tokens.
        tokens: the names of the tokens, as for ``Seen.report``.
        offsets: likewise.
        roles: the results of ``head_roles`` for each.
        exact: as for ``Seen.report``, of both.
        language: "en" or "zh". Default: the language of the reader.
        example: the row of the batch.
        watch: is told what is done and the share of the work. Default: a progress bar in notebooks.

    Returns:
        The path.

    Raises:
        HeadwayError: as ``Seen.report`` does.
    """
    texts = text if isinstance(text, tuple) else (text, text)
    wanted = None if exact is None else list(exact)
    options = tuple(Options(budget, wanted, each, tokens, offsets, example, None, language) for each in texts)
    return write_pair((one, other), path, options, names, roles, watch)
