"""What torch tests of F.scaled_dot_product_attention, as calls of attention: the same results, or a decision.

The cases follow the subjects of torch's own tests (``test/test_transformers.py``) and its samples of the operator
(``op_db``): shapes, layouts, masks of every kind, rows without a key, dropout, scales, grouped heads, dtypes.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import headway as hw
from headway.errors import HeadwayError
from headway.kernels import KERNELS
from headway.testing.fuzz.layouts import LAYOUTS
from headway.testing.tolerances import assert_close

INF = math.inf
EPSILONS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Case(NamedTuple):
    """Inputs, and what the two calls are given beside them; ``mask`` is a leaf if it has floats."""

    q: Tensor
    k: Tensor
    v: Tensor
    torchs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    mask: Tensor | None = None


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def qkv(n: int = 9, m: int = 9, d: int = 16, d_v: int | None = None, heads: int = 4, kv_heads: int = 4) -> list[Tensor]:
    d_v = d if d_v is None else d_v
    return [drawn(2, heads, n, d), drawn(2, kv_heads, m, d), drawn(2, kv_heads, m, d_v)]


def top_left(n: int, m: int) -> dict[str, Any]:
    """Torch's alignment of a causal mask: the first query with the first key."""
    at = {"q_positions": hw.Coordinates.span(n), "k_positions": hw.Coordinates.span(m)}
    return {"mask": hw.masks.Causal(), **at}


def boolean(mask: Tensor, n: int, m: int) -> Case:
    return Case(*qkv(n, m), {"attn_mask": mask}, {"mask": mask})


def added(mask: Tensor, **heads: int) -> Case:
    return Case(*qkv(**heads), {"enable_gqa": bool(heads)}, mask=mask)


def rows_out_of_sight() -> Tensor:
    seen = torch.rand(2, 4, 9, 9) < 0.5
    seen[0, :, 3] = seen[1, 2] = False
    return seen


def with_infinities(seen: Tensor) -> Tensor:
    return drawn(*seen.shape).masked_fill(~seen, -INF)


CASES: dict[str, Callable[[], Case]] = {
    "plain": lambda: Case(*qkv()),
    "the sample of op_db": lambda: Case(*qkv(3, 6, 8)),
    "causal": lambda: Case(*qkv(), {"is_causal": True}, {"mask": hw.masks.Causal()}),
    "causal, fewer queries, torch's alignment": lambda: Case(*qkv(3, 6), {"is_causal": True}, top_left(3, 6)),
    "causal, more queries, torch's alignment": lambda: Case(*qkv(6, 3), {"is_causal": True}, top_left(6, 3)),
    "one query and one key": lambda: Case(*qkv(1, 1)),
    "odd lengths": lambda: Case(*qkv(133, 257, 24)),
    "odd head_dim": lambda: Case(*qkv(7, 9, 13)),
    "head_dim 1": lambda: Case(*qkv(7, 9, 1)),
    "values of another width": lambda: Case(*qkv(7, 9, 16, 5)),
    "no queries": lambda: Case(*qkv(0, 9)),
    "no keys": lambda: Case(*qkv(9, 0)),
    "no batch": lambda: Case(*(x[:0] for x in qkv())),
    "scale": lambda: Case(*qkv(), {"scale": 0.3}, {"scale": 0.3}),
    "scale 0": lambda: Case(*qkv(), {"scale": 0.0}, {"scale": 0.0}),
    "scale below 0": lambda: Case(*qkv(), {"scale": -1.5}, {"scale": -1.5}),
    "grouped heads": lambda: Case(*qkv(heads=6, kv_heads=2), {"enable_gqa": True}),
    "one head of keys": lambda: Case(*qkv(heads=4, kv_heads=1), {"enable_gqa": True}),
    "boolean mask [n, m]": lambda: boolean(torch.rand(5, 9) < 0.6, 5, 9),
    "boolean mask [b, 1, n, m]": lambda: boolean(torch.rand(2, 1, 5, 9) < 0.6, 5, 9),
    "boolean mask [b, h, n, m]": lambda: boolean(torch.rand(2, 4, 5, 9) < 0.6, 5, 9),
    "boolean mask [b, 1, 1, m]": lambda: boolean(torch.rand(2, 1, 1, 9) < 0.6, 5, 9),
    "boolean mask, rows without a key": lambda: boolean(rows_out_of_sight(), 9, 9),
    "boolean mask without any key": lambda: boolean(torch.zeros(9, 9, dtype=torch.bool), 9, 9),
    "boolean mask, expanded": lambda: boolean((torch.rand(9, 9) < 0.6).expand(2, 4, 9, 9), 9, 9),
    "boolean mask, transposed": lambda: boolean((torch.rand(2, 4, 9, 9) < 0.6).mT, 9, 9),
    "float mask [n, m]": lambda: added(drawn(9, 9)),
    "float mask [b, h, n, m]": lambda: added(drawn(2, 4, 9, 9)),
    "float mask [b, 1, 1, m]": lambda: added(drawn(2, 1, 1, 9)),
    "float mask with −inf": lambda: added(with_infinities((torch.rand(9, 9) < 0.6) | torch.eye(9, dtype=torch.bool))),
    "float mask, rows of −inf": lambda: added(with_infinities(rows_out_of_sight())),
    "float mask, grouped heads": lambda: added(drawn(2, 6, 9, 9), heads=6, kv_heads=2),
    "large scores": lambda: Case(qkv()[0] * 300, *qkv()[1:]),
}


