"""Every picture that the library draws, in every script: what tests/looks.py demands of it; and the palette."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import headway as hw
from headway._common.fonts import fonts_for
from headway._common.pictures import BASELINE, COLOURS, INK, MARKERS, ON_DARK, colour_bar, need_format, save, style
from looks import boxes, faults

pytest.importorskip("matplotlib")

SCRIPTS = {
    "Latin": "tokens",
    "Chinese": "词元",
    "Japanese": "ねこ",
    "Korean": "단어",
    "Arabic": "كلمة",
    "Russian": "слово",
}

# ---------------------------------------------------------------- small made inputs


def compared(word: str) -> Any:
    """A comparison with an outlier, a baseline, an encoding that ends early, one that goes on, and n-gram models."""
    from headway.study import ComparisonResults
    from headway.study.protocol import Protocol

    names = ["sinusoidal", "learned", 'learned(extend="interpolate")', "t5", "alibi", "rope", f"{word}.py:Mine", "lstm"]
    rows = []
    for number, name in enumerate(names):
        for seed in (0, 1):
            for length in (128, 256, 512):
                if name == "learned" and length > 128:
                    continue
                worse = 3.0 if name == "rope" and length > 128 else 0.004 * number
                parts = [[2, 2, 3.6], [5, 8, 3.0], [33, 64, 2.8 + worse]] if length == 128 else []
                rows.append(
                    {
                        "encoding": name,
                        "seed": seed,
                        "length": length,
                        "baseline": name == "lstm",
                        "view_of": "learned" if "(" in name else None,
                        "steps": 600,
                        "learning_rate": 0.005,
                        "learning_rates": {},
                        "bits_per_byte": 2.7 + worse + 0.02 * seed,
                        "bits_by_position": [*parts, [length // 2 + 1, length, 2.7 + worse + 0.02 * seed]],
                        "recall": 0.9,
                        "recall_by_distance": {"1": 0.9, "32": 0.8 - 0.05 * number, "128": 0.7 - 0.05 * number},
                    }
                )
    protocol = Protocol(lengths=(128, 256, 512)).fixed(f"{word}.txt", "0" * 64)
    return ComparisonResults(rows, protocol, settings={"counted": {"2-gram": 3.3, "5-gram": 2.72}})


def extended(word: str, windows: int = 3) -> Any:
    from headway.study.extension import Extension

    methods = ["none", "restarted", "linear", "ntk", "dynamic", "yarn", "longrope-style", "llama3"]
    edges = [*range(0, 2049, 128)]
    rows = []
    for number, method in enumerate(methods):
        for seed in range(windows):
            nats = []
            for part in range(16):
                far = {"none": 0.4 * max(0, part - 8), "linear": 1.1}.get(method, 0.004 * number)
                nats.append(3.5 + 0.1 * math.sin(part) + far + 0.01 * math.sin(7 * part + 3 * number + seed))
            rows.append({"method": method, "window": seed, "edges": edges, "nats": nats, "seconds": 1.0})
    said = {"quick": False, "model": f"{word}-135M", "factor": 2, "text": f"{word}.txt"}
    said |= {"window": 1024, "lengths": [2048]}
    return Extension(rows, said, methods)


def scored(word: str) -> Any:
    from headway.study._word_vectors_report import Comparison

    methods = ["one-hot", "tf-idf", f"{word}.bin", "learned"]
    scores = {"wordsim353": 0.4, "simlex999": 0.2, "analogies": 0.5, "own_group": 0.9, "nats_per_word": 5.4}
    rows = []
    for number, method in enumerate(methods):
        for seed in (0, 1):
            drawn = {name: {"value": value - 0.05 * number - 0.01 * seed} for name, value in scores.items()}
            rows.append({"method": method, "seed": seed, **drawn})
    return Comparison(rows, {"corpus": f"{word}.txt"}, methods)


def benched() -> list[Any]:
    from headway.bench.sides import DENSE, OURS, SDPA

    rows = []
    for dtype in ("float32", "bfloat16"):
        for direction in ("forward", "backward"):
            for encoding, theirs in (("none", SDPA), ("t5", DENSE)):
                for n in (128, 512, 2048):
                    case = {"kind": "attention", "encoding": encoding, "mask": "none", "n": n, "head_dim": 64}
                    case |= {"dtype": dtype, "direction": direction}
                    ms = {OURS: n * n / 5e4, theirs: n * n / 2e4}
                    rows.append({"case": case, "ms": ms, "roof_gflops": 400.0})
    return rows


def bench_picture(rows: list[Any] | None = None) -> Any:
    from headway.bench import picture

    figure = picture.draw(rows or benched(), "made: share of the roof")
    assert figure is not None
    return figure


def test_a_share_above_the_roof_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = benched()
    rows[2]["roof_gflops"] = 60.0
    figure = bench_picture(rows)
    highest = max(axes.dataLim.ymax for axes in figure.axes)
    assert highest > 150
    assert all(axes.get_ylim()[1] > highest for axes in figure.axes)


def seen(word: str, n: int = 6, layers: int = 2) -> tuple[Any, list[str]]:
    torch.manual_seed(0)
    config = hw.models.TransformerConfig(vocab_size=40, embed_dim=16, num_heads=4, num_layers=layers)
    model = hw.models.Decoder(config, hw.encoding("alibi", num_heads=4)).eval()
    with torch.no_grad(), hw.capture(model, "qk") as found:
        model(torch.randint(40, (1, n)))
    return found, [f"{word}{i}" for i in range(n)]


def attention_picture(word: str, *place: int, **options: Any) -> Any:
    found, tokens = seen(word)
    return found.plot(*place, tokens=tokens, **options)


def head_log(word: str) -> Any:
    from headway.inspection import plot_head_log

    rows = [
        {
            "step": step,
            "layer": f"layer.{layer}",
            "head": head,
            "normalized_entropy": 1 / (1 + step / 100 + layer),
            "first": 0.1 + 0.01 * head,
            "sink": math.nan,
            "previous_token": 0.05 * layer,
            "induction": step / 1000,
        }
        for step in (0, 100, 200)
        for layer in range(3)
        for head in range(2)
    ]
    return plot_head_log(rows, title=word)


def roles_picture(word: str) -> Any:
    from headway.inspection.roles._finding import Finding
    from headway.inspection.roles._picture import picture_of_roles

    held = {(0, 0): ("positional", "−1"), (0, 2): ("a user's own", word), (1, 1): ("induction", "repeats")}
    primary: dict[str, list[Finding | None]] = {f"stack.blocks.{layer}.attention": [None] * 4 for layer in range(2)}
    for (layer, head), (role, candidate) in held.items():
        name = f"stack.blocks.{layer}.attention"
        primary[name][head] = Finding(role, candidate, name, head, 0.83, 0.8, 0.86, 0.1, 100, True)
    return picture_of_roles(primary, [role for role, _ in held.values()], word)


def charts() -> Any:
    from headway.study import charts

    return charts


def portrait(name: str, title: str) -> Any:
    from headway.study.portrait import portrait

    given: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "embed_dim": 64, "max_length": 96}
    return portrait(hw.encoding(name, **given), title, untrained=True)


def extension_picture(found: Any) -> Any:
    from headway.study._extension_picture import draw

    return draw(found)


def scores_picture(word: str) -> Any:
    from headway.study._word_vectors_picture import draw_scores

    return draw_scores(scored(word))


def word_map(word: str, method: str) -> Any:
    from headway.vectors import WordMap

    torch.manual_seed(0)
    groups = tuple(group for group in (word, "numbers", "others") for _ in range(6))
    words = tuple(f"{word}{number}" for number in range(18))
    variance = (0.31, 0.12) if method == "pca" else None
    return WordMap(words, groups, torch.randn(18, 2).double(), method, 0.93, 5, variance, ()).plot(title=word)


def maps_of_methods(word: str) -> Any:
    from headway.study._word_vectors_picture import draw_map
    from headway.study._word_vectors_report import Comparison

    torch.manual_seed(0)
    rows = []
    for method in ("tf-idf", f"{word}.bin"):
        points = [[f"{word}{n}", (word, "numbers")[n % 2], *torch.randn(2).tolist()] for n in range(12)]
        rows.append({"method": method, "seed": 0, "map": points, "own_group": 0.9})
    return draw_map(Comparison(rows, {"corpus": f"{word}.txt"}, ["tf-idf", f"{word}.bin"]))


PICTURES: dict[str, Callable[[str], Any]] = {
    "loss by position": lambda word: charts().draw_by_position(compared(word)),
    "loss by position, narrow": lambda word: charts().draw_by_position(compared(word), charts().NARROW),
    "loss by position, Chinese": lambda word: charts().draw_by_position(compared(word), language="zh"),
    "loss by length": lambda word: charts().draw_by_length(compared(word)),
    "loss by length, Chinese": lambda word: charts().draw_by_length(compared(word), language="zh"),
    "recall": lambda word: charts().draw_recall(compared(word)),
    "recall, Chinese": lambda word: charts().draw_recall(compared(word), language="zh"),
    "extension": lambda word: extension_picture(extended(word)),
    "extension, one window": lambda word: extension_picture(extended(word, windows=1)),
    "scores of word vectors": scores_picture,
    "map of words by t-SNE": lambda word: word_map(word, "t-sne"),
    "map of words by PCA": lambda word: word_map(word, "pca"),
    "maps of words by method": maps_of_methods,
    "portrait of scores": lambda word: portrait("rope", word),
    "portrait of a bias": lambda word: portrait("alibi", word),
    "portrait of embeddings": lambda word: portrait("sinusoidal", word),
    "portrait of positions": lambda word: portrait("cape", word),
    "map of a head": lambda word: attention_picture(word, 0, 1),
    "arcs of a head": lambda word: attention_picture(word, 0, 1, kind="arcs"),
    "heads of a layer": lambda word: attention_picture(word, 1),
    "all heads": attention_picture,
    "heads in training": head_log,
    "roles of heads": roles_picture,
}
"""Each picture, with a word in it wherever a user's text can be."""


