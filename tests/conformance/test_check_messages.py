"""What check_encoding says of a mistake leads to it: the check, the line, the sizes, the operation."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions import ALiBi, Pair, PositionEncoding, RoPE
from headway.terms import Clip, DistanceBias, Linear, Log, Rows, Term, TokenBias
from headway.testing import ENCODING_CHECKS, check_encoding
from headway.testing._checks import run_checks


class WithoutAnOracle(PositionEncoding):
    """A bias without its formula."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(num_heads, 9))

    def terms(self, *_: Any) -> tuple[Term, ...]:
        return (DistanceBias(Rows(self.table, Clip(-4, 4))),)


class EmbedsWithoutAnOracle(PositionEncoding):
    """Something added to embeddings, without its formula."""

    def embed(self, x: Tensor, coordinates: Any = None) -> Tensor:
        return x + self.coordinates_for(x, coordinates).axis()[..., None].to(x.dtype)


class OtherNames(WithoutAnOracle):
    """Its number of heads has another name."""

    def __init__(self, count: int) -> None:
        PositionEncoding.__init__(self)
        self.table = nn.Parameter(torch.zeros(count, 9))

    def oracle(self, pair: Pair) -> float:
        return 0.0


class TakesAllQueries(WithoutAnOracle):
    """Its oracle returns more than one score."""

    def oracle(self, pair: Pair) -> Any:
        return (pair.queries * pair.keys).sum(-1)


class Gate(PositionEncoding):
    """A bias of keys from the layer's input, which it does not declare."""

    def __init__(self, num_heads: int, embed_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(embed_dim, num_heads)

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Any = None, k_input: Any = None) -> tuple[Term, ...]:
        return (TokenBias(keys=self.gate(k_input).transpose(1, 2)),)

    def oracle(self, pair: Pair) -> float:
        assert pair.x is not None
        return pair.scale * pair.dot + self.gate(pair.x[pair.j])[pair.h].item()


class GateIfGiven(Gate):
    """The same, silent without the input."""

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Any = None, k_input: Any = None) -> tuple[Term, ...]:
        return () if k_input is None else super().terms(q_at, k_at, q_input, k_input)


class DeclaredGate(Gate):
    """The same, declared."""

    reads_input = True


class WrongShape(PositionEncoding):
    """Multiplies by a row of three numbers."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return x * torch.ones(3, dtype=x.dtype)

    def oracle(self, pair: Pair) -> float:
        return 0.0


class Rotary(PositionEncoding):
    """Learned frequencies for each head; ``angle`` computes in the dtype of x."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.ones(num_heads, head_dim // 2))

    def angle(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return coordinates.axis().to(x.dtype)[:, None, :, None] * self.frequency[:, None]

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        angle = self.angle(x, coordinates)
        turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angle, dtype=torch.float64), angle.double()
        )
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)

    def oracle(self, pair: Pair) -> float:
        score = 0.0
        for c, frequency in enumerate(self.frequency[pair.h].tolist()):
            (a, b), (d, e) = pair.query[2 * c : 2 * c + 2].tolist(), pair.key[2 * c : 2 * c + 2].tolist()
            turn = pair.distance * frequency
            score += (a * d + b * e) * math.cos(turn) + (b * d - a * e) * math.sin(turn)
        return pair.scale * score


