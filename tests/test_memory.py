"""Memory grows with n and not with n², in training too: every allocation counted, forward and backward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.attention import Explanation
from headway.coordinates import KEPT
from headway.kernels import reference
from headway.positions import ENCODINGS, PositionEncoding
from headway.positions._base import IN_ATTENTION
from headway.testing.inputs import CheckSizes

MIB = 1 << 20
WIDTH = 16


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that ``run`` held at once beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        run()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def qkv(n: int, *, heads: int = 1, kv_heads: int = 1, v_dim: int = WIDTH) -> list[Tensor]:
    shapes = ((1, heads, n, WIDTH), (1, kv_heads, n, WIDTH), (1, kv_heads, n, v_dim))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def t5_like(heads: int = 1) -> T.DistanceBias:
    """32 learned rows for distances, in growing steps."""
    steps = torch.cat([torch.arange(-16.0, 1), -torch.logspace(1.3, 2.1, 14).flip(0)]).sort().values
    return T.DistanceBias(T.Rows(torch.randn(heads, 32, requires_grad=True), T.Bucketize(steps)))


def training(n: int, sizes: dict[str, int] | None = None, **arguments: Any) -> Callable[[], None]:
    inputs = qkv(n, **(sizes or {}))

    def run() -> None:
        hw.attention(*inputs, **arguments).sum().backward()

    return run


def test_the_meter_sees_what_is_held() -> None:
    """The naive computation holds n² scores: the meter counts them."""
    n = 1024
    q, k, v = qkv(n)

    def naive() -> None:
        ((q @ k.mT).softmax(-1) @ v).sum().backward()

    assert 2 * n * n * 4 <= peak_bytes(naive) <= 4 * n * n * 4
    assert peak_bytes(lambda: torch.empty(MIB)) == 4 * MIB
    assert peak_bytes(lambda: [torch.empty(MIB) for _ in range(3)]) == 12 * MIB


@pytest.mark.slow
def test_a_learned_bias_trains_in_memory_that_grows_with_n(monkeypatch: pytest.MonkeyPatch) -> None:
    """n = 1k … 8k with the gradient of a T5-like bias: no more than linear, and far below one n×m of scores."""
    monkeypatch.setattr(reference, "BLOCK", 1 << 19)
    peaks = {}
    for n in (1024, 2048, 4096, 8192):
        bias = t5_like()
        peaks[n] = peak_bytes(training(n, terms=(bias,), mask=M.Causal(), kernel="reference"))
        assert bias.values.table.grad.abs().max() > 0
    # a block needs the same whatever n is; on top come q, k, v, the output and the gradients, and nothing else
    for n in (1024, 2048, 4096):
        assert peaks[2 * n] - peaks[n] < n * 8 * WIDTH * 4 + MIB / 4, peaks
    assert peaks[8192] < 8192 * 8192 * 4 / 10, peaks


RELATIVE = T.Rows(torch.randn(1, 33, WIDTH, requires_grad=True), T.Clip(-16, 16))
TERMS: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.1},
    "relative": {"terms": (T.RelativeKeys(RELATIVE), T.RelativeValues(RELATIVE))},
    "documents": {"mask": M.Causal() & M.Documents.lengths([1000, 48, 1000])},
    "sink and cap": {"sink": torch.zeros(2, requires_grad=True), "soft_cap": 20.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TERMS)
def test_training_stays_far_below_the_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, heads = 2048, 2
    monkeypatch.setattr(reference, "BLOCK", 1 << 18)
    run = training(n, {"heads": heads}, kernel="reference", **TERMS[name])
    assert peak_bytes(run) < heads * n * n * 4 / 2


def test_the_usual_block_is_small() -> None:
    """As it is set, one block of rows with everything that its gradient holds takes less than 256 MiB."""
    assert peak_bytes(training(2048, {"heads": 4}, terms=(t5_like(4),), kernel="reference")) < 256 * MIB


@pytest.mark.parametrize(
    "sizes", [{}, {"heads": 4, "kv_heads": 2}, {"v_dim": 8}, {"v_dim": 24}], ids=["alike", "grouped", "narrow", "wide"]
)
@pytest.mark.parametrize("mask", [None, M.Causal()])
def test_sdpa_is_handed_what_it_fuses(sizes: dict[str, int], mask: M.Mask | None) -> None:
    """Where torch fell back to its unfused way, it would hold n² scores for each head."""
    n = 2048
    assert peak_bytes(training(n, sizes, mask=mask, kernel="sdpa")) < sizes.get("heads", 1) * n * n * 4 / 4


def test_sdpa_with_a_mask_holds_one_mask_and_no_scores() -> None:
    n, heads = 1024, 8
    peak = peak_bytes(training(n, {"heads": heads}, mask=M.Causal() & M.Window(100), kernel="sdpa"))
    assert peak < heads * n * n * 4 / 2


# ---------------------------------------------------------------- explaining


def explained(encoding: PositionEncoding | None, n: int, m: int) -> Explanation:
    """What is said of a call of n queries and m keys, which take no memory themselves."""
    sizes = CheckSizes.of(encoding) if encoding is not None else CheckSizes(4, 8, 32, None)
    q, k = (torch.randn(1, sizes.heads, 1, sizes.head_dim).expand(-1, -1, tokens, -1) for tokens in (n, m))
    arguments: dict[str, Any] = {"encoding": encoding}
    if encoding is not None:
        arguments["mask"] = M.Causal() if encoding.causal_only else None
        if encoding.reads_input:
            x = torch.randn(1, 1, sizes.embed_dim)
            arguments |= {"q_input": x.expand(1, n, -1), "k_input": x.expand(1, m, -1)}
        if encoding.axes not in (None, 1):
            at = torch.zeros(1, 1, encoding.axes)
            arguments |= {"q_positions": at.expand(1, n, -1), "k_positions": at.expand(1, m, -1)}
    return hw.explain(q, k, k, **arguments)


def test_explaining_a_call_of_any_length_holds_nothing_of_its_length() -> None:
    explained(None, 1, KEPT + 1)  # what torch loads for this
    assert peak_bytes(lambda: explained(None, 1, 1 << 28)) < MIB
    assert explained(None, 1, 1 << 31).kernel == explained(None, 1, 9).kernel


@pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if kind.examples()[0].acts & IN_ATTENTION])
def test_explaining_an_encoding_holds_nothing_of_the_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says of a short call the same as if it were long."""
    encoding = ENCODINGS[name].examples()[0].eval()
    said = explained(encoding, 5, 9)
    monkeypatch.setattr(sys.modules["headway.attention"], "KEPT", 4)
    assert explained(encoding, 5, 9) == said
    if name != "randomized":  # which refuses more tokens than it draws positions from
        assert peak_bytes(lambda: explained(encoding, 1, 1 << 22)) < 4 * MIB
