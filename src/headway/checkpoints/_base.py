"""The base class of families of published models: the config they read, the model they build, the tensors' names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import nn
from typing_extensions import Self

from ..errors import HeadwayError, unknown
from ..masks import Window, sliding_window
from ..nn import Head
from ..nn.feed_forward import Activation
from ..positions import PositionEncoding, from_rope_parameters
from ..positions._huggingface import LENGTH, PART
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
"""The names of activations in configs, and headway's."""
GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
"""The gated form of each activation of headway."""

MOST_LAYERS = 10_000
"""A config with more layers or groups is refused as damaged, since building them would exhaust the memory."""

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
"""The sizes of the examples, under the names that most configs use."""


class Config(Mapping[str, Any]):
    """A config.json, whose errors name the key that is missing or not supported.

    ``config[key]`` raises HeadwayError if the key is missing, or if it counts layers or groups and is above 10,000.

    Args:
        values: the entries of the config.json.
    """

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
        """The value of a key, or the default if it is missing or null.

        Args:
            key: the key.
            default: the value if the config has none.

        Raises:
            HeadwayError: if the default is a number and the value is not, or the default is a string and the value is
                not.
        """
        value = self[key] if key in self.values_ else None
        if value is None:
            return default
        for kind, said in (((int, float), "number"), (str, "text")):
            if isinstance(default, kind) and not isinstance(default, bool) and not isinstance(value, kind):
                raise HeadwayError(f"the config's {key} is {value!r}: give a {said}")
        return value

    def replace(self, **values: Any) -> Self:
        """A copy with other values.

        Args:
            **values: the values by key.
        """
        return type(self)({**self.values_, **values})

    def of_type(self, types: Mapping[str, Mapping[str, Any]]) -> Self:
        """A copy for a family of several model types, without the keys that only others of them have.

        The type is the config's model_type, or else the type with which the name of the architecture begins.

        Args:
            types: for each model_type, the values of keys that a config may lack.

        Raises:
            HeadwayError: if neither names one of the types.
        """
        kind = self.get("model_type")
        if kind not in types:
            name = str(self.get("architectures", [""])[0]).lower()
            named = [one for one in types if name.startswith(one)]
            if not named:
                raise unknown("type (the config's model_type)", kind, types)
            kind = named[0]
        others = {key for one in types.values() for key in one} - set(types[kind])
        rest = {key: value for key, value in self.values_.items() if key not in others}
        return type(self)({**types[kind], **rest, "model_type": kind})

    def only(self, key: str, *allowed: Any) -> None:
        """Checks that a key has one of the values that headway supports.

        Args:
            key: the key.
            *allowed: the values; the first is that of a missing key.

        Raises:
            HeadwayError: if the key has another value.
        """
        value = self.get(key, allowed[0])
        if value not in allowed:
            said = " or ".join(repr(one) for one in allowed)
            raise HeadwayError(f"the config's {key} is {value!r}: headway reads such models with {said} only")

    def window(self) -> Window:
        """The mask of sliding_window tokens, which counts the query.

        Raises:
            HeadwayError: if sliding_window is not a whole number above 0.
        """
        return sliding_window(self["sliding_window"])

    def activation(self, key: str, default: str = "gelu", *, gated: bool = False) -> str:
        """headway's name of the activation under a key.

        Args:
            key: the key.
            default: the config's name of the activation if the key is missing.
            gated: whether to return the name of the gated form.

        Raises:
            HeadwayError: if headway has no such activation.
        """
        name = self.get(key, default)
        ours = ACTIVATIONS.get(name)
        if ours is None or (gated and ours not in GATED):
            raise unknown(f"activation (the config's {key})", name, ACTIVATIONS)
        return GATED[ours] if gated else ours

    def rope(
        self,
        head_dim: int,
        *,
        layout: str = "half",
        theta: tuple[str, float] = ("rope_theta", 10000.0),
        part: tuple[str, float] | None = None,
        kind: str | None = None,
        scaled: bool = True,
    ) -> Any:
        """The rotary encoding of the config's rope_parameters, in older configs rope_scaling, which precedes them.

        Args:
            head_dim: the size of a head.
            layout: the layout of the rotary pairs, "half" or "interleaved".
            theta: the key of the base beside the parameters, and the base if the config has none.
            part: likewise of the fraction of a head that is rotated. None for models that rotate whole heads, whose
                "default" RoPE ignores a fraction.
            kind: the kind of layer, if the model has parameters for each kind.
            scaled: whether rope_scaling is for this kind.
        """
        said, scaling = self.get("rope_parameters") or {}, self.get("rope_scaling") or {}
        if kind is None:
            parameters = dict(scaling or said)
        else:
            parameters = {**(said.get(kind) or {"rope_type": "default"}), **(scaling if scaled else {})}
        rope_type = parameters.get("rope_type", parameters.get("type", "default"))
        parameters.setdefault("rope_theta", self.get(*theta))
        if part is not None:
            parameters.setdefault(PART, self.get(*part))
        elif rope_type == "default":
            parameters.pop(PART, None)
        if kind is None and rope_type in ("llama3", "longrope", "yarn") and self.get(LENGTH) is not None:
            parameters[LENGTH] = self[LENGTH]
        encoding: PositionEncoding = from_rope_parameters(
            parameters, head_dim, max_position_embeddings=self.get("max_position_embeddings"), layout=layout
        )
        return encoding


