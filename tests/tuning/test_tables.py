"""Tables: what applies to a call, and files that are damaged, of another machine, or written by two processes."""

from __future__ import annotations

import errno
import json
import math
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import HeadwayError, tuning
from headway._common import tuned
from headway._common.tuned import Row, Table
from headway.call import make_call
from headway.kernels import Problem, _tuned
from headway.kernels.cpu import _library
from headway.kernels.triton import _installed
from headway.tuning import _run

from .conftest import read_only

TIMES = {"cpu": 2.0, "sdpa": 1.0}


def content(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A table for this machine."""
    fits = _tuned.fits_of(_tuned.facts_of("cpu"))
    return {"fits": fits, "date": "2026-01-02 03:04", "verified": {"cpu": []}, "failed": {}, "rows": rows, **more}


def written(folder: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    file = folder / "cpu.json"
    tuned.write(file, content(rows, **more))
    _run.forget()
    return file


def table(*rows: dict[str, Any]) -> Table:
    return tuned.checked({"fits": {"device": "cpu"}, "rows": list(rows)}, "a table")


def applying(one: Table, case: dict[str, str], **sizes: float) -> list[Row]:
    return one.applying("cpu", tuple(case.items()), sizes)


# Which rows apply -----------------------------------------------------------------------------------------------------


def test_a_row_holds_from_its_sizes_on() -> None:
    small, large = {"from": {"n": 64}, "times": TIMES}, {"from": {"n": 512, "m": 512}, "times": TIMES}
    one = table(small, large)
    assert applying(one, {}, n=63, m=9999) == []
    assert [row.sizes for row in applying(one, {}, n=64, m=64)] == [{"n": 64}]
    assert [row.sizes for row in applying(one, {}, n=512, m=511)] == [{"n": 64}]
    assert [row.sizes for row in applying(one, {}, n=512, m=512)] == [{"n": 512, "m": 512}]


@pytest.mark.parametrize("seed", range(20))
def test_of_random_rows_the_innermost_apply(seed: int) -> None:
    """As by comparing each row with each other one."""
    draw = random.Random(seed)

    def row() -> dict[str, Any]:
        least = {name: draw.choice((-1, 0, 1, 2, 2.5, 3)) for name in draw.sample("nmhd", draw.randint(0, 4))}
        case = {name: ["x", *draw.sample("yzw", draw.randint(0, 2))] for name in draw.sample("abc", draw.randint(0, 3))}
        return {"case": case, "from": least, "times": {"cpu": draw.choice((1, 2))}}

    def lies_in(one: Row, other: Row) -> bool:
        properties = all(name in one.case and one.case[name] <= values for name, values in other.case.items())
        return properties and all(one.sizes.get(name, 0) >= least for name, least in other.sizes.items())

    rows = table(*(row() for _ in range(draw.choice((1, 5, 40, 300))))).rows
    naive = [one for one in rows if not any(lies_in(other, one) and not lies_in(one, other) for other in rows)]
    given = Table("a table", {"device": "cpu"}, "", {}, {}, rows)
    assert [id(one) for one in applying(given, dict.fromkeys("abc", "x"), n=9, m=9, h=9, d=9)] == list(map(id, naive))


def test_rows_are_not_compared_with_each_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand rows, none within another, are in order by one of their sizes: they are looked at a few times."""
    looked = 0

    class Size(float):
        def __lt__(self, other: float) -> bool:
            nonlocal looked
            looked += 1
            return float(self) < float(other)

        def __neg__(self) -> Size:
            return Size(-float(self))

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return float(self) == other

        __hash__ = float.__hash__

    rows = tuple(Row({}, {"n": Size(1 + one), "m": Size(3_000 - one)}, {"cpu": (1, 1)}) for one in range(2_000))
    assert tuned._innermost(rows) == rows
    assert 0 < looked < 60 * len(rows)


def test_a_row_of_fewer_cases_goes_before_one_of_more() -> None:
    every, few = {"times": {"cpu": 1}}, {"case": {"dtype": ["float32", "float16"]}, "times": TIMES}
    one, single = {"case": {"dtype": "float32"}, "times": {"cpu": 1}}, table(every, few)
    assert [dict(row.times) for row in applying(single, {"dtype": "float64"})] == [{"cpu": (1, 1)}]
    assert [dict(row.times) for row in applying(single, {"dtype": "float16"})] == [{"cpu": (2, 2), "sdpa": (1, 1)}]
    assert [dict(row.times) for row in applying(table(every, few, one), {"dtype": "float32"})] == [{"cpu": (1, 1)}]


def test_rows_of_which_neither_is_larger_both_apply_and_one_loss_is_enough(folder: Path) -> None:
    rows = [
        {"from": {"n": 64, "head_dim": 128}, "times": {"cpu": 1, "sdpa": 2}},
        {"from": {"n": 512, "head_dim": 64}, "times": {"cpu": 3, "sdpa": 2}},
    ]
    assert len(applying(table(*rows), {}, n=512, head_dim=128)) == 2
    written(folder, rows)
    left = _tuned.decide("cpu", "cpu", (), {"n": 512, "head_dim": 128})
    assert left is not None
    assert left.to == "sdpa"
    assert _tuned.decide("cpu", "cpu", (), {"n": 64, "head_dim": 128}) is None


def test_a_way_that_was_not_measured_loses_and_is_never_chosen(folder: Path) -> None:
    written(folder, [{"case": {"dtype": "a"}, "times": {"cpu": None, "sdpa": 1}}, {"times": {"cpu": 1, "sdpa": None}}])
    assert _tuned.decide("cpu", "cpu", (("dtype", "a"),), {}) is not None
    assert _tuned.decide("cpu", "cpu", (("dtype", "b"),), {}) is None


@pytest.mark.parametrize(("time", "kernel"), [(1.0, ""), (0.98, ""), (0.96, "sdpa")])
def test_a_tie_changes_nothing(time: float, kernel: str, folder: Path) -> None:
    written(folder, [{"times": {"cpu": 1, "sdpa": time}}])
    left = _tuned.decide("cpu", "cpu", (), {})
    assert ("" if left is None else left.to) == kernel


def test_a_way_that_fails_is_left_even_if_no_other_was_measured(folder: Path) -> None:
    written(folder, [{"times": {"cpu": 1}}, {"from": {"n": 9}, "times": {"cpu": None}}])
    assert _tuned.decide("cpu", "cpu", (), {"n": 8}) is None
    assert _tuned.decide("cpu", "cpu", (), {"n": 9}) is not None


def test_a_device_that_is_not_here_has_no_table() -> None:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 8, 16, device="cuda")
        assert hw.explain(q, q, q).kernel is not None


