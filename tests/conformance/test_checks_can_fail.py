"""Each check fails on something that is broken in just its way: a check that cannot fail checks nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from headway.coordinates import Coordinates, Placed
from headway.kernels import KERNELS, Call, ReferenceKernel
from headway.kernels import reference as spec
from headway.positions import T5, ALiBi, NoPE, PositionEncoding, RoPE, RotaryValues, Sinusoidal
from headway.terms import DistanceBias, Linear, Rotation, ScoreMap, Sink, Term, TokenBias
from headway.testing import ENCODING_CHECKS, check_encoding
from headway.testing import kernels as kernel_checks


class Undocumented(NoPE):
    pass


Undocumented.__doc__ = None


class SteeperThanItsFormula(ALiBi):
    """A bias one per cent too steep."""

    def terms(self, *arguments: Any) -> tuple[Term, ...]:
        (term,) = super().terms(*arguments)
        assert isinstance(term, DistanceBias)
        assert isinstance(term.values, Linear)
        return (DistanceBias(Linear(1.01 * term.values.past, 1.01 * term.values.future)),)


class DoesNothing(PositionEncoding):
    """Claims to speak terms and speaks none."""

    def terms(self, *arguments: Any) -> tuple[Term, ...]:
        return ()


class AnglesInTheDtypeOfX(RoPE):
    """Reads positions in the dtype of queries and keys."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        rounded = coordinates.position.to(x.dtype).double()
        return super().prepare(x, self.place(replace(coordinates.facts(), position=rounded)))


class EmbedsInHalf(Sinusoidal):
    """Reads positions in the dtype of the embeddings."""

    def embed(self, x: Tensor, coordinates: Any = None) -> Tensor:
        where = self.coordinates_for(x, coordinates)
        rounded = replace(where.facts(), position=where.position.to(x.dtype).double())
        return super().embed(x, rounded)


class LosesAGradient(T5):
    """Its table is detached."""

    def terms(self, *arguments: Any) -> tuple[Term, ...]:
        return tuple(spec.cast(term, torch.float64) for term in _detached(super().terms(*arguments)))


