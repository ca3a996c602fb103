"""torch's SDPA on CUDA: the table of what its back ends refuse, and what the kernel takes by it. No GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

import headway as hw
from headway import masks as M
from headway import terms as T
from headway.call import make_call
from headway.kernels import Problem, _problem, sdpa
from headway.kernels import _sdpa_backends as B
from headway.kernels._sdpa_backends import BACK_ENDS, MATH, Facts, Settings, fused, refusals, said
from headway.positions import T5, RoPE

GIB = 1 << 30
ORDER = ("flash", "efficient", MATH, "cudnn")
CUDNN_FIRST = ("cudnn", "flash", "efficient", MATH)
HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
H100 = (9, 0)


def facts(order: tuple[str, ...] = ORDER, *, deterministic: bool = False, cudnn: int = 91501, **changes: Any) -> Facts:
    plain = Facts(
        dtype=HALF,
        capability=H100,
        batch=2,
        heads=8,
        kv_heads=8,
        n=512,
        m=512,
        head_dim=64,
        v_head_dim=64,
        causal=False,
        dense=False,
        gradient=False,
        dense_gradient=False,
        unit_strides=True,
        settings=Settings(order, deterministic, cudnn),
    )
    return plain._replace(**changes)


# ---------------------------------------------------------------- the table

FROM_8_0 = "it needs a GPU of compute capability 8.0 to 12.1"
COMMON: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "there are no queries or no keys"),
    ({"m": 0}, "there are no queries or no keys"),
    ({"unit_strides": False}, "strides of the last dimension are not 1"),
]
TRAINED = {"gradient": True, "head_dim": 224, "v_head_dim": 224}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "flash": [
        *COMMON,
        ({"order": ("efficient", MATH)}, "it is switched off"),
        ({"order": (MATH, "flash")}, "torch tries math before it"),
        ({"capability": (7, 5)}, FROM_8_0),
        ({"capability": (12, 2)}, FROM_8_0),
        ({"capability": None}, FROM_8_0),
        ({"dtype": SINGLE}, "it needs float16 or bfloat16"),
        ({"dtype": DOUBLE}, "it needs float16 or bfloat16"),
        ({"dense": True}, "it takes no dense mask or bias"),
        ({"v_head_dim": 32}, "q and v differ in head size"),
        ({"head_dim": 264, "v_head_dim": 264}, "its head size is at most 256"),
        *[
            ({"capability": gpu, **TRAINED}, "it has no gradient for head sizes of 193 to 224 on this GPU")
            for gpu in ((8, 6), (8, 9), (12, 0), (12, 1))
        ],
        ({"causal": True, "n": 8}, "its causal mask needs as many queries as keys"),
    ],
    "efficient": [
        *COMMON,
        ({"order": ("flash", MATH)}, "it is switched off"),
        ({"order": ("flash", MATH, "efficient")}, "torch tries math before it"),
        ({"capability": (3, 7), "dtype": torch.float16}, "it needs a GPU of compute capability 5.0 to 12.1"),
        ({"capability": None, "dtype": SINGLE}, "it needs a GPU of compute capability 5.0 to 12.1"),
        ({"dtype": DOUBLE}, "it needs float32, float16 or bfloat16"),
        ({"capability": (7, 5)}, "bfloat16 needs a GPU of compute capability 8.0"),
        ({"head_dim": 60}, "its head sizes are multiples of 8, or of 4 in float32"),
        ({"v_head_dim": 60}, "its head sizes are multiples of 8, or of 4 in float32"),
        ({"head_dim": 62, "dtype": SINGLE}, "its head sizes are multiples of 8, or of 4 in float32"),
        ({"kv_heads": 2}, "it takes no grouped heads"),
    ],
    "cudnn": [
        *COMMON,
        ({"order": ("flash", MATH)}, "it is switched off"),
        ({"order": ORDER}, "torch tries math before it"),
        ({"cudnn": 0}, "it needs cuDNN 9"),
        ({"capability": (7, 5)}, FROM_8_0),
        ({"deterministic": True}, "it is not deterministic"),
        ({"dtype": SINGLE}, "it needs float16 or bfloat16"),
        ({"dense": True, "dense_gradient": True}, "it gives no gradient to a bias"),
        ({"head_dim": 136}, "its head sizes are at most 128"),
        ({"v_head_dim": 60}, "its head sizes are multiples of 8"),
        ({"batch": 65536}, "it takes at most 65535 heads and rows of the batch"),
        ({"heads": 65536, "kv_heads": 65536}, "it takes at most 65535 heads and rows of the batch"),
        ({"m": 1}, "it needs more than one key"),
    ],
}
TAKEN: dict[str, list[dict[str, Any]]] = {
    "flash": [
        {},
        {"capability": (8, 0)},
        {"capability": (12, 1)},
        {"dtype": torch.float16},
        {"kv_heads": 2},
        {"causal": True},
        {"n": 1},
        {"m": 1},
        {"head_dim": 256, "v_head_dim": 256},
        TRAINED,
        {**TRAINED, "capability": (8, 6), "gradient": False},
        {**TRAINED, "capability": (8, 6), "head_dim": 192, "v_head_dim": 192},
        {**TRAINED, "capability": (8, 9), "head_dim": 232, "v_head_dim": 232},
        {"deterministic": True},
    ],
    "efficient": [
        {},
        {"dtype": SINGLE, "head_dim": 60},
        {"dtype": SINGLE, "head_dim": 61, "capability": (7, 5)},
        {"dtype": torch.float16, "capability": (7, 0)},
        {"dtype": torch.float16, "head_dim": 61, "capability": (6, 1)},
        {"dense": True, "dense_gradient": True, "gradient": True},
        {"head_dim": 512, "v_head_dim": 32},
        {"causal": True, "n": 8},
    ],
    "cudnn": [
        {},
        {"kv_heads": 2},
        {"dense": True},
        {"head_dim": 128, "v_head_dim": 64},
        {"batch": 65535},
        {"causal": True, "n": 8},
    ],
}


def own(name: str, changes: dict[str, Any]) -> Facts:
    return facts(**{"order": CUDNN_FIRST if name == "cudnn" else ORDER, **changes})


@pytest.mark.parametrize(("name", "changes", "why"), [(name, *row) for name in REFUSED for row in REFUSED[name]])
def test_each_refusal(name: str, changes: dict[str, Any], why: str) -> None:
    assert refusals(name, own(name, changes)) == [why]


@pytest.mark.parametrize(("name", "changes"), [(name, row) for name in TAKEN for row in TAKEN[name]])
def test_what_is_taken(name: str, changes: dict[str, Any]) -> None:
    assert refusals(name, own(name, changes)) == []


@pytest.mark.parametrize("name", BACK_ENDS)
def test_every_rule_has_a_case(name: str) -> None:
    assert {why for _, why in REFUSED[name]} == {rule.why for rule in BACK_ENDS[name]}


CHOSEN: list[tuple[dict[str, Any], str | None]] = [
    ({}, "flash"),
    ({"order": CUDNN_FIRST}, "cudnn"),
    ({"order": CUDNN_FIRST, "m": 1}, "flash"),
    ({"dtype": SINGLE}, "efficient"),
    ({"dtype": SINGLE, "kv_heads": 2}, None),
    ({"dtype": DOUBLE}, None),
    ({"dense": True}, "efficient"),
    ({"dense": True, "kv_heads": 2}, None),
    ({"dense": True, "kv_heads": 2, "order": CUDNN_FIRST}, "cudnn"),
    ({"head_dim": 512, "v_head_dim": 512}, "efficient"),
    ({"order": (MATH, "flash", "efficient")}, None),
    ({"order": ("cudnn",), "dense": True}, "cudnn"),
    ({"order": (MATH, "cudnn"), "dense": True}, None),
    ({"order": ()}, None),
]


@pytest.mark.parametrize(("changes", "name"), CHOSEN, ids=str)
def test_torch_chooses_the_first_that_takes_it(changes: dict[str, Any], name: str | None) -> None:
    assert fused(facts(**changes)) == name


def test_all_refusals_are_said() -> None:
    line = said(facts(dtype=DOUBLE, kv_heads=2))
    assert line == (
        "flash: it needs float16 or bfloat16; efficient: it needs float32, float16 or bfloat16, it takes no grouped "
        "heads; cudnn: torch tries math before it, it needs float16 or bfloat16"
    )


def test_settings_follow_the_switches_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert set(Settings(*B.settings()).order) == set(NAMED)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True):
        assert Settings(*B.settings()).order == ("cudnn", MATH)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert Settings(*B.settings()).order == ("flash",)
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
        assert Settings(*B.settings()).order == ()
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert Settings(*B.settings()).cudnn == 0
    for warn_only, strict in ((False, True), (True, False)):
        try:
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
            assert Settings(*B.settings()).deterministic is strict
        finally:
            torch.use_deterministic_algorithms(False)


NAMED = {MATH: SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION} | {
    "cudnn": SDPBackend.CUDNN_ATTENTION
}


def test_the_numbers_of_the_back_ends_are_those_of_torch() -> None:
    assert {number: int(NAMED[name].value) for number, name in B.NAMES.items()} == {n: n for n in B.NAMES}


# ---------------------------------------------------------------- the kernel on a GPU that is not there


class Gpu:
    """The kernel treats all tensors as on this GPU: its compute capability, its memory and the settings of torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capability: tuple[int, int] | None = H100
        self.memory: int | None = 80 * GIB
        self.settings: tuple[tuple[str, ...], bool, int] = (ORDER, False, 91501)
        monkeypatch.setattr(Problem, "capability", property(lambda problem: self.capability))
        monkeypatch.setattr(Problem, "memory", property(lambda problem: self.memory))
        monkeypatch.setattr(sdpa, "_on_cuda", lambda problem: True)
        monkeypatch.setattr(sdpa, "settings", lambda: self.settings)

    @staticmethod
    def qkv(dtype: torch.dtype, n: int, m: int, *, kv_heads: int = 8) -> list[Tensor]:
        """Tensors without data, since some would not fit into memory."""
        shapes = [(2, 8, n, 64), (2, kv_heads, m, 64), (2, kv_heads, m, 64)]
        return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch)


