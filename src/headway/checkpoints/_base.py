"""What a family of published models is: which config it reads, which model that means, what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from ..errors import HeadwayError
from ..nn import Head
from ..nn.feed_forward import Activation
from ..positions import PositionEncoding, from_rope_parameters
from ._left_out import LeftOut
from ._rules import Rule

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of activations, and ours."""
GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
"""The same with a gate."""

MOST_LAYERS = 10_000
"""More of a kind are taken for a damaged config: to build them would end in a full memory."""


SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
"""The sizes of the examples, under the names that most configs have."""


class Config(Mapping[str, Any]):
    """A config.json whose keys are asked for by name, and which says what is missing or cannot be had."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_ = dict(values)

    def __getitem__(self, key: str) -> Any:
        if key not in self.values_:
            raise HeadwayError(f"the config has no {key}: give the config.json that belongs to the weights")
        value = self.values_[key]
        if ("layer" in key or "group" in key) and isinstance(value, (int, float)) and value > MOST_LAYERS:
            raise HeadwayError(f"the config's {key} is {value}: headway builds {MOST_LAYERS} at most")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def __contains__(self, key: object) -> bool:
        return key in self.values_

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default where it is missing or null.

        Raises HeadwayError for a text where the default is a number, and for anything else where it is a text.
        """
        value = self[key] if key in self.values_ else None
        if value is None:
            return default
        for kind, said in (((int, float), "number"), (str, "text")):
            if isinstance(default, kind) and not isinstance(default, bool) and not isinstance(value, kind):
                raise HeadwayError(f"the config's {key} is {value!r}: give a {said}")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Raises where a key has another value than those we can say; one that is missing has the first of them."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            said = " or ".join(repr(one) for one in allowed)
            raise HeadwayError(f"the config's {key} is {value!r}: headway reads such models with {said} alone")

    def activation(self, key: str, default: str = "gelu", *, gated: bool = False) -> str:
        """Our name of the activation."""
        name = self.get(key, default)
        ours = ACTIVATIONS.get(name)
        if ours is None or (gated and ours not in GATED):
            raise HeadwayError(f"the config's {key} is {name!r}: headway has {', '.join(ACTIVATIONS)}")
        return GATED[ours] if gated else ours

    def rope(self, head_dim: int, *, layout: str = "half", base: float = 10000.0, kind: str | None = None) -> Any:
        """The rotary encoding that the config's rope_parameters (rope_scaling and rope_theta in older ones) mean.

        kind   which of them, where there is one set for each kind of layer
        """
        parameters = self.get("rope_parameters", self.get("rope_scaling"))
        if kind is not None and isinstance(parameters, Mapping) and isinstance(parameters.get(kind), Mapping):
            parameters = parameters[kind]
        theta = self.get("rope_theta", base)
        part = self.get("partial_rotary_factor")
        if part is not None:
            parameters = {"partial_rotary_factor": part, **(parameters or {})}
        found: PositionEncoding = from_rope_parameters(
            parameters,
            head_dim,
            base=theta,
            max_position_embeddings=self.get("max_position_embeddings"),
            layout=layout,
        )
        return found


class Family:
    """Published models of one shape.

    A family says which ``architectures`` it reads, ``build``s headway's model of a config, and lists ``rules``: what
    each tensor is called there and here. One instance serves all models.
    """

    title: ClassVar[str | None] = None
    """What the models are called, where it is not the first line of the file."""
    architectures: ClassVar[dict[str, bool]] = {}
    """The names that a config.json has under "architectures", and whether such a model has a head."""
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Small configs, as a config.json has them: the checks make models of them with random weights."""
    oracle: ClassVar[str | None] = None
    """Where numbers come from that the tests hold, where the transformers of today has no such model."""
    prefix: ClassVar[str] = ""
    """What stands before the names of the body's tensors in a model with a head, such as "bert."."""
    ignored: ClassVar[dict[str, LeftOut]] = {}
    """Patterns of tensors that are not read (computed tables, tied copies, poolers), and what each has to be."""

    def build(self, config: Config, *, head: bool) -> nn.Module:
        """The model of a config, its parameters as they come; with its head or without."""
        raise NotImplementedError

    def body(self, config: Config) -> Sequence[Rule]:
        """What the tensors of the body are called, without the prefix."""
        raise NotImplementedError

    def head(self, config: Config) -> Sequence[Rule]:
        """What the tensors of the head are called."""
        return ()

    def rules(self, config: Config, *, head: bool, prefix: bool) -> list[Rule]:
        """All rules, with the prefix or without."""
        before = self.prefix if prefix else ""
        body = [Rule(before + rule.theirs, rule.ours, rule.change) for rule in self.body(config)]
        return body + list(self.head(config) if head else ())


def masked_words(width: int, narrow: int, vocab_size: int, activation: str, norm: Callable[[int], nn.Module]) -> Head:
    """The head of BERT and its like: hidden states are turned once more before the tied embeddings, which have a bias.

        logits = E·norm(activation(W·x + c)) + b,   W [narrow, width], E [vocab_size, narrow]

    Its rules name ``head.transform.0``, W and c, ``head.transform.2``, the norm, and ``head.bias``.
    """
    turn = nn.Sequential(nn.Linear(width, narrow), Activation(activation), norm(narrow))
    return Head(narrow, vocab_size, tied=True, bias=True, transform=turn)
