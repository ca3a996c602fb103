"""Which calls torch's SDPA runs on CUDA without holding all n×m scores, from the refusals of its back ends.

A fused back end (flash, efficient or cudnn) holds tiles of the scores; the back end "math" holds all of them, for every
head. The rules are torch's own, from ``can_use_flash_attention``, ``can_use_mem_efficient_attention`` and
``can_use_cudnn_attention`` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and ../sdp_utils_cpp.h, as of
torch 2.11 to 2.13. Where versions differ, the strictest rule stands here, so that a call that should be fused never
runs as math. Later versions may take more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from .._torch import constant_in_graphs, sdp_order
from ._problem import is_older

HALVES = (torch.float16, torch.bfloat16)
MATH = "math"
NAMES = {0: MATH, 1: "flash", 2: "efficient", 3: "cudnn"}
"""The back ends by torch's numbers (``torch.nn.attention.SDPBackend``)."""


class Settings(NamedTuple):
    """Settings of the user and of the torch build that hold for every call.

    Attributes:
        order: the back ends that are switched on, in the order in which torch tries them.
        deterministic: whether only deterministic algorithms are allowed.
        cudnn: the version of cuDNN, such as 91002; 0 without it.
    """

    order: tuple[str, ...]
    deterministic: bool
    cudnn: int


class Facts(NamedTuple):
    """The facts about the arguments of torch's SDPA on CUDA by which torch chooses a back end.

    Attributes:
        dtype: the dtype of q, k and v.
        capability: the compute capability of the GPU, such as (9, 0); None if it is not known.
        batch: the rows of the batch.
        heads: the heads of q.
        kv_heads: the heads of k and v.
        n: the queries.
        m: the keys.
        head_dim: the last size of q and k.
        v_head_dim: the last size of v.
        causal: whether ``is_causal`` is set.
        dense: whether there is a dense mask or bias.
        gradient: whether q, k or v require a gradient.
        dense_gradient: whether the dense bias requires one.
        unit_strides: whether q, k, v and the mask have the stride 1 in the last dimension.
        settings: what holds for every call.
    """

    dtype: torch.dtype
    capability: tuple[int, int] | None
    batch: int
    heads: int
    kv_heads: int
    n: int
    m: int
    head_dim: int
    v_head_dim: int
    causal: bool
    dense: bool
    gradient: bool
    dense_gradient: bool
    unit_strides: bool
    settings: Settings


class Rule(NamedTuple):
    """One refusal of a back end.

    Attributes:
        check: the function of torch that makes it.
        why: the refusal in words.
        refuses: whether it holds for a call.
    """

    check: str
    why: str
    refuses: Callable[[Facts], bool]


def _before_math(facts: Facts) -> tuple[str, ...]:
    order = facts.settings.order
    return order[: order.index(MATH)] if MATH in order else order


def _tried(name: str, check: str) -> tuple[Rule, Rule]:
    return (
        Rule(check, "it is switched off", lambda f: name not in f.settings.order),
        Rule(
            "select_sdp_backend",
            "torch tries math before it",
            lambda f: name in f.settings.order and name not in _before_math(f),
        ),
    )


def _outside(facts: Facts, least: tuple[int, int], most: tuple[int, int] = (12, 1)) -> bool:
    capability = facts.capability
    return capability is None or is_older(capability, least) or is_older(most, capability)


def _no_gradient(facts: Facts) -> bool:
    small = not _outside(facts, (8, 6), (8, 9)) or not _outside(facts, (12, 0))
    return facts.gradient and small and 192 < facts.head_dim <= 224


def _alignment(facts: Facts) -> int:
    """Returns the number whose multiples the efficient back end needs as head sizes (``minimum_gemm_alignment``)."""
    half, capability = facts.dtype in HALVES, facts.capability or (0, 0)
    if not is_older(capability, (8, 0)):
        return 8 if half else 4
    return 8 if half and not is_older(capability, (7, 0)) else 1


EMPTY = Rule("check_nonzero_sequence_lengths_dense", "there are no queries or no keys", lambda f: f.n == 0 or f.m == 0)
STRIDES = Rule(
    "check_last_dim_stride_equals_1_dense",
    "strides of the last dimension are not 1",
    lambda f: not f.unit_strides,
)
HALF = Rule("check_dtypes_low_precision", "it needs float16 or bfloat16", lambda f: f.dtype not in HALVES)