def test_a_tensor_on_cuda_is_asked_for_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def known(device: torch.device) -> tuple[tuple[int, int], int]:
        asked.append(device)
        return H100, 80 * GIB

    with FakeTensorMode():
        q = torch.empty(1, 2, 1 << 15, 64, dtype=SINGLE, device="cuda:0")
        if not torch.cuda.is_available():
            assert "efficient: it needs a GPU" in hw.explain(q, q, q).reasons["sdpa"][0]
        monkeypatch.setattr(_problem, "gpu", known)
        problem = Problem.of(make_call(q, q, q))
        assert (problem.capability, problem.memory) == (H100, 80 * GIB)
        assert hw.explain(q, q, q).kernel == "sdpa"
        assert set(asked) == {torch.device("cuda:0")}
        monkeypatch.setattr(torch.version, "hip", "6.4")
        asked.clear()
        assert hw.explain(q.double(), q.double(), q.double()).kernel == "sdpa", "ROCm has other rules"
        assert not asked


class Hopper:
    major, minor, total_memory = 9, 0, 80 * GIB


def test_the_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Hopper)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _problem.gpu(torch.device("cuda:1")) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _problem.gpu(torch.device("cuda:1")) == (H100, 80 * GIB)


def there_is_none() -> bool:
    assert torch._C._get_sdp_priority_order(), "a compiler cannot trace this"
    return False


