"""The ways to rescale a rotary encoding, the models they are put into, and what is measured of them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import headway
from headway import HeadwayError
from headway.checkpoints import FAMILIES, Config
from headway.checkpoints._load import Checkpoint
from headway.coordinates import Coordinates
from headway.masks import Window
from headway.models import Decoder, Stack
from headway.nn import Block, Embedding, Head
from headway.positions import NTKAware
from headway.positions.partial_rope import PartialRoPE
from headway.positions.rope import RoPE
from headway.study import extension
from headway.study.extension import METHODS, RESTARTED, Extension, extend, extended, losses, measure

WINDOW, VOCABULARY = 16, 40
RESCALED = [name for name in METHODS if name != "none"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "rope_theta": 100.0,
}


def small(**changes: Any) -> Any:
    """A model with random weights, as ``load`` makes it."""
    config = {**CONFIG, **changes}
    (architecture,) = config["architectures"]
    torch.manual_seed(0)
    model: Any = next(family for family in FAMILIES.values() if architecture in family.architectures)().build(
        Config(config), head=True
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model.checkpoint = Checkpoint(architecture, config)
    return model.eval()


def tokens(count: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(3))


def frequencies(encoding: Any, length: int) -> torch.Tensor:
    return encoding.frequencies(Coordinates.span(length)).reshape(-1)


# ---------------------------------------------------------------- the methods


def formulas(method: str, theta: list[float], factor: float, L: int, T: int) -> list[float]:
    """Each method's frequencies as its paper writes them, for a sequence of T tokens."""
    n = len(theta)
    turns = [L * one / (2 * math.pi) for one in theta]
    if method == "linear":
        return [one / factor for one in theta]
    if method == "ntk":
        return [one * factor ** (-c / (n - 1)) for c, one in enumerate(theta)]
    if method == "dynamic":
        return [one * max(1, T / L) ** (-c / (n - 1)) for c, one in enumerate(theta)]
    if method == "yarn":  # the authors' code: the ramp goes over the numbers of the pairs
        base = theta[1] ** -n
        low, high = (n * math.log(L / (2 * math.pi * beta), base) for beta in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * n - 1)
        ramp = [min(max((c - low) / (high - low), 0), 1) for c in range(n)]
        return [one * (1 - r + r / factor) for one, r in zip(theta, ramp, strict=True)]
    if method == "llama3":
        kept = [min(max((r - 1) / 3, 0), 1) for r in turns]
        return [one * (k + (1 - k) / factor) for one, k in zip(theta, kept, strict=True)]
    if method == "longrope-style" and T > L:
        kept = [min(max(math.log(r) / math.log(32), 0), 1) for r in turns]
        return [one / factor ** (1 - k) for one, k in zip(theta, kept, strict=True)]
    return theta


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [100, 512])
@pytest.mark.parametrize("rope", [RoPE(32, base=1e4), PartialRoPE(32, 16, base=500.0, layout="half")], ids=type)
def test_frequencies_are_those_of_the_formula(method: str, rope: Any, length: int) -> None:
    new = METHODS[method](rope, 4.0, 128)
    theta = frequencies(rope, length).tolist()
    expected = torch.tensor(formulas(method, theta, 4.0, 128, length), dtype=torch.float64)
    torch.testing.assert_close(frequencies(new, length), expected, rtol=1e-12, atol=0)
    assert new.layout == rope.layout
    assert new.head_dim == rope.head_dim


@pytest.mark.parametrize("method", RESCALED)
def test_fast_pairs_stay_sharp_and_slow_ones_come_within_known_angles(method: str) -> None:
    """At the extended length the slowest pair turns no further than it did within the window."""
    rope = RoPE(64, base=1e4)
    before, after = (frequencies(one, 1024) for one in (rope, METHODS[method](rope, 4.0, 256)))
    assert after[-1].item() == pytest.approx(before[-1].item() / 4)
    assert bool(((after <= before) & (after >= before / 4 - 1e-15)).all())
    if method != "linear":
        assert after[0] == before[0]


def test_ntk_is_the_encoding_of_that_name() -> None:
    plain = METHODS["ntk"](RoPE(64, base=1e4), 8.0, 256)
    torch.testing.assert_close(frequencies(plain, 9), frequencies(NTKAware(64, 8.0, base=1e4), 9), rtol=1e-12, atol=0)


# ---------------------------------------------------------------- the model


