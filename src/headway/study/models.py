"""The models that are compared: alike but for their encoding, and the recurrent baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..attention import explain
from ..errors import HeadwayError
from ..masks import Causal
from ..models import Decoder, RecurrentLM, TransformerConfig
from ..positions import Learned, PositionEncoding, encoding
from ..positions._base import IN_ATTENTION
from .protocol import Protocol, derived_seed

RECURRENT_LAYERS = 1
CLOSE_ENOUGH = 0.05
"""How far the parameters of a baseline may be from those of the Transformer."""


EMBEDDING_SCALE = 4.0
"""The factor of token embeddings, which start with a length of one: large enough for sines not to drown them, small
enough for learned positions to be heard."""


@dataclass(frozen=True)
class Sizes:
    """What a model is built with."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    max_length: int

    @classmethod
    def of(cls, protocol: Protocol, task: str, vocabulary: int) -> Sizes:
        """The sizes for a task: recall takes one layer."""
        layers = 1 if task == "recall" else protocol.layers
        return cls(vocabulary, layers, protocol.width, protocol.heads, max_length=protocol.train_length)


def build_encoding(spec: str, sizes: Sizes, seed: int) -> PositionEncoding:
    """The encoding of that name, its own parameters drawn by the seed."""
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


def build_transformer(spec: str | None, sizes: Sizes, seed: int) -> Decoder:
    """A language model with that encoding; what it shares with others starts from the same values."""
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


def build_recurrent(cell: str, sizes: Sizes, seed: int) -> RecurrentLM:
    """A recurrent model with as many parameters as the Transformer without an encoding."""
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
    """Draws each matrix W [out, in] from N(0, 1/in), by the seed and the parameter's name alone.

    So what has one name starts alike in every model. Vectors stay as they are (biases 0, norms 1), and so does
    what belongs to an encoding.
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


def interpolated(spec: str, sizes: Sizes) -> str | None:
    """The name under which a table of learned positions goes on beyond its end, if that is what spec is."""
    built = build_encoding(spec, sizes, 0)
    if not isinstance(built, Learned) or built.extend is not None:
        return None
    inside = spec[:-1] + ", " if spec.endswith(")") else spec + "("
    return inside + 'extend="interpolate")'


def kernel_used(spec: str | None, sizes: Sizes, batch: int, device: str) -> str:
    """The name of the attention kernel that trains this encoding."""
    positions = None if spec is None else build_encoding(spec, sizes, 0).to(device)
    in_layer = positions if positions is not None and positions.acts & IN_ATTENTION else None
    shape = (batch, sizes.heads, sizes.max_length, sizes.width // sizes.heads)
    q, k, v = (torch.zeros(shape, device=device, requires_grad=True) for _ in range(3))
    x = torch.zeros(batch, sizes.max_length, sizes.width, device=device)
    found = explain(q, k, v, encoding=in_layer, mask=Causal(), scale=shape[3] ** -0.5, q_input=x, k_input=x)
    return found.kernel or "none"


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, object]]:
    """Shared matrices with decay, shared vectors without, an encoding's own without and at its own pace."""
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