def test_the_facts_of_a_gpu_are_constants_in_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: Tensor) -> Tensor:
        return x if _problem.gpu(x.device) is None else x + 1

    monkeypatch.setattr(torch.cuda, "is_available", there_is_none)
    torch._dynamo.reset()
    assert torch.compile(run, fullgraph=True, backend="eager")(torch.ones(1)) == 1


@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE])
@pytest.mark.parametrize("mask", [None, M.Causal()])
@pytest.mark.parametrize("encoding", [None, RoPE(64)])
def test_plain_and_rotary_attention_go_to_it(
    gpu: Gpu, encoding: RoPE | None, mask: M.Mask | None, dtype: torch.dtype, kv_heads: int
) -> None:
    q, k, v = gpu.qkv(dtype, 1 << 15, 1 << 15, kv_heads=kv_heads)
    assert hw.explain(q, k, v, encoding=encoding, mask=mask).kernel == "sdpa"
    q.requires_grad_()
    assert hw.explain(q, k, v, encoding=encoding, mask=mask).kernel == "sdpa"


def reasons(inputs: list[Tensor], **arguments: Any) -> list[str]:
    found = hw.explain(*inputs, **arguments)
    assert found.kernel == ("reference" if found.reasons["sdpa"] else "sdpa")
    return found.reasons["sdpa"]


