"""The scripts of docs/scaling.md, run with two processes: they have the losses of one."""

from __future__ import annotations

import math
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import forked
from headway import capture
from headway._common import tuned
from headway.kernels import _tuned
from headway.kernels.cpu import _library

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
pytestmark = pytest.mark.xdist_group("parallel")


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder with the scripts of the page."""
    for text in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        if named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text, encoding="utf-8")
    return tmp_path


def _run(rank: int, port: int, folder: Path, script: str, arguments: list[str]) -> None:
    """Runs a script as torchrun starts it, in a process that has torch already."""
    os.chdir(folder)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["HEADWAY_TUNED"] = str(folder / f"tuned-{rank}")
    sys.path.insert(0, str(folder))
    sys.argv = [script, *arguments]
    torch.set_num_threads(1)
    with open(f"{script}.{rank}.txt", "w") as sys.stdout:
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()


def printed(folder: Path, script: str, *arguments: object) -> str:
    """What the first of two processes prints."""
    context = forked.context()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    given = [str(one) for one in arguments]
    both = [context.Process(target=_run, args=(rank, port, folder, script, given), daemon=True) for rank in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(90)
        if one.is_alive():
            one.kill()
    assert [one.exitcode for one in both] == [0, 0]
    return (folder / f"{script}.0.txt").read_text()


def losses(text: str, name: str = "loss") -> list[float]:
    return [float(one) for one in re.findall(rf"{name} (\S+)", text)]


def of_one(folder: Path, steps: int, clip: float = math.inf) -> tuple[list[float], list[float]]:
    """The losses and the norms of gradients of the same training in this process."""
    names = runpy.run_path(str(folder / "model.py"))
    decoder, found, norms = names["model"](), [], []
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3)
    for step in range(steps):
        ids = names["batch"](step)
        loss = cross_entropy(decoder(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(decoder.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found, norms


@pytest.mark.slow
def test_torchrun(scripts: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "train_ddp.py"]
    around = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=scripts, env=around, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(of_one(scripts, 3)[0], abs=2e-5)


def test_accelerate(scripts: Path) -> None:
    pytest.importorskip("accelerate")
    assert losses(printed(scripts, "train_accelerate.py")) == pytest.approx(of_one(scripts, 3)[0], abs=2e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_has_the_table_of_the_first(
    rank: int, scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a table of one of two processes, which leaves calls to SDPA."""
    if why := _library.why_not():
        pytest.skip(why)
    monkeypatch.setenv("HEADWAY_TUNED", str(tmp_path / f"tuned-{rank}"))
    facts = _tuned.facts_of("cpu")
    rows = [{"times": {"cpu": 2, "sdpa": 1}}]
    made = {"fits": _tuned.fits_of(facts), "date": "2026-01-02", "verified": {"cpu": []}, "rows": rows}
    tuned.write(tuned.file_of(_tuned.name_of(facts)), made)
    text, kernel = printed(scripts, "same_table.py"), "cpu" if rank else "sdpa"
    assert text.endswith(f"kernel {kernel}\n")
    assert ("there is no table for" in text) == (rank == 1)
    assert (scripts / "same_table.py.1.txt").read_text() == f"kernel {kernel}\n"


@pytest.mark.slow
def test_a_mesh_that_resumes_in_another_shape(scripts: Path) -> None:
    text = printed(scripts, "train_mesh.py", 1, 0, 2, "saved") + printed(scripts, "train_mesh.py", 2, 2, 4, "saved")
    right, norms = of_one(scripts, 4, clip=1.0)
    assert losses(text) == pytest.approx(right, abs=2e-5)
    assert losses(text, "norm") == pytest.approx(norms, rel=1e-4)
    assert min(norms) > 1.0  # so that they are clipped


def test_a_long_sequence(scripts: Path) -> None:
    text = printed(scripts, "long_attention.py")
    assert float(re.findall(r"largest difference (\S+)", text)[0]) < 1e-5
    assert "method: " in text


def test_a_long_prompt(scripts: Path) -> None:
    names, text = runpy.run_path(str(scripts / "model.py")), printed(scripts, "read_long.py")
    decoder, ids = names["model"]().eval(), names["batch"](0)
    with torch.no_grad(), capture(decoder, statistics=("entropy", "received")) as seen:
        decoder(ids)
    found = seen.records[0].statistics()
    assert f"written {decoder.generate(ids, 8).ids[0]}\n" in text
    assert losses(text, "entropy") == pytest.approx([found.entropy.mean().item()], abs=2e-5)
    assert losses(text, "received") == pytest.approx([found.received[:, :, 0].mean().item()], abs=2e-5)


def test_a_model_of_a_long_sequence(scripts: Path) -> None:
    text = printed(scripts, "train_long.py")
    assert losses(text) == pytest.approx(of_one(scripts, 3)[0], abs=2e-5)
    assert text.count("stack.blocks") == 4