class Family:
    """The base class of families: published models of one architecture.

    A family lists the ``architectures`` it reads, ``build`` makes headway's model of a config, and ``rules`` maps the
    checkpoint's names of tensors to headway's. An instance has no state.
    """

    title: ClassVar[str | None] = None
    """The name of the models in the documentation; that of the module's docstring if None."""
    architectures: ClassVar[dict[str, bool]] = {}
    """The names under "architectures" in a config.json, and whether such a model has a head."""
    examples: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Small configs in the form of a config.json, from which the checks make models with random weights."""
    oracle: ClassVar[str | None] = None
    """The source of the expected outputs in the tests, if the tested transformers has no such model."""
    prefix: ClassVar[str] = ""
    """The prefix of the names of the body's tensors in a model with a head, such as "bert."."""
    aliases: ClassVar[dict[str, str]] = {}
    """Other names of keys. As in transformers, their values are used if both are given."""
    ignored: ClassVar[dict[str, LeftOut]] = {}
    """Patterns of tensors that are not read (computed tables, tied copies, poolers), and the content each must have."""

    def config(self, values: Mapping[str, Any]) -> Config:
        """The config of a config.json, in which keys have their own names.

        Args:
            values: the entries of the config.json.
        """
        renamed = {key: values[alias] for alias, key in self.aliases.items() if values.get(alias) is not None}
        return Config({**values, **renamed})

    def build(self, config: Config, *, head: bool) -> nn.Module:
        """The model of a config, with freshly initialized parameters.

        Args:
            config: the config.
            head: whether the model has its head.
        """
        raise NotImplementedError

    def body(self, config: Config) -> Sequence[Rule]:
        """The rules of the body's tensors, without the prefix.

        Args:
            config: the config.
        """
        raise NotImplementedError

    def head(self, config: Config) -> Sequence[Rule]:
        """The rules of the head's tensors.

        Args:
            config: the config.
        """
        return ()

    def rules(self, config: Config, *, head: bool, prefix: bool) -> list[Rule]:
        """The rules of all tensors.

        Args:
            config: the config.
            head: whether to include those of the head.
            prefix: whether the body's tensors have the prefix.
        """
        before = self.prefix if prefix else ""
        body = [Rule(before + rule.theirs, rule.ours, rule.change) for rule in self.body(config)]
        return body + list(self.head(config) if head else ())


def masked_words(width: int, narrow: int, vocab_size: int, activation: str, norm: Callable[[int], nn.Module]) -> Head:
    """The head for masked tokens of BERT and related models, with the tied embeddings E.

        logits = E·norm(activation(W·x + c)) + b,   W [narrow, width], E [vocab_size, narrow]

    In rules, W and c are ``head.transform.0``, the norm is ``head.transform.2``, and b is ``head.bias``.
    """
    turn = nn.Sequential(nn.Linear(width, narrow), Activation(activation), norm(narrow))
    return Head(narrow, vocab_size, tied=True, bias=True, transform=turn)