def test_float64_is_taken_only_while_all_scores_are_small(gpu: Gpu) -> None:
    assert reasons(gpu.qkv(DOUBLE, 256, 512)) == []
    assert reasons(gpu.qkv(DOUBLE, 256, 513)) == [
        "torch's math path would hold all n×m scores, more than 16 MiB; no fused back end takes the call "
        "(flash: it needs float16 or bfloat16; efficient: it needs float32, float16 or bfloat16; "
        "cudnn: torch tries math before it, it needs float16 or bfloat16)"
    ]


def test_switches_of_torch_count(gpu: Gpu) -> None:
    inputs = gpu.qkv(HALF, 4096, 4096)
    gpu.settings = ((MATH,), False, 91501)
    assert "flash: it is switched off; efficient: it is switched off" in reasons(inputs)[0]
    assert reasons(gpu.qkv(HALF, 64, 64)) == []
    gpu.settings = (("flash",), False, 91501)
    assert reasons(inputs) == []
    small = gpu.qkv(SINGLE, 2, 2)
    assert reasons(small)[0].startswith("no back end of torch's SDPA that is switched on takes it (flash: it needs")


def test_an_unknown_gpu_takes_what_the_math_path_may(gpu: Gpu) -> None:
    gpu.capability = gpu.memory = None
    assert reasons(gpu.qkv(HALF, 256, 256)) == []
    assert f"flash: {FROM_8_0}" in reasons(gpu.qkv(HALF, 4096, 4096))[0]


def test_an_old_gpu(gpu: Gpu) -> None:
    gpu.capability = (7, 5)
    assert reasons(gpu.qkv(torch.float16, 4096, 4096)) == []
    assert "bfloat16 needs a GPU of compute capability 8.0" in reasons(gpu.qkv(HALF, 4096, 4096))[0]


def test_dropout_is_refused_for_its_key_alone(gpu: Gpu) -> None:
    said = ["with dropout torch's SDPA drops other weights than headway's kernels"]
    assert reasons(gpu.qkv(HALF, 8, 8), dropout=0.1) == said


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_dense_masks_and_biases_take_a_share_of_the_memory(gpu: Gpu, dtype: torch.dtype) -> None:
    n = 1 << 12
    cases: list[tuple[dict[str, Any], int]] = [({"mask": M.Window(9)}, 4 * n * n), ({"terms": (bias(),)}, 32 * n * n)]
    for arguments, size in cases:
        gpu.memory = 64 * size
        assert reasons(gpu.qkv(dtype, n, n, kv_heads=2), **arguments) == []
        gpu.memory = 64 * size - 64
        against = reasons(gpu.qkv(dtype, n, n), **arguments)
        assert len(against) == 1
        assert "dense and larger than" in against[0]
    gpu.memory = 1 << 20
    assert reasons(gpu.qkv(dtype, 512, 512), terms=(bias(),)) == [], "what a CPU takes"


def bias(**options: Any) -> T.DistanceBias:
    return T.DistanceBias(T.Linear(*(torch.ones(8, device="meta", **options) for _ in range(2))))