BACK_ENDS: dict[str, tuple[Rule, ...]] = {
    "flash": (
        *_tried("flash", "check_runtime_disabled_flash"),
        Rule(
            "check_flash_attention_hardware_support",
            "it needs a GPU of compute capability 8.0 to 12.1",
            lambda f: _outside(f, (8, 0)),
        ),
        HALF,
        Rule("check_for_attn_mask", "it takes no dense mask or bias", lambda f: f.dense),
        Rule("check_head_dim_size_flash", "q and v differ in head size", lambda f: f.head_dim != f.v_head_dim),
        Rule("check_head_dim_size_flash", "its head size is at most 256", lambda f: f.head_dim > 256),
        Rule(
            "check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120",
            "it has no gradient for head sizes of 193 to 224 on this GPU",
            _no_gradient,
        ),
        Rule(
            "check_flash_causal_non_square_seqlens",
            "its causal mask needs as many queries as keys",
            lambda f: f.causal and f.n != f.m,
        ),
        EMPTY,
        STRIDES,
    ),
    "efficient": (
        *_tried("efficient", "check_runtime_disabled_mem_efficient"),
        Rule(
            "check_mem_efficient_hardware_support",
            "it needs a GPU of compute capability 5.0 to 12.1",
            lambda f: _outside(f, (5, 0)),
        ),
        Rule(
            "check_tensor_dtype",
            "it needs float32, float16 or bfloat16",
            lambda f: f.dtype not in (*HALVES, torch.float32),
        ),
        Rule(
            "check_tensor_dtype",
            "bfloat16 needs a GPU of compute capability 8.0",
            lambda f: f.dtype == torch.bfloat16 and not _outside(f, (0, 0), (7, 9)),
        ),
        Rule(
            "check_head_dim_size_mem_efficient",
            "its head sizes are multiples of 8, or of 4 in float32",
            lambda f: f.head_dim % _alignment(f) != 0 or f.v_head_dim % _alignment(f) != 0,
        ),
        Rule("check_batch_size_and_num_heads_dense", "it takes no grouped heads", lambda f: f.heads != f.kv_heads),
        EMPTY,
        STRIDES,
    ),
    "cudnn": (
        *_tried("cudnn", "check_runtime_disabled_cudnn"),
        Rule("can_use_cudnn_attention", "it needs cuDNN 9", lambda f: f.settings.cudnn < 90000),
        Rule(
            "check_cudnn_hardware_support",
            "it needs a GPU of compute capability 8.0 to 12.1",
            lambda f: _outside(f, (8, 0)),
        ),
        Rule("check_cudnn_deterministic", "it is not deterministic", lambda f: f.settings.deterministic),
        HALF,
        Rule("check_attn_mask_shape", "it gives no gradient to a bias", lambda f: f.dense_gradient),
        Rule(  # some GPUs take up to 256, by version of cuDNN and of torch
            "check_cudnn_tensor_shapes",
            "its head sizes are at most 128",
            lambda f: max(f.head_dim, f.v_head_dim) > 128,
        ),
        Rule(
            "check_cudnn_tensor_shapes",
            "its head sizes are multiples of 8",
            lambda f: f.head_dim % 8 != 0 or f.v_head_dim % 8 != 0,
        ),
        Rule(
            "check_cudnn_tensor_shapes",
            "it takes at most 65535 heads and rows of the batch",
            lambda f: max(f.batch, f.heads) > 65535,
        ),
        Rule("check_cudnn_tensor_shapes", "it needs more than one key", lambda f: f.m == 1),
        EMPTY,
        STRIDES,
    ),
}


def refusals(name: str, facts: Facts) -> list[str]:
    """Returns every reason why a fused back end does not take a call; none if it does."""
    return [rule.why for rule in BACK_ENDS[name] if rule.refuses(facts)]


def fused(facts: Facts) -> str | None:
    """Returns the fused back end that torch chooses for a call; None if it takes math or fails."""
    for name in _before_math(facts):
        if not any(rule.refuses(facts) for rule in BACK_ENDS[name]):
            return name
    return None


def said(facts: Facts) -> str:
    """Returns one line that says why each fused back end refuses a call."""
    return "; ".join(f"{name}: {', '.join(refusals(name, facts))}" for name in BACK_ENDS)


@constant_in_graphs
def settings() -> tuple[tuple[str, ...], bool, int]:
    """Returns the fields of ``Settings`` as they are now; compiled code keeps those at the time of its compilation."""
    cuda = torch.backends.cuda
    on = {
        MATH: cuda.math_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled() and cuda.is_flash_attention_available(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }
    order = tuple([NAMES[int(number)] for number in sdp_order() if on.get(NAMES.get(int(number), ""), False)])
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    return order, strict, torch.backends.cudnn.version() or 0