def _detached(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    (term,) = terms
    assert isinstance(term, DistanceBias)
    return (replace(term, values=replace(term.values, table=term.values.table.detach())),)  # type: ignore[union-attr]


class CountsSlots(RoPE):
    """Turns by the square of the slot in this call and not by the position."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return super().prepare(x, self.place(Coordinates.of(torch.arange(x.shape[2]) ** 2, x.shape[2])))


class ReadsTheIndex(RoPE):
    """Turns by the order in the stream and not by the position."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        moved = replace(coordinates.facts(), position=3 * coordinates.index[..., None] ** 2)
        return super().prepare(x, self.place(moved))


class SeesTheFuture(PositionEncoding):
    """A bias by the sum of all tokens there are."""

    def terms(self, q: Coordinates, k: Coordinates, q_input: Any = None, k_input: Any = None) -> tuple[Term, ...]:
        return (TokenBias(keys=k_input.sum((1, 2))[:, None, None] * torch.arange(k_input.shape[1])),)


class DividesByNothing(PositionEncoding):
    """Divides by the number of keys in sight, which may be none."""

    def terms(self, *arguments: Any) -> tuple[Term, ...]:
        return (ScoreMap(lambda scores, allowed, q, rows: scores / allowed.sum(-1, keepdim=True)),)


class KeepsItToItself(ALiBi):
    """Slopes drawn for each instance, which no state_dict holds."""

    def terms(self, *arguments: Any) -> tuple[Term, ...]:
        if not hasattr(self, "drawn"):
            self.drawn = torch.rand(self.num_heads, dtype=torch.float64)
        return (DistanceBias(Linear(self.drawn, self.drawn)),)


class CachesByLength(ALiBi):
    """A bias cached for all instances under the number of keys alone."""

    cache: ClassVar[dict[int, Tensor]] = {}

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.slope = nn.Parameter(torch.rand(num_heads))

    def terms(self, q: Coordinates, k: Coordinates, *inputs: Any) -> tuple[Term, ...]:
        slope = self.cache.get(0, self.slope)
        self.cache[0] = self.slope
        return (DistanceBias(Linear(slope, slope)),)


class LooksAtValues(RoPE):
    """Branches on the values of positions."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        return super().prepare(x, coordinates) if coordinates.position.max().item() >= 0 else x


class TellsLengthsApart(RoPE):
    """Another graph for even lengths than for odd ones."""

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        turned = super().prepare(x, coordinates)
        return turned if x.shape[2] % 2 else turned.clone()


class RemembersTheLength(RoPE):
    """Another graph after each length, by a number that it keeps."""

    last = 0

    def prepare(self, x: Tensor, coordinates: Coordinates) -> Tensor:
        longer, self.last = x.shape[2] > self.last, x.shape[2]
        return super().prepare(x if longer else x.clone(), coordinates)


class TakesAnothersPlaces(RoPE):
    """Takes what another has located for its own."""

    def place(self, coordinates: Coordinates) -> Coordinates:
        own = (
            coordinates.placed_by(self)
            if isinstance(coordinates, Placed) and coordinates.tables is None
            else coordinates
        )
        return super().place(own)


class KeepsWhatIsLearned(RoPE):
    """Its tables hold a learned number, without its gradient, which nobody would notice."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.speed = nn.Parameter(torch.ones(()))

    def frequencies(self, coordinates: Coordinates) -> Tensor:
        return super().frequencies(coordinates) * self.speed.detach().double()


class WritesPastTheCounter(ALiBi):
    """Moves the positions it is given in place, where no version counter sees it."""

    def locate(self, coordinates: Coordinates) -> Coordinates:
        coordinates.position.data.add_(3)
        return coordinates


class Counts(PositionEncoding):
    """A function that gives more each time it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def terms(self, *arguments: Any) -> tuple[Term, ...]:
        return (ScoreMap(self.grown),)

    def grown(self, scores: Tensor, allowed: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        self.runs += 1
        return scores * self.runs


class ThreeDemands(NoPE):
    """Measures one demand too few."""

    def properties(self) -> Any:
        return list(super().properties())[:3]


BROKEN_ENCODINGS: dict[str, PositionEncoding] = {
    "is_documented": Undocumented(),
    "reads_only_what_it_declares": SeesTheFuture(),
    "matches_its_formula": SteeperThanItsFormula(4),
    "changes_the_output": DoesNothing(),
    "keeps_the_promise_in_every_dtype": AnglesInTheDtypeOfX(8),
    "embeds_far_away_as_near": EmbedsInHalf(32),
    "every_gradient_is_there": LosesAGradient(4),
    "decoding_equals_a_full_pass": CountsSlots(8),
    "packed_equals_separate": ReadsTheIndex(8),
    "padded_equals_unpadded": CountsSlots(8),
    "the_future_leaves_the_past": SeesTheFuture(),
    "rows_without_keys_are_zero": DividesByNothing(),
    "survives_saving": KeepsItToItself(4),
    "instances_share_nothing": CachesByLength(4),
    "places_anew_what_another_placed": TakesAnothersPlaces(8),
    "tables_are_of_coordinates_alone": KeepsWhatIsLearned(8),
    "writes_into_nothing_it_is_given": WritesPastTheCounter(4),
    "computes_the_same_twice": Counts(),
    "compiles_as_one_graph": LooksAtValues(8),
    "measures_its_properties": ThreeDemands(),
}


class LeavesTheOutputTurned(RotaryValues):
    """Turns the output back by another place than the query's."""

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return super().restore_output(
            out, self.place(replace(coordinates.as_given(), position=coordinates.position + 1))
        )


class RoundsItsPlaces(RotaryValues):
    """Reads positions in the dtype of the values."""

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        given = coordinates.as_given()
        return super().prepare_value(v, self.place(replace(given, position=given.position.to(v.dtype).double())))


class TurnsValuesBySlot(RotaryValues):
    """Turns values by the square of the slot in this call and not by the position."""

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return super().prepare_value(v, self.place(Coordinates.of(torch.arange(v.shape[2]) ** 2, v.shape[2])))


class WritesIntoTheOutput(RotaryValues):
    """Turns the output back in its own memory, where no version counter sees it."""

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        out.data.copy_(super().restore_output(out.detach(), coordinates))
        return out


class ForgetsTheSide(RotaryValues):
    """Says of values and of the output the same rotation, where its hooks do otherwise."""

    def rotation(self, side: str, x: Tensor, coordinates: Coordinates) -> Rotation | None:
        return super().rotation("value" if side == "output" else side, x, coordinates)

    def prepare_value(self, v: Tensor, coordinates: Coordinates) -> Tensor:
        return RotaryValues(8).prepare_value(v, coordinates)

    def restore_output(self, out: Tensor, coordinates: Coordinates) -> Tensor:
        return RotaryValues(8).restore_output(out, coordinates)


BROKEN_VALUES: dict[str, PositionEncoding] = {
    "matches_its_formula": LeavesTheOutputTurned(8),
    "keeps_the_promise_in_every_dtype": RoundsItsPlaces(8),
    "decoding_equals_a_full_pass": TurnsValuesBySlot(8),
    "padded_equals_unpadded": TurnsValuesBySlot(8),
    "writes_into_nothing_it_is_given": WritesIntoTheOutput(8),
}
BY_PATCH = {"trains_with_dropout", "says_where_it_acts"}


def test_every_check_is_broken_once() -> None:
    assert set(BROKEN_ENCODINGS) | BY_PATCH == set(ENCODING_CHECKS)


@pytest.mark.parametrize("check", BROKEN_ENCODINGS)
def test_check_fails_on_a_broken_encoding(check: str) -> None:
    # the compiler wraps what goes wrong inside a graph in an error of its own
    wrong = (AssertionError, torch._dynamo.exc.TorchDynamoException)
    with pytest.raises(wrong):
        ENCODING_CHECKS[check](BROKEN_ENCODINGS[check])


@pytest.mark.slow
@pytest.mark.parametrize("broken", [TellsLengthsApart, RemembersTheLength])
def test_compile_check_fails_where_lengths_have_graphs_of_their_own(broken: type[RoPE]) -> None:
    with pytest.raises((AssertionError, torch._dynamo.exc.TorchDynamoException)) as raised:
        ENCODING_CHECKS["compiles_as_one_graph"](broken(8))
    assert re.search("graphs over 4 lengths|not all values of .* are valid", str(raised.value))


def test_check_fails_on_a_rotation_that_is_not_what_the_hooks_do() -> None:
    with pytest.raises(AssertionError):
        ENCODING_CHECKS["matches_its_formula"](ForgetsTheSide(8))


@pytest.mark.parametrize("check", BROKEN_VALUES)
def test_check_fails_on_broken_values(check: str) -> None:
    with pytest.raises(AssertionError):
        ENCODING_CHECKS[check](BROKEN_VALUES[check])


def test_check_encoding_names_the_check() -> None:
    with pytest.raises(
        AssertionError,
        match="SteeperThanItsFormula fails matches_its_formula: output on sdpa, against the oracle: off by",
    ):
        check_encoding(SteeperThanItsFormula(4))


def test_dropout_check_fails_where_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "dropped", lambda block, weights: weights)
    with pytest.raises(AssertionError, match="dropout changes nothing"):
        ENCODING_CHECKS["trains_with_dropout"](RoPE(8))


