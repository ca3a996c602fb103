"""Whole models of a few numbers, in every task; what is timed is never asserted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import HeadwayError, cli
from headway.bench import ProgressListener, model_sides, models, report
from headway.bench.cases import MODELS, ModelCase, ModelPlan
from headway.bench.measure import CheckError
from headway.bench.model_sides import WRITTEN, Loaded, Trainer, quiet
from headway.bench.models import ATTENTION, LINEAR, REST, bench_models, measure
from headway.bench.rows import Row
from headway.bench.sides import HF_EAGER, HF_SDPA, HF_TABLE, NOT_PREPACKED, OURS
from headway.bench.targets import MODEL_TARGETS, judge
from headway.nn.prepacked import is_prepacked

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

TINY = ModelPlan(
    texts=(12,),
    batches=(1, 2),
    prefill=(9,),
    prompts=(9, 5),
    train=(16, 24),
    sources=(12,),
    steps=((2, 16),),
    seconds=0.0,
    rounds=1,
)
BERT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
LLAMA = {**BERT, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True}
T5 = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
      "decoder_start_token_id": 0}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_sides, "T5_SMALL", T5)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ``make weights`` fills it, with random weights."""
    root = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    quiet()
    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(root / "minilm")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(root / "smollm2")
    return root


@pytest.fixture
def loaded(weights: Path, tmp_path: Path) -> Loaded:
    models.register()
    return Loaded(weights, tmp_path)


class Noted(ProgressListener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, note: str) -> None:
        self.notes.append(note)


