"""The report of ``suite``: three sentences, the picture, and the tables and details below them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import mean

from .._common.experiment import Files, write_report
from .._common.table import Cell, Table
from .._common.templates import render
from . import charts
from ._suite_picture import draw
from ._suite_results import FEWEST_SEEDS, SuiteNumbers
from .tasks import sequence_task

MOST_LISTED = 4
"""The most tasks that a sentence gives one by one."""


class SuiteResults(SuiteNumbers):
    """The results of ``measure``, and what they show."""

    def summary(self) -> list[str]:
        """Returns three sentences: what is best at the trained length, what beyond it, and what is not separated."""
        return [self._at_the_trained_length(), self._beyond(), self._not_separated()]

    def conclusions(self) -> list[str]:
        """Returns what may be concluded of each task, in sentences."""
        return [self._of_task(task) for task in self.tasks]

    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""
        said = self.settings
        times = ", ".join(f"{times}" for times in said["times"])
        return [
            f"Model: a causal Transformer of {said['layers']} layers, {said['width']} wide, {said['heads']} heads, one "
            "for each task, encoding and seed. With one seed all encodings get the same examples in the same order, "
            "and parameters of the same name start alike.",
            f"Training: {said['batch']} examples in a step, of one length that is drawn up to the trained one; AdamW, "
            f"learning rate {said['learning_rate']:g} with warm-up and a cosine to zero, the same for all.",
            f"Budget: a training ends when {said['enough']:.0%} of 256 validation examples of the trained length "
            f"are right in every token, which is tried every 50 steps, or after {said['steps']:,} steps.",
            f"Measured: 256 other examples, the same for all, at {times} times the trained length. An answer is right "
            "if all of its tokens are, as in greedy generation.",
            "A model that has not learned the trained length says nothing about longer ones, and has no score "
            "there. A length that an encoding refuses, such as one beyond a table of positions, counts as 0.",
            f"Two encodings are separated if both learned the task with at least {FEWEST_SEEDS} seeds, and the "
            "bootstrap's and Student's 95 % intervals of their difference, paired over the seeds, exclude 0.",
        ]

    def table(self, task: str) -> Table:
        """Returns the exact match of a ``task`` in per cent by length; the best of each is marked."""
        lengths = [times * sequence_task(task).trained for times in self.times]
        best = {
            times: max(
                (score.mean for name in self.encodings if (score := self.score(task, name, times))), default=None
            )
            for times in self.times
        }
        rows = []
        for name in self.encodings:
            learned, runs = self.learned(task, name), self.runs(task, name)
            cells: list[Cell | str] = [Cell(name), Cell(f"{len(learned)} of {len(runs)}")]
            for times in self.times:
                score = self.score(task, name, times)
                mark = score is not None and score.mean == best[times] and score.mean > 0 and bool(learned)
                cells.append(Cell.of(None if score is None else 100 * score.mean, ".1f", best=mark))
            seeds = [row["steps"] for row in runs.values()]
            cells.append(Cell.of(mean(seeds) if seeds else None, ",.0f"))
            rows.append(cells)
        titles = [f"{length:,} ({times}×)" for length, times in zip(lengths, self.times, strict=True)]
        return Table(["encoding", "learned", *titles, "steps"], rows)

    def differences(self) -> Table:
        """Returns all pairs of encodings that learned the same task: the difference beyond the trained length."""
        rows: list[list[str | Cell]] = []
        for task in self.tasks:
            for pair in self.pairs(task):
                interval = "—" if pair.interval is None else " … ".join(f"{100 * one:+.1f}" for one in pair.interval)
                difference = Cell.of(100 * pair.difference, "+.1f", best=pair.separated)
                rows.append(
                    [task, f"{pair.better} − {pair.worse}", difference, interval.replace("-", "−"), f"{pair.seeds}"]
                )
        return Table(["task", "pair", "difference, points", "bootstrap, 95 %", "seeds"], rows, right=(2, 3, 4))

    def depths(self) -> Table:
        """Returns right answers by the quarter of the list in which they stand, of tasks that measure it."""
        rows: list[list[str | Cell]] = []
        for task, name in ((task, name) for task in self.tasks for name in self.encodings):
            for times in self.times:
                depths = list(self.by_seed(task, name, times, "by_depth").values()) if self._has_depths(task) else []
                if depths and (times == 1 or self.learned(task, name)):
                    columns = [[part for part in its if part is not None] for its in zip(*depths, strict=True)]
                    cells = [Cell.of(100 * mean(its) if its else None, ".1f") for its in columns]
                    rows.append([task, name, f"{times}×", *cells])
        return Table(
            ["task", "encoding", "length", "first quarter", "second", "third", "last"], rows, right=range(2, 7)
        )

    def markdown(self) -> str:
        """Returns the report in Markdown."""
        return render("suite.md", results=self)

    def html(self) -> str:
        """Returns the report as a page of HTML that loads nothing else."""
        from markupsafe import Markup

        return render(
            "suite.html",
            results=self,
            picture=Markup(charts.svg(draw(self))),
            light=charts.css_colours(dark=False),
            dark=charts.css_colours(dark=True),
        )

    def files(self) -> Files:
        """Returns the files of the report by name, with what makes each."""
        pictures = {f"suite.{kind}": partial(draw, self) for kind in ("png", "svg")}
        return {"suite.html": self.html, "suite.md": self.markdown, **pictures}

    def write(self, out: str | Path) -> None:
        """Writes the report to the folder ``out``, in which the rows are.

        Raises:
            HeadwayError: if a file cannot be made; the message says where the rows are.
        """
        write_report(self.files(), out)

    def task_in_words(self, name: str) -> str:
        """Returns what is asked in the task of a ``name``, with its measures of reference."""
        task = sequence_task(name)
        return (
            f"{first_sentence(type(task))} Trained up to {task.trained} {task.counts}; scored: {task.scored}. Guessing "
            f"is right in {share(task.chance(task.trained))}, the best rule that knows no order in "
            f"{share(task.order_free(task.trained))}. Source: {task.source}."
        )

    def _has_depths(self, task: str) -> bool:
        return any("by_depth" in row for row in self.rows if row["task"] == task)

    def _at_the_trained_length(self) -> str:
        counts = {name: sum(len(self.learned(task, name)) for task in self.tasks) for name in self.encodings}
        runs = {name: sum(len(self.runs(task, name)) for task in self.tasks) for name in self.encodings}
        shares = {name: counts[name] / runs[name] for name in self.encodings}
        most = max(shares.values())
        if not most:
            return "At the trained length no model learned a task within the budget."
        best = [name for name in self.encodings if shares[name] == most]
        others = sorted((name for name in self.encodings if name not in best), key=lambda name: -shares[name])
        rest = ", ".join(f"{name} {counts[name]} of {runs[name]}" for name in others)
        said = f"At the trained length {listed(best)} learned most: {counts[best[0]]} of {runs[best[0]]} trainings"
        return f"{said}{' each' if len(best) > 1 else ''}" + (f"; {rest}." if rest else ".")

    def _beyond(self) -> str:
        best = {task: found for task in self.tasks if (found := self.best_beyond(task)) is not None}
        if not best:
            return "Beyond it nothing can be said, since no task was learned."
        longest = max(self.times)
        if len(best) <= MOST_LISTED:
            said = ", ".join(f"{name} on {task} ({value:.0%})" for task, (name, value) in best.items())
            return f"Beyond it, up to {longest} times as long, the best mean exact match has {said}."
        wins = {name: [task for task, (one, value) in best.items() if one == name and value] for name in self.encodings}
        order = sorted((name for name in wins if wins[name]), key=lambda name: -len(wins[name]))
        said = "; ".join(f"{name} on {', '.join(wins[name])}" for name in order)
        return f"Beyond it, up to {longest} times as long, the best mean exact match has {said}."

    def _not_separated(self) -> str:
        pairs = [pair for task in self.tasks for pair in self.pairs(task)]
        if not pairs:
            return "No two encodings learned the same task with the same seed, so that none can be compared."
        if len(self.seeds) == 1:
            return "There is one seed, which separates nothing: every difference may be chance."
        apart = [pair for pair in pairs if pair.separated]
        said = f"The {len(self.seeds)} seeds separate {len(apart)} of {len(pairs)} pairs of encodings on the same task"
        if not apart:
            return f"{said}: every difference may be chance."
        near = {task: self._near_the_best(task) for task in self.tasks}
        open_ones = "; ".join(f"on {task} {listed(names)}" for task, names in near.items() if names)
        return f"{said}" + (f"; not separated from the best: {open_ones}." if open_ones else ".")

    def _near_the_best(self, task: str) -> list[str]:
        best = self.best_beyond(task)
        return [pair.worse for pair in self.pairs(task) if best and pair.better == best[0] and not pair.separated]

    def _of_task(self, task: str) -> str:
        learned = {name: len(self.learned(task, name)) for name in self.encodings}
        if not any(learned.values()):
            return f"{task}: no model learned the trained length within the budget, so that nothing follows."
        scores = {name: mean(self.beyond(task, name).values()) for name in self.encodings if learned[name]}
        order = sorted(scores, key=lambda name: -scores[name])
        said = ", ".join(f"{name} {scores[name]:.0%}" for name in order)
        never = [name for name in self.encodings if not learned[name] and self.runs(task, name)]
        missing = f" {listed(never)} did not learn the trained length." if never else ""
        apart = [pair for pair in self.pairs(task) if pair.separated]
        pairs = ", ".join(f"{pair.better} over {pair.worse}" for pair in apart)
        return f"{task}: mean exact match beyond the trained length: {said}.{missing}" + (
            f" Separated: {pairs}." if apart else " No pair is separated."
        )


def first_sentence(thing: type) -> str:
    """Returns the first line of a docstring."""
    return (thing.__doc__ or thing.__name__).strip().split("\n")[0]


def share(value: float) -> str:
    """Returns a share in words or per cent."""
    if value == 1:
        return "all cases"
    return f"{100 * value:.1f} %" if value >= 0.001 else "no case"


def listed(names: Iterable[str]) -> str:
    """Returns names as a list in a sentence."""
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last
