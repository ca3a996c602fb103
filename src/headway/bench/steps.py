"""Benchmarks a training step of a small language model in headway, torch and x-transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import positions
from ..errors import HeadwayError
from ..models import Decoder, TransformerConfig
from ..nn import linear_kernel
from .cases import DTYPES, STEP_MODELS, ModelCase, ModelPlan
from .measure import CheckError, agree_on_the_whole, in_turn
from .rows import Row
from .sides import OURS, Run

TORCHS_PRODUCTS = "headway, torch's linear maps"
TORCH = "torch, TransformerEncoder"
X_TRANSFORMERS = "x-transformers"

SIZES: dict[str, Any] = {"vocab_size": 256, "embed_dim": 512, "num_layers": 4, "num_heads": 8}

THEIRS: dict[str, dict[str, Any]] = {
    "rope": {"rotary_pos_emb": True, "attn_flash": True},
    "alibi": {"alibi_pos_bias": True, "attn_flash": True},
    "t5": {"rel_pos_bias": True},  # its flash attention does not support this
}
"""The arguments of x-transformers for an encoding."""

APART = 0.02
"""The largest difference in the number of parameters, as a share."""


class TorchDecoder(nn.Module):
    """A language model from ``nn.TransformerEncoder`` with a causal mask and learned positions for at most n tokens."""

    mask: Tensor

    def __init__(self, n: int, vocab_size: int, embed_dim: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, embed_dim), nn.Embedding(n, embed_dim)
        layer = nn.TransformerEncoderLayer(
            embed_dim, num_heads, 4 * embed_dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(embed_dim)
        self.layers = nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(n), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of each next token, [batch, n, vocab_size], for ids [batch, n]."""
        n = ids.shape[1]
        x = self.embedding(ids) + self.positions.weight[:n]
        return F.linear(self.layers(x, mask=self.mask[:n, :n], is_causal=True), self.embedding.weight)


def models(case: ModelCase) -> dict[str, Callable[[], nn.Module]]:
    """Returns the functions that build the models of a case by side, headway's first."""
    encoding = STEP_MODELS[case.model]

    def ours() -> nn.Module:
        built = positions.encoding(
            encoding,
            num_heads=SIZES["num_heads"],
            head_dim=SIZES["embed_dim"] // SIZES["num_heads"],
            embed_dim=SIZES["embed_dim"],
            max_length=case.n,
            bidirectional=False,
        )
        return Decoder(TransformerConfig(**SIZES), built)

    if encoding == "learned":
        return {OURS: ours, TORCH: partial(TorchDecoder, case.n, **SIZES)}
    return {OURS: ours, X_TRANSFORMERS: partial(_x_transformers, encoding, case.n)}


def _x_transformers(encoding: str, n: int) -> nn.Module:
    theirs = import_module("x_transformers")
    layers = theirs.Decoder(
        dim=SIZES["embed_dim"],
        depth=SIZES["num_layers"],
        heads=SIZES["num_heads"],
        attn_dim_head=SIZES["embed_dim"] // SIZES["num_heads"],
        verbose=False,
        **THEIRS[encoding],
    )
    model: nn.Module = theirs.TransformerWrapper(
        num_tokens=SIZES["vocab_size"], max_seq_len=n, use_abs_pos_emb=False, attn_layers=layers
    )
    return model


class Step:
    """A training step of a model on random tokens: forward, backward and AdamW; bfloat16 is autocast.

    ``kernel`` computes the products of headway's linear maps, as ``linear_kernel`` takes it.
    """

    def __init__(self, model: nn.Module, case: ModelCase, kernel: str | None = None) -> None:
        self.model, self.case, self.kernel = model.train(), case, kernel
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(SIZES["vocab_size"], (case.batch, case.n + 1), generator=torch.Generator().manual_seed(0))
        self.ids, self.labels = ids[:, :-1], ids[:, 1:]

    def __call__(self) -> list[Tensor]:
        """Returns the loss, and the gradients of all parameters, before the optimizer's step."""
        self.optimizer.zero_grad()
        with nullcontext() if self.kernel is None else linear_kernel(self.kernel):
            with self._dtype():
                loss = F.cross_entropy(self.model(self.ids).flatten(0, 1), self.labels.flatten())
            loss.backward()
        self.optimizer.step()
        return [loss.detach(), *(p.grad for p in self.model.parameters() if p.grad is not None)]

    @contextmanager
    def _dtype(self) -> Iterator[None]:
        dtype = DTYPES[self.case.dtype]
        with nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype):
            yield


def sides(case: ModelCase) -> tuple[dict[str, Run], dict[str, str]]:
    """Returns the steps of a case by side, headway's first, and the reasons why other sides are missing.

    headway's model occurs twice with equal weights, the second time with torch's linear maps.

    Raises:
        CheckError: if a model of another side has more or fewer parameters.
    """
    runs: dict[str, Run] = {}
    says: dict[str, str] = {}
    size = 0
    for name, build in models(case).items():
        try:
            torch.manual_seed(0)
            model = build()
        except (ImportError, HeadwayError) as error:
            says[name] = str(error)
            continue
        count = sum(parameter.numel() for parameter in model.parameters())
        size = size or count
        if abs(count - size) > APART * size:
            raise CheckError(f"{name} on {case} has {count:,} parameters but headway {size:,}")
        runs[name] = Step(model, case)
        if name == OURS:
            torch.manual_seed(0)
            runs[TORCHS_PRODUCTS] = Step(build(), case, "torch")
    return runs, says


def measure(case: ModelCase, plan: ModelPlan) -> Row:
    """Measures a case: the milliseconds of each side, and the reasons why other sides have none.

    Raises:
        CheckError: if a side fails, or headway's linear maps compute other numbers than torch's.
    """
    runs, says = sides(case)
    results, warm = {}, 0.0
    for name, run in runs.items():
        began = time.perf_counter()
        results[name] = run()
        warm += 1e3 * (time.perf_counter() - began)
        if not all(x.isfinite().all() for x in results[name]):
            raise CheckError(f"{name} on {case}: the loss or a gradient is not finite")
    what = f"headway's and torch's linear maps on {case}"
    # compare all gradients together, since those of the keys' biases are 0 up to rounding
    agree_on_the_whole(what, case.dtype, *(_whole(results[name]) for name in (OURS, TORCHS_PRODUCTS)))
    results.clear()
    milliseconds, rounds = in_turn(runs, plan.seconds, plan.rounds, warm if warm > 1000.0 * len(runs) else None)
    return {"rounds": rounds, "seconds": plan.seconds, "ms": milliseconds, "says": says}


def _whole(results: list[Tensor]) -> list[Tensor]:
    loss, *gradients = results
    return [loss, torch.cat([gradient.flatten() for gradient in gradients])]
