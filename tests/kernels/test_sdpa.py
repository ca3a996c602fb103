"""torch's SDPA as a kernel: what it takes equals the reference kernel, and what it refuses it refuses by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.kernels import KERNELS, sdpa

HEADS, HEAD_DIM = 4, 8


def qkv(n: int = 5, m: int = 5, *, kv_heads: int = 4, v_dim: int = HEAD_DIM, batch: int = 2) -> list[Tensor]:
    shapes = [(batch, HEADS, n, HEAD_DIM), (batch, kv_heads, m, HEAD_DIM), (batch, kv_heads, m, v_dim)]
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def both(inputs: list[Tensor], **arguments: Any) -> list[list[Tensor]]:
    """Output and gradients from sdpa and from the reference kernel."""
    results = []
    for kernel in ("sdpa", "reference"):
        out = hw.attention(*inputs[:3], kernel=kernel, **arguments)
        weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
        results.append([out, *torch.autograd.grad((out * weights).sum(), inputs[:3])])
    return results


def assert_alike(inputs: list[Tensor], **arguments: Any) -> None:
    for a, b in zip(*both(inputs, **arguments), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


TERMS: dict[str, T.Term] = {
    "temperature": T.QueryScale(torch.rand(1, HEADS, 5) + 0.5),
    "one temperature": T.QueryScale(torch.full((1, 1, 1), 1.7)),
    "rows": T.DistanceBias(T.Rows(torch.randn(HEADS, 5), T.Clip(-2, 2))),
    "linear": T.DistanceBias(T.Linear(torch.rand(HEADS), torch.rand(HEADS))),
    "token bias of queries": T.TokenBias(queries=torch.randn(2, 1, 5)),
    "token bias of keys": T.TokenBias(keys=torch.randn(1, HEADS, 7)),
    "dense bias": T.DenseBias(torch.randn(2, 1, 5, 7)),
    "dense bias of two dimensions": T.DenseBias(torch.randn(5, 7)),
}
MASKS = {
    "none": None,
    "causal": M.Causal(),
    "window": M.Window(2, 1),
    "padding": M.Padding([7, 0]),
    "boolean by head": torch.rand(1, HEADS, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.5,
    "one column": torch.tensor([[True], [False], [True], [True], [False]]),
    "nothing": torch.zeros(5, 7, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("term", [None, *TERMS])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_the_reference(term: str | None, mask: str, kv_heads: int) -> None:
    terms = (TERMS[term],) if term else ()
    assert_alike(qkv(5, 7, kv_heads=kv_heads), terms=terms, mask=MASKS[mask])


@pytest.mark.parametrize("v_dim", [1, 5, 8, 13])
@pytest.mark.parametrize("mask", [None, M.Causal()])
def test_values_of_another_width(v_dim: int, mask: M.Mask | None) -> None:
    assert_alike(qkv(v_dim=v_dim, kv_heads=2), mask=mask)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (1, 1), (1, 6), (6, 6), (3, 6), (6, 3)])
@pytest.mark.parametrize("mask", [None, M.Causal()])
def test_lengths(n: int, m: int, mask: M.Mask | None) -> None:
    assert_alike(qkv(n, m), mask=mask)


def test_plain_causal_needs_no_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(*inputs: Tensor, **arguments: Any) -> Tensor:
        calls.append(arguments)
        return real(*inputs, **arguments)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", spy)
    q, k, v = qkv()
    for mask, n in ((M.Causal(), 5), (M.Causal(), 1), (None, 5)):
        hw.attention(q[:, :, :n], k, v, mask=mask, kernel="sdpa")
        assert calls[-1]["attn_mask"] is None
    assert [call["is_causal"] for call in calls] == [True, False, False]
    hw.attention(q[:, :, :3], k, v, mask=M.Causal(), kernel="sdpa")
    assert calls[-1]["attn_mask"].shape[-2:] == (3, 5)


def test_causal_follows_the_index_and_not_the_slots() -> None:
    """Tokens in another order in their slots: torch's own causal mask would be wrong."""
    order = torch.tensor([[3, 0, 4, 1, 2]])
    shuffled = hw.Coordinates(order[..., None], order, ordered=False)
    inputs = qkv()
    arguments = {"mask": M.Causal(), "q_positions": shuffled, "k_positions": shuffled}
    assert_alike(inputs, **arguments)
    back = order[0].argsort()
    in_order = hw.attention(*(x[:, :, back] for x in inputs), mask=M.Causal(), kernel="sdpa")
    torch.testing.assert_close(hw.attention(*inputs, kernel="sdpa", **arguments)[:, :, back], in_order)