def test_a_way_that_cannot_be_taken_is_ignored(folder: Path) -> None:
    written(folder, [{"times": {"triton": 3, "flex": 1, "sdpa": 2}}])
    decided = [_tuned.decide("triton", "cpu", (), {}, ignored) for ignored in ((), ("flex",), ("flex", "sdpa"))]
    assert [None if one is None else one.to for one in decided] == ["flex", "sdpa", None]


# auto reads them ------------------------------------------------------------------------------------------------------

needs_library = pytest.mark.skipif(_library.why_not() is not None, reason=str(_library.why_not()))


@needs_library
def test_auto_takes_what_was_faster_here(folder: Path, x: Tensor) -> None:
    written(folder, [{"times": {"cpu": 2, "sdpa": 1}}, {"from": {"n": 512}, "times": {"cpu": 1, "sdpa": 2}}])
    short = x[:, :, :100]
    assert hw.explain(x, x, x).kernel == "cpu"
    assert "verified and measured here on 2026-01-02 03:04" not in str(hw.explain(x, x, x)), "nothing was verified"
    explained = hw.explain(short, short, short)
    assert explained.kernel == "sdpa"
    assert "left to torch's SDPA, which took 0.5 of its time here on 2026-01-02 03:04" in str(explained)
    written(folder, [{"times": {"cpu": 1, "sdpa": 2}}], verified={"cpu": ["plain, float32, forward"]})
    assert hw.explain(short, short, short).kernel == "cpu"
    assert "verified and measured here on 2026-01-02 03:04" in str(hw.explain(short, short, short))


