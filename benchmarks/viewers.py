"""Opens reports and pages of BertViz in Chromium, and measures sizes, times to open, and frames while a map moves.

    python benchmarks/viewers.py --libraries FOLDER 60 512 2048      # beside BertViz
    python benchmarks/viewers.py --frames REPORT                     # pan and zoom of one report

It needs playwright and Chromium, and for the first also ``pip install --no-deps bertviz==1.4.1``. A page of BertViz
loads three libraries from a network; FOLDER has them: ``npm install --prefix FOLDER d3@5.7.0 jquery@2.2.4
requirejs@2.3.6``. Weights are those of random queries and keys, 12 layers of 12 heads, causal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headway as hw

LAYERS, HEADS, WIDTH = 12, 12, 32
MEMORY = 12 << 30
"""The most bytes that the writing of a page may take."""
LONGEST = 60
"""Seconds after which a page counts as not opened."""
LIBRARIES = {
    "require.min.js": "requirejs/require.js",
    "d3.min.js": "d3/dist/d3.min.js",
    "jquery.min.js": "jquery/dist/jquery.min.js",
}
TRACED = ["toplevel"]
TASK = "ThreadControllerImpl::RunTask"
"""The outermost event of each task in a trace."""
MOVES = """async ([kind, seconds]) => {
    const canvas = document.querySelector(".plot canvas");
    const box = canvas.getBoundingClientRect();
    const [x, y] = [box.left + 0.5 * box.width, box.top + 0.5 * box.height];
    const at = { clientX: x, clientY: y, bubbles: true, cancelable: true, pointerId: 1 };
    const dispatch = (type, more = {}) => canvas.dispatchEvent(new PointerEvent(type, { ...at, ...more }));
    canvas.setPointerCapture = () => {};
    const frames = [], from = performance.now();
    if (kind === "pan") dispatch("pointerdown");
    for (let i = 0; performance.now() < from + 1000 * seconds; i++) {
        frames.push(await new Promise(requestAnimationFrame));
        const out = Math.floor(i / 60) % 2;
        if (kind === "zoom") canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: out ? 60 : -60 }));
        else dispatch("pointermove", { clientX: x + 80 * Math.sin(i / 20), clientY: y + 80 * Math.cos(i / 20) });
    }
    if (kind === "pan") dispatch("pointerup");
    return frames;
}"""


class Drawn(nn.Module):
    """Layers that attend with random queries and keys."""

    def __init__(self, n: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(n)
        self.sides = [torch.randn(2, 1, HEADS, n, WIDTH, generator=generator) * 1.5 for _ in range(LAYERS)]
        self.layers = nn.ModuleList(nn.Identity() for _ in range(LAYERS))
        for (q, k), layer in zip(self.sides, self.layers, strict=True):
            layer.register_forward_hook(lambda *_, q=q, k=k: hw.attention(q, k, k, mask=hw.masks.Causal()))

    def forward(self) -> None:
        for layer in self.layers:
            layer(torch.zeros(1))


def captured(n: int) -> hw.inspection.Seen:
    model = Drawn(n)
    with torch.no_grad(), hw.capture(model, keep="qk") as seen:
        model()
    return seen


def write_headway(n: int, path: Path) -> None:
    captured(n).report(path, tokens=[f"w{i}" for i in range(n)], name="random layers")


def write_bertviz(n: int, path: Path) -> None:
    from bertviz import model_view

    seen = captured(n)
    attention = [seen.weights(layer) for layer in range(LAYERS)]
    page = model_view(attention, [f"w{i}" for i in range(n)], html_action="return")
    path.write_text(page.data, encoding="utf-8")


def limited(write: Callable[[int, Path], None], n: int, path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    try:
        write(n, path)
    except MemoryError:
        sys.exit(3)


def written(write: Callable[[int, Path], None], n: int, path: Path) -> str | None:
    """Writes a page in a process of its own; returns why it could not, or None."""
    process = multiprocessing.get_context("fork").Process(target=limited, args=(write, n, path))
    process.start()
    process.join()
    if process.exitcode == 0:
        return None
    return f"does not fit into {MEMORY >> 30} GiB of memory" if process.exitcode in (3, -9) else "could not be written"


def chromium(driver: Any) -> Any:
    """Starts Chromium with its shared memory in memory, as people's browsers have it.

    Playwright puts it into files of the temporary folder, where ext4 took up to 100 ms to find an inode for one.
    """
    path = next(found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name)))
    unwanted = ["--disable-dev-shm-usage"]
    return driver.chromium.launch(executable_path=path, args=["--no-sandbox"], ignore_default_args=unwanted)


def opened(driver: Any, page: Path, ready: str, libraries: Path | None) -> float | None:
    """Seconds until a page is drawn; None if it is not within ``LONGEST`` seconds."""
    browser = chromium(driver)
    try:
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.set_default_timeout(1000 * LONGEST)

        def answer(route: Any) -> None:
            name = LIBRARIES.get(route.request.url.rpartition("/")[2])
            route.fulfill(path=libraries / "node_modules" / name) if libraries and name else route.abort()

        tab.context.route(re.compile("^https:"), answer)
        tab.goto("about:blank")
        begin = time.perf_counter()
        tab.goto(page.as_uri(), wait_until="commit")
        tab.wait_for_selector(ready, state="attached")
        return time.perf_counter() - begin
    except Exception as error:  # a tab that crashes, or is not ready in time
        print(f"  {page.name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    finally:
        browser.close()


def beside(lengths: list[int], libraries: Path | None) -> None:
    from playwright.sync_api import sync_playwright

    sides = {
        "headway": (write_headway, ".lists section"),
        "BertViz 1.4.1": (write_bertviz, f"#attn_background_{LAYERS - 1}_{HEADS - 1}"),
    }
    print("| tokens | page | size | opens |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        for n in lengths:
            for name, (write, ready) in sides.items():
                page = Path(folder) / f"{name.split()[0]}-{n}.html"
                why = written(write, n, page)
                if why is not None:
                    print(f"| {n:,} | {name} | {why} | – |", flush=True)
                    continue
                times = [opened(driver, page, ready, libraries)]
                if times[0] is not None:
                    times += [opened(driver, page, ready, libraries) for _ in range(2)]
                found = [time for time in times if time is not None]
                said = f"{min(found):.2f} s" if found else f"not within {LONGEST} s"
                print(f"| {n:,} | {name} | {page.stat().st_size / 1e6:.1f} MB | {said} |", flush=True)
                page.unlink()


def addresses(report: Path) -> dict[str, str]:
    """Where the map of a head of each form is shown."""
    found = re.search(r'type="application/json">(.*?)</script>', report.read_text(encoding="utf-8"))
    assert found is not None
    forms: dict[str, dict[str, Any]] = {}
    for head in json.loads(found[1])["heads"]:
        forms.setdefault(head["form"], head)
    return {form: f"layer={head['layer']}&head={head['head']}&view=map" for form, head in forms.items()}


def frames(report: Path, seconds: float = 4.0) -> None:
    """Prints how a map moves. Times of tasks are those of the processor, which other processes do not lengthen."""
    from playwright.sync_api import sync_playwright

    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print("| | frames a second | worst gap, ms | processor time of a frame, ms | longest task, ms of the processor |")
    print("| --- | --- | --- | --- | --- |")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = chromium(driver)
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        for what, address in addresses(report).items():
            tab.goto("about:blank")
            tab.goto(f"{report.as_uri()}#{address}")
            tab.wait_for_selector(".plot canvas")
            tab.wait_for_timeout(2000)
            for kind in ("zoom", "pan"):
                trace = Path(folder) / "trace.json"
                browser.start_tracing(page=tab, path=trace, categories=TRACED)
                times = tab.evaluate(MOVES, [kind, seconds])
                browser.stop_tracing()
                gaps = [after - before for before, after in pairwise(times)]
                tasks = _tasks(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])
                rate, own = 1000 * len(gaps) / sum(gaps), sum(tasks) / len(times)
                row = f"| {what}, {kind} | {rate:.0f} | {max(gaps):.0f} | {own:.1f} | {max(tasks):.0f} |"
                print(row, flush=True)
        browser.close()


def _tasks(events: list[dict[str, Any]]) -> list[float]:
    """Milliseconds of the processor of each task of the busiest main thread of a page."""
    mains = {
        (one["pid"], one["tid"])
        for one in events
        if one.get("name") == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks: dict[tuple[int, int], list[float]] = {main: [0.0] for main in mains}
    for one in events:
        if one.get("ph") == "X" and one["name"] == TASK and (one["pid"], one["tid"]) in mains:
            tasks[one["pid"], one["tid"]].append(one.get("tdur", 0) / 1000)
    return max(tasks.values(), key=sum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=int, metavar="TOKENS")
    parser.add_argument("--libraries", type=Path, help="a folder with node_modules of d3, jquery and requirejs")
    parser.add_argument("--frames", type=Path, metavar="REPORT", help="a report whose map is moved")
    given = parser.parse_args()
    if given.frames:
        frames(given.frames.absolute())
    if given.lengths:
        beside(given.lengths, given.libraries and given.libraries.absolute())


if __name__ == "__main__":
    main()