def test_none_changes_no_bit() -> None:
    model, ids = small(), tokens(40)[None]
    before = model(ids)
    with extended(model, "none", 4.0):
        assert torch.equal(model(ids), before)


@pytest.mark.parametrize("method", RESCALED)
def test_a_model_is_extended_and_put_back(method: str) -> None:
    model, ids = small(), tokens(40)[None]
    weights = {name: value.data_ptr() for name, value in model.named_parameters()}
    before, own = model(ids), model.stack.encodings[0]
    with extended(model, method, 4.0) as further:
        assert further is model
        assert {name: value.data_ptr() for name, value in model.named_parameters()} == weights
        assert not torch.allclose(model(ids), before, atol=1e-3)
    assert model.stack.encodings[0] is own
    assert torch.equal(model(ids), before)


def test_it_is_put_back_after_an_error() -> None:
    model = small()
    own = model.stack.encodings[0]
    with pytest.raises(KeyError), extended(model, "yarn", 4.0):
        raise KeyError
    assert model.stack.encodings[0] is own


def test_dynamic_changes_nothing_within_the_window() -> None:
    model, ids = small(), tokens(4 * WINDOW + 1)
    plain = losses(model, ids, WINDOW)
    with extended(model, "dynamic", 4.0):
        dynamic = losses(model, ids, WINDOW)
    assert torch.equal(plain[:WINDOW], dynamic[:WINDOW])
    assert not torch.allclose(plain[WINDOW:], dynamic[WINDOW:], atol=1e-3)


def test_layers_that_see_little_are_left_alone() -> None:
    """Gemma 3's way: one encoding for layers with a window, one for those without."""
    near, far = RoPE(8, layout="half"), RoPE(8, base=1e6, layout="half")
    blocks = [Block(32, 4, feed_forward_dim=32) for _ in range(2)]
    stack = Stack(blocks, [near, far], [Window(WINDOW - 1), None])
    model = Decoder.of_parts(Embedding(VOCABULARY, 32), stack, Head(32, VOCABULARY))
    with extended(model, "linear", 4.0, WINDOW):
        assert model.stack.encodings[0] is near
        assert type(model.stack.encodings[1]).__name__ == "PositionInterpolation"
    with extended(model, "linear", 4.0, WINDOW - 1):
        assert model.stack.encodings[0] is not near


SAVED = [
    *(pytest.param(CONFIG, method, id=f"llama-{method}") for method in METHODS),
    *(
        pytest.param({**next(e for e in FAMILIES[family].examples if e["architectures"][0].endswith("LM"))}, "yarn",
                     id=f"{family}-yarn")
        for family in ("phi", "falcon") if family in FAMILIES
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "method"), SAVED)
def test_transformers_reads_what_is_saved(config: dict[str, Any], method: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small(**config)
    window = model.checkpoint.config["max_position_embeddings"]
    headway.save(extend(model, method, 4.0), tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    again = headway.load(tmp_path)
    for length in (3 * window, window - 2):
        ids = tokens(length)[None]
        torch.testing.assert_close(theirs(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
        assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    ("method", "said", "longest"),
    [
        ("ntk", {"rope_type": "default", "rope_theta": 100.0 * 4 ** (8 / 6)}, 64),
        ("dynamic", {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0}, WINDOW),
        ("linear", {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}, 64),
    ],
)
def test_what_the_config_says(method: str, said: dict[str, Any], longest: int) -> None:
    config = extend(small(), method, 4.0).checkpoint.config  # type: ignore[union-attr]
    assert config["rope_parameters"] == said
    assert config["max_position_embeddings"] == longest
    assert "rope_theta" not in config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8,
          "n_positions": 32}, "the model has learned: there is nothing to rescale"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"is rescaled already, by yarn\(factor=4.0"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "is a BertForMaskedLM: give a causal"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8},
         "every layer sees fewer than 16 tokens back"),
        ({"max_position_embeddings": None}, "no max_position_embeddings: give window"),
        ({"max_position_embeddings": 4}, "window is 4"),
    ],
)  # fmt: skip
def test_models_that_are_refused(changes: dict[str, Any], message: str) -> None:
    model = small(**changes)
    with pytest.raises(HeadwayError, match=message), extended(model, "yarn", 4.0):
        pass


