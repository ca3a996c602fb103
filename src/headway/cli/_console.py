"""Where the verbs print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """The terminal; or, where output goes to a file or a pipe, lines that are not broken."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=120)


class Progress:
    """A bar on a terminal; elsewhere a line when something begins."""

    def __init__(self, out: Console) -> None:
        self.out, self.doing = out, ""

    def __enter__(self) -> Progress:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(32), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn(), "{task.description}")
        self.bar = Bar(*columns, console=self.out, transient=True, disable=not self.out.is_terminal)
        self.task = self.bar.add_task("", total=1.0)
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def tell(self, doing: str, part: float) -> None:
        """Takes what is being done and the part of all that is behind."""
        if doing != self.doing and not self.out.is_terminal:
            self.out.print(f"{100 * part:3.0f} %  {doing}")
        self.doing = doing
        self.bar.update(self.task, completed=part, description=doing)
