"""A small BERT is trained as the paper says, goes on where it was stopped, and is an ordinary BERT afterwards."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headway
from headway import HeadwayError
from headway._common import training
from headway._common.training import Diverged
from headway.checkpoints import tokenizer
from headway.vectors import _train_bert
from headway.vectors._train_bert import CLS, MASK, SEP, SPECIAL, hide, rate, train_bert

pytestmark = pytest.mark.slow

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

TINY: dict[str, Any] = {
    "vocab_size": 80,
    "embed_dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "length": 16,
    "steps": 12,
    "batch": 4,
}


ANIMALS = "ant bat bee cat cow dog elk fox gnu hen owl pig".split()  # noqa: SIM905


def language(sentences: int) -> list[str]:
    """Texts that say one word again and again: who sees a part of one knows the rest."""
    draws = random.Random(0)
    return [" ".join([draws.choice(ANIMALS)] * 24) for _ in range(sentences)]


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_hides_as_the_paper_says() -> None:
    draws, vocab_size, first = torch.Generator().manual_seed(0), 1000, len(SPECIAL)
    ids = torch.randint(first, vocab_size, (2000, 100), generator=draws)
    ids[:, 0], ids[:, -1], ids[::2, 50] = CLS, SEP, SEP
    hidden, chosen = hide(ids, vocab_size, draws)
    ordinary = int((ids >= first).sum())
    counts = dict.fromkeys(("left", "masked", "random", "kept"), 0)
    for before, after, guessed in zip(
        ids.flatten().tolist(), hidden.flatten().tolist(), chosen.flatten().tolist(), strict=True
    ):
        if not guessed:
            assert after == before
            counts["left"] += before >= first
        else:
            assert before >= first, "special tokens are never guessed"
            assert after == MASK or after >= first
            counts["masked" if after == MASK else "kept" if after == before else "random"] += 1
    guessed = ordinary - counts["left"]

    def near(count: int, of: int, share: float) -> bool:
        """Within four standard deviations."""
        return abs(count - of * share) < 4 * (of * share * (1 - share)) ** 0.5

    assert near(guessed, ordinary, 0.15)
    assert near(counts["masked"], guessed, 0.8)
    assert near(counts["random"], guessed, 0.1)
    assert near(counts["kept"], guessed, 0.1)
    random_ones = hidden[chosen & (hidden != ids) & (hidden != MASK)]
    assert random_ones.min() < 100
    assert random_ones.max() >= 900


def test_learning_rate_goes_up_and_down_in_lines() -> None:
    found = [rate(step, 100) for step in range(100)]
    assert found[:10] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert found[10:] == pytest.approx([(100 - step) / 90 for step in range(10, 100)])
    assert rate(0, 1) == 1.0


def test_parameters_begin_as_it_says() -> None:
    settings = _train_bert.Settings(500, 64, 2, 4, 32, 1, 1, 1e-3, 0)
    logs = torch.randn(500)
    before = torch.get_rng_state()
    model = _train_bert._drawn(settings.config(500), logs, seed=0)
    assert torch.equal(torch.get_rng_state(), before), "the user's random numbers are left alone"
    norms = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    assert len(norms) == 6
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if name == "stack.encodings.0.table":
            for place in range(32):
                for pair in range(32):
                    angle = place / 10000 ** (pair / 32)
                    wave = torch.tensor([math.sin(angle), math.cos(angle)]) * 2 * settings.std * 2**0.5
                    torch.testing.assert_close(values[place, 2 * pair : 2 * pair + 2], wave, atol=1e-5, rtol=0)
        elif values.ndim > 1:
            assert float(values.std()) == pytest.approx(0.02 * (768 / 64) ** 0.5, rel=0.2), name
            assert abs(float(values.mean())) < 0.015, name
        elif name == "head.bias":
            assert torch.equal(values, logs)
        else:
            assert torch.equal(values, torch.full_like(values, float(name in norms))), name
    assert equal(model, _train_bert._drawn(settings.config(500), logs, seed=0))
    assert not equal(model, _train_bert._drawn(settings.config(500), logs, seed=1))


def test_pieces_are_the_same_in_every_run(tmp_path: Path) -> None:
    """Ties between merges of equal counts are many here; the trainer by itself breaks them by chance."""
    draws = random.Random(0)
    texts = [" ".join("".join(draws.choices("abcdefgh", k=6)) for _ in range(200)) for _ in range(5)]
    found = [_train_bert._pieces(texts, _made(tmp_path / str(n)), 300).to_str() for n in range(4)]
    assert len(set(found)) == 1
    assert json.loads(found[0])["model"]["vocab"].keys() >= {*SPECIAL, "a", "##a"}
    assert [json.loads(found[0])["model"]["vocab"][token] for token in SPECIAL] == [0, 1, 2, 3, 4]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_no_more_pieces_than_asked_for(tmp_path: Path) -> None:
    texts = ["".join(map(chr, range(0x4E00, 0x4F00))), "abcdefghijklmnopqrstuvwxyz " * 3]
    assert _train_bert._pieces(texts, tmp_path, 60).get_vocab_size() <= 60


def test_chinese_is_read_character_by_character(tmp_path: Path) -> None:
    texts = ["国王和女王住在大城。", "女王看见国王。"] * 20
    train_bert(texts, tmp_path, **{**TINY, "steps": 1})
    words = tokenizer(tmp_path)
    assert words.encode("国王看见女王。").tokens == ["[CLS]", *"国王看见女王。", "[SEP]"]
    assert words.encode("鬼").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_rows_are_packed_and_some_are_held_out() -> None:
    stream = torch.arange(10, 10 + 45 * 14 + 3)
    train, held_out = _train_bert._split(stream, 16)
    assert held_out.tolist() == [list(range(10 + 14 * row, 24 + 14 * row)) for row in (1, 21, 41)]
    assert train.tolist() == [token for token in stream.tolist() if token not in set(held_out.flatten().tolist())]
    framed = _train_bert._framed(held_out)
    assert framed[:, 0].tolist() == [CLS] * 3
    assert framed[:, -1].tolist() == [SEP] * 3
    assert torch.equal(framed[:, 1:-1], held_out)


def test_texts_stand_one_behind_the_other(tmp_path: Path) -> None:
    texts = ["the cat", "", "the dog hums"] * 3
    words = _train_bert._pieces(texts, tmp_path, 80)
    expected: list[int] = []
    for text in texts:
        if text:
            expected += [*words.encode(text, add_special_tokens=False).ids, SEP]
    assert _train_bert._stream(texts, words).tolist() == expected[:-1]


@pytest.mark.slow
def test_learns_a_language(tmp_path: Path) -> None:
    """Whoever sees the text around knows the animal, so that far less is left to guess than frequencies leave."""
    told: list[float] = []
    settings = {**TINY, "vocab_size": 100, "embed_dim": 32, "length": 24, "steps": 200, "batch": 16}
    train_bert(language(200), tmp_path, **settings, learning_rate=5e-3, watch=told.append)
    lines = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(20, 201, 20))
    assert lines[-1]["held_out_loss"] < 0.4 * lines[-1]["unigram_loss"]
    assert lines[-1]["accuracy"] > 0.8
    assert lines[-1]["unigram_accuracy"] < 0.5
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_baseline_is_the_entropy_of_frequencies(tmp_path: Path) -> None:
    train_bert(language(200), tmp_path, **{**TINY, "vocab_size": 100, "steps": 1})
    line = json.loads((tmp_path / "training.jsonl").read_text())
    words = " ".join(language(200)).split()
    entropy = math.fsum(-math.log(words.count(word) / len(words)) for word in words) / len(words)
    assert line["unigram_loss"] == pytest.approx(entropy, rel=0.15)
    assert line["held_out_loss"] == pytest.approx(line["unigram_loss"], rel=0.1), "where training begins"


def test_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = language(60)
    straight = train_bert(texts, tmp_path / "straight", **TINY)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    def stop(part: float) -> None:
        if part >= 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bert(texts, tmp_path / "stopped", **TINY, watch=stop)
    assert not (tmp_path / "stopped" / "model.safetensors").exists()
    assert torch.load(tmp_path / "stopped" / "training.pt", weights_only=True)["step"] == 6
    torch.manual_seed(7)  # of no account
    told: list[float] = []
    resumed = train_bert(texts, tmp_path / "stopped", **TINY, watch=told.append)
    assert told[0] == 7 / 12
    assert equal(straight, resumed)
    assert (tmp_path / "straight" / "model.safetensors").read_bytes() == (
        tmp_path / "stopped" / "model.safetensors"
    ).read_bytes()

    def without_time(folder: str) -> list[dict[str, float]]:
        lines = (tmp_path / folder / "training.jsonl").read_text().splitlines()
        return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]

    assert without_time("straight") == without_time("stopped")
    assert not (tmp_path / "stopped" / "training.pt").exists()


def test_a_tokenizer_with_other_ids_is_refused(tmp_path: Path) -> None:
    """An id of 10⁹ would be as many rows of the embedding."""
    options: dict[str, Any] = {
        "vocab_size": 64,
        "embed_dim": 8,
        "num_layers": 1,
        "num_heads": 2,
        "length": 8,
        "steps": 1,
    }
    train_bert(language(40), tmp_path, **options)
    (tmp_path / "config.json").unlink()
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    word = list(whole["model"]["vocab"])[-1]
    whole["model"]["vocab"][word] = 10**9
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(HeadwayError, match=r"tokenizer.json has other ids than 0, 1, 2 …"):
        train_bert(language(40), tmp_path, **options)


def test_what_is_finished_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = language(60)
    model = train_bert(texts, tmp_path, **TINY)
    monkeypatch.delattr(_train_bert, "_train")
    told: list[float] = []
    again = train_bert(texts, tmp_path, **TINY, watch=told.append)
    assert equal(model, again)
    assert not again.training
    assert told == [1.0]


def test_seeds(tmp_path: Path) -> None:
    texts = language(60)
    first, second = (train_bert(texts, tmp_path / str(n), **TINY, seed=n) for n in (0, 1))
    assert not equal(first, second)


def test_transformers_reads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = train_bert(language(60), tmp_path, **TINY)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    text = "cat cat [MASK] The dog, cat"
    ids = torch.tensor([tokenizer(tmp_path).encode(text).ids])
    assert words(text)["input_ids"] == ids[0].tolist()
    with torch.no_grad():
        expected = theirs.eval()(ids).logits
        torch.testing.assert_close(model(ids), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(headway.load(tmp_path)(ids), expected, atol=1e-5, rtol=1e-5)


def test_loss_counts_hidden_tokens_alone(tmp_path: Path) -> None:
    """The loss, computed once more from logits everywhere."""
    model = train_bert(language(60), tmp_path, **TINY)
    vocab_size = tokenizer(tmp_path).get_vocab_size()
    ids = torch.randint(len(SPECIAL), vocab_size, (6, 16))
    loss, right = _train_bert.guesses(model, ids, vocab_size, torch.Generator().manual_seed(3))
    hidden, chosen = hide(ids, vocab_size, torch.Generator().manual_seed(3))
    with torch.no_grad():
        logs = model(hidden).double().log_softmax(-1)
    terms = [-logs[row, at, ids[row, at]] for row in range(6) for at in range(16) if chosen[row, at]]
    assert float(loss.detach()) == pytest.approx(float(sum(terms)) / len(terms), rel=1e-5)
    assert right.tolist() == (logs.argmax(-1) == ids)[chosen].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, r"steps is 0: give at least 1"),
        ({"batch": 0}, r"batch is 0: give at least 1"),
        ({"length": 4}, r"length is 4: give at least 8"),
        ({"vocab_size": 5}, r"vocab_size is 5: give at least 32"),
        ({"embed_dim": 15}, r"embed_dim is 15, not a multiple of num_heads 2"),
        ({"num_layers": 0}, r"num_layers is 0"),
        ({"learning_rate": 0.0}, r"learning_rate is 0.0: give a number above 0"),
    ],
)
def test_refuses_settings_before_any_work(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        train_bert(language(3), tmp_path / "out", **{**TINY, **change})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", r"texts is a str: give a list of texts"),
        ([1], r"text 0 is a int: give texts as str"),
        ([], r"the texts have 0 tokens, which is less than two rows of 14"),
        (["too short"], r"tokens, which is less than two rows of 14: give longer texts, or a lower length"),
    ],
)
def test_refuses_texts(tmp_path: Path, texts: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        train_bert(texts, tmp_path / "out", **TINY)


def test_refuses_a_folder_with_something_else(tmp_path: Path) -> None:
    texts = language(60)
    train_bert(texts, tmp_path / "out", **TINY)
    with pytest.raises(HeadwayError, match=r"out holds a training with steps = 12, now 13: give steps=12, or a new f"):
        train_bert(texts, tmp_path / "out", **{**TINY, "steps": 13})
    with pytest.raises(HeadwayError, match=r"out holds a training on other texts: give those, or a new folder"):
        train_bert(texts[1:], tmp_path / "out", **TINY)
    (tmp_path / "out" / "training.json").unlink()
    with pytest.raises(HeadwayError, match=r"out holds config.json that train_bert did not write: give a new folder"):
        train_bert(texts, tmp_path / "out", **TINY)
    (tmp_path / "file").touch()
    with pytest.raises(HeadwayError, match=r"file that train_bert did not write: give a new folder"):
        train_bert(texts, tmp_path / "file", **TINY)


@pytest.mark.parametrize(
    ("name", "message"), [("training.pt", "cannot be read .*: delete it"), ("training.json", "cannot be read")]
)
def test_refuses_damaged_files(tmp_path: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    def stop(part: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bert(language(60), tmp_path, **TINY, watch=stop)
    (tmp_path / name).write_bytes(b"[")
    with pytest.raises(HeadwayError, match=f"{name}.* {message}"):
        train_bert(language(60), tmp_path, **TINY)


def test_says_when_training_runs_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def runaway(*given: Any) -> tuple[Tensor, Tensor]:
        return torch.tensor(float("nan"), requires_grad=True), torch.tensor([True])

    monkeypatch.setattr(_train_bert, "guesses", runaway)
    with pytest.raises(Diverged, match=r"the loss is nan in step 1 of 12: give a learning rate below 0\.002$"):
        train_bert(language(60), tmp_path, **TINY)