@needs_library
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_rows_choose_as_their_rule_says(seed: int, folder: Path) -> None:
    """The largest rows not larger than a call decide; losing in one of them is enough."""
    draw = random.Random(seed)
    kinds = [(dtype, way) for dtype in ("float32", "bfloat16") for way in ("inference", "training")]
    rows = [
        {
            "case": {"terms": "none", "mask": "none", "dtype": dtype, "direction": way},
            "from": {"n": draw.randint(1, 40), "m": draw.randint(1, 40), "head_dim": draw.choice((4, 8, 16))},
            "times": {"cpu": 1.0, "sdpa": draw.choice((0.5, 0.98, 1.5))},
        }
        for dtype, way in kinds
        for _ in range(250)
    ]
    draw.shuffle(rows)
    written(folder, rows)
    own = _tuned.known("cpu").own
    assert own is not None
    assert len(own.rows) == 1_000

    chosen = set()
    for dtype, way in kinds:
        for _ in range(6):
            sizes = {"n": draw.randint(5, 50), "m": draw.randint(30, 50), "head_dim": draw.choice((8, 16))}
            q, k = (torch.randn(1, 2, sizes[side], sizes["head_dim"], dtype=getattr(torch, dtype)) for side in "nm")
            q.requires_grad_(way == "training")
            expected = expected_of([row for row in rows if (dtype, way) == kind_of(row)], sizes)
            assert hw.explain(q, k, k).kernel == expected, sizes
            assert torch.equal(hw.attention(q, k, k), hw.attention(q, k, k, kernel=expected))
            chosen.add(expected)
    assert chosen == {"cpu", "sdpa"}


def kind_of(row: dict[str, Any]) -> tuple[str, str]:
    return row["case"]["dtype"], row["case"]["direction"]


def expected_of(rows: list[dict[str, Any]], sizes: dict[str, int]) -> str:
    """The kernel of a call by comparing each row with each other one."""
    held = [row for row in rows if all(row["from"][name] <= sizes[name] for name in sizes)]
    deciding = [row for row in held if not any(is_larger(other["from"], row["from"]) for other in held)]
    assert deciding
    return "sdpa" if any(row["times"]["sdpa"] < 0.97 for row in deciding) else "cpu"


def is_larger(one: dict[str, int], other: dict[str, int]) -> bool:
    return one != other and all(one[name] >= other[name] for name in other)


@needs_library
def test_what_was_found_wrong_stays_off(folder: Path, x: Tensor) -> None:
    failed = {"cpu": {_tuned.part("Causal", "float32", "backward"): "it was off by 3"}}
    written(folder, [{"times": {"cpu": 1, "sdpa": 2}}], failed=failed)
    causal = hw.masks.Causal()
    leaf = x.clone().requires_grad_()
    assert hw.explain(leaf, leaf, leaf, mask=causal).kernel == "sdpa"
    assert "(Causal, float32, backward: it was off by 3)" in str(hw.explain(leaf, leaf, leaf, mask=causal))
    assert hw.explain(leaf, leaf, leaf, mask=causal & hw.masks.Window(left=9)).kernel == "sdpa"
    assert hw.explain(leaf, leaf, leaf).kernel == "cpu"
    assert hw.explain(x, x, x, mask=causal).kernel == "cpu"
    assert hw.explain(x.bfloat16(), x.bfloat16(), x.bfloat16(), mask=hw.masks.Window(left=9)).kernel == "cpu"


@needs_library
def test_short_calls_that_are_planned_follow_a_new_table(folder: Path) -> None:
    q, k, v = torch.randn(3, 1, 4, 16, 8).unbind()
    for _ in range(3):
        hw.attention(q, k, v)
    ran: list[str] = []
    kernel = type(hw.kernels.KERNELS["sdpa"])
    with pytest.MonkeyPatch.context() as patch:
        run = kernel.run
        patch.setattr(kernel, "run", lambda self, call: ran.append("sdpa") or run(self, call))
        hw.attention(q, k, v)
        assert ran == []
        written(folder, [{"times": {"cpu": 2, "sdpa": 1}}])
        hw.attention(q, k, v)
    assert ran == ["sdpa"]


@needs_library
def test_a_compiled_call_does_not_depend_on_its_length(folder: Path) -> None:
    written(folder, [{"times": {"cpu": 2, "sdpa": 1}}, {"from": {"n": 512}, "times": {"cpu": 1, "sdpa": 2}}])
    from torch._dynamo.testing import CompileCounter

    graphs = CompileCounter()
    run = torch.compile(lambda q: hw.attention(q, q, q), backend=graphs, fullgraph=True, dynamic=True)
    for n in (20, 30, 600):
        q = torch.randn(1, 2, n, 8)
        torch.testing.assert_close(run(q), hw.attention(q, q, q, kernel="reference"))
    assert graphs.frame_count == 1