def test_a_gradient_to_a_bias_counts_for_every_row_of_the_batch(gpu: Gpu) -> None:
    n = 1 << 11
    size = (6 * 8 + 2 * 8) * n * n * 4
    learned = {"terms": (bias(requires_grad=True),)}
    gpu.memory = 64 * size
    assert reasons(gpu.qkv(HALF, n, n), **learned) == []
    gpu.memory = 64 * size - 64
    assert "dense and larger than" in reasons(gpu.qkv(HALF, n, n), **learned)[0]
    with torch.no_grad():
        assert reasons(gpu.qkv(HALF, n, n), **learned) == []
    positions = torch.zeros(n, device="meta", requires_grad=True)
    moved = {"terms": (bias(),), "q_positions": positions, "k_positions": positions}
    assert "dense and larger than" in reasons(gpu.qkv(HALF, n, n), **moved)[0]
    gpu.memory, gpu.settings = 640 * GIB, (("cudnn", MATH), False, 91501)
    said = "cudnn: it needs float16 or bfloat16, it gives no gradient to a bias"
    assert said in reasons(gpu.qkv(HALF, n, n), **learned)[0]


# ---------------------------------------------------------------- what is passed to torch


def facts_of(q: Tensor, k: Tensor, v: Tensor, gpu: Gpu, **arguments: Any) -> Facts:
    """The facts of the arguments of torch's SDPA themselves."""
    mask, recording = arguments["attn_mask"], torch.is_grad_enabled()
    assert mask is None or mask.dtype in (torch.bool, q.dtype), "torch wants the dtype of q"
    return Facts(
        dtype=q.dtype,
        capability=gpu.capability,
        batch=q.shape[0],
        heads=q.shape[1],
        kv_heads=k.shape[1],
        n=q.shape[2],
        m=k.shape[2],
        head_dim=q.shape[3],
        v_head_dim=v.shape[3],
        causal=arguments["is_causal"],
        dense=mask is not None,
        gradient=recording and any(x.requires_grad for x in (q, k, v)),
        dense_gradient=recording and mask is not None and mask.requires_grad,
        unit_strides=all(x.stride(-1) == 1 for x in (q, k, v, mask) if x is not None),
        settings=Settings(*gpu.settings),
    )


MASKS: dict[str, M.Mask | None] = {"none": None, "causal": M.Causal(), "window": M.Window(2, 1)}
TERMS = ("none", "temperature", "bias", "learned bias", "queries")


def term(name: str, n: int, device: str = "cpu") -> tuple[T.Term, ...]:
    if name == "temperature":
        return (T.QueryScale(torch.full((1, 1, n), 1.5, device=device)),)
    if name == "queries":
        return (T.TokenBias(queries=torch.linspace(-1, 1, n, device=device).expand(2, 8, n)),)
    slopes = [torch.linspace(0.1, 1, 8, device=device).requires_grad_(name == "learned bias") for _ in range(2)]
    return (T.DistanceBias(T.Linear(*slopes)),) if name != "none" else ()


def unaligned(x: Tensor) -> Tensor:
    """The same numbers one element further in memory, in rows whose length is odd."""
    wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 2 - x.shape[-1] % 2 + 1)
    wide[..., 1 : x.shape[-1] + 1] = x
    return wide[..., 1 : x.shape[-1] + 1]