def exact(case: Case, layout: str = "contiguous") -> tuple[Tensor, list[Tensor | None]]:
    """Torch's output and gradients in float64, by its plain operations; zeros where there are no keys."""
    leaves = leaves_of(case, torch.float64)
    q, k, v = (LAYOUTS[layout](x) for x in leaves[:3])
    given = {} if case.mask is None else {"attn_mask": leaves[3]}
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, **case.torchs, **given)
    return out.detach(), gradients(out, leaves)


def ours(case: Case, dtype: torch.dtype, kernel: str, layout: str = "contiguous") -> tuple[Tensor, list[Tensor | None]]:
    leaves = leaves_of(case, dtype)
    q, k, v = (LAYOUTS[layout](x) for x in leaves[:3])
    terms = () if case.mask is None else (hw.terms.DenseBias(leaves[3]),)
    out = hw.attention(q, k, v, terms=terms, **case.ours, kernel=kernel)
    return out.detach(), gradients(out, leaves)


def leaves_of(case: Case, dtype: torch.dtype) -> list[Tensor]:
    given = [case.q, case.k, case.v] + ([] if case.mask is None else [case.mask])
    return [x.detach().to(dtype).requires_grad_() for x in given]


def gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    upstream = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
    return list(torch.autograd.grad(out, leaves, upstream, allow_unused=True))


def same(found: tuple[Tensor, list[Tensor | None]], right: tuple[Tensor, list[Tensor | None]], within: float) -> None:
    assert found[0].isfinite().all()
    assert_close("output", found[0], right[0], within)
    for name, one, other in zip(("q", "k", "v", "mask"), found[1], right[1], strict=False):
        assert one is not None, name
        assert one.isfinite().all(), name
        assert_close(f"gradient of {name}", one, torch.zeros_like(one) if other is None else other.nan_to_num(), within)


REFUSED_BY_SDPA = {
    "no keys": "keys",
    **dict.fromkeys((name for name in CASES if name.startswith("float mask")), "gradient"),
}
"""What the reason of the kernel "sdpa" says; every other case it takes."""


