"""The sizes and options of a Transformer, except its position encodings, which are objects."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HeadwayError, need_positive, right_call


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes and options of a Transformer.

    Args:
        vocab_size: the number of token ids, which are 0 to vocab_size − 1.
        embed_dim: the width of embeddings and hidden states.
        num_layers: the number of blocks of each stack.
        num_heads: the number of query heads.
        num_kv_heads: the number of key and value heads; ``num_heads`` if None.
        head_dim: the width of each head; embed_dim / num_heads if None.
        feed_forward_dim: the number of hidden features of the feed-forward layers; 4·embed_dim if None.
        activation: "relu", "gelu", "gelu_tanh", "swiglu" or another one that ``headway.nn.FeedForward`` takes.
        norm: "layer" or "rms".
        norm_first: True puts a norm before each part and one at the end; False puts one after each residual sum.
        bias: whether projections and feed-forward maps have biases.
        dropout: the probability of dropping an element of embeddings, attention weights, feed-forward layers and
            residuals in training, 0 ≤ dropout < 1.
        attention_scale: the factor of the scores; each encoding's own (head_dim^−½ for most) if None.
        soft_cap: bounds the scores, score ← cap·tanh(score/cap), if given.
        sink: the initial value of a learned logit of each head that takes part in the softmax; no logit if None.
        embedding_scale: the factor of the token embeddings; embed_dim^½ if None.
        tied_head: whether the head computes logits by the token embeddings, or by a matrix of its own.
        kernel: the name of an attention kernel, or "auto".
        parts: the names in ``headway.nn.PARTS`` of what self-attention computes around attention, such as "head-gate".

    Raises:
        HeadwayError: if a size is below 1, dropout is outside of its range, or parts is one name.
    """

    vocab_size: int
    embed_dim: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    feed_forward_dim: int | None = None
    activation: str = "gelu"
    norm: str = "layer"
    norm_first: bool = True
    bias: bool = True
    dropout: float = 0.0
    attention_scale: float | None = None
    soft_cap: float | None = None
    sink: float | None = None
    embedding_scale: float | None = None
    tied_head: bool = True
    kernel: str = "auto"
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "embed_dim", "num_layers", "num_heads", "feed_forward_dim")
        given = {name: getattr(self, name) for name in sizes}
        need_positive(**{name: value for name, value in given.items() if value is not None})
        if not 0 <= self.dropout < 1:
            raise HeadwayError(f"dropout is {self.dropout}: give at least 0 and less than 1")
        if isinstance(self.parts, str):
            raise HeadwayError(f"parts is {self.parts!r}: give a tuple, such as ({self.parts!r},)")
        object.__setattr__(self, "parts", tuple(self.parts))  # JSON has a list


TransformerConfig.__init__ = right_call("TransformerConfig(vocab_size=1000)")(TransformerConfig.__init__)  # type: ignore[method-assign]
