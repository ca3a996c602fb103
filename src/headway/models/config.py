"""The sizes and choices of a Transformer, but for its position encodings, which are objects."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HeadwayError, need_positive


@dataclass(frozen=True)
class TransformerConfig:
    """What a Transformer is made of.

    vocab_size        ids are 0 … vocab_size − 1
    num_kv_heads      num_heads if None; head_dim: embed_dim / num_heads if None
    feed_forward_dim  4·embed_dim if None
    activation        "relu", "gelu", "gelu_tanh" or "swiglu"; norm: "layer" or "rms"
    norm_first        norms before the parts, and one at the end; behind the parts if false
    dropout           of embeddings, attention weights, feed-forward and residuals, in training alone
    attention_scale   the factor of the scores; each encoding's own (head_dim^−½ for most) if None
    soft_cap          score ← cap·tanh(score/cap) if given
    sink              where the learned logit of each head starts that takes part in the softmax; none if None
    embedding_scale   the factor of token embeddings: embed_dim^½ if None
    tied_head         logits by the token embeddings; a matrix of their own if false
    kernel            the name of an attention kernel, or "auto"

    Raises HeadwayError for a size below 1 and a dropout outside 0 ≤ dropout < 1.
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

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "embed_dim", "num_layers", "num_heads", "feed_forward_dim")
        given = {name: getattr(self, name) for name in sizes}
        need_positive(**{name: value for name, value in given.items() if value is not None})
        if not 0 <= self.dropout < 1:
            raise HeadwayError(f"dropout is {self.dropout}: give at least 0 and less than 1")