class AnglesInFloat32(Rotary):
    """Its angles are float32 in every dtype."""

    def angle(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return coordinates.axis().float()[:, None, :, None] * self.frequency[:, None].float()


class AnglesInFloat64(Rotary):
    """Its angles are float64 in every dtype."""

    def angle(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return coordinates.axis().double()[:, None, :, None] * self.frequency[:, None].double()


class Falls(PositionEncoding):
    """A bias that falls with the logarithm of the distance, with its formula."""

    def __init__(self, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.weight = nn.Parameter(torch.ones(num_heads))

    @property
    def log(self) -> Log:
        return Log(self.weight, torch.ones_like(self.weight))

    def terms(self, *_: Any) -> Any:
        return (DistanceBias(self.log),)

    def oracle(self, pair: Pair) -> float:
        return pair.scale * pair.dot - self.weight[pair.h].item() * math.log1p(abs(pair.distance))


class Rises(Falls):
    """Its formula has the other sign; keys before a query differ a little more, so that one pair differs the most."""

    def oracle(self, pair: Pair) -> float:
        return 2 * pair.scale * pair.dot - super().oracle(pair) - 1e-3 * pair.distance


class OracleReturnsNothing(Falls):
    """Its oracle computes and does not return."""

    def oracle(self, pair: Pair) -> Any:
        super().oracle(pair)


class HalfWidth(Falls):
    """Drops half of the dimensions, which its formula does not."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return x[..., : x.shape[-1] // 2]


class OtherWidthOfKeys(Falls):
    """Drops half of the dimensions of only the queries."""

    def prepare_query(self, q: Tensor, coordinates: Coordinates) -> Tensor:
        return q[..., : q.shape[-1] // 2]


class PrepareReturnsNothing(Falls):
    """Its prepare computes and does not return."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Any:
        x * 2


class LocatesNothing(Falls):
    """Its locate computes and does not return."""

    def locate(self, coordinates: Coordinates) -> Any:
        replace(coordinates, position=2 * coordinates.position)


class EmbedsNothing(EmbedsWithoutAnOracle):
    """Its embed computes and does not return."""

    def embed(self, x: Tensor, coordinates: Any = None) -> Any:
        x + 1

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return x + 1


class OracleEmbedsNothing(EmbedsWithoutAnOracle):
    """Its oracle_embed computes and does not return."""

    def oracle_embed(self, x: Tensor, coordinates: Coordinates) -> Any:
        x + 1


class Opens(Falls):
    """Opens a file, which no compiler traces."""

    def terms(self, *_: Any) -> Any:
        with open(__file__, encoding="utf-8"):
            return super().terms()


class UndocumentedAndWrong(Rises):
    pass


def returning(result: Any) -> PositionEncoding:
    """An encoding whose ``terms`` returns what a function of it returns."""

    class Returning(Falls):
        """Returns another thing than a tuple of terms."""

        def terms(self, *_: Any) -> Any:
            return result(self)

    return Returning()


def line(method: Any, number: int = 1) -> str:
    lines, start = inspect.getsourcelines(method)
    return f"test_check_messages.py:{start + number}: {lines[number].strip()}"


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (WithoutAnOracle(4), ["fails matches_its_formula: it has no oracle", "def oracle(self, pair)", "terms"]),
        (EmbedsWithoutAnOracle(), ["it has no oracle_embed", "def oracle_embed(self, x, coordinates)"]),
        (
            OtherNames(6),
            [
                "give [1 or 4, 9]",
                "embed_dim=32; it has no num_heads or head_dim or embed_dim, so this is a guess",
            ],
        ),
        (TakesAllQueries(4), ["oracle returns a tensor of shape (4, 7)", "pair.query and pair.key"]),
        (Gate(4, 32), ["fails reads_only_what_it_declares", "reads_input = True", line(Gate.terms)]),
        (GateIfGiven(4, 32), ["q_input and k_input change the output", "reads_input = True"]),
        (WrongShape(), ["matches_its_formula: RuntimeError", line(WrongShape.prepare), "num_heads=4, head_dim=8"]),
        (Rises(), ["off by ", "at head ", "query 6, key 0 (distance -6): -", " by oracle"]),
        (OracleReturnsNothing(), ["oracle returns None: return the score of the pair"]),
        (returning(lambda own: DistanceBias(own.log)), ["returns a DistanceBias", "such as (DistanceBias(…),)"]),
        (returning(lambda own: own.log), ["returns a Log", "such as (DistanceBias(Log(…)),)"]),
        (returning(lambda own: own.weight), ["returns a Parameter", "such as (DenseBias(tensor),)"]),
        (returning(lambda own: None), ["terms returns None: return a tuple", "such as (DistanceBias(…),)"]),
        (returning(lambda own: (own.log,)), ["terms hold a Log: wrap it: DistanceBias(Log(…))"]),
        (returning(lambda own: (own.weight,)), ["terms hold a Parameter: wrap it: DenseBias(tensor)"]),
        (returning(lambda own: (DistanceBias(own.weight),)), ["holds a Parameter", "is DenseBias(tensor)"]),
        (returning(lambda own: (DistanceBias(Linear(0.5, 1)),)), ["past=0.5: give a tensor, such as torch.tensor([0."]),
        (HalfWidth(), ["off by ", "by oracle", "prepare makes queries and keys 4 wide of 8"]),
        (OtherWidthOfKeys(), ["the prepared q is 4 wide and k 8: prepare both to one width"]),
        (PrepareReturnsNothing(), ["prepare returns None for the query of shape (1, 4, 6, 8): return a tensor"]),
        (LocatesNothing(), ["locate returns None: return dataclasses.replace(coordinates, position=…)"]),
        (EmbedsNothing(), ["embed returns None: return x + …"]),
        (OracleEmbedsNothing(), ["oracle_embed returns None: return x + …"]),
        (UndocumentedAndWrong(), ["fails matches_its_formula"]),
        (AnglesInFloat32(4, 8), ["fails matches_its_formula", "mul at " + line(AnglesInFloat32.angle), "float64"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PositionEncoding) else "",
)
def test_a_message_leads_to_the_mistake(encoding: PositionEncoding, said: list[str]) -> None:
    with pytest.raises(AssertionError) as raised:
        check_encoding(encoding)
    for part in said:
        assert part in str(raised.value)


def test_what_a_compiler_does_not_trace_is_explained() -> None:
    with pytest.raises(AssertionError) as raised:
        run_checks("Opens", {"compiles": ENCODING_CHECKS["compiles_as_one_graph"]}, Opens())
    assert "Dynamo does not know how to trace" in str(raised.value)
    assert line(Opens.terms) in str(raised.value)


@pytest.mark.parametrize(
    ("hook", "wanted"),
    [
        ("terms", "write def terms(self, q_at, k_at, q_input=None, k_input=None)"),
        ("prepare", "write def prepare(self, x, coordinates)"),
        ("embed", "write def embed(self, x, coordinates=None)"),
        ("oracle", "write def oracle(self, pair)"),
        ("oracle_value", "write def oracle_value(self, pair, v)"),
    ],
)
def test_a_hook_with_other_arguments_is_refused_where_its_class_is_defined(hook: str, wanted: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(f"Own.{hook} takes (self, q_at, k_at, x): {wanted}")):
        type("Own", (PositionEncoding,), {hook: lambda self, q_at, k_at, x: None})


@pytest.mark.parametrize("sizes", [(4, 8), (8, 32)])
def test_a_failure_of_precision_names_the_operation_that_rounds(sizes: tuple[int, int]) -> None:
    with pytest.raises(AssertionError) as raised:
        ENCODING_CHECKS["keeps_the_promise_in_every_dtype"](Rotary(*sizes))
    assert "mul at " + line(Rotary.angle) in str(raised.value)
    ENCODING_CHECKS["matches_its_formula"](Rotary(*sizes))


def test_an_operation_of_headways_own_is_named_too() -> None:
    class Half(RoPE):
        """Turns in the dtype of x, by its base class."""

        def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
            rounded = coordinates.position.to(x.dtype).double()
            return super().prepare(x, self.place(replace(coordinates.facts(), position=rounded))) * 1.01

    with pytest.raises(AssertionError, match=r"in torch\.(float32|bfloat16).*mul at test_check_messages.py"):
        ENCODING_CHECKS["keeps_the_promise_in_every_dtype"](Half(8))


def test_what_is_right_passes() -> None:
    for check in ("reads_only_what_it_declares", "matches_its_formula", "keeps_the_promise_in_every_dtype"):
        ENCODING_CHECKS[check](DeclaredGate(4, 32))
        ENCODING_CHECKS[check](AnglesInFloat64(4, 8))


def test_a_pair_has_the_rows_of_its_query_and_key() -> None:
    q, k = torch.randn(2, 3, 5, 8).double()
    pair = Pair(1, 2, 3, q, k, None, Coordinates.span(5), 1.0)
    assert torch.equal(pair.query, q[1, 2])
    assert torch.equal(pair.key, k[1, 3])


@pytest.mark.parametrize(
    ("given", "said"), [(ALiBi, r"ALiBi\(num_heads=8\)"), ("rope", r"encoding is 'rope': give an")]
)
def test_what_is_no_encoding_is_refused(given: Any, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        check_encoding(given)
