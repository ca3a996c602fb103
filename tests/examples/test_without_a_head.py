"""The measurement of heads: its readers, its rank correlations, and the report of a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headway as hw
import without_a_head as example
from headway.inspection import HeadEffects
from headway.models import Decoder, TransformerConfig


def test_sentences_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "some.conllu"
    file.write_text(
        "# text = One two.\n1\tOne\n\n# sent_id = 2\n# text = Drei # vier\n\n# text = 五\n", encoding="utf-8"
    )
    assert example.sentences_of(file, 2) == ["One two.", "Drei # vier"]
    assert example.sentences_of(file, 9) == ["One two.", "Drei # vier", "五"]


def test_rows_are_padded() -> None:
    batch = example.padded([[5, 6], [7, 8, 9]])
    assert batch["ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["mask"].lengths.tolist() == [2, 3]


def test_windows_are_evenly_spaced() -> None:
    class Letters:
        def encode(self, text: str, add_special_tokens: bool) -> Any:
            return type("Encoding", (), {"ids": list(range(len(text)))})

    assert example.windows_of("x" * 11, Letters(), 3, 3).tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]


def test_rank_correlation() -> None:
    x, y = torch.tensor([1.0, 2.0, 5.0, 3.0]), torch.tensor([10.0, 40.0, 80.0, 20.0])
    # ranks 0, 1, 3, 2 and 0, 2, 3, 1: 1 − 6·(0 + 1 + 0 + 1)/(4·15)
    assert example.rank_correlation(x, y) == pytest.approx(0.8)
    assert example.rank_correlation(x, -y) == pytest.approx(-0.8)
    stats = pytest.importorskip("scipy.stats")
    x, y = torch.randint(5, (30,)), torch.randint(5, (30,))  # many equal
    assert example.rank_correlation(x, y) == pytest.approx(float(stats.spearmanr(x, y).statistic))
    r, low, high = example.with_interval(x, y)
    assert low < r < high
    assert example.within_layers(torch.tensor([1.0, 2, 3, 6, 5, 4]), torch.arange(6.0), 2) == pytest.approx(0)


def test_the_report_of_a_tiny_model(tmp_path: Path) -> None:
    model = Decoder(TransformerConfig(vocab_size=30, embed_dim=12, num_heads=3, num_layers=2)).eval()
    ids = torch.randint(30, (4, 9))
    effects = example.effects_of(model, ids.split(2), "cross_entropy", tmp_path / "tiny")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-mean.jsonl", "tiny-zero.jsonl"]
    said = example.what_weights_say(model, ids.split(2), True)
    assert all(numbers.shape == (6,) for numbers in said.values())

    with torch.no_grad(), hw.capture(model, "weights") as seen:
        model(ids)
    weights = torch.cat([weights.transpose(0, 1) for weights in seen.attentions])  # [heads of all layers, texts, n, n]
    torch.testing.assert_close(said["largest weight"], weights.amax(-1).mean((1, 2)))
    torch.testing.assert_close(said["weight of the first token"], weights[..., 0].mean((1, 2)))
    torch.testing.assert_close(said["most received by one token"], weights.mean(-2).amax(-1).mean(1))
    share = torch.special.entr(weights).sum(-1)[..., 1:] / torch.arange(2, 10).log()
    torch.testing.assert_close(said["entropy / ln(visible)"], share.mean((1, 2)))

    report = example.tell("A tiny model", effects, said)
    assert report.startswith("A tiny model\n\nzero: 6 heads; interval above 0 for ")
    for name in [*said, "the other replacement"]:
        assert name in report


def test_effects_by_role() -> None:
    class Roles:
        roles = ("broad", "sink")

        def of(self, layer: str, head: int) -> list[Any]:
            names = {("a", 0): ["broad", "sink", "sink"], ("b", 1): ["sink"]}.get((layer, head), [])
            return [type("Finding", (), {"role": name}) for name in names]

    totals = {"a": torch.tensor([[3.0, 1.0], [5.0, 3.0]]), "b": torch.tensor([[1.0, 1.0], [0.0, 2.0]])}
    effects = HeadEffects("cosine", totals, {layer: torch.ones(2, 2) for layer in totals}, "zero")
    found = example.by_role(effects, Roles())  # type: ignore[arg-type]
    assert found == {"broad": (1, pytest.approx(4 / 3)), "sink": (2, pytest.approx((4 / 3 + 1.5) / 2)),
                     "none": (2, pytest.approx((2 / 3 + 0.5) / 2))}  # fmt: skip
    assert example.halves(effects) == example.rank_correlation(torch.tensor([3, 1, 1, 1]), torch.tensor([5, 3, 0, 2]))