def refusal(kernel: str, case: Case, dtype: torch.dtype) -> str:
    """Why a kernel refuses a case, or ""."""
    try:
        ours(case, dtype, kernel)
    except HeadwayError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", EPSILONS, ids=str)
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str, kernel: str, dtype: torch.dtype) -> None:
    case = CASES[name]()
    if kernel in ("cpu", "sdpa") and (why := refusal(kernel, case, dtype)):
        reason = "float64" if kernel == "cpu" else REFUSED_BY_SDPA[name]
        assert reason in why
        return
    rounded = case._replace(**{x: getattr(case, x).to(dtype).double() for x in "qkv"})
    if case.mask is not None:
        rounded = rounded._replace(mask=case.mask.to(dtype).double())
    same(ours(rounded, dtype, kernel), exact(rounded), EPSILONS[dtype] * (8 if name == "large scores" else 1))


@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["plain", "causal", "odd lengths", "grouped heads", "boolean mask [b, 1, 1, m]"])
def test_any_layout(name: str, layout: str, kernel: str) -> None:
    case = CASES[name]()
    same(ours(case, torch.float32, kernel, layout), exact(case, layout), 3e-5)


def test_dropout_keeps_the_share_and_the_mean() -> None:
    """Which weights are dropped differs from torch; how many, and by what the others grow, does not."""
    q, k, v = torch.zeros(1, 1, 400, 8), torch.zeros(1, 1, 500, 8), torch.eye(500)[None, None]
    found = hw.attention(q, k, v, dropout=0.3, dropout_seed=1)
    there = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
    for weights in (found, there):
        kept = weights != 0
        assert kept.double().mean().item() == pytest.approx(0.7, abs=0.005)
        torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / 500 / 0.7))


def test_a_wrong_alignment_would_be_seen() -> None:
    case = CASES["causal, fewer queries, torch's alignment"]()
    other = case._replace(ours={"mask": hw.masks.Causal()})
    with pytest.raises(AssertionError):
        same(ours(other, torch.float32, "auto"), exact(case), 1e-5)


# ---------------------------------------------------------------- decisions

X = torch.zeros(2, 4, 9, 16)
REFUSALS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "three dimensions": (lambda: hw.attention(X[0], X[0], X[0]), "give four dimensions"),
    "five dimensions": (lambda: hw.attention(X[None], X[None], X[None]), "give four dimensions"),
    "a batch of 1 beside 2": (lambda: hw.attention(X[:1], X, X), "give k the batch of q"),
    "heads that do not divide": (lambda: hw.attention(X, X[:, :3], X[:, :3]), "must divide"),
    "dropout 1": (lambda: hw.attention(X, X, X, dropout=1.0), "at least 0 and below 1"),
    "two dtypes": (lambda: hw.attention(X.half(), X, X), "cast them to one dtype"),
    "a float mask as mask": (lambda: hw.attention(X, X, X, mask=torch.zeros(9, 9)), "terms.DenseBias"),
    "an integer mask": (lambda: hw.attention(X, X, X, mask=torch.ones(9, 9, dtype=torch.int32)), "a mask is boolean"),
    "scale of NaN": (lambda: hw.attention(X, X, X, scale=math.nan), "give a finite number"),
    "integers": (lambda: hw.attention(X.int(), X.int(), X.int()), "float"),
}
"""What torch takes, or refuses less plainly, and headway refuses; docs/coming-from.md names the first ones."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_the_remedy(name: str) -> None:
    call, remedy = REFUSALS[name]
    with pytest.raises(HeadwayError, match=remedy):
        call()


def test_causal_and_another_mask_join_as_in_torch() -> None:
    q, k, v = qkv()
    seen = (torch.rand(9, 9) < 0.6) | torch.eye(9, dtype=torch.bool)
    there = F.scaled_dot_product_attention(q, k, v, attn_mask=seen & torch.ones(9, 9, dtype=torch.bool).tril())
    here = hw.attention(q, k, v, mask=hw.masks.Causal() & hw.masks.Boolean(seen))
    torch.testing.assert_close(here, there)
