"""The folder of a comparison: settings, results and checkpoints, each written completely or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from .._common.experiment import RESULTS
from .._common.files import from_json, make_folder, write_text
from .._common.kinds import Kind, fits
from .._common.lines import write_lines
from .._common.store import ResultStore, Row
from ..errors import HeadwayError
from ..positions._naming import split_outside

KEYS = ("encoding", "seed", "length")
"""The fields that identify a row of ``compare``. The last is one of the lengths in the settings."""
NUMBER: Kind = (float, None, ...)
ROW: Kind = {
    "encoding": str,
    "seed": int,
    "length": int,
    "baseline": bool,
    "view_of": (str, None),
    "bits_per_byte": (float, None),
    "sliding_bits_per_byte": NUMBER,
    "bits_by_position": ([[int, int, float]], ...),
    "recall": NUMBER,
    "recall_by_distance": ({int: float}, ...),
    "steps": int,
    "learning_rate": float,
    "learning_rates": {float: (float, None)},
    "train_seconds": (float, None),
    "processor_seconds": NUMBER,
    "tokens_per_second": (float, None),
    "parameters": int,
    "encoding_parameters": int,
    "kernel": str,
    "trained_dtype": str,
    "compiled": bool,
    "peak_memory_bytes": (float, None),
    "heads": (dict.fromkeys(("normalized_entropy", "first", "previous_token", "induction"), (float, None)), None),
    "device": str,
    "threads": int,
    "processor": (str, ...),
    "versions": {str: str},
}
"""What is read of a row of ``compare``."""
KEPT: Kind = {
    "sources": ({str: str}, ...),
    "equal_time_steps": ({str: int}, ...),
    "learning_rates_tried": ({str: {float: {"bits_per_byte": (float, None), "peak_memory_bytes": (float, None)}}}, ...),
    "fit_seconds": ({str: (float, None)}, ...),
    "counted": ({str: float}, ...),
    "steps": (int, ...),
}
"""What settings keep that a run found, and later ones read."""


class Store(ResultStore):
    """A folder that one comparison at a time writes to, and that the next one resumes.

        with Store(out) as store:
            store.agree(settings)
            store.add(rows)

    ``keys`` are the names of the fields that identify a row, the length last.

    Raises:
        HeadwayError: on entering, if the folder cannot be written to, is in use, or has a damaged file.
    """

    used_by = "comparison"

    def __init__(
        self,
        out: str | Path,
        keys: Sequence[str] = KEYS,
        kind: Kind | None = None,
    ) -> None:
        super().__init__(out, RESULTS, keys, kind)
        self.settings: dict[str, Any] = {}

    def _begin(self) -> None:
        self.settings = self._read_settings()
        super()._begin()

    def agree(self, settings: dict[str, Any]) -> None:
        """Writes settings as JSON values, or checks them against those of an earlier run, and adds new names.

        Raises:
            HeadwayError: if one differs from the earlier run; the message names it.
        """
        for name, value in settings.items():
            before = self.settings.get(name, value)
            if before != value:
                raise HeadwayError(
                    f"{self.out} has a comparison with {name} = {_short(before)}, now {name} = "
                    f"{_short(value)}: give another --out, or the earlier {name}"
                )
        if not self.settings and self.rows:
            raise HeadwayError(f"{self.out} has results without their settings.json: give another --out")
        self.settings = {**self.settings, **settings}
        self.save_settings()

    def agree_on_sources(self, specs: Sequence[str]) -> None:
        """Writes the hash of each file that defines an encoding, such as "mine.py:Mine", or checks it.

        Raises:
            HeadwayError: if a file has changed.
        """
        known = self.settings.setdefault("sources", {})
        for spec, file in own_files(specs).items():
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            if known.setdefault(spec, digest) != digest:
                raise HeadwayError(
                    f"{file} has changed since the comparison in {self.out} began with {spec}: give another --out"
                )
        self.save_settings()

    def equal_time_steps(self, row: str, seed: int, steps: int) -> int:
        """Returns the steps of a row that is trained by time: an earlier run's, or ``steps``, which it then keeps."""
        kept: int = self.settings.setdefault("equal_time_steps", {}).setdefault(f"{row}, seed {seed}", steps)
        self.save_settings()
        return kept

    def fact(self, name: str, compute: Callable[[], Any]) -> Any:
        """Returns a fact of the settings, a JSON value that ``compute`` returns and that is written the first time."""
        if name not in self.settings:
            self.settings[name] = compute()
            self.save_settings()
        return self.settings[name]

    def tried(self, name: str) -> dict[str, dict[str, Any]]:
        """Returns the outcome of each learning rate that has been tried with a model."""
        tried: dict[str, dict[str, Any]] = self.settings.get("learning_rates_tried", {}).get(name, {})
        return tried

    def add_tried(self, name: str, learning_rate: str, facts: dict[str, Any]) -> None:
        """Writes the outcome of a learning rate."""
        self.settings.setdefault("learning_rates_tried", {}).setdefault(name, {})[learning_rate] = facts
        self.save_settings()

    def checkpoint(self, name: str, seed: int, task: str, learning_rate: str | None = None) -> Path:
        """Returns the path of the checkpoint of a training; ``learning_rate`` is given where several are tried."""
        return checkpoint_path(self.out, name, seed, task, learning_rate)

    def head_log(self, name: str, seed: int, learning_rate: str | None = None) -> Path:
        """Returns the path of the log of a language model's heads, and creates its folder."""
        folder = self.out / "heads"
        make_folder(folder)
        return folder / f"{_file_name(name, seed, learning_rate)}.jsonl"

    def has(self, job: tuple[Any, ...]) -> bool:
        """Returns whether the results have every length of a ``job``: a key without the length."""
        *_, length = self.keys
        return {row[length] for row in self.rows_of([job])} >= set(self.settings["lengths"])

    def rows_of(self, jobs: Collection[tuple[Any, ...]]) -> list[Row]:
        """Returns the rows of some jobs, keys without the length, in their order, at the lengths of the settings."""
        places = {job: place for place, job in enumerate(jobs)}
        return sorted(filter(self._is_of(places), self.rows), key=lambda row: places[self._job(row)])

    def arrange(self, jobs: Collection[tuple[Any, ...]]) -> None:
        """Puts the rows of some jobs into their order; rows of others stay in their places.

        Rows are added as trainings end, which is in any order if several run at once.
        """
        ordered, is_one = iter(self.rows_of(jobs)), self._is_of(jobs)
        rows = [next(ordered) if is_one(row) else row for row in self.rows]
        if rows != self.rows:
            write_lines(self.file, rows)
            self.rows = rows

    def _job(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys[:-1])

    def _is_of(self, jobs: Collection[tuple[Any, ...]]) -> Callable[[Row], bool]:
        """Whether a row is one of some jobs, at a length of the settings."""
        lengths = self.settings["lengths"]
        return lambda row: self._job(row) in jobs and row[self.keys[-1]] in lengths

    def save_settings(self) -> None:
        """Writes the settings."""
        write_text(self.out / "settings.json", json.dumps(self.settings, indent=2) + "\n")

    def _read_settings(self) -> dict[str, Any]:
        path = self.out / "settings.json"
        if not path.exists():
            return {}
        try:
            settings: dict[str, Any] = from_json(path.read_text())
        except (OSError, ValueError):
            settings = {"unreadable": True}
        if not fits(settings, KEPT) or "unreadable" in settings:
            raise HeadwayError(f"{path} is damaged: give another --out, or delete the folder")
        return settings


def own_files(specs: Sequence[str]) -> dict[str, str]:
    """Returns the files that define encodings, tasks or parts of them, by names such as "mine.py:Mine"."""
    parts = [part for spec in specs for part in split_outside(spec, " + ")[0]]
    return {part: file[1] for part in parts if (file := re.match(r"(.+?\.py)(?=$|[:(])", part)) is not None}


def checkpoint_path(out: Path, name: str, seed: int, task: str, learning_rate: str | None = None) -> Path:
    """Returns the path of a checkpoint in the folder ``out``; see ``Store.checkpoint``."""
    return out / "checkpoints" / f"{_file_name(name, seed, learning_rate)}-{task}.pt"


def _file_name(name: str, seed: int, learning_rate: str | None) -> str:
    """A readable name of a file, unique to its row."""
    readable = re.sub(r"[^A-Za-z0-9.=-]+", "_", name).strip("_")[:60]
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{readable}-{mark}-seed{seed}" + ("" if learning_rate is None else f"-rate{learning_rate}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:12] + "…" + text[-4:]
