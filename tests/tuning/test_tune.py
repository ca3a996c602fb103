"""One run: it verifies, measures, writes, and "auto" follows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import HeadwayError, plans, tuning
from headway._common import tuned
from headway.cli import main
from headway.kernels import KERNELS, Call, _tuned, sdpa
from headway.kernels._products import least_of, onednn_isa
from headway.kernels.cpu import _library
from headway.masks import Causal, Window
from headway.testing.fuzz.search import outcome_of
from headway.tuning import _fast, _right, _run
from headway.tuning._fast import Cell

from .conftest import Mocked, read_only, short


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few checks of a few tokens, in this process, few cells and no linear maps."""
    verify, every = _right.verify, _right.checks("triton", "cpu")
    parts = ("plain, ", "Causal, float32", "DistanceBias, float32")
    few = [replace(check, case=short(check.case)) for check in every if check.part.startswith(parts)]
    monkeypatch.setattr(_right, "verify", lambda chosen, **rest: verify(chosen, **rest, compute=outcome_of))
    monkeypatch.setattr(_right, "checks", lambda kernel, device: few)
    cells = [
        Cell(terms, "causal", "float32", direction, n, n, 16)
        for terms in ("none", "distances")
        for direction in ("inference", "training")
        for n in (16, 96)
    ]
    monkeypatch.setattr(_fast, "cells", lambda device: cells)
    monkeypatch.setattr(_fast, "SECONDS", 0.01)
    monkeypatch.setattr(_run, "ONEDNN_LINEAR", False)


def tell(q: Tensor, **arguments: Any) -> hw.attention:
    return hw.explain(q, q, q, mask=Causal(), **arguments)


def test_a_kernel_is_chosen_where_it_is_verified_and_faster(
    mocked: Any, small: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a GPU whose Triton kernel is wrong in bfloat16 and slow for long calls."""

    def spoil(call: Call, out: Tensor) -> Tensor:
        return out * 1.5 if out.dtype == torch.bfloat16 else out

    def measured(cell: Cell, device: str, kernels: tuple[str, ...]) -> dict[str, Any]:
        row = measure(cell, device, kernels)
        assert row is not None
        assert row["times"].keys() == {"triton", "sdpa"}
        return row | {"times": {"triton": 2.0 if cell.n == 96 else 0.5, "sdpa": 1.0}}

    measure = _fast.measure
    monkeypatch.setattr(mocked, "spoil", spoil)
    monkeypatch.setattr(_fast, "measure", measured)
    alibi = hw.encoding("alibi", num_heads=4)
    x, long = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 96, 16)
    before = tell(x)
    assert before.kernel == "sdpa"
    assert "triton: not verified on this machine: run `headway tune`" in str(before)

    told: list[tuple[str, float]] = []
    result = hw.tune("cpu", watch=lambda doing, share: told.append((doing, share)))
    assert result.file.parent == folder
    assert told[0][0] == "verifying triton"
    assert told[-1][0] == "measuring attention"
    assert all(0 <= share <= 1 for _, share in told)
    assert "plain, bfloat16, forward" in str(result)
    assert "inference, terms: none, float32: fastest is sdpa 1 of 2" in str(result)

    date = result.content["date"]
    assert tell(x).kernel == "triton"
    assert f"triton: chosen (verified and measured here on {date})" in str(tell(x))
    assert tell(x, encoding=alibi).kernel == "triton"
    assert tell(long).kernel == "sdpa"
    assert "left to torch's SDPA, which took" in str(tell(long))
    assert f"here on {date}" in str(tell(long))
    half = tell(x.bfloat16())
    assert half.kernel == "sdpa"
    assert "`headway tune` found it wrong on this machine" in str(half)
    assert tell(torch.randn(1, 4, 8, 16)).kernel == "sdpa", "no measured call is as small"
    window = hw.explain(x, x, x, mask=Window(left=3))
    assert window.kernel == "sdpa"
    assert f"`headway tune` of {date} has not verified it here for Window, float32, forward" in str(window)
    assert hw.explain(x, x, x, mask=Causal(), kernel="triton").kernel == "triton"
    torch.testing.assert_close(
        hw.attention(x, x, x, mask=Causal()), hw.attention(x, x, x, mask=Causal(), kernel="sdpa")
    )


def test_a_session_on_a_gpu_has_the_words_of_the_docs(
    mocked: Any, small: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton is wrong in bfloat16 and slow for long calls, where FlexAttention is the fastest."""
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
    shown = text.split("```text\ntriton: ")[1].split("\n```")[0].splitlines()
    before, after, wrong, left = (line.split("  #")[0].strip() for line in [f"triton: {shown[0]}", *shown[1:]])

    def measured(cell: Cell, device: str, kernels: tuple[str, ...]) -> dict[str, Any]:
        row = measure(cell, device, kernels)
        assert row is not None
        assert row["times"].keys() == {"triton", "flex", "sdpa"}
        return row | {"times": {"triton": 2.0 if cell.n == 96 else 0.5, "flex": 0.63, "sdpa": 1.0}}

    every, measure = _right.checks, _fast.measure
    monkeypatch.setitem(KERNELS, "flex", Mocked("flex"))
    monkeypatch.setitem(_run.TUNED, "cpu", {"triton": 0.35, "flex": 0.5})
    monkeypatch.setattr(
        _right,
        "checks",
        lambda kernel, _: [replace(one, case=replace(one.case, kernel=kernel)) for one in every(kernel, "cpu")],
    )
    monkeypatch.setattr(mocked, "spoil", lambda call, out: out * 1.5 if out.dtype == torch.bfloat16 else out)
    monkeypatch.setattr(_fast, "measure", measured)
    monkeypatch.setattr(sdpa, "_on_cuda", lambda problem: True)  # elsewhere SDPA leaves nothing to FlexAttention
    short, long = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 96, 16)
    assert before in said_of(short)
    date = hw.tune("cpu").content["date"]
    assert after.replace(DATE_OF_DOCS, date) in said_of(short)
    start, end = wrong.replace(DATE_OF_DOCS, date).split("…")
    assert any(line.startswith(start) and line.endswith(end) for line in said_of(short.bfloat16()))
    assert left.replace(DATE_OF_DOCS, date) in said_of(long)
    assert [tell(x).kernel for x in (short, short.bfloat16(), long)] == ["triton", "sdpa", "flex"]


