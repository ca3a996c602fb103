"""The text encoder of VITS: MMS and Piper voices."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..coordinates import Coordinates
from ..masks import AnyMask, as_mask
from ..models import Encoder, Stack
from ..nn import Block, Embedding, Head, MultiHeadAttention
from ..nn.feed_forward import Activation
from ..positions import Shaw
from ..positions._base import Input, Pair, Terms
from ..terms import Clip, RelativeKeys, RelativeValues, Rows
from ._base import Config, Family
from ._left_out import Unused
from ._rules import AsItIs, Rule

SMALL: dict[str, Any] = {
    "architectures": ["VitsModel"],
    "model_type": "vits",
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 48,
    "flow_size": 8,
    # for parts that are not read
    "upsample_initial_channel": 8,
    "upsample_rates": [2],
    "upsample_kernel_sizes": [4],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1]],
    "spectrogram_bins": 9,
    "duration_predictor_filter_channels": 8,
    "duration_predictor_num_flows": 2,
    "depth_separable_num_layers": 1,
    "posterior_encoder_num_wavenet_layers": 1,
    "prior_encoder_num_wavenet_layers": 1,
    "prior_encoder_num_flows": 1,
}


class VITS(Family):
    """An encoder of phonemes with post-norm: ids to means and log-variances, [batch, n, 2·flow_size].

    Positions: Shaw's vectors for keys and values within ``window_size`` tokens, for each layer, shared by its heads.
    Beyond this distance there are none, whereas Shaw uses those of the largest distance. The feed-forward is two
    convolutions over tokens, in which padding is zero. Embeddings are multiplied by √hidden_size. The other parts of
    the voice (durations, flow, decoder) are not read, and ``save`` does not write them.

    References:
        Kim et al. 2021.
    """

    architectures = {"VitsModel": True}
    examples = (SMALL, {**SMALL, "window_size": 2, "ffn_kernel_size": 4, "use_bias": False, "hidden_act": "gelu"})
    ignored = {
        "duration_predictor.*": Unused("a part after the text encoder"),
        "flow.*": Unused("a part after the text encoder"),
        "decoder.*": Unused("a part after the text encoder"),
        "posterior_encoder.*": Unused("a part for training"),
        "embed_speaker.*": Unused("a part after the text encoder"),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        norm, dropout = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-5)), config.get("hidden_dropout", 0.1)
        blocks = [
            ConvolvedBlock(
                width,
                heads,
                norm=norm,
                norm_first=False,
                dropout=dropout,
                attention=MultiHeadAttention(
                    width, heads, bias=config.get("use_bias", True), dropout=config.get("attention_dropout", 0.1)
                ),
                feed_forward=Convolutions(
                    width,
                    config["ffn_dim"],
                    config.get("ffn_kernel_size", 3),
                    config.activation("hidden_act", "relu"),
                    dropout=config.get("activation_dropout", 0.1),
                ),
            )
            for _ in range(config["num_hidden_layers"])
        ]
        near = [Near(width // heads, config.get("window_size", 4)) for _ in blocks]
        return Encoder.of_parts(
            Embedding(config["vocab_size"], width, scale=width**0.5),
            Stack(blocks, near),
            Head(width, 2 * config["flow_size"], bias=True),
        )

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block, encoding = "text_encoder.encoder.layers.{}.", "stack.blocks.{}.", "stack.encodings.{}."
        one_head = AsItIs(1, -1, config["hidden_size"] // config["num_attention_heads"])
        return (
            Rule("text_encoder.embed_tokens.weight", "embedding.weight"),
            *(
                Rule(f"{layer}attention.{name}_proj", f"{block}attention.{name}_proj")
                for name in ("q", "k", "v", "out")
            ),
            Rule(layer + "attention.emb_rel_k", encoding + "keys", one_head),
            Rule(layer + "attention.emb_rel_v", encoding + "values", one_head),
            Rule(layer + "layer_norm", block + "attention_norm"),
            Rule(layer + "feed_forward.conv_1", block + "feed_forward.up"),
            Rule(layer + "feed_forward.conv_2", block + "feed_forward.down"),
            Rule(layer + "final_layer_norm", block + "feed_forward_norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (
            Rule("text_encoder.project.weight", "head.weight", AsItIs(-1, config["hidden_size"], 1)),
            Rule("text_encoder.project.bias", "head.bias"),
        )


class Near(Shaw):
    """Shaw's vectors for distances up to a limit, and zero beyond.

        score[i,j] = s·⟨qᵢ, kⱼ + a^K[δ]⟩,   out[i] = Σⱼ A[i,j]·(vⱼ + a^V[δ]),   a[δ] = 0 for |δ| > max_distance

    Shapes and errors are those of Shaw.
    """

    def terms(self, q_at: Coordinates, k_at: Coordinates, q_input: Input = None, k_input: Input = None) -> Terms:
        """Relative keys and relative values, each with a row of zeros at both ends."""
        clip = Clip(-self.max_distance - 1, self.max_distance + 1)
        keys, values = (Rows(F.pad(table, (0, 0, 1, 1))[None], clip) for table in (self.keys, self.values))
        return RelativeKeys(keys), RelativeValues(values)

    def oracle(self, pair: Pair) -> float:
        return super().oracle(pair) if self._is_near(pair) else pair.scale * pair.dot

    def oracle_value(self, pair: Pair, v: Tensor) -> Tensor:
        return super().oracle_value(pair, v) if self._is_near(pair) else v[pair.h, pair.j]

    def _is_near(self, pair: Pair) -> bool:
        return abs(pair.distance) <= self.max_distance


class Convolutions(nn.Module):
    """Two convolutions over the tokens with an activation between them, in which padding is zero."""

    def __init__(self, embed_dim: int, hidden_dim: int, width: int, activation: str, *, dropout: float) -> None:
        super().__init__()
        self.sides = ((width - 1) // 2, width // 2)
        self.up = nn.Conv1d(embed_dim, hidden_dim, width)
        self.down = nn.Conv1d(hidden_dim, embed_dim, width)
        self.activation = Activation(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Returns features [batch, n, embed_dim] of x, likewise; ``real`` [batch or 1, n, 1] is 0 for padding."""
        hidden = self.dropout(self.activation(self._convolved(self.up, x, real)))
        return self._convolved(self.down, hidden, real)

    def _convolved(self, layer: nn.Module, x: Tensor, real: Tensor | None) -> Tensor:
        x = x if real is None else x * real
        out: Tensor = layer(F.pad(x.transpose(1, 2), self.sides)).transpose(1, 2)
        return out


class ConvolvedBlock(Block):
    """A block that passes the padding, keys to which no query may attend, to its feed-forward."""

    def forward(
        self, x: Tensor, *, mask: AnyMask = None, positions: Any = None, encoding: Any = None, **_: Any
    ) -> Tensor:
        real = None
        shown = as_mask(mask)
        if shown is not None:
            seen = shown.allowed(positions, positions)
            real = seen.any(dim=(1, 2))[..., None].to(x.dtype)
        attend = partial(self.attention, mask=mask, positions=positions, encoding=encoding)
        x = self._residual(x, self.attention_norm, attend)
        assert self.feed_forward_norm is not None
        return self._residual(x, self.feed_forward_norm, partial(self.feed_forward, real=real))