def shifted(x: Tensor) -> Tensor:
    """The same numbers one element further in memory, in rows that are aligned to each other."""
    wide = x.new_zeros(*x.shape[:-1], (x.shape[-1] + 16) // 16 * 16)
    wide[..., 1 : x.shape[-1] + 1] = x
    return wide[..., 1 : x.shape[-1] + 1]


LAYOUTS = {
    "dense": lambda x: x,
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns": lambda x: x.mT.contiguous().mT,
    "unaligned": unaligned,
    "shifted": shifted,
}


def numbers(dtype: torch.dtype, n: int, kv_heads: int, width: int, v_width: int, layout: str) -> list[Tensor]:
    draw = torch.Generator().manual_seed(n + width)
    shapes = [(2, 8, n, width), (2, kv_heads, n, width), (2, kv_heads, n, v_width)]
    drawn = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
    return [LAYOUTS[layout](x).detach() for x in drawn]


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("mask", MASKS)
def test_what_is_passed_to_torch_is_what_the_table_was_asked_for(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, mask: str, name: str, dtype: torch.dtype, wanted: bool
) -> None:
    passed = []

    def spy(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        passed.append((facts_of(q, k, v, gpu, **arguments), (q, k, v)))
        return q[..., : v.shape[-1]] + v.sum()

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", spy)
    for kv_heads, width, v_width, layout in (
        (8, 64, 64, "dense"),
        (2, 60, 33, "tokens first"),
        (2, 5, 7, "columns"),
        (8, 16, 16, "unaligned"),
        (8, 16, 16, "shifted"),
    ):
        q, k, v = numbers(dtype, 40, kv_heads, width, v_width, layout)
        q.requires_grad_(wanted)
        arguments: dict[str, Any] = {"mask": MASKS[mask], "terms": term(name, 40)}
        out = hw.attention(q, k, v, kernel="sdpa", **arguments)
        assert (out.shape, out.dtype) == ((2, 8, 40, v_width), dtype)
        got, tensors = passed.pop()
        assert (fused(got) is None) is (dtype == DOUBLE)
        if dtype == DOUBLE:  # the math path takes any strides
            continue
        asked = sdpa._facts(Problem.of(make_call(q, k, v, **arguments)))
        assert got._replace(gradient=False) == asked._replace(gradient=False)
        assert asked.gradient or not got.gradient
        for x in tensors:
            assert x.data_ptr() % sdpa.ALIGNED == 0
            assert all(stride * x.element_size() % sdpa.ALIGNED == 0 for stride in x.stride()[:-1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.usefixtures("gpu")
def test_the_preparation_changes_no_result(mask: str, name: str, dtype: torch.dtype, layout: str) -> None:
    assert_as_reference(mask, name, dtype, layout, "cpu")


def assert_as_reference(mask: str, name: str, dtype: torch.dtype, layout: str, device: str) -> None:
    drawn = numbers(dtype, 17, 2, 12, 7, "dense")
    inputs = [LAYOUTS[layout](x.to(device)).detach().requires_grad_() for x in drawn]
    arguments: dict[str, Any] = {"mask": MASKS[mask], "terms": term(name, 17, device)}
    leaves = [*inputs, *[x for part in arguments["terms"] for x in _problem.tensors_in(part) if x.requires_grad]]
    assert len(leaves) == (5 if name == "learned bias" else 3)
    results = []
    for kernel in ("sdpa", "reference"):
        out = hw.attention(*inputs, kernel=kernel, **arguments)
        weights = torch.linspace(-1, 2, out.numel(), device=device).view_as(out).to(dtype)
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    bounds = {HALF: 5e-2, SINGLE: 1e-4, DOUBLE: 1e-9}
    for got, wanted in zip(*results, strict=True):
        bound = max(bounds[dtype], bounds[got.dtype])
        torch.testing.assert_close(got, wanted, rtol=bound, atol=bound * float(wanted.detach().abs().max()))


def test_a_bias_is_not_rounded_to_half_precision(gpu: Gpu) -> None:
    """Far tokens have large biases, whose differences bfloat16 would lose."""
    inputs = numbers(HALF, 65, 8, 16, 16, "dense")
    q_positions, k_positions = torch.arange(65.0) + 1000, torch.arange(65.0)
    places = {"q_positions": q_positions, "k_positions": k_positions, "terms": term("bias", 65)}
    got = hw.attention(*inputs, kernel="sdpa", **places)
    exact = hw.attention(*(x.double() for x in inputs), kernel="reference", **places)
    torch.testing.assert_close(got.double(), exact, rtol=1e-2, atol=1e-2)


def on_cuda(problem: Problem) -> bool:
    return True


def hopper(problem: Problem) -> tuple[int, int]:
    return H100 if _problem.gpu(problem._call.q.device) is None else (8, 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("dtype", "name"), [(HALF, "learned bias"), (HALF, "bias"), (SINGLE, "none")])
def test_a_compiler_sees_one_graph_for_all_lengths(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, name: str
) -> None:
    monkeypatch.setattr(sdpa, "_on_cuda", on_cuda)
    monkeypatch.setattr(Problem, "capability", property(hopper))
    terms = term(name, 1)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attention(q, k, v, mask=M.Causal(), terms=terms, kernel="sdpa")

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="eager")
    for n in (9, 24, 33):
        inputs = numbers(dtype, n, 2, 12, 12, "dense")
        torch.testing.assert_close(compiled(*inputs), run(*inputs), rtol=2e-2, atol=2e-2)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_cpu_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> None:
        raise AssertionError("the settings of CUDA were read for a call on a CPU")

    monkeypatch.setattr(sdpa, "settings", asked)
    inputs = numbers(SINGLE, 9, 2, 12, 12, "dense")
    assert hw.attention(*inputs, kernel="sdpa", mask=M.Causal()).shape == (2, 8, 9, 12)
    assert not hw.explain(*inputs, encoding=T5(8)).reasons["reference"]


# ---------------------------------------------------------------- torch's own answers


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, HALF, SINGLE, DOUBLE])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 8])
def test_torch_takes_what_the_table_says_it_takes(kv_heads: int, dense: bool, dtype: torch.dtype) -> None:
    """A back end may take more in other versions of torch, but what the table takes, it takes."""
    for n, m, width, v_width, causal in (
        (64, 64, 64, 64, not dense),
        (64, 64, 128, 64, False),
        (64, 64, 256, 256, False),
        (64, 64, 60, 60, False),
        (1, 64, 64, 64, False),
        (64, 1, 64, 64, False),
        (8, 64, 64, 64, not dense),
    ):
        q = torch.randn(2, 8, n, width, device="cuda", dtype=dtype, requires_grad=True)
        k, v = (torch.randn(2, kv_heads, m, size, device="cuda", dtype=dtype) for size in (width, v_width))
        mask = torch.zeros(n, m, device="cuda", dtype=dtype) if dense else None
        capability = torch.cuda.get_device_capability()
        every = facts(
            ("flash", "efficient", "cudnn"),
            cudnn=torch.backends.cudnn.version() or 0,
            dtype=dtype,
            capability=capability,
            kv_heads=kv_heads,
            n=n,
            m=m,
            head_dim=width,
            v_head_dim=v_width,
            causal=causal,
            dense=dense,
            gradient=True,
        )
        params = torch.backends.cuda.SDPAParams(q, k, v, mask, 0.0, causal, kv_heads != 8)
        for name in BACK_ENDS:
            takes = getattr(torch.backends.cuda, f"can_use_{name}_attention")(params)
            assert takes or refusals(name, every), f"{name} refuses {every}"


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [HALF, SINGLE])
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_gpu_needs_no_math_path(mask: str, name: str, dtype: torch.dtype, layout: str) -> None:
    """Without it torch raises an error for a call that no fused back end takes."""
    with sdpa_kernel([NAMED[name] for name in BACK_ENDS]):
        assert_as_reference(mask, name, dtype, layout, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
@pytest.mark.parametrize("mask", [None, M.Causal()])
@pytest.mark.parametrize("m", [1, 2, 7, 17])
def test_nan_is_never_lost_on_a_gpu(m: int, mask: M.Mask | None, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, heads, m, 8, device="cuda").to(dtype) for heads in (4, 2, 2))
    q[0, 1, 0, 3] = k[1, 1, 0, 5] = torch.nan
    out = hw.attention(q, k, v, mask=mask, kernel="sdpa")
    assert out[0, 1, 0].isnan().all()
    assert not out[0, 0].isnan().any()
    assert out[1, 2:].isnan().all()
