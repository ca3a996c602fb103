"""The models of a comparison: Transformers that differ only in their encoding, and recurrent baselines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .._common.language import said
from ..attention import explain
from ..errors import HeadwayError
from ..masks import Causal
from ..models import Decoder, RecurrentLM, TransformerConfig
from ..positions import Learned, PositionEncoding, encoding
from ..positions._base import IN_ATTENTION
from .protocol import FixedProtocol, derived_seed

RECURRENT_LAYERS = 1
CLOSE_ENOUGH = 0.05
"""The largest relative difference between the parameters of a baseline and of the Transformer."""


EMBEDDING_SCALE = 4.0
"""The factor of token embeddings, which have an initial length of one: large enough for sines not to dominate them, and
small enough for learned positions to have an effect."""

FUSED = frozenset({"sdpa", "triton"})
"""The kernels that are fast on a GPU."""


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model; tables of positions have ``max_length``, the trained length."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    max_length: int

    @classmethod
    def of(cls, protocol: FixedProtocol, task: str, vocabulary: int) -> ModelSizes:
        """Returns the sizes of a ``task`` with a ``vocabulary`` under a ``protocol``; recall has one layer."""
        layers = 1 if task == "recall" else protocol.layers
        return cls(vocabulary, layers, protocol.width, protocol.heads, max_length=protocol.train_length)


def build_encoding(spec: str, sizes: ModelSizes, seed: int) -> PositionEncoding:
    """Builds an encoding by its name, as ``headway.encoding`` takes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "encoding"))
        return encoding(
            spec,
            num_heads=sizes.heads,
            head_dim=sizes.width // sizes.heads,
            embed_dim=sizes.width,
            max_length=sizes.max_length,
            bidirectional=False,
        )


def build_transformer(spec: str | None, sizes: ModelSizes, seed: int) -> Decoder:
    """Builds a causal language model with the encoding of a name, or with none.

    Parameters that models share have the same initial values.
    """
    positions = None if spec is None else build_encoding(spec, sizes, seed)
    config = TransformerConfig(
        sizes.vocabulary,
        embed_dim=sizes.width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        attention_scale=(sizes.width // sizes.heads) ** -0.5,
        embedding_scale=EMBEDDING_SCALE,
    )
    with torch.random.fork_rng(devices=[]):
        model = Decoder(config, positions)
    start_alike(model, seed)
    return model


def build_recurrent(cell: str, sizes: ModelSizes, seed: int) -> RecurrentLM:
    """Builds a recurrent language model with as many parameters as the Transformer without an encoding.

    ``cell`` is "lstm" or "rnn".

    Raises:
        HeadwayError: if no width of the cell comes within 5 % of the number of parameters.
    """
    target = build_transformer(None, sizes, seed)
    shape = {
        "vocab_size": sizes.vocabulary,
        "embed_dim": sizes.width,
        "num_layers": RECURRENT_LAYERS,
        "cell": cell,
    }
    hidden = RecurrentLM.hidden_dim_for(target.num_parameters, **shape)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "model"))
        model = RecurrentLM(hidden_dim=hidden, **shape)  # type: ignore[arg-type]
    apart = abs(model.num_parameters - target.num_parameters) / target.num_parameters
    if apart > CLOSE_ENOUGH:
        raise HeadwayError(
            f"no {cell} of width {sizes.width} has about {target.num_parameters:,} parameters: choose a larger "
            "width, or leave the baseline out"
        )
    start_alike(model, seed, only=("embedding.weight",))
    return model


def start_alike(model: nn.Module, seed: int, only: Sequence[str] | None = None) -> None:
    """Draws each matrix W [out, in] from N(0, 1/in); the numbers depend only on the seed and the parameter's name.

    Parameters of the same name and shape start alike in every model. Vectors (biases 0, norms 1) and the parameters of
    encodings keep their values. If ``only`` names parameters, the others keep theirs too.
    """
    own = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, PositionEncoding)
        for parameter in module.parameters()
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and id(parameter) not in own and (only is None or name in only):
                generator = torch.Generator().manual_seed(derived_seed(seed, name))
                parameter.normal_(std=parameter.shape[1] ** -0.5, generator=generator)


def interpolated(spec: str, sizes: ModelSizes) -> str | None:
    """Returns the name of a table of learned positions that is interpolated beyond its end.

    It is None if the encoding is not such a table, or is already extended.
    """
    built = build_encoding(spec, sizes, 0)
    if not isinstance(built, Learned) or built.extend is not None:
        return None
    inside = spec[:-1] + ", " if spec.endswith(")") else spec + "("
    return inside + 'extend="interpolate")'


def kernel_used(
    spec: str | None, sizes: ModelSizes, batch: int, device: str, dtype: torch.dtype = torch.float32
) -> str:
    """Returns the name of the attention kernel that trains an encoding, or none, with q, k and v in ``dtype``."""
    positions = None if spec is None else build_encoding(spec, sizes, 0).to(device)
    in_layer = positions if positions is not None and positions.acts & IN_ATTENTION else None
    shape = (batch, sizes.heads, sizes.max_length, sizes.width // sizes.heads)
    q, k, v = (torch.zeros(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    x = torch.zeros(batch, sizes.max_length, sizes.width, device=device, dtype=dtype)
    choice = explain(q, k, v, encoding=in_layer, mask=Causal(), scale=shape[3] ** -0.5, q_input=x, k_input=x)
    return choice.kernel or "none"


def automatic_device(
    encodings: Iterable[str], sizes: ModelSizes, batch: int, gpu: str, dtype: torch.dtype
) -> tuple[str, str]:
    """Returns the device that "auto" stands for where there is a GPU, and a sentence that says why.

    It is the GPU if a fused kernel trains every encoding there with q, k and v in ``dtype``, else the CPU.
    """
    slow = [spec for spec in encodings if kernel_used(spec, sizes, batch, gpu, dtype) not in FUSED]
    if not slow:
        return gpu, said("It runs on {gpu}, where a fused kernel computes the attention of every model.", gpu=gpu)
    return "cpu", said(
        "It runs on the CPU: on {gpu} no fused kernel computes the attention of {which}. Give --device {gpu} to use "
        "the GPU all the same, or leave them out.",
        gpu=gpu,
        which=said(", ").join(slow),
    )


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, object]]:
    """Returns the parameter groups of a model, as torch's optimizers take them.

    Weight decay applies to matrices outside of encodings. An encoding's parameters have its
    ``learning_rate_multiplier``.
    """
    pace = {
        id(parameter): type(module).learning_rate_multiplier
        for module in model.modules()
        if isinstance(module, PositionEncoding)
        for parameter in module.parameters()
    }
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        decay = weight_decay if parameter.ndim > 1 and id(parameter) not in pace else 0.0
        groups.setdefault((pace.get(id(parameter), 1.0), decay), []).append(parameter)
    return [
        {"params": parameters, "lr": learning_rate * multiplier, "weight_decay": decay}
        for (multiplier, decay), parameters in groups.items()
    ]
