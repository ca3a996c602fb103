"""The report of ``suite``: three sentences, the picture, and the tables and details below them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import mean

from .._common.experiment import Files, write_report
from .._common.language import listed, said
from .._common.table import Cell, Table
from .._common.templates import render
from ..positions._naming import unique_labels
from . import charts
from ._suite_picture import draw
from ._suite_results import FEWEST_SEEDS, SuiteNumbers
from .tasks import sequence_task

MOST_LISTED = 4
"""The most tasks that a sentence gives one by one."""


class SuiteResults(SuiteNumbers):
    """The results of ``measure``, and conclusions from them."""

    def labelled(self) -> SuiteResults:
        """Returns the same results with the labels of encodings in place of their names, for tables and pictures."""
        labels = unique_labels(self.encodings)
        rows = [{**row, "encoding": labels.get(row["encoding"], row["encoding"])} for row in self.rows]
        return SuiteResults(rows, self.settings, [labels.get(name, name) for name in self.encodings])

    def summary(self) -> list[str]:
        """Returns three sentences: the best at the trained length, the best beyond it, and the pairs not separated."""
        return [self._at_the_trained_length(), self._beyond(), self._not_separated()]

    def conclusions(self) -> list[str]:
        """Returns the conclusions for each task, in sentences."""
        return [self._of_task(task) for task in self.tasks]

    def protocol(self) -> list[str]:
        """Returns the settings in sentences."""
        of = self.settings
        return [
            said(
                "Model: a causal Transformer of {layers} layers, {width} wide, {heads} heads, one for each task, "
                "encoding and seed. With one seed all encodings get the same examples in the same order, and "
                "parameters of the same name start alike.",
                layers=of["layers"],
                width=of["width"],
                heads=of["heads"],
            ),
            said(
                "Training: {batch} examples in a step, each of a length that is drawn up to the trained one; AdamW, "
                "learning rate {rate:g} with warm-up and a cosine to zero, the same for all.",
                batch=of["batch"],
                rate=of["learning_rate"],
            ),
            said(
                "Budget: {steps:,} steps. If {enough:.0%} of 256 validation examples of the trained length are right "
                "in every token before, which is tried every 50 steps, the learning rate falls to zero within a "
                "quarter of the steps so far. The training ends then if they are still right, and else goes on as "
                "before.",
                enough=of["enough"],
                steps=of["steps"],
            ),
            said(
                "Learned: {enough:.0%} of 1,024 other examples of the trained length are right in every token after "
                "the last step, which is tried once.",
                enough=of["enough"],
            ),
            said(
                "Measured: 256 other examples, the same for all, at {times} times the trained length. An answer is "
                "right if all of its tokens are, as in greedy generation.",
                times=said(", ").join(map(str, of["times"])),
            ),
            said(
                "A model that has not learned the trained length says nothing about longer ones, and has no score "
                "there. A length that an encoding refuses, such as one beyond a table of positions, counts as 0."
            ),
            said(
                "Two encodings are separated if both learned the task with at least {seeds} seeds, and the bootstrap's "
                "and Student's 95 % intervals of their difference, paired over the seeds, exclude 0.",
                seeds=FEWEST_SEEDS,
            ),
        ]

    def table(self, task: str) -> Table:
        """Returns the exact match of a ``task`` in per cent by length; the best of each is marked.

        Where an answer has several tokens, it also has the share of right tokens at the first longer length.
        """
        lengths = [times * sequence_task(task).trained for times in self.times]
        best = {
            times: max(
                (score.mean for name in self.encodings if (score := self.score(task, name, times))), default=None
            )
            for times in self.times
        }
        tokens = self.right_tokens(task)
        rows = []
        for name in self.encodings:
            learned, runs = self.learned(task, name), self.runs(task, name)
            if not runs:  # for example in the folder of one of several machines
                continue
            cells: list[Cell | str] = [Cell(name), Cell(said("{count} of {runs}", count=len(learned), runs=len(runs)))]
            for times in self.times:
                score = self.score(task, name, times)
                mark = score is not None and score.mean == best[times] and score.mean > 0 and bool(learned)
                cells.append(Cell.of(None if score is None else 100 * score.mean, ".1f", best=mark))
            if tokens:
                found = tokens.get(name)
                cells.append(Cell.of(None if found is None else 100 * found, ".1f"))
            seeds = [row["steps"] for row in runs.values()]
            cells.append(Cell.of(mean(seeds), ",.0f"))
            rows.append(cells)
        titles = [f"{length:,} ({times}×)" for length, times in zip(lengths, self.times, strict=True)]
        if tokens:
            titles.append(said("tokens ({times}×)", times=self.longer[0]))
        return Table([said("encoding"), said("learned"), *titles, said("steps")], rows)

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
        """Returns the files of the report by name, each with the function that makes it."""
        shown = self.labelled()
        pictures = {f"suite.{kind}": partial(draw, shown) for kind in ("png", "svg")}
        return {"suite.html": shown.html, "suite.md": shown.markdown, **pictures}

    def write(self, out: str | Path) -> None:
        """Writes the report to the folder ``out``, in which the rows are.

        Raises:
            HeadwayError: if a file cannot be made; the message says where the rows are.
        """
        write_report(self.files(), out)

    def task_in_words(self, name: str) -> str:
        """Returns the question of the task of a ``name``, with its measures of reference."""
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
            return said("At the trained length no model learned a task within the budget.")
        best = [name for name in self.encodings if shares[name] == most]
        others = sorted((name for name in self.encodings if name not in best), key=lambda name: -shares[name])
        of = "{names} learned most: {count} of {runs} trainings"
        if len(best) > 1:
            of = "{names} learned most: {count} of {runs} trainings each"
        found = said(of, names=listed(best), count=counts[best[0]], runs=runs[best[0]])
        rest = said(", ").join(
            said("{name} {count} of {runs}", name=name, count=counts[name], runs=runs[name]) for name in others
        )
        return said("At the trained length {found}.", found=found + (said("; ") + rest if rest else ""))

    def _beyond(self) -> str:
        best = {task: found for task in self.tasks if (found := self.best_beyond(task)) is not None}
        if not best:
            return said("Beyond it nothing can be said, since no task was learned.")
        if len(best) <= MOST_LISTED:
            has = said(", ").join(
                said("{name} on {task} ({value:.0%})", name=name, task=task, value=value)
                for task, (name, value) in best.items()
            )
        else:
            wins = {
                name: [task for task, (one, value) in best.items() if one == name and value] for name in self.encodings
            }
            order = sorted((name for name in wins if wins[name]), key=lambda name: -len(wins[name]))
            has = said("; ").join(
                said("{name} on {tasks}", name=name, tasks=said(", ").join(wins[name])) for name in order
            )
        return said(
            "Beyond it, up to {times} times as long, the best mean exact match has {has}.",
            times=max(self.times),
            has=has,
        )

    def _not_separated(self) -> str:
        pairs = [pair for task in self.tasks for pair in self.pairs(task)]
        if not pairs:
            return said("No two encodings learned the same task with the same seed, so that none can be compared.")
        if len(self.seeds) == 1:
            return said("There is one seed, which separates nothing: every difference may be chance.")
        apart = [pair for pair in pairs if pair.separated]
        found = said(
            "The {seeds} seeds separate {apart} of {pairs} pairs of encodings on the same task",
            seeds=len(self.seeds),
            apart=len(apart),
            pairs=len(pairs),
        )
        if not apart:
            return said("{found}: every difference may be chance.", found=found)
        near = {task: self._near_the_best(task) for task in self.tasks}
        open_ones = said("; ").join(
            said("on {task} {names}", task=task, names=listed(names)) for task, names in near.items() if names
        )
        if not open_ones:
            return said("{found}.", found=found)
        return said("{found}; not separated from the best: {which}.", found=found, which=open_ones)

    def _near_the_best(self, task: str) -> list[str]:
        best = self.best_beyond(task)
        return [pair.worse for pair in self.pairs(task) if best and pair.better == best[0] and not pair.separated]

    def _of_task(self, task: str) -> str:
        learned = {name: len(self.learned(task, name)) for name in self.encodings}
        if not any(learned.values()):
            return said(
                "{task}: no model learned the trained length within the budget, so that nothing follows.", task=task
            )
        scores = {name: mean(self.beyond(task, name).values()) for name in self.encodings if learned[name]}
        order = sorted(scores, key=lambda name: -scores[name])
        sentences = said(
            "{task}: mean exact match beyond the trained length: {scores}.",
            task=task,
            scores=said(", ").join(f"{name} {scores[name]:.0%}" for name in order),
        )
        never = [name for name in self.encodings if not learned[name] and self.runs(task, name)]
        if never:
            sentences += said(" {names} did not learn the trained length.", names=listed(never))
        apart = [pair for pair in self.pairs(task) if pair.separated]
        if not apart:
            return sentences + said(" No pair is separated.")
        pairs = said(", ").join(said("{a} over {b}", a=pair.better, b=pair.worse) for pair in apart)
        return sentences + said(" Separated: {pairs}.", pairs=pairs)


def first_sentence(thing: type) -> str:
    """Returns the first line of a docstring."""
    return (thing.__doc__ or thing.__name__).strip().split("\n")[0]


def share(value: float) -> str:
    """Returns a share in words or per cent."""
    if value == 1:
        return said("all cases")
    return f"{100 * value:.1f} %" if value >= 0.001 else said("no case")
