"""The results of several machines as one folder: ``merge(["a", "b"], out="both")``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._common.experiment import RESULTS
from .._common.files import from_json, make_folder, need_folder_place, write_text
from .._common.kinds import fits
from .._common.store import Row, read_rows
from ..errors import HeadwayError
from . import suite
from .candidates import EQUAL_TIME
from .protocol import FixedProtocol
from .results import ComparisonResults
from .store import KEPT, KEYS, ROW, Store

__all__ = ["merge"]

OF_THE_PLACE = ("corpus", "tokenizer", "device")
"""Settings that may differ: names of files, whose hashes are settings too, and the device."""
FOUND = KEPT.keys() - {"steps"}
"""Settings that a run found, and that folders add to each other."""
OF_THE_RUN = (
    *("seconds", "train_seconds", "processor_seconds", "tokens_per_second", "peak_memory_bytes"),
    *("corpus", "device", "threads", "processor", "versions", "kernel"),
)
"""Fields of a row that may differ if one training was done twice."""


class _Folder(NamedTuple):
    """The results in a folder, and the kind of comparison that they belong to."""

    path: Path
    settings: dict[str, Any]
    rows: list[Row]
    of_tasks: bool


def merge(folders: Sequence[str | Path], out: str | Path) -> ComparisonResults | suite.SuiteResults:
    """Writes the results in several folders into one, and its report.

    The folders must be of one comparison, on one text or on tasks, with the same settings. A later call of ``compare``
    or ``measure`` with the new folder continues from there.

    Args:
        folders: the folders, at least two; encodings are listed in their order.
        out: the folder to write, without results of its own.

    Returns:
        All results.

    Raises:
        HeadwayError: before anything is written, if a folder has no results, settings differ, a training is in two
            folders with different results, an encoding has another learning rate in one of them, or baselines were
            trained by the time of different processors.
    """
    if len(folders) < 2:
        raise HeadwayError(f"there is nothing to merge in {len(folders)} folder: give at least two")
    place = Path(out)
    if (place / RESULTS).exists() or (place / "settings.json").exists():
        raise HeadwayError(f"{place} has results: give a new folder for the merged ones")
    need_folder_place(place)
    parts = [_read(Path(folder)) for folder in folders]
    settings = _settings(parts)
    rows = _rows(parts)
    first = parts[0]
    if not first.of_tasks:
        _need_one_learning_rate(rows)
        _need_one_clock(rows)
    keys, kind = (suite.KEYS, suite.ROW) if first.of_tasks else (KEYS, ROW)
    with Store(place, keys, kind) as store:
        store.agree(settings)
        store.add(rows)
    for part in parts:
        _copy_heads(part.path, place)
    if first.of_tasks:
        found = suite.SuiteResults(rows, settings, list(dict.fromkeys(row["encoding"] for row in rows)))
        found.write(place)
        return found
    from . import report

    results = ComparisonResults(rows, FixedProtocol.from_settings(settings), place, settings)
    report.write(results, place)
    return results


def _read(folder: Path) -> _Folder:
    path = folder / "settings.json"
    if not path.exists():
        raise HeadwayError(f"{folder} has no comparison: give a folder that headway compare wrote to")
    try:
        settings = from_json(path.read_text(encoding="utf-8"))
        if not fits(settings, KEPT):
            raise ValueError("a setting is of another kind")
        of_tasks = settings.get("experiment") == "suite"
        if not of_tasks:
            FixedProtocol.from_settings(settings)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadwayError(f"{path} is damaged, or that of other work ({error}): leave the folder out") from None
    keys, kind = (suite.KEYS, suite.ROW) if of_tasks else (KEYS, ROW)
    rows = read_rows(folder / RESULTS, keys, kind)
    if not rows:
        raise HeadwayError(f"{folder} has no results yet: leave it out")
    return _Folder(folder, settings, rows, of_tasks)


def _settings(parts: Sequence[_Folder]) -> dict[str, Any]:
    """The settings of the first folder, with the facts that each folder found beside its results."""
    merged = dict(parts[0].settings)
    for part in parts[1:]:
        for name in sorted((merged.keys() | part.settings.keys()) - FOUND - set(OF_THE_PLACE)):
            ours, its = merged.get(name), part.settings.get(name)
            if ours != its:
                raise HeadwayError(
                    f"{parts[0].path} has {name} = {json.dumps(ours)} and {part.path} has {name} = {json.dumps(its)}: "
                    "merge folders of the same settings"
                )
        for name in FOUND & part.settings.keys():
            merged[name] = _joined(name, merged.get(name), part)
    return merged


def _joined(name: str, ours: Any, part: _Folder) -> Any:
    """A fact of the folders before and of one more, which is an object."""
    its, ours = part.settings[name], ours or {}
    if name == "sources":
        changed = next((spec for spec in ours.keys() & its.keys() if ours[spec] != its[spec]), None)
        if changed is not None:
            raise HeadwayError(f"{changed} is another encoding in {part.path}: its file has changed")
    if name == "learning_rates_tried":
        return {model: {**its.get(model, {}), **ours.get(model, {})} for model in [*its, *ours]}
    return {**its, **ours}


def _rows(parts: Sequence[_Folder]) -> list[Row]:
    """All rows, each once. Raises HeadwayError if one is in two folders and differs."""
    keys = suite.KEYS if parts[0].of_tasks else KEYS
    found: dict[tuple[Any, ...], tuple[Row, Path]] = {}
    for part in parts:
        for row in part.rows:
            key = tuple(row[name] for name in keys)
            known, path = found.setdefault(key, (row, part.path))
            if _numbers(known) != _numbers(row):
                said = ", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True))
                raise HeadwayError(
                    f"{path} and {part.path} both have {said}, with other numbers: delete the row in one {RESULTS}"
                )
    return [row for row, _ in found.values()]


def _numbers(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in OF_THE_RUN}


def _need_one_learning_rate(rows: Sequence[Row]) -> None:
    rates: dict[str, float] = {}
    for row in rows:
        rate = rates.setdefault(row["encoding"], row["learning_rate"])
        if rate != row["learning_rate"]:
            raise HeadwayError(
                f"{row['encoding']} has the learning rates {rate:g} and {row['learning_rate']:g} in these folders: "
                "train with one --learning-rate, or try several in one folder"
            )


def _need_one_clock(rows: Sequence[Row]) -> None:
    """Raises HeadwayError if a model was trained for the time of others, and processors differ."""
    ending = EQUAL_TIME.format("")
    by_the_clock = next((row["encoding"] for row in rows if row["encoding"].endswith(ending)), None)
    processors = {(row.get("processor"), row["device"], row["threads"]) for row in rows}
    if by_the_clock is not None and len(processors) > 1:
        said = "; ".join(sorted(f"{name}, {device}, {threads} threads" for name, device, threads in processors))
        raise HeadwayError(
            f"{by_the_clock} was trained for as long as the encodings, and the machines differ ({said}): merge "
            "comparisons with --baselines none"
        )


def _copy_heads(folder: Path, out: Path) -> None:
    for log in sorted((folder / "heads").glob("*.jsonl")):
        make_folder(out / "heads")
        if not (out / "heads" / log.name).exists():
            write_text(out / "heads" / log.name, log.read_text(encoding="utf-8"))