@pytest.mark.parametrize("shared", ["rows", "calls"])
def test_dropout_check_fails_where_draws_are_shared(monkeypatch: pytest.MonkeyPatch, shared: str) -> None:
    dropped = spec.dropped

    def fewer(block: spec.QueryBlock, weights: Tensor) -> Tensor:
        if shared == "rows":
            return weights * dropped(block, torch.ones_like(weights[:1]))
        block.call = replace(block.call, seed=1)
        return dropped(block, weights)

    monkeypatch.setattr(spec, "dropped", fewer)
    with pytest.raises(AssertionError, match="the mean under dropout is off"):
        ENCODING_CHECKS["trains_with_dropout"](RoPE(8))


def test_embed_check_fails_where_attention_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.testing.encodings.attention", lambda *arguments, **named: None)
    with pytest.raises(AssertionError, match="took an encoding that acts on embeddings alone"):
        ENCODING_CHECKS["says_where_it_acts"](Sinusoidal(32))


# ---------------------------------------------------------------- kernels


class BrokenKernel(ReferenceKernel):
    """The reference kernel with one thing changed: the call before it, or the results after it."""

    def before(self, call: Call) -> Call:
        return call

    def after(self, out: Tensor) -> Tensor:
        return out

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        out, lse = super().run(self.before(call))
        return self.after(out), None if lse is None else self.after(lse)


