"""What lesson 6 finds: only distances decide, by four parts, by buckets, by lines or by turns."""

import math
from pathlib import Path

import pytest
import torch

import headway as hw

from .conftest import Learn

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_6_relative_and_rotary")

    assert found["xl_error"] < 1e-12
    assert found["xl_learned"] == {"W_R": 4 * 16 * 64, "u": 4 * 16, "v": 4 * 16}
    a, b, c, d = torch.tensor(found["xl_parts"], dtype=torch.float64)
    assert torch.equal(c, c[:1].expand_as(c))  # the same for all queries
    torch.testing.assert_close(d[1:, 1:], d[:-1, :-1])  # the same along a diagonal
    assert min(part.std() for part in (a, b, c, d)) > 0.3

    # eight distances with a bucket each, then eight buckets that grow by the same factor up to 128
    assert found["bucket_starts"] == [*range(8), *(math.ceil(8 * 16 ** (step / 8) - 1e-9) for step in range(8))]
    assert len(set(found["buckets"])) == 31
    assert 16 not in found["buckets"]
    for line in found["t5_learned"]:
        assert max(line) == max(line[:8]) > line[-1] + 2  # what is near, whatever the seed
        assert len(set(line[91:])) == 1
    assert found["t5_bits"] < 3.4
    assert found["t5_bits_without"] > found["t5_bits"] + 0.4

    for slope, line in zip((1 / 4, 1 / 16, 1 / 64, 1 / 256), found["alibi_lines"], strict=True):
        assert line == pytest.approx([-slope * distance for distance in range(128)])

    for pair, frequency, line in zip((0, 8, 12), found["rope_frequencies"], found["rope_pairs"], strict=True):
        assert frequency == pytest.approx(10000 ** (-pair / 32))
        assert line == pytest.approx([math.cos(frequency * distance) for distance in range(64)], abs=1e-9)
    assert found["rope_error"] < 1e-10
    (q, k), (later_q, later_k) = found["turned_angles"]
    assert k - q == pytest.approx(later_k - later_q)

    families = found["families"]
    assert sorted(name for members in families.values() for name in members) == sorted(hw.positions.ENCODINGS)
    assert {"sinusoidal", "learned"} <= set(families["absolute"])
    assert {"transformer-xl", "t5", "gopher"} <= set(families["relative"])
    assert "rope" in families["rotary"]
    assert sorted(families["relative"] + families["rotary"]) == sorted(found["relative"])

    # what the pages say of them
    every, relative, rotary = (len(its) for its in (hw.positions.ENCODINGS, families["relative"], families["rotary"]))
    alone, terms = len(found["relative"]), len(found["relative"]) - len(found["with_function"])
    for page, sentences in {
        "docs/lessons.md": (
            f"The picture sorts all {every} of",
            f"{relative} of them add to the scores and {rotary} rotate queries and keys",
            f"{relative} relative, {rotary} rotary, and others](",
            f"headway writes {terms} of its {alone} encodings that read only distances",
        ),
        "docs/zh-CN/lessons.md": (
            f"headway 的全部 {every} 种排开",
            f"{relative} 种加在分数里，{rotary} 种旋转查询和键",
            f"相对 {relative} 种，旋转 {rotary} 种，以及其他](",
            f"只看距离的编码有 {alone} 种，其中 {terms} 种都写成了",
        ),
        "docs/claims.md": (f"Of the {alone} encodings here that read only distances, {terms} are",),
        "docs/zh-CN/claims.md": (f"这里只看距离的 {alone} 种编码中，{terms} 种可以写成",),
    }.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [sentence for sentence in sentences if sentence not in text] == [], page

    for name in ("shaw", "transformer-xl", "gopher", "deberta", "t5", "alibi", "kerple-log", "rope"):
        assert max(found["shifts"][name]) < 1e-8
    assert min(found["shifts"]["sinusoidal"]) > 0.05
    assert min(found["shifts"]["learned"][:2]) > 0.05
    assert found["shifts"]["learned"][2] is None
    assert found["parameters"] == {
        "shaw": 2 * 33 * 64,
        "transformer-xl": 768 * 768 + 2 * 768,
        "gopher": 768 * 768 + 2 * 768,
        "deberta": 512 * 768 + 2 * 768 + 2 * 768 * 768 + 768,
        "t5": 32 * 12,
        "alibi": 0,
        "kerple-log": 2 * 12,
        "rope": 0,
        "sinusoidal": 0,
        "learned": 512 * 768,
    }

    assert (found["gopher_terms"], found["t5_terms"]) == (["RelativeKeys"], ["DistanceBias"])
    assert found["gopher_is_xl"] == 0
    assert found["gopher_by_query"] > 0.3
    assert found["t5_by_query"] == 0
    assert set(found["with_function"]) <= set(found["relative"])
    assert {"shaw", "gopher", "t5", "alibi", "rope", "dynamic-position-bias"} <= set(found["relative"])
    assert not {"sinusoidal", "learned", "fire", "tupe", "cope", "sink"} & set(found["relative"])
    assert {"dape", "dape-v2"} <= set(found["with_function"])
    assert not {"shaw", "gopher", "t5", "alibi", "rope", "relative-projection"} & set(found["with_function"])


def test_gopher_looks_at_sinusoids() -> None:
    gopher = hw.encoding("gopher", embed_dim=8, num_heads=2, head_dim=4)
    at = gopher.place(hw.Coordinates.span(3))
    (term,) = gopher.terms(at, at)
    assert isinstance(term, hw.terms.RelativeKeys)
    assert isinstance(term.rows, hw.terms.Sinusoids)