DATE_OF_DOCS = "2026-11-26 21:40"


def said_of(x: Tensor) -> list[str]:
    return [line.strip() for line in str(tell(x)).splitlines()]


def test_a_decoding_step_has_rows_of_its_own(
    mocked: Any, small: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fast, "cells", lambda device: [Cell("none", "causal", "float32", "inference", 1, 64, 16)])
    monkeypatch.setattr(_fast, "in_turn", lambda runs, device: {"triton": 1.0, "sdpa": 2.0})
    hw.tune("cpu")
    x = torch.randn(1, 4, 96, 16)
    one = x[:, :, -1:]
    for mask in (None, Causal()):
        assert hw.explain(one, x, x, mask=mask).kernel == "triton"
        assert hw.explain(x, x, x, mask=mask).kernel == "sdpa", "which was not measured"


def test_a_kernel_that_fails_while_it_is_measured_is_not_chosen(
    mocked: Any, small: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(call: Call, out: Tensor) -> Tensor:
        if call.q.shape[2] == 96 and call.q.shape[3] == 16:
            raise RuntimeError("out of resource: shared memory")
        return out

    monkeypatch.setattr(mocked, "spoil", spoil)
    monkeypatch.setattr(
        _fast, "in_turn", lambda runs, device: {name: 1.0 if name == "triton" else 2.0 for name in runs}
    )
    hw.tune("cpu")
    short, long = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 96, 16)
    assert tell(short).kernel == "triton"
    assert tell(long).kernel == "sdpa"