class SlightlyOff(BrokenKernel):
    name = "slightly_off"

    def after(self, out: Tensor) -> Tensor:
        return out + 3e-6 * torch.sign(out)


class LosesTheGradientOfV(BrokenKernel):
    name = "loses_the_gradient_of_v"

    def before(self, call: Call) -> Call:
        return replace(call, v=call.v.detach())


class ScalesTheGradientOfK(BrokenKernel):
    name = "scales_the_gradient_of_k"

    def before(self, call: Call) -> Call:
        return replace(call, k=1.0001 * call.k - 0.0001 * call.k.detach())


class LeavesOutTheSink(BrokenKernel):
    name = "leaves_out_the_sink"

    def before(self, call: Call) -> Call:
        return replace(call, terms=tuple(term for term in call.terms if not isinstance(term, Sink)))


class OneSinkForAllQueries(BrokenKernel):
    name = "one_sink_for_all_queries"

    def before(self, call: Call) -> Call:
        return replace(call, terms=tuple(Sink(term.by_query[..., :1]) for term in call.terms))


class RoundsToHalf(BrokenKernel):
    name = "rounds_to_half"

    def before(self, call: Call) -> Call:
        return replace(call, terms=spec.cast(call.terms, torch.bfloat16))

    def after(self, out: Tensor) -> Tensor:
        return out.bfloat16().to(out.dtype)


class ForgetsTheMask(BrokenKernel):
    name = "forgets_the_mask"

    def before(self, call: Call) -> Call:
        return replace(call, mask=None)


class OneWrongRow(BrokenKernel):
    name = "one_wrong_row"

    def after(self, out: Tensor) -> Tensor:
        wrong = torch.zeros_like(out)
        wrong[0, 0, 0] = 1e-4
        return out + wrong


@pytest.mark.parametrize(
    ("kernel", "term", "crossing"),
    [
        (SlightlyOff(), "none", "alone"),
        (LosesTheGradientOfV(), "none", "alone"),
        (ScalesTheGradientOfK(), "relative keys", "cap"),
        (LeavesOutTheSink(), "token bias", "sink"),
        (OneSinkForAllQueries(), "sink by query", "alone"),
        (RoundsToHalf(), "dense bias", "log-sum-exp"),
        (ForgetsTheMask(), "none", "alone"),
        (OneWrongRow(), "none", "alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_promise_fails_on_a_broken_kernel(
    monkeypatch: pytest.MonkeyPatch, kernel: BrokenKernel, term: str, crossing: str
) -> None:
    monkeypatch.setitem(KERNELS, "broken", kernel)
    with pytest.raises((AssertionError, RuntimeError)):
        kernel_checks.keeps_the_promise("broken", term, crossing)


@pytest.mark.parametrize("mask", [name for name in kernel_checks.mask_names() if name != "none"])
def test_every_mask_check_fails_without_the_mask(monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    monkeypatch.setitem(KERNELS, "broken", ForgetsTheMask())
    with pytest.raises(AssertionError):
        kernel_checks.obeys_the_mask("broken", mask)


def test_mask_check_fails_where_nan_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec.QueryBlock, "seen", lambda self, keys: keys)
    with pytest.raises(AssertionError, match="not finite"):
        kernel_checks.obeys_the_mask("reference", "holes")
