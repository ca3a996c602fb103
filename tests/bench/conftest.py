import pytest

from headway.bench import Plan, verify
from headway.bench.cases import PARTS

TINY = Plan(
    lengths=(16,),
    dims=(8,),
    dtypes=("float32",),
    masks=("none", "causal"),
    encodings=("none", "t5"),
    parts=tuple(part for part in PARTS if part != "sequence"),  # whose cases start processes: test_sequence.py
    window_length=300,
    cache_length=32,
    row_length=32,
    memory_lengths=(16,),
    statistics_lengths=(16,),
    statistics_memory_lengths=(16,),
    seconds=0.0,
    rounds=1,
    flex_seconds=0.0,
)


@pytest.fixture
def tiny() -> Plan:
    return TINY


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' own checks take seconds; here one of each kind stands for all."""
    monkeypatch.setattr(verify, "term_names", lambda: ["none"])
    monkeypatch.setattr(verify, "mask_names", lambda: ["causal"])
