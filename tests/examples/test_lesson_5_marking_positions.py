"""What lesson 5 finds: what sinusoidal codes are, exactly, and what a model makes of positions it has not met."""

import math

import pytest

from .conftest import Learn


@pytest.mark.slow
def test_figures(learn: Learn) -> None:
    found = learn("lesson_5_marking_positions")
    assert found["verdicts"] == {
        "index": ["yes", "yes", "yes", "no"],
        "unit-index": ["yes", "yes", "no", "yes"],
        "sinusoidal": ["yes", "yes", "yes", "yes"],
        "learned": ["yes", "no", "no", "yes"],
    }
    assert found["unit_steps"] == pytest.approx([0.1, 0.01])
    assert found["far_code_length"] == pytest.approx(16)  # √(512/2), since sin² + cos² = 1
    assert "beyond the learned table" in found["beyond_table"]

    assert found["wavelengths"][0] == pytest.approx(2 * math.pi)
    assert found["wavelengths"][-1] == pytest.approx(2 * math.pi * 10000 ** (510 / 512))
    # 2π·10000^(c/256) ≤ n for c = 0, 1, …
    for n, count in found["periods_within"].items():
        assert count == math.floor(256 * math.log(int(n) / (2 * math.pi), 10000)) + 1
    assert found["unfinished"] == 32 - (math.floor(32 * math.log(16 / (2 * math.pi), 10000)) + 1)
    assert found["frequency_spread"] < 1e-10

    near, far, back = zip(*found["quarters"], strict=True)
    assert sum(near) == pytest.approx(1)
    assert sum(far) == pytest.approx(1)
    assert near[0] > 0.98
    # the distance of a hand with wavelength λ shrinks from λ/2 on, so that a ruler ten times as long goes ten times far
    assert list(back) == sorted(back)
    assert back[3] > 500 * back[0]

    # 710 tokens are 113 rounds of 2π and 6·10⁻⁵
    assert found["closest_offset"]["2"] == 710
    assert found["closest"]["2"] == pytest.approx(710 - 226 * math.pi, rel=1e-3)
    for dim in (64, 512):  # no two are closer than neighbours
        assert found["closest_offset"][str(dim)] == 1
        by_hand = sum(2 - 2 * math.cos(10000 ** (-2 * c / dim)) for c in range(dim // 2))
        assert found["closest"][str(dim)] == pytest.approx(math.sqrt(by_hand))
    assert found["distinct_bfloat16"]["2"] < 2000
    assert found["distinct_bfloat16"]["512"] == 10_000

    assert found["dot_place_error"] < 1e-9
    assert found["dot_symmetry_error"] < 1e-9
    assert found["addition_error"] < 1e-9
    assert found["dot_rises_at"] == {"32": 5, "64": 6, "128": 12, "512": 44}
    middle = len(found["turned_line"]) // 2
    assert found["dot_line"]["512"][middle] == pytest.approx(1)
    assert min(found["turned_line"][middle + 1 :]) > 0 > max(found["turned_line"][:middle])
    assert found["projected_share"] < 0.4

    assert found["probe_places"]["16"] < 0.5
    assert min(found["probe_places"]["512"], found["probe_words"]["512"]) > 0.98

    accuracy = found["accuracy"]
    for name in ("sinusoidal", "sinusoidal(base=2.5)", "learned", "learned, from sinusoidal"):
        assert accuracy[name][0] > 0.9, name
        assert max(accuracy[name][1:]) < 0.5, name
    for name in ("t5", "rope"):
        assert accuracy[name][0] > 0.95, name
        assert accuracy[name][1] > accuracy["sinusoidal"][1] + 0.2, name
    assert accuracy["index"][0] < 0.9
    assert max(accuracy["index"][1:]) < 0.4
    assert accuracy["unit-index"] == sorted(accuracy["unit-index"], reverse=True)
    assert max(accuracy["none"]) < 0.5
    assert set(found["untouched_rows"].values()) == {128 - 16}
    assert 0 < found["moved"]["learned, from sinusoidal"] < found["moved"]["learned"]