@pytest.mark.parametrize(
    ("method", "factor", "message"),
    [
        ("yam", 4.0, "no method 'yam': did you mean 'dynamic' or 'yarn'"),
        ("yarn", 1.0, "factor is 1.0: give a number above 1"),
        ("yarn", math.nan, "factor is nan"),
    ],
)
def test_what_cannot_be(method: str, factor: float, message: str) -> None:
    with pytest.raises(HeadwayError, match=message), extended(small(), method, factor):
        pass
    with pytest.raises(HeadwayError, match=message):
        extend(small(), method, factor)


def test_a_config_without_words_for_it() -> None:
    """GPT-J's has none for anything but plain RoPE; the model stays as it was."""
    config = {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_layer": 1, "n_head": 2, "n_embd": 16,
              "n_positions": 32, "rotary_dim": 4, "vocab_size": VOCABULARY}  # fmt: skip
    model = small(**config)
    before = repr(model)
    with pytest.raises(HeadwayError, match="has no words for yarn"):
        extend(model, "yarn", 4.0)
    assert repr(model) == before
    assert "rope_parameters" not in model.checkpoint.config


# ---------------------------------------------------------------- the measurement


def test_losses_are_those_of_a_single_pass() -> None:
    model, ids = small(), tokens(3 * WINDOW + 6)
    expected = F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="none")
    torch.testing.assert_close(losses(model, ids, WINDOW), expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_restarts_reads_each_window_alone() -> None:
    model, ids = small(), tokens(2 * WINDOW + 1)
    alone = torch.cat([losses(model, ids[: WINDOW + 1], WINDOW), losses(model, ids[WINDOW:], WINDOW)])
    assert torch.equal(losses(model, ids, WINDOW, restart=True), alone)
    assert not torch.allclose(losses(model, ids, WINDOW)[WINDOW:], alone[WINDOW:], atol=1e-3)


def test_measured(tmp_path: Path) -> None:
    """Every method on the same tokens; each number is the mean of the losses at those positions."""
    model, text = small(), tokens(400).tolist()
    found = measure(model, text, factor=4.0, out=tmp_path, windows=2)
    assert found.methods == ["none", RESTARTED, *RESCALED]
    assert found.columns == [(0, 8), (8, 16), (16, 32), (32, 64)]
    windows = [torch.tensor(text[start : start + 65]) for start in (0, 65)]
    with extended(model, "yarn", 4.0):
        ours = torch.stack([losses(model, one, WINDOW) for one in windows])[:, 16:32].double().mean(1)
    value, error = found.perplexity("yarn", 16, 32)
    assert value == pytest.approx(ours.mean().exp().item(), rel=1e-4)
    assert error == pytest.approx(value * ours.std().item() / math.sqrt(2), rel=1e-3)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2 * len(found.methods)
    assert not headway.nn.prepacked.is_prepacked(model)


def test_the_token_that_begins_a_text_stands_before_each_window(tmp_path: Path) -> None:
    model, text = small(), tokens(200).tolist()
    found = measure(model, text, ["none"], factor=2.0, out=tmp_path, windows=2, first=[7])
    expected = losses(model, torch.tensor([7, *text[32:64]]), WINDOW)
    assert found.nats("none", 0, 32)[1] == pytest.approx(expected.mean().item(), rel=1e-4)


def test_it_goes_on_from_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = small(), tokens(400).tolist()
    given: dict[str, Any] = {"factor": 2.0, "out": tmp_path}
    done: list[str] = []
    real: Callable[..., Any] = extension._measured

    def stopped(model: Any, method: str, *rest: Any) -> Any:
        if method == "yarn" and "yarn" not in done:
            done.append(method)
            raise KeyboardInterrupt
        done.append(method)
        return real(model, method, *rest)

    monkeypatch.setattr(extension, "_measured", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(model, text, ["linear", "yarn"], **given)
    kept = (tmp_path / "results.jsonl").read_text()
    assert [json.loads(line)["method"] for line in kept.splitlines()] == ["none", RESTARTED, "linear"]
    found = measure(model, text, ["linear", "yarn"], **given)
    assert done == ["none", RESTARTED, "linear", "yarn", "yarn"]
    assert (tmp_path / "results.jsonl").read_text().startswith(kept)
    assert found.methods == ["none", RESTARTED, "linear", "yarn"]
    more = measure(model, text, ["yarn", "ntk"], windows=2, **given)
    assert done[5:] == ["none", RESTARTED, "yarn", "ntk", "ntk"]
    assert (more.windows, more.methods) == (2, ["none", RESTARTED, "yarn", "ntk"])


def test_results_of_an_earlier_version_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the method as "encoding", and the number of the window as "seed"."""
    model, text = small(), tokens(400).tolist()
    found = measure(model, text, ["yarn"], factor=2.0, out=tmp_path, windows=2)
    path = tmp_path / "results.jsonl"
    new = [json.loads(line) for line in path.read_text().splitlines()]
    assert all("encoding" not in row and "seed" not in row for row in new)
    old = [{"encoding": row.pop("method"), "seed": row.pop("window"), **row} for row in new]
    path.write_text("".join(json.dumps(row) + "\n" for row in old))
    monkeypatch.delattr(extension, "_measured")
    again = measure(model, text, ["yarn"], factor=2.0, out=tmp_path, windows=2)
    assert again.rows == found.rows


def test_another_model_or_text_is_refused(tmp_path: Path) -> None:
    model, text = small(), tokens(400).tolist()
    measure(model, text, ["none"], factor=2.0, out=tmp_path)
    with pytest.raises(HeadwayError, match="with tokens ="):
        measure(model, text[1:], ["none"], factor=2.0, out=tmp_path)
    with pytest.raises(HeadwayError, match=r"with factor = 2\.0, now factor = 4\.0"):
        measure(model, text, ["none"], factor=4.0, out=tmp_path)
    with torch.no_grad():
        model.stack.blocks[1].attention.q_proj.weight[0, 0] += 1
    with pytest.raises(HeadwayError, match="with weights ="):
        measure(model, text, ["none"], factor=2.0, out=tmp_path)


def test_a_text_too_short(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="the text has 64 tokens but a window takes 65"):
        measure(small(), tokens(64).tolist(), factor=4.0, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for wrong in ({"length": 0}, {"windows": 0}):
        with pytest.raises(HeadwayError, match="give at least 1"):
            measure(small(), tokens(64).tolist(), factor=4.0, out=tmp_path / "new", **wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the report


def made(nats: dict[str, list[list[float]]], length: int = 32) -> Extension:
    rows = [
        {"method": name, "window": number, "length": length, "edges": list(range(0, length + 1, 2)),
         "nats": [inside] * 8 + [beyond] * (length // 2 - 8), "seconds": 1.0}
        for name, windows in nats.items()
        for number, (inside, beyond) in enumerate(windows)
    ]  # fmt: skip
    settings = {"model": "m", "text": "t", "window": WINDOW, "factor": 2.0, "dtype": "float32", "lengths": [length]}
    return Extension(rows, settings, list(nats))


def test_what_is_concluded() -> None:
    two, three, four, ten = map(math.log, (2, 3, 4, 10))
    found = made({"none": [[two, ten]], RESTARTED: [[two, four]], "yarn": [[three, three]]})
    said = " ".join(found.conclusions())
    assert "beyond" in said.lower()
    assert "has a perplexity of 10.00 beyond the window, and 2.00 within it" in said
    assert "restarted model has 4.00 beyond the window. Compared with that: yarn −25.0 %" in said
    assert "yarn +50.0 %" in said
    assert "one window of text" in said
    assert "| yarn | 3.00 | 3.00 | **3.00** | 1 |" in found.markdown()


def test_errors_are_of_differences_on_the_same_text() -> None:
    """Two windows of unlike difficulty, in both of which one method is better by a tenth."""
    found = made({"none": [[1.0, 5.0], [1.0, 4.0]], "yarn": [[1.0, 5.0 + math.log(0.9)], [1.0, 4.0 + math.log(0.9)]]})
    assert found.against("yarn", "none", 16, 32) == "−10.0 ± 0.0 %"
    value, error = found.perplexity("none", 16, 32)
    assert value == pytest.approx(math.exp(4.5))
    assert error == pytest.approx(0.5 * value)


def test_the_report_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made({"none": [[1.0, 9.0]], RESTARTED: [[1.0, 2.0]], "yarn": [[1.5, 1.5]]}).write(tmp_path)
    assert (tmp_path / "extension.png").read_bytes()[:4] == b"\x89PNG"
    assert "![Perplexity by position](extension.png)" in (tmp_path / "extension.md").read_text()


def test_a_window_that_eight_does_not_divide() -> None:
    assert extension._edges(27, 11)[-3:] == [24, 26, 27]
    assert {0, 11, 22, 27} <= set(extension._edges(27, 11))