@pytest.mark.skipif(_library.why_not() is not None, reason=str(_library.why_not()))
@pytest.mark.parametrize("terms", ["none", "distances"])
@pytest.mark.parametrize(("n", "m"), [(16, 16), (1, 16)])
def test_calls_are_measured_as_models_make_them(terms: str, n: int, m: int) -> None:
    """Short ones keep what they have in common, without which the CPU kernel takes twice as long to start."""
    sides = _fast.Sides(Cell(terms, "causal", "float32", "inference", n, m, 8), "cpu", ("cpu",))
    kept = plans._plans_of(sides.given.get("encoding"))
    kept.clear()
    for run in sides.runs.values():
        run()
    assert any(isinstance(one, plans.Plan | plans.Step) for one in kept.values())


def test_sides_are_measured_in_turn() -> None:
    times = _fast.in_turn({"slow": lambda: time.sleep(0.2), "fast": lambda: time.sleep(0.001)}, "cpu")
    assert 1 <= times["fast"] < times["slow"]
    assert times["slow"] >= 200


def test_a_kernel_that_is_wrong_everywhere_is_not_measured(
    mocked: Any, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocked, "spoil", lambda call, out: out + 1)
    few = _right.checks("triton", "cpu")[:2]
    monkeypatch.setattr(_right, "checks", lambda kernel, device: few)
    result = hw.tune("cpu")
    assert result.content["failed"]["triton"].keys() == {"plain, float32, forward"}
    assert result.content["verified"] == {"triton": []}
    assert result.content["rows"] == []
    assert tell(torch.randn(1, 4, 16, 16)).kernel == "sdpa"


