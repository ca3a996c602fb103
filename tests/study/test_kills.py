"""A comparison that is killed at random moments loses nothing, and comes to the same results."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = '''
import gc, json, os, random, signal, sys, time
from pathlib import Path

import torch
import torch._dynamo  # which optimizers import, and each process would anew

from headway import training
from headway.study import Watch, comparison, compare, heads

text, folder, settings, seed, kills = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), *map(int, sys.argv[4:])
torch.set_num_threads(1)
training.SECONDS_BETWEEN_CHECKPOINTS = 0.0
heads.STEPS = 1
comparison.report.write = lambda results, out: []  # pictures, which take most of the time, and are drawn anew


class Reports(Watch):
    """Tells another process which rows are on the disk."""

    def __init__(self, pipe):
        self.pipe = pipe

    def measured(self, rows):
        os.write(self.pipe, "".join(f"{row['encoding']} {row['seed']} {row['length']}\\n" for row in rows).encode())


def held(out):
    file = out / "results.jsonl"
    lines = file.read_text().split("\\n")[:-1] if file.exists() else []
    return {"{encoding} {seed} {length}".format(**json.loads(line)) for line in lines}


def run(out, seconds=None):
    """Compares in another process, which is killed after so many seconds; returns whether it was."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            compare(text, ["rope", "learned"], **settings, out=out, watch=Reports(writing))
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    os.close(writing)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # of a process that has ended, without effect
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a killed comparison does not go on"
    with open(reading) as pipe:
        missing = set(pipe.read().split("\\n")[:-1]) - held(out)
    assert not missing, f"rows that were reported are lost: {missing}"
    return os.WIFSIGNALED(status)


gc.freeze()  # what is imported is not searched in each process
draw = random.Random(seed)
began = time.perf_counter()
run(folder / "whole")
usual = time.perf_counter() - began
struck = round = 0
while struck < kills:
    round += 1
    while struck < kills and run(folder / f"killed-{round}", draw.uniform(0, usual)):
        struck += 1
for number in range(1, round + 1):
    run(folder / f"killed-{number}")
'''
WITH_TIME = ("train_seconds", "tokens_per_second", "peak_memory_bytes")


def results(out: Path) -> dict[str, Any]:
    """All that a folder has, but for what depends on time and memory."""
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    settings = json.loads((out / "settings.json").read_text())
    for facts in settings["learning_rates_tried"].values():
        for one in facts.values():
            del one["peak_memory_bytes"]
    return {
        "rows": [{name: value for name, value in row.items() if name not in WITH_TIME} for row in rows],
        "settings": settings,
        "heads": {file.name: file.read_text() for file in sorted((out / "heads").iterdir())},
        "checkpoints": sorted(file.name for file in (out / "checkpoints").iterdir() if not file.name.startswith(".")),
    }


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_kills_at_random_moments_lose_nothing(
    text_file: Path, tiny: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    settings = {**tiny, "recall_steps": 2, "learning_rates": [0.005, 0.01]}
    command = [sys.executable, "-c", PROGRAM, str(text_file), str(tmp_path), json.dumps(settings), str(seed), "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    whole = results(tmp_path / "whole")
    assert len(whole["rows"]) == 3 * 2  # rope, learned and its interpolated table, at two lengths
    killed = sorted(tmp_path.glob("killed-*"))
    assert killed
    for out in killed:
        assert results(out) == whole
