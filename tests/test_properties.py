"""The four demands, measured: what each encoding meets, and where the numbers come from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from headway.coordinates import Coordinates
from headway.positions import (
    ENCODINGS,
    T5,
    ALiBi,
    Compose,
    Gopher,
    IntegerIndex,
    Learned,
    NoPE,
    Pair,
    PositionEncoding,
    Properties,
    RoPE,
    Shaw,
    Sinusoidal,
    TransformerXL,
    UnitIndex,
    encoding,
)
from headway.properties import Pairs
from headway.terms import Clip, DenseBias, DistanceBias, Log, QueryScale, RelativeQueries, RelativeValues, Rows, Term
from headway.testing.inputs import CheckSizes, on_axes, randomized

RELATIVE = ("not its job", "yes", "yes", "yes")


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (NoPE(), ("no", "no", "not its job", "yes")),
        (IntegerIndex(), ("yes", "yes", "yes", "no")),
        (UnitIndex(), ("yes", "yes", "no", "yes")),
        (Sinusoidal(64), ("yes", "yes", "yes", "yes")),
        (Sinusoidal(64, variant="tensor2tensor"), ("yes", "yes", "yes", "yes")),
        (Learned(128, 32), ("yes", "no", "no", "yes")),
        (Learned(16, 32), ("yes", "no", "no", "yes")),
        (Learned(64, 32, extend="interpolate"), ("yes", "no", "no", "yes")),
        (Shaw(8), RELATIVE),
        (TransformerXL(32, 4, 8), RELATIVE),
        (Gopher(48, 6, 8), RELATIVE),
        (T5(4), RELATIVE),
        (T5(4, bidirectional=False), RELATIVE),
        (ALiBi(6), ("not its job", "yes", "yes", "no")),
        (RoPE(8), RELATIVE),
        (RoPE(64, base=500000.0, layout="half"), RELATIVE),
        (Compose(Learned(256, 32), ALiBi(4)), ("yes", "yes", "no", "yes")),
        (Compose(Sinusoidal(32), ALiBi(4)), ("yes", "yes", "yes", "no")),
    ],
    ids=str,
)
def test_which_demands_are_met(encoding: PositionEncoding, expected: tuple[str, ...]) -> None:
    assert tuple(row.verdict for row in encoding.properties()) == expected


def test_the_numbers_of_the_two_that_fail_by_design() -> None:
    grows = IntegerIndex().properties().bounded
    assert grows.number == 2**20 + 1
    assert "at 65536 it is 65537" in grows.measured
    shrinks = UnitIndex().properties().alike
    # a step is 1/31 of the way in 32 tokens and 1/1023 in 1024
    assert shrinks.number == pytest.approx(1 - 31 / 1023)


def test_alibi_grows_by_its_steepest_slope() -> None:
    bounded = ALiBi(8).properties().bounded
    assert (bounded.verdict, bounded.number) == ("no", 2**19)
    assert "at distance 1048576; at 65536 it is 32768" in bounded.measured


def test_the_smallest_difference_of_codes_is_measured() -> None:
    encoding = Sinusoidal(8)
    pe = encoding.embed(torch.zeros(1, 1024, 8, dtype=torch.float64))[0]
    assert encoding.properties().distinct.number == pytest.approx(torch.pdist(pe).min().item() / 2)


def test_a_table_with_a_row_twice_is_seen() -> None:
    table = torch.randn(8, 4)
    table[6] = table[2]
    distinct = Learned(8, 4, initial=table).properties().distinct
    assert (distinct.verdict, distinct.number) == ("no", 0)


def test_a_table_of_two_rows_is_measured() -> None:
    assert Learned(2, 2, initial=torch.eye(2)).properties().distinct.verdict == "yes"


def test_a_table_of_sinusoids_meets_what_sinusoids_meet() -> None:
    """The verdict is on the numbers in the table, not on the class."""
    table = Sinusoidal(32).embed(torch.zeros(1, 256, 32))[0]
    assert [row.verdict for row in Learned(256, 32, initial=table).properties()] == ["yes"] * 4


class Bias(PositionEncoding):
    """A user's own: what it adds to the scores is given."""

    def __init__(self, *terms: Term, zero: bool = False) -> None:
        super().__init__()
        self.given = terms

    def terms(
        self,
        q_coordinates: Coordinates,
        k_coordinates: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> tuple[Term, ...]:
        return self.given


class Absolute(Bias):
    """A bias that reads only the place of the key."""

    def terms(
        self,
        q_coordinates: Coordinates,
        k_coordinates: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> tuple[Term, ...]:
        place = k_coordinates.axis().double()
        return (DenseBias((place / (1 + place))[:, None, None, :]),)


class Zero(PositionEncoding):
    """A bias whose table starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, 9))

    def terms(
        self,
        q_coordinates: Coordinates,
        k_coordinates: Coordinates,
        q_input: Tensor | None = None,
        k_input: Tensor | None = None,
    ) -> tuple[Term, ...]:
        return (DistanceBias(Rows(self.table, Clip(-4, 4))),)


class Growing(PositionEncoding):
    """A query that grows with its position."""

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        return q * (1 + coordinates.axis()[:, None, :, None])


class Halved(PositionEncoding):
    """Positions at half the distance, which nothing reads."""

    def locate(self, coordinates: Coordinates) -> Coordinates:
        return replace(coordinates, position=coordinates.position / 2)


FOUR = torch.full((4,), 0.3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (Bias(DistanceBias(Log(FOUR, FOUR))), ("not its job", "yes", "yes", "no")),
        (Bias(RelativeValues(Rows(torch.randn(1, 9, 16).double(), Clip(-4, 4)))), RELATIVE),
        (Bias(RelativeQueries(Rows(torch.randn(1, 9, 16).double(), Clip(-4, 4)))), RELATIVE),
        (Bias(QueryScale(torch.full((1, 1, 1), 2.0, dtype=torch.float64))), ("not its job", "no", "yes", "yes")),
        (Absolute(), ("yes", "no", "no", "yes")),
        (Zero(), RELATIVE),
        (Halved(), ("no", "no", "not its job", "yes")),
    ],
    ids=["log", "values", "queries", "temperature", "absolute", "zero", "halved"],
)
def test_a_users_own(encoding: PositionEncoding, expected: tuple[str, ...]) -> None:
    assert tuple(row.verdict for row in encoding.properties()) == expected


def test_what_changes_only_late_in_a_long_text_is_seen() -> None:
    class Late(Bias):
        def terms(self, *coordinates: Coordinates | Tensor | None) -> tuple[Term, ...]:  # type: ignore[override]
            at = [c.axis().double() for c in coordinates if isinstance(c, Coordinates)]
            return (DenseBias((at[0][:, None, :, None] - at[1][:, None, None, :]) * (1 + (at[0].max() > 500))),)

    assert Late().properties().alike.verdict == "no"


@pytest.mark.parametrize("factor", [2.0, 1 / 3, 0.1, 7.3])
def test_rounding_alone_tells_no_distance(factor: float) -> None:
    """One factor for all pairs: they differ by rounding, which does not depend on the distance."""
    distance = Bias(QueryScale(torch.full((1, 1, 1), factor, dtype=torch.float64))).properties().distance
    assert (distance.verdict, distance.number) == ("no", 0)


@pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if kind.causal_only])
def test_the_last_query_alone_sees_all_keys(name: str) -> None:
    """What is measured of one query behind its keys is the formula's, where no query looks at later keys too."""
    encoding = randomized(
        ENCODINGS[name].examples()[0], torch.Generator().manual_seed(0), torch.float64
    ).requires_grad_(False)
    sizes = CheckSizes.of(encoding)
    heads, head_dim = sizes.heads, sizes.head_dim
    q, k = torch.randn(2, heads, 6, head_dim, dtype=torch.float64)
    x = torch.randn(6, sizes.embed_dim, dtype=torch.float64)
    at = on_axes(Coordinates.span(6), encoding.axes)
    found = Pairs(encoding, q[:, 5:], k, at.rows(5, 6), at, x[None, 5:], x[None]).scores()
    scale = encoding.default_scale(head_dim)
    expected = [[encoding.oracle(Pair(h, 5, j, q, k, x, at, scale)) for j in range(6)] for h in range(heads)]
    torch.testing.assert_close(found[:, 0], torch.tensor(expected, dtype=torch.float64))


def test_prepared_queries_that_grow_are_seen() -> None:
    properties = Growing().properties()
    assert (properties.alike.verdict, properties.bounded.verdict) == ("no", "no")
    assert properties.bounded.number == pytest.approx(2**20 + 1)


def test_measuring_leaves_everything_as_it_was() -> None:
    encoding = Zero()
    encoding.train()
    state = torch.random.get_rng_state()
    first = encoding.properties()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not encoding.table.any()
    assert encoding.table.dtype == torch.float32
    assert encoding.training
    assert encoding.properties() == first


def test_it_prints_as_a_table_and_reads_by_name() -> None:
    properties = Sinusoidal(32).properties()
    assert isinstance(properties, Properties)
    assert [row.demand for row in properties] == [
        properties.distinct.demand,
        properties.distance.demand,
        properties.alike.demand,
        properties.bounded.demand,
    ]
    title, *lines = str(properties).split("\n")
    assert title == "Sinusoidal(embed_dim=32, base=10000.0, variant='paper', axes=1)"
    assert len(lines) == 4
    for line, row in zip(lines, properties, strict=True):
        assert row.demand in line
        assert f" {row.verdict} " in line
        assert row.measured in line


def test_what_reads_the_input_is_measured_for_equal_tokens_and_says_so() -> None:
    gate = encoding("forgetting", num_heads=2, head_dim=4, embed_dim=8).properties().alike
    assert "for equal tokens" in gate.measured
    assert "equal tokens" not in Sinusoidal(32).properties().alike.measured
