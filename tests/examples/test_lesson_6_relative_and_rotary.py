"""What lesson 6 finds: distances alone decide, by four parts, by buckets, by lines or by turns."""

import math

import pytest
import torch

import headway as hw

from .conftest import Learn


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
