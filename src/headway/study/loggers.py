"""Losses and results of trainings for TensorBoard, Weights & Biases and MLflow, through their own libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from .._common.extras import pip_install
from .._common.progress import ProgressListener
from .._common.store import Row
from ..errors import HeadwayError, unknown

__all__ = ["LOGGERS", "Logger", "logging"]

MEASURES = ("exact", "accuracy", "bits_per_byte", "recall")
"""The fields of rows that are logged."""


class Logger(ABC):
    """Receives the numbers of each training.

    Args:
        folder: the folder of the results.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, Any] = {}

    def log(self, run: str, step: int, numbers: Mapping[str, float]) -> None:
        """Logs ``numbers`` of a ``run`` at a step."""
        if run not in self._runs:
            self._runs[run] = self._begun(run)
        self._log(self._runs[run], step, numbers)

    def end(self) -> None:
        """Writes the remaining numbers."""
        for run in self._runs.values():
            self._end(run)

    @abstractmethod
    def _begun(self, run: str) -> Any: ...

    @abstractmethod
    def _log(self, run: Any, step: int, numbers: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _end(self, run: Any) -> None: ...


class TensorBoard(Logger):
    """Event files in the folder ``tensorboard``, one folder for each training."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._library = _library("tensorboard") and import_module("torch.utils.tensorboard")

    def _begun(self, run: str) -> Any:
        return self._library.SummaryWriter(str(self.folder / "tensorboard" / run.replace("/", "_")))

    def _log(self, run: Any, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            run.add_scalar(name, value, step)

    def _end(self, run: Any) -> None:
        run.close()


class WeightsAndBiases(Logger):
    """Runs of the project headway; their files are in the folder of the results."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._library = _library("wandb")

    def _begun(self, run: str) -> Any:
        return self._library.init(project="headway", name=run, dir=str(self.folder), reinit="create_new")

    def _log(self, run: Any, step: int, numbers: Mapping[str, float]) -> None:
        run.log({"step": step, **numbers})  # not as its own step, which must not go back, as a resumed training does

    def _end(self, run: Any) -> None:
        run.finish()


class MLflow(Logger):
    """Runs of the experiment headway, where MLFLOW_TRACKING_URI points."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._client = _library("mlflow").MlflowClient()
        found = self._client.get_experiment_by_name("headway")
        self._experiment = found.experiment_id if found else self._client.create_experiment("headway")

    def _begun(self, run: str) -> Any:
        return self._client.create_run(self._experiment, run_name=run).info.run_id

    def _log(self, run: Any, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(run, name, value, step=step)

    def _end(self, run: Any) -> None:
        self._client.set_terminated(run)


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
"""The loggers by the names that --log takes."""


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise HeadwayError(f"--log {name} needs {name}: {pip_install(name)}") from None


@contextmanager
def logging(watch: ProgressListener, name: str | None, folder: str | Path) -> Iterator[ProgressListener]:
    """Yields a listener that passes on progress to another one, and logs the numbers.

    Args:
        watch: the other one.
        name: a name of ``LOGGERS``; nothing is logged if None.
        folder: the folder of the results.

    Raises:
        HeadwayError: if there is no logger of that name, or its library is not installed.
    """
    if name is None:
        yield watch
        return
    if name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    logger = LOGGERS[name](Path(folder))
    try:
        yield _Logging(watch, logger)
    finally:
        logger.end()


class _Logging(ProgressListener):
    def __init__(self, watch: ProgressListener, logger: Logger) -> None:
        self.watch, self.logger = watch, logger

    def noted(self, note: str) -> None:
        self.watch.noted(note)

    def planned(self, settings: Sequence[str], done: int, total: int) -> None:
        self.watch.planned(settings, done, total)

    def expected(self, seconds: Mapping[str, float]) -> None:
        self.watch.expected(seconds)

    def progressed(self, doing: str, share: float) -> None:
        self.watch.progressed(doing, share)

    def logged(self, job: str, numbers: Mapping[str, float]) -> None:
        self.logger.log(job, int(numbers["step"]), {name: x for name, x in numbers.items() if name != "step"})
        self.watch.logged(job, numbers)

    def measured(self, job: str, rows: Sequence[Row]) -> None:
        for row in rows:
            name = "" if job.startswith(row["encoding"]) or "task" in row else f"{row['encoding']}, "
            found = {f"{name}{field} at {row['length']}": row.get(field) for field in MEASURES}
            self.logger.log(job, row["steps"], {field: x for field, x in found.items() if x is not None})
        self.watch.measured(job, rows)