def a_row(case: ModelCase, milliseconds: dict[str, float] | None = None, **more: Any) -> Row:
    return {
        "case": case.fields(),
        "where": {},
        "date": "2026-11-21",
        "ms": {OURS: 1.0, **(milliseconds or {})},
        "says": {},
        **more,
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_case_is_measured_on_both_sides(loaded: Loaded, dtype: str) -> None:
    plan = ModelPlan(**{**vars(TINY), "dtypes": (dtype,), "parts": ("encode", "prefill", "decode", "train")})
    sides = {"encode": {NOT_PREPACKED, HF_SDPA}, "prefill": {HF_SDPA}, "decode": {HF_SDPA}}
    for case in plan.cases():
        row = measure(case, plan, loaded)
        others = sides.get(case.task, {HF_EAGER} if case.model == "T5" else {HF_TABLE, HF_EAGER, HF_SDPA})
        assert set(row["ms"]) == {OURS, *others}, case
        assert row["says"] == {}
        assert row["rounds"] == 1
        for parts in row.get("parts", {}).values():
            assert sum(parts.values()) == pytest.approx(1)
            assert all(parts[name] > 0 for name in (ATTENTION, LINEAR, REST))


def test_prepacked_is_what_counts(loaded: Loaded) -> None:
    case = ModelCase("encode", "MiniLM", 8)
    loaded.sides(case)
    held = loaded._last[1]
    assert is_prepacked(held[OURS])
    assert not is_prepacked(held[NOT_PREPACKED])


def test_decoding_starts_at_the_prompt_in_every_turn(loaded: Loaded) -> None:
    """Both caches are put back, so that each turn sees as many tokens, and the same logits come again."""
    case = ModelCase("decode", "SmolLM2", 7)
    for run in loaded.sides(case).values():
        first = torch.cat(run(), 1)
        assert first.shape == (1, WRITTEN, 40)
        assert torch.equal(first, torch.cat(run(), 1))
    writers = loaded._writers(case)
    assert len(writers[OURS].cache) == writers[HF_SDPA].cache.get_seq_length() == 7


def test_decoding_goes_on_from_the_prefill_of_the_same_prompt(loaded: Loaded) -> None:
    for run in loaded.sides(ModelCase("prefill", "SmolLM2", 9)).values():
        run()
    before = loaded._writers(ModelCase("decode", "SmolLM2", 9))[OURS].cache
    loaded.sides(ModelCase("decode", "SmolLM2", 9))
    assert loaded._writers(ModelCase("decode", "SmolLM2", 9))[OURS].cache is before


@pytest.mark.parametrize("model", ["T5 encoder", "T5"])
def test_steps_of_all_sides_train_alike(loaded: Loaded, model: str) -> None:
    """Also the second step, whose weights the first has moved."""
    steps = [Trainer(side, loaded.t5(model)).step(2, 12) for side in (OURS, HF_EAGER)]
    for _ in range(2):
        ours, theirs = (step() for step in steps)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("task", ["encode", "prefill", "decode", "train"])
def test_what_is_wrong_gets_no_number(loaded: Loaded, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [case, *_] = [case for case in TINY.cases() if case.task == task]
    sides = loaded.sides(case)
    right = sides[OURS]
    sides[OURS] = lambda: [1.1 * x.detach() for x in right()]
    monkeypatch.setattr(loaded, "sides", lambda case: sides)
    with pytest.raises(CheckError, match=r"headway and .* differ by"):
        measure(case, TINY, loaded)


def test_a_side_that_fails_says_so_and_headways_own_failure_is_red(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> list[torch.Tensor]:
        raise RuntimeError("no memory")

    case = ModelCase("train", "T5 encoder", 12)
    sides = loaded.sides(case)
    monkeypatch.setattr(loaded, "sides", lambda case: {**sides, HF_SDPA: fails})
    row = measure(case, TINY, loaded)
    assert HF_SDPA not in row["ms"]
    assert row["says"][HF_SDPA] == "RuntimeError: no memory"
    assert "RuntimeError: no memory" in report.model_times([a_row(case, **row)])
    monkeypatch.setattr(loaded, "sides", lambda case: {OURS: sides[OURS], HF_SDPA: fails})
    with pytest.raises(CheckError, match="nothing to compare with"):
        measure(case, TINY, loaded)
    monkeypatch.setattr(loaded, "sides", lambda case: {**sides, OURS: fails})
    with pytest.raises(CheckError, match="no memory"):
        measure(case, TINY, loaded)


def test_memory_of_one_side(loaded: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, as the fresh one does it."""
    case = ModelCase("memory", "T5 encoder", 512)
    task = {"folder": str(loaded.t5(case.model)), "case": case.fields(), "threads": torch.get_num_threads()}
    models.main(json.dumps({"side": HF_EAGER, **task}))
    scores = 4 * T5["num_heads"] * case.n**2
    assert int(capsys.readouterr().out) > scores


def test_the_whole_of_it(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {OURS: 40 << 20, HF_EAGER: 400 << 20}
    monkeypatch.setattr(models, "_memory", lambda case, loaded: {"bytes": sizes, "says": {}})
    plan = ModelPlan(**{**vars(TINY), "dtypes": ("float32",)})
    results = bench_models(plan, weights, tmp_path, command="headway bench --models weights")
    assert [row["case"] for row in results.rows] == [case.fields() for case in plan.cases()]
    assert results.failed == {}
    text = (tmp_path / "models.md").read_text()
    for said in (
        "## Whole models, against transformers",
        "headway bench --models weights",
        "### Targets",
        "### Encoding",
        "| MiniLM | 2 × 12 | float32 |",
        "### Prefill",
        "### Decoding",
        "### A training step",
        "| T5 encoder | 16 | float32 |",
        "### How a training step divides",
        "### Memory of a training step",
        "| T5 encoder | 24 | 40 | 400 |",
    ):
        assert said in text, said
    monkeypatch.setattr(models, "measure", None)
    assert bench_models(plan, weights, tmp_path).rows == results.rows, "what is there is not measured again"


def test_missing_weights_are_noted(weights: Path, tmp_path: Path) -> None:
    watch = Noted()
    plan = ModelPlan(**{**vars(TINY), "parts": ("encode", "prefill")})
    results = bench_models(plan, tmp_path, tmp_path / "out", watch=watch)
    assert results.rows == []
    assert [note.split(" is left out")[0] for note in watch.notes] == ["MiniLM", "SmolLM2"]
    assert "make weights" in (tmp_path / "out" / "models.md").read_text()
    with pytest.raises(HeadwayError, match="is not a folder"):
        bench_models(plan, tmp_path / "none", tmp_path / "out")


def test_without_transformers_nothing_is_measured(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise HeadwayError("transformers cannot be imported: pip install transformers")

    monkeypatch.setattr(models, "register", missing)
    results = bench_models(TINY, weights, tmp_path)
    assert results.rows == []
    assert results.notes == ["Nothing is measured: transformers cannot be imported: pip install transformers"]


def test_a_gguf_file_is_found_and_written_for_transformers(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "a.gguf").touch()
    load = model_sides.checkpoints.load
    monkeypatch.setattr(
        model_sides.checkpoints,
        "load",
        lambda path, **more: load(weights / "smollm2" if path.is_file() else path, **more),
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    loaded = Loaded(tmp_path, scratch)
    assert loaded.has("SmolLM2")
    assert not loaded.has("MiniLM")
    measure(ModelCase("prefill", "SmolLM2", 6), TINY, loaded)
    assert (scratch / "SmolLM2" / "config.json").exists()


def test_targets_judge_the_worst_case() -> None:
    rows = [a_row(ModelCase("prefill", "SmolLM2", 4096), {HF_SDPA: 1.6})]
    rows += [a_row(ModelCase("prefill", "SmolLM2", 256), {HF_SDPA: 0.5})]
    rows += [a_row(ModelCase("decode", "SmolLM2", n), {HF_SDPA: times}) for n, times in ((128, 0.9), (4096, 1.2))]
    rows += [a_row(ModelCase("train", "T5 encoder", n), {HF_EAGER: times}) for n, times in ((1024, 0.9), (2048, 1.5))]
    rows += [a_row(ModelCase("train", "T5", 2048), {HF_EAGER: 0.1})]
    for n in (1024, 2048):
        rows.append(a_row(ModelCase("memory", "T5 encoder", n), bytes={OURS: 100_000 * n, HF_EAGER: 100 * n * n}))
    judged = judge(rows, MODEL_TARGETS)
    prefill, decode, train, memory = judged  # none in bfloat16, which was not measured
    assert (prefill.worst, prefill.verdict) == (1.6, "met")
    assert (decode.worst, decode.verdict) == (0.9, "missed")
    assert (train.worst, train.verdict) == (1.5, "met")
    assert memory.worst == pytest.approx(1)


def test_on_the_command_line(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.cli.bench.MODELS", TINY)
    out = str(tmp_path / "out")
    code = cli.main(
        ["bench", "--models", str(weights), "--parts", "prefill,decode", "--dtypes", "float32", "--out", out]
    )
    printed = capsys.readouterr().out
    assert code == 0
    for said in ("prefill: SmolLM2, 9 tokens, float32: ", "× transformers, sdpa", "one token after", "models.md"):
        assert said in printed
    assert "roof.png" not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "nowhere"], "nowhere is not a folder"),
        (["--models", ".", "--lengths", "8"], "--lengths chooses cases of attention"),
        (["--models", ".", "--only", "forward"], "--only chooses cases of attention"),
        (["--models", ".", "--parts", "window"], "there is no part 'window'"),
        (["--models", ".", "--rounds", "0"], "rounds is 0"),
    ],
)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert cli.main(["bench", *arguments]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_the_plan_is_what_was_asked() -> None:
    cases = MODELS.cases()
    assert len(cases) == len(set(cases))
    assert ModelCase("prefill", "SmolLM2", 4096, 1, "bfloat16") in cases
    assert ModelCase("encode", "MiniLM", 512, 8) in cases
    assert {case.n for case in cases if case.task == "memory"} == {1024, 2048}
    assert {case.dtype for case in cases if case.task == "train"} == {"float32"}