@pytest.mark.parametrize("what", ["queries", "keys and values"])
@pytest.mark.parametrize("mask", ["padding", "boolean by head"])
def test_nan_out_of_sight_does_not_leak(what: str, mask: str) -> None:
    inputs = [x.detach() for x in qkv(5, 7, kv_heads=2)]
    allowed = MASKS[mask]
    allowed = (
        allowed.clone() if isinstance(allowed, Tensor) else torch.arange(7) < torch.tensor([7, 3]).view(2, 1, 1, 1)
    )
    allowed = allowed.expand(2, HEADS, 5, 7).clone()
    allowed[:, :, 2], allowed[..., 1] = False, False
    clean = [x.clone() for x in inputs]
    if what == "queries":
        inputs[0][:, :, 2] = torch.nan
    else:
        unseen = ~allowed.any(2).unflatten(1, (2, 2)).any(2)
        inputs[1][unseen], inputs[2][unseen] = torch.nan, torch.inf
    poisoned, expected = ([x.requires_grad_() for x in xs] for xs in (inputs, clean))
    for a, b in zip(both(poisoned, mask=allowed)[0], both(expected, mask=allowed)[1], strict=True):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------- refusals

WANTS = torch.ones(HEADS, requires_grad=True)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "sink": ({"sink": WANTS.detach()}, "torch's SDPA has no Sink"),
    "cap": ({"soft_cap": 3.0}, "torch's SDPA has no SoftCap"),
    "relative keys": (
        {"terms": (T.RelativeKeys(T.Rows(torch.ones(1, 3, HEAD_DIM), T.Clip(-1, 1))),)},
        "torch's SDPA has no RelativeKeys",
    ),
    "learned bias": (
        {"terms": (T.DistanceBias(T.Linear(WANTS, WANTS)),)},
        "a gradient of DistanceBias would make torch hold all n×m scores",
    ),
    "function": (
        {"terms": (T.DenseBias(lambda rows: torch.zeros(1, 1, len(rows), 5)),)},
        "the function of a DenseBias would have to be made dense",
    ),
    "dropout": ({"dropout": 0.1}, "with dropout torch's SDPA holds all n×m scores on a CPU"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_by_name_and_says_why(name: str) -> None:
    arguments, reason = REFUSED[name]
    inputs = qkv()
    with pytest.raises(hw.HeadwayError, match="kernel 'sdpa' cannot run") as raised:
        hw.attention(*inputs, kernel="sdpa", **arguments)
    assert reason in str(raised.value)
    found = hw.explain(*inputs, **arguments)
    assert found.kernel == "reference"
    assert any(reason in said for said in found.reasons["sdpa"])


def test_a_log_sum_exp_and_missing_keys_are_refused() -> None:
    with pytest.raises(hw.HeadwayError, match="does not return the log-sum-exp"):
        hw.attention_with_lse(*qkv(), kernel="sdpa")
    with pytest.raises(hw.HeadwayError, match="there are no keys"):
        hw.attention(*qkv(3, 0), kernel="sdpa")


def test_a_learned_bias_is_taken_where_no_gradient_is_asked_for() -> None:
    arguments = {"terms": (T.DistanceBias(T.Linear(WANTS, WANTS)),)}
    with torch.no_grad():
        assert hw.explain(*qkv(), **arguments).kernel == "sdpa"
    assert hw.explain(*qkv(), **arguments).kernel == "reference"


def test_a_gradient_to_positions_would_pass_through_a_dense_bias() -> None:
    """torch computes all scores then, for every row of the batch, whatever the size of the bias is."""
    positions = torch.arange(5.0, requires_grad=True)
    places = {"q_positions": positions, "k_positions": torch.arange(5.0)}
    found = hw.explain(*qkv(), terms=(TERMS["linear"],), **places)
    assert found.kernel == "reference"
    assert found.reasons["sdpa"] == ["a gradient of DistanceBias would make torch hold all n×m scores"]
    assert hw.explain(*qkv(), terms=(T.DenseBias(torch.ones(5, 5)),), **places).reasons["sdpa"] == []
    with torch.no_grad():
        assert hw.explain(*qkv(), terms=(TERMS["linear"],), **places).kernel == "sdpa"


BY_ROW = T.Classes(torch.zeros(2, 5, dtype=torch.long), torch.zeros(1, 7, dtype=torch.long), 2)


def test_steps_back_where_the_dense_mask_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size counts heads where a bias is by head, and rows of the batch where they differ."""
    inputs = qkv(5, 7)
    cases: list[tuple[dict[str, Any], int]] = [
        ({"mask": M.Window(2)}, 5 * 7 * 8),
        ({"mask": M.Padding([3, 7])}, 2 * 5 * 7 * 8),
        ({"mask": M.Causal() & M.Documents(torch.zeros(2, 7, dtype=torch.long))}, 2 * 5 * 7 * 8),
        ({"mask": torch.ones(1, HEADS, 5, 7, dtype=torch.bool)}, HEADS * 5 * 7 * 8),
        ({"terms": (TERMS["rows"],)}, HEADS * 5 * 7 * 8),
        ({"terms": (T.DenseBias(torch.tensor(0.5)),)}, HEADS * 5 * 7 * 8),
        ({"terms": (T.DenseBias(torch.ones(7)),)}, HEADS * 5 * 7 * 8),
        ({"terms": (T.DenseBias(torch.ones(HEADS, 5, 7)),)}, HEADS * 5 * 7 * 8),
        ({"terms": (T.DistanceBias(T.Rows(torch.ones(1, 4), BY_ROW)),)}, 2 * HEADS * 5 * 7 * 8),
        ({"terms": (TERMS["token bias of queries"],)}, 2 * HEADS * 5 * 7 * 8),
        ({"terms": (TERMS["rows"],), "q_positions": torch.zeros(2, 5), "k_positions": torch.ones(7)}, 2 * HEADS * 280),
    ]
    for arguments, size in cases:
        monkeypatch.setattr(sdpa, "DENSE_LIMIT", size)
        assert hw.explain(*inputs, **arguments).kernel == "sdpa", arguments
        monkeypatch.setattr(sdpa, "DENSE_LIMIT", size - 1)
        found = hw.explain(*inputs, **arguments)
        assert found.kernel == "reference", arguments
        assert "dense and larger" in found.reasons["sdpa"][0]
    assert hw.explain(*inputs).kernel == "sdpa"


def test_is_chosen_before_the_reference() -> None:
    assert list(KERNELS).index("sdpa") < list(KERNELS).index("reference")


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (kernel, dtype)
        for kernel in ["auto", *KERNELS]
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
        if (kernel, dtype) != ("cpu", torch.float64)  # which it has not
    ],
    ids=str,
)
@pytest.mark.parametrize("mask", [None, M.Causal()])
@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 15, 16, 17, 33])
def test_nan_is_never_lost(m: int, mask: M.Mask | None, dtype: torch.dtype, kernel: str) -> None:
    """torch's fused attention gives zeros to a query whose scores are all NaN, where keys are few."""
    draw = torch.Generator().manual_seed(m)
    q, k, v = (torch.randn(2, heads, m, 8, generator=draw).to(dtype) for heads in (4, 2, 2))
    q[0, 1, 0, 3] = math.nan
    k[1, 1, 0, 5] = math.nan
    out = hw.attention(q, k, v, mask=mask, kernel=kernel)
    assert out[0, 1, 0].isnan().all()
    assert not out[0, 0].isnan().any()
    assert out[1, 2:].isnan().all()
    assert not out[1, :2].isnan().any()