def test_an_interrupted_run_leaves_the_table_of_an_earlier_one(
    mocked: Any, small: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = hw.tune("cpu").file
    before = file.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for stage in ("verifying triton", "measuring attention"):
        with pytest.raises(KeyboardInterrupt):
            hw.tune("cpu", watch=lambda doing, share, stage=stage: interrupt() if doing == stage else None)  # type: ignore[misc]
        assert file.read_bytes() == before
        assert [one.name for one in folder.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "tpu"}, r"there is no device 'tpu'"),
        ({"device": "meta"}, r"device is 'meta', and headway has kernels for cpu and cuda"),
        ({"device": "cpu", "minutes": 0}, r"minutes is 0: give a number above 0"),
        ({"device": "cpu", "minutes": float("nan")}, r"minutes is nan"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        hw.tune(**arguments)


def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWAY_TUNED", str(tmp_path / "file" / "tuned"))
    monkeypatch.setattr(_right, "verify", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(HeadwayError, match="cannot be a folder"):
        hw.tune("cpu")


@pytest.mark.parametrize("there", [True, False])
def test_a_disk_that_is_read_only_is_refused_before_any_work(
    there: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        folder.mkdir()
    read_only(monkeypatch)
    monkeypatch.setattr(_right, "verify", lambda *_, **__: pytest.fail("work"))
    with pytest.raises(HeadwayError, match="cannot be written to: give a folder that is yours"):
        hw.tune("cpu")


def test_a_disk_that_is_read_only_at_last_keeps_the_table_of_an_earlier_run(
    mocked: Any, small: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is remounted or full after some minutes of work."""
    monkeypatch.setattr(_fast, "in_turn", lambda runs, device: {name: 2.0 - (name == "triton") for name in runs})
    file = hw.tune("cpu").file
    before, x = file.read_bytes(), torch.randn(1, 4, 16, 16)
    with monkeypatch.context() as patch:
        read_only(patch, known=False)
        with pytest.raises(HeadwayError, match=r"json cannot be written \(Read-only file system\): give a place"):
            hw.tune("cpu")
    _run.forget()
    assert file.read_bytes() == before
    assert [one.name for one in folder.iterdir()] == [file.name]
    assert tell(x).kernel == "triton"


def test_off_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TUNED", "off")
    with pytest.raises(HeadwayError, match="HEADWAY_TUNED is off"):
        hw.tune("cpu")


def test_off_exports_no_table_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    monkeypatch.delenv("HEADWAY_TUNED")
    facts = _tuned.facts_of("cpu")
    tuned.write(tuned.file_of(_tuned.name_of(facts)), {"fits": _tuned.fits_of(facts), "rows": []})
    tuning.export_table(tmp_path / "a.json", "cpu")
    monkeypatch.setenv("HEADWAY_TUNED", "off")
    with pytest.raises(HeadwayError, match="HEADWAY_TUNED is off"):
        tuning.export_table(tmp_path / "b.json", "cpu")
    assert not (tmp_path / "b.json").exists()


def test_the_rows_of_linear_maps(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN is taken from the work on from which it was never slower."""
    monkeypatch.setattr(_run, "ONEDNN_LINEAR", True)
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path)  # of which one may be this processor's
    ratios = dict(zip(_run.WORK, (2.0, 0.5, 1.2, 1.5, 0.9, 1.1, 1.3), strict=True))
    monkeypatch.setattr(
        _run,
        "_linear_ratios",
        lambda work, seconds: dict.fromkeys(("forward", "d_input"), ratios[work // torch.get_num_threads()]),
    )
    rows = _run._linear_rows(1.0, lambda share: None)
    content = {"fits": _tuned.fits_of(_tuned.facts_of("cpu")), "date": "2026-01-02", "rows": rows}
    tuned.write(tuned.file_of("cpu"), content)
    _run.forget()
    least = least_of(None)
    assert (least.forward, least.d_input, least.d_weight) == (_run.WORK[5], _run.WORK[5], float("inf"))
    assert (least.rows, least.width) == (_run.ROWS, _run.WIDTH)


def test_linear_maps_of_a_restrained_onednn_are_not_measured(
    small: None, mocked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows would hold where oneDNN is not restrained. HEADWAY_ISA does not restrain it."""
    monkeypatch.setattr(_run, "ONEDNN_LINEAR", True)
    monkeypatch.setattr(_run, "_linear_ratios", lambda work, seconds: {"forward": 2.0})
    monkeypatch.setattr(_fast, "cells", lambda device: [])
    monkeypatch.setattr(_right, "checks", lambda kernel, device, every=_right.checks: every(kernel, device)[:1])
    for variable, measured in (("HEADWAY_ISA", True), ("ONEDNN_MAX_CPU_ISA", False)):
        with monkeypatch.context() as patch:
            patch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
            isa = onednn_isa()
            patch.setenv(variable, "AVX2" if variable == "ONEDNN_MAX_CPU_ISA" else "portable")
            rows = hw.tune("cpu").content["rows"]
        assert [row["case"]["isa"] for row in rows] == ([isa] * len(_run.WORK) if measured else [])


def test_the_table_of_a_gpu_names_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """Stands in for NVIDIA's, which fails where the driver is of another version than the library."""

        code = 0

        def nvmlInit_v2(self) -> int:
            return self.code

        def nvmlSystemGetDriverVersion(self, version: Any, size: int) -> int:
            version.value = b"580.159"
            return 0

    monkeypatch.setattr(_run.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "one")
    assert _run._about("cuda:0")["driver"] == "580.159"
    monkeypatch.setattr(Library, "code", 18)
    assert _run._driver() == "unknown"
    monkeypatch.setattr(_run.ctypes, "CDLL", lambda name: object())
    assert _run._driver() == "unknown"


def test_the_command(
    mocked: Any, small: None, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--device", "cpu", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "triton: right in" in out
    [file] = folder.iterdir()
    assert main(["tune", "--device", "cpu", "--export", str(tmp_path / "table.json")]) == 0
    assert json.loads((tmp_path / "table.json").read_text()) == json.loads(file.read_text())
    file.unlink()
    assert main(["tune", "--device", "cpu", "--import", str(tmp_path / "table.json")]) == 0
    assert file.exists()
    capsys.readouterr()
    assert main(["tune", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]
    assert main(["tune", "--export", "a.json", "--import", "b.json"]) == 2
    assert "--export and --import exclude each other" in capsys.readouterr().err


def test_doctor_says_what_is_known(mocked: Any, small: None, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.cli._diagnosis import tables

    assert "not verified on this machine" in tables().facts["cpu"]
    result = hw.tune("cpu")
    assert f"verified and measured on {result.content['date']}" in tables().facts["cpu"]