def test_each_role_has_its_own_colour() -> None:
    """A user's own role too, though the palette has one colour for each of ours."""
    patches = roles_picture("tokens").legends[0].get_patches()
    assert len({patch.get_facecolor() for patch in patches}) == len(patches) == 4


def has_a_font(word: str) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fonts_for([word])
    return not caught


@pytest.mark.parametrize("name", PICTURES)
def test_it_can_be_read(name: str) -> None:
    assert faults(PICTURES[name]("tokens")) == []


def test_the_picture_of_a_benchmark_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(bench_picture()) == []


@pytest.mark.one_in(23)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", PICTURES)
def test_no_letter_is_a_box(name: str, script: str) -> None:
    if not has_a_font(SCRIPTS[script]):
        pytest.skip(f"no font of this machine has {SCRIPTS[script]}")
    assert boxes(PICTURES[name](SCRIPTS[script])) == []


# ---------------------------------------------------------------- that a fault is found


def a_picture(**wrong: bool) -> Any:
    from matplotlib.figure import Figure

    with style(["a" if not wrong.get("boxes") else ""]):
        figure = Figure(figsize=(4, 3), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow([[0.0, 1.0], [2.0, 3.0]])
        axes.set(xlabel="key", ylabel="" if wrong.get("no_name") else "query")
        if not wrong.get("no_bar"):
            colour_bar(image, axes, "weight")
        axes.text(0, 0, "one")
        axes.text(0.02 if wrong.get("overlap") else 0, 0.02 if wrong.get("overlap") else 1, "two")
        if wrong.get("outside"):
            figure.text(0.95, 0.5, "beyond the edge").set_in_layout(False)
        if wrong.get("boxes"):
            axes.set_title("\U0001f9ee")
    return figure


def test_a_good_picture_has_no_fault() -> None:
    assert faults(a_picture()) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("no_name", "the y axis of '' has no name"),
        ("no_bar", "the colours of '' have no bar"),
        ("overlap", "'one' and 'two' overlap"),
        ("outside", "'beyond the edge' lies outside of the figure"),
        ("boxes", "Glyph 129518 .* missing"),
    ],
)
def test_a_fault_is_found(wrong: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert "\n".join(faults(a_picture(**{wrong: True}))) == ""


# ---------------------------------------------------------------- the palette, and files


def linear(colour: str) -> torch.Tensor:
    sent = torch.tensor([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=torch.float64) / 255
    return torch.where(sent <= 0.04045, sent / 12.92, ((sent + 0.055) / 1.055) ** 2.4)


SIGHT = {
    "all three cones": torch.eye(3, dtype=torch.float64),
    "without L cones": torch.tensor(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ).double(),
    "without M cones": torch.tensor(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ).double(),
    "without S cones": torch.tensor(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ).double(),
}
"""From linear RGB to what is seen of it (Machado, Oliveira and Fernandes 2009)."""


def lab(colour: str, sight: str) -> torch.Tensor:
    """A colour in CIELAB, in which distances are differences that people see; about 2 can just be told apart."""
    to_xyz = torch.tensor(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    seen = (SIGHT[sight] @ linear(colour)).clamp(0, 1)
    x, y, z = (to_xyz.double() @ seen) / torch.tensor([0.95047, 1.0, 1.08883], dtype=torch.float64)
    x, y, z = (v.item() ** (1 / 3) if v > 0.008856 else 7.787 * v.item() + 16 / 116 for v in (x, y, z))
    return torch.tensor([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("palette", [COLOURS, (*COLOURS[:3], INK, BASELINE)])
def test_colours_can_be_told_apart(palette: tuple[str, ...], sight: str) -> None:
    near = {pair: float((lab(pair[0], sight) - lab(pair[1], sight)).norm()) for pair in combinations(palette, 2)}
    assert min(near.values()) > 10, min(near, key=near.__getitem__)


def test_each_colour_has_a_marker_and_a_twin_on_dark() -> None:
    assert len(COLOURS) == len(ON_DARK) == len(set(MARKERS))


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    save(a_picture(), tmp_path / "图.png")
    assert (tmp_path / "图.png").read_bytes().startswith(b"\x89PNG")
    save(a_picture(), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(hw.HeadwayError, match=r"out is 'a\.txt': give a name that ends with \.png"):
        need_format("a.txt")
