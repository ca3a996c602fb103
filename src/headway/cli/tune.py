"""``headway tune``: verifies and measures the kernels on this machine, so that "auto" can rely on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._common.devices import device_named
from .._common.language import retold, said
from ..bench.machine import busy
from ..errors import HeadwayError
from ._console import Screen, consoles, print_json
from ._options import Json, Quiet


def run(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto takes a GPU if there is one.")] = "auto",
    minutes: Annotated[
        float | None, typer.Option(help="Maximum time for the whole run. Default: 3 on a CPU, 5 on a GPU.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="In place of tuning, write the table of this machine to a file, for other machines of its kind."
        ),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option("--import", help="In place of tuning, use a table that --export wrote elsewhere."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check what the kernels compute on this machine and time them, so that "auto" takes the fastest right one.

    The table is written to the cache folder, or to the place that HEADWAY_TUNED names. Without a table, headway relies
    on measurements from other machines, and on a GPU it takes neither the kernel triton nor flex.

    Examples:
        headway tune
        headway tune --export this-kind.json
    """
    from ..tuning import export_table, import_table, tune

    say, telling = consoles(as_json, quiet)
    if export is not None and given is not None:
        raise HeadwayError("--export and --import exclude each other: give one of them")
    if export is not None or given is not None:
        written = export if export is not None else import_table(given, device)  # type: ignore[arg-type]
        source = given if export is None else export_table(export, device)
        if as_json:
            print_json("tune", [], files=[written])
        else:
            say.print(
                said("{source} is now in {written}", source=source, written=written), soft_wrap=True, markup=False
            )
        return
    device = device_named(device)
    with Screen(telling) as screen:
        if load := busy():
            screen.noted(retold(load))
        tuned = tune(device, minutes=minutes, watch=screen.progressed)
    if as_json:
        print_json("tune", tuned.content["rows"], notes=str(tuned).splitlines(), files=[tuned.file])
    else:
        say.print(str(tuned), soft_wrap=True, markup=False)