# Files ----------------------------------------------------------------------------------------------------------------

DAMAGED = {
    "empty": "",
    "cut off": json.dumps({"format": 1, "fits": {"device": "cpu"}})[:-4],
    "no object": "[1, 2]",
    "nested": "[" * 100_000,
    "another format": json.dumps({"format": 2, "fits": {"device": "cpu"}, "rows": []}),
    "no machine": json.dumps({"format": 1, "rows": []}),
    "rows that are none": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [3]}),
    "a row without times": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"case": {}}]}),
    "a time that is NaN": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"times": {"cpu": math.nan}}]}),
    "a time beyond floats": '{"format": 1, "fits": {"a": 1}, "rows": [{"times": {"cpu": 1' + "0" * 400 + "}}]}",
    "a time of 0": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"times": {"cpu": 0}}]}),
    "a time that is a text": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"times": {"cpu": "1"}}]}),
    "a size that is true": json.dumps(
        {"format": 1, "fits": {"a": 1}, "rows": [{"from": {"n": True}, "times": {"a": 1}}]}
    ),
    "a list of versions": json.dumps({"format": 1, "fits": {"name": "a", "torch": ["2.12", "2.13"]}, "rows": []}),
    "a fact that is an object": json.dumps({"format": 1, "fits": {"name": "a", "torch": {}}, "rows": []}),
    "a fact of two lines": json.dumps({"format": 1, "fits": {"name": "a\nb"}, "rows": []}),
    "a date that is none": json.dumps({"format": 1, "fits": {"a": 1}, "date": "today", "rows": []}),
    "a date with a control letter": json.dumps({"format": 1, "fits": {"a": 1}, "date": "2026-01-02\x1b03:04"}),
    "a failure of two lines": json.dumps({"format": 1, "fits": {"a": 1}, "failed": {"cpu": {"plain": "a\nb"}}}),
    "a kernel with a control letter": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"times": {"\x1b[2J": 0}}]}),
    "a long time": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"times": {"cpu": "1" * 1_000}}]}),
    "too many rows": json.dumps({"format": 1, "fits": {"a": 1}, "rows": [{"times": {"a": 1}}] * 2_001}),
    "not UTF-8": "\udcff\udcfe",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=[*DAMAGED])
def test_a_damaged_table_is_not_used_and_said(text: str, folder: Path, x: Tensor) -> None:
    before = hw.explain(x, x, x).kernel
    folder.mkdir()
    (folder / "cpu.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    _run.forget()
    explained = hw.explain(x, x, x)
    assert explained.kernel == before
    assert _tuned.known("cpu").own is None
    dropped = _tuned.known("cpu").dropped
    assert "is not a table of `headway tune`" in dropped
    assert dropped.isprintable()
    assert len(dropped) < len(str(folder)) + 200
    with pytest.raises(HeadwayError, match="run `headway tune` again"):
        tuned.read(folder / "cpu.json")


@pytest.mark.parametrize("name", ["torch", "headway", "machine", "isa"])
def test_a_table_of_other_versions_is_dropped_with_a_word(name: str, folder: Path, x: Tensor) -> None:
    one = content([{"times": {"cpu": 2, "sdpa": 1}}])
    one["fits"][name] = "another"
    tuned.write(folder / "cpu.json", one)
    _run.forget()
    dropped = _tuned.known("cpu").dropped
    assert f"is not used, since its {name} is another, and here it is {_tuned.facts_of('cpu')[name]}" in dropped
    if _library.why_not() is None:
        assert dropped in str(hw.explain(x, x, x))
    with pytest.raises(HeadwayError, match=f"does not hold here, since its {name} is another"):
        tuning.import_table(folder / "cpu.json")


@pytest.mark.parametrize("name", ["torch", "headway", "machine", "isa"])
def test_a_table_that_does_not_say_what_it_is_of_is_dropped(name: str, folder: Path, x: Tensor) -> None:
    """It would hold for every version."""
    one = content([{"times": {"cpu": 2, "sdpa": 1}}])
    del one["fits"][name]
    tuned.write(folder / "cpu.json", one)
    _run.forget()
    assert _tuned.known("cpu").own is None
    assert f"is not used, since it does not say its {name}: run `headway tune` again" in _tuned.known("cpu").dropped
    with pytest.raises(HeadwayError, match=f"does not hold here, since it does not say its {name}"):
        tuning.import_table(folder / "cpu.json", "cpu")


@needs_library
def test_each_instruction_set_has_a_table_of_its_own(
    folder: Path, x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was verified of the kernels of one says nothing of those of another."""
    monkeypatch.setattr(_library, "isa_of_process", lambda: "avx2")
    assert _tuned.facts_of("cpu")["isa"] == "avx2"
    made = tuned.file_of(_tuned.name_of(_tuned.facts_of("cpu")))
    tuned.write(made, content([{"times": {"cpu": 2, "sdpa": 1}}], verified={"cpu": ["plain, float32, forward"]}))
    tuning.export_table(tmp_path / "avx2.json", "cpu")
    _run.forget()
    assert "verified and measured here" in str(hw.explain(x, x, x, kernel="cpu"))

    monkeypatch.setattr(_library, "isa_of_process", lambda: "another")
    _run.forget()
    why = "its isa is avx2, and here it is another"
    assert _tuned.known("cpu").own is None
    assert f"is not used, since {why}: run `headway tune` again" in str(hw.explain(x, x, x))
    with pytest.raises(HeadwayError, match=f"does not hold here, since {why}"):
        tuning.import_table(tmp_path / "avx2.json", "cpu")
    tuned.write(tuned.file_of(_tuned.name_of(_tuned.facts_of("cpu"))), content([]))
    _run.forget()
    assert len(list(folder.iterdir())) == 2
    assert _tuned.known("cpu").own is not None
    assert _tuned.known("cpu").dropped == ""


def test_the_instruction_set_of_a_table_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if _library.why_not() is None:
        for name in _library.isas():
            with _library.using(name):
                assert _tuned.facts_of("cpu")["isa"] == _library.ISAS[_library.load().isa]
    monkeypatch.setattr(_library, "load", lambda: _library.Library(None, "there is none"))
    assert _tuned.facts_of("cpu")["isa"] == "none"

    def refuse() -> None:
        raise HeadwayError("there is no instruction set (HEADWAY_ISA) 'sse9'")

    monkeypatch.setattr(_library, "load", refuse)
    assert _tuned.facts_of("cpu")["isa"] == "none"


@pytest.mark.parametrize("way", ["triton", "flex"])
def test_what_is_known_of_a_kernel_is_that_of_the_gpu_of_the_call(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_tuned, "known", lambda place: asked.append(place) or _tuned.Known(None, (), f"of {place}"))
    monkeypatch.setattr(_installed, "missing", lambda: None)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 8, 16, device="cuda:3")
        problem = Problem.of(make_call(q, q, q))
    assert hw.kernels.KERNELS[way].note(problem) == "of cuda:3"
    assert asked == ["cuda:3"]
    x = torch.empty(1, 2, 8, 16)
    assert hw.kernels.KERNELS[way].note(Problem.of(make_call(x, x, x))) == ""


def test_a_table_of_another_device_is_left_alone(folder: Path) -> None:
    one = content([{"times": {"cpu": 2, "sdpa": 1}}])
    one["fits"]["name"] = "another processor"
    tuned.write(folder / "cpu.json", one)
    _run.forget()
    assert _tuned.known("cpu").own is None
    assert _tuned.known("cpu").dropped == ""


def test_of_two_tables_the_newer_one_holds(folder: Path) -> None:
    for name, date in (("b", "2026-01-01 00:00"), ("a", "2026-01-03 00:00"), ("c", "2026-01-02 00:00")):
        tuned.write(folder / f"{name}.json", content([], date=date))
    _run.forget()
    own = _tuned.known("cpu").own
    assert own is not None
    assert own.date == "2026-01-03 00:00"


def test_the_variable_names_a_file_or_turns_tables_off(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.json"
    tuned.write(file, content([]))
    for value, there in ((str(file), True), ("off", False), (str(tmp_path / "none"), False)):
        monkeypatch.setenv("HEADWAY_TUNED", value)
        _run.forget()
        assert (_tuned.known("cpu").own is not None) == there
    monkeypatch.setenv("HEADWAY_TUNED", str(file))
    assert tuned.file_of("cpu") == file
    monkeypatch.delenv("HEADWAY_TUNED")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    assert tuned.file_of("CPU: a (b)  c") == tmp_path / "tuned" / "cpu-a-b-c.json"


@pytest.mark.slow
def test_two_processes_write_at_once(folder: Path) -> None:
    """A reader gets one table or the other, whole."""
    folder.mkdir()
    one = content([{"times": {"cpu": 1}}] * 300)
    (folder.parent / "content.json").write_text(json.dumps(one))
    code = (
        "import json, os, sys; from pathlib import Path; from headway._common import tuned\n"
        "one, other = json.loads(Path(sys.argv[1]).read_text()), os.fork()\n"
        "for _ in range(40): tuned.write(Path(sys.argv[2]), one)\n"
        "sys.exit(other and os.waitpid(other, 0)[1])"
    )
    command = [sys.executable, "-c", code, str(folder.parent / "content.json"), str(folder / "cpu.json")]
    both = subprocess.Popen(command)
    while both.poll() is None:
        time.sleep(0.001)
        if (folder / "cpu.json").exists():
            assert len(tuned.read(folder / "cpu.json").rows) == 300
    assert both.returncode == 0


def test_a_table_on_a_disk_that_is_read_only(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as any other one; another one does not take its place."""
    file = written(folder, [{"times": {"cpu": 2, "sdpa": 1}}])
    before, other = file.read_bytes(), tmp_path / "other.json"
    tuned.write(other, content([{"times": {"cpu": 1, "sdpa": 2}}]))
    read_only(monkeypatch)
    for write in (tuning.import_table, partial(tuning.export_table, tmp_path / "new.json")):
        given = (other,) if write is tuning.import_table else ()
        with pytest.raises(HeadwayError, match=r"json cannot be written, since its folder cannot: give a file in"):
            write(*given, device="cpu")
    _run.forget()
    own = _tuned.known("cpu").own
    assert own is not None
    assert own.rows[0].times == {"cpu": (2, 2), "sdpa": (1, 1)}
    assert file.read_bytes() == before
    assert sorted(one.name for one in (*tmp_path.iterdir(), *folder.iterdir())) == ["cpu.json", "other.json", "tuned"]


def test_a_table_that_cannot_be_read_is_not_used_and_said(
    folder: Path, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hw.explain(x, x, x).kernel
    file = written(folder, [{"times": {"cpu": 2, "sdpa": 1}}])

    read_text = Path.read_text

    def refused(path: Path, *given: Any, **options: Any) -> str:
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path, *given, **options)

    monkeypatch.setattr(Path, "read_text", refused)
    assert _tuned.known("cpu").own is None
    assert (
        _tuned.known("cpu").dropped
        == f"{file} is not a table of `headway tune`: Permission denied: run `headway tune` again"
    )
    assert hw.explain(x, x, x).kernel == before


def test_export_and_import(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"there is no table for .*: run `headway tune` first"):
        tuning.export_table(tmp_path / "a.json", "cpu")
    facts = _tuned.facts_of("cpu")
    tuned.write(tuned.file_of(_tuned.name_of(facts)), content([{"times": {"cpu": 2, "sdpa": 1}}]))
    there = tuning.export_table(tmp_path / "a.json", "cpu")
    there.unlink()
    _run.forget()
    assert _tuned.known("cpu").own is None
    assert tuning.import_table(tmp_path / "a.json", "cpu") == there
    own = _tuned.known("cpu").own
    assert own is not None
    assert own.rows[0].times == {"cpu": (2, 2), "sdpa": (1, 1)}
    with pytest.raises(
        HeadwayError, match=r"is not a table .*: No such file.*: give one that `headway tune --export` wrote"
    ):
        tuning.import_table(tmp_path / "none.json", "cpu")


def test_tables_that_come_with_headway() -> None:
    there = {one.name: one for one in tuned.shipped()}
    assert sorted(there) == ["intel", "x86-64", "zen-4", "zen-5"]
    for one in there.values():
        assert one.rows
        assert one.about["about"]
