"""GPT-J."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..models import Decoder, Stack
from ..nn import Embedding, Head, MultiHeadAttention, ParallelBlock
from ..positions import PartialRoPE
from ._base import Config, Family
from ._left_out import Copy, Lowest, Triangle, Turns
from ._rules import Rule, projections
from .gpt2 import GPT2


class GPTJ(Family):
    """A decoder with parallel attention and feed-forward after one norm, and partial RoPE.

    Positions: the first rotary_dim features of each head are rotated, in the "interleaved" layout. The projections of
    the attention have no bias, the head has one.

    References:
        Wang and Komatsuzaki 2021.
    """

    architectures = {"GPTJModel": False, "GPTJForCausalLM": True}
    examples = tuple(
        {
            "architectures": [architecture],
            "model_type": "gptj",
            "vocab_size": 40,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 64,
            "layer_norm_epsilon": 1e-3,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **more,
        }
        for architecture, more in (
            ("GPTJForCausalLM", {"rotary_dim": 4}),
            ("GPTJForCausalLM", {"rotary_dim": 6, "tie_word_embeddings": True, "n_inner": 48}),
            ("GPTJModel", {"rotary_dim": 8}),
        )
    )
    prefix = "transformer."
    aliases = GPT2.aliases
    ignored = {
        "*.attn.bias": Triangle(),
        "*.attn.masked_bias": Lowest(),
        "*.attn.embed_positions": Turns(),
        "lm_head.weight": Copy(),
    }

    def build(self, config: Config, *, head: bool) -> nn.Module:
        width, heads = config["n_embd"], config["n_head"]
        norm = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5))
        blocks = [
            ParallelBlock(
                width,
                heads,
                shared_norm=True,
                feed_forward_dim=config.get("n_inner"),
                activation=config.activation("activation_function", "gelu_new"),
                norm=norm,
                dropout=config.get("resid_pdrop", 0.0),
                attention=MultiHeadAttention(width, heads, bias=False, dropout=config.get("attn_pdrop", 0.0)),
            )
            for _ in range(config["n_layer"])
        ]
        rope = PartialRoPE(width // heads, config["rotary_dim"], layout="interleaved")
        stack = Stack(blocks, rope, norm=norm(width), dropout=config.get("embd_pdrop", 0.0))
        tied = config.get("tie_word_embeddings", False)
        logits = Head(width, config["vocab_size"], tied=tied, bias=True) if head else None
        return Decoder.of_parts(Embedding(config["vocab_size"], width), stack, logits)

    def body(self, config: Config) -> tuple[Rule, ...]:
        layer, block = "h.{}.", "stack.blocks.{}."
        return (
            Rule("wte.weight", "embedding.weight"),
            Rule(layer + "ln_1", block + "attention_norm"),
            *projections(layer + "attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
            Rule(layer + "mlp.fc_in", block + "feed_forward.up_proj"),
            Rule(layer + "mlp.fc_out", block + "feed_forward.down_proj"),
            Rule("ln_f", "stack.norm"),
        )

    def head(self, config: Config) -> tuple[Rule, ...]:
        return (Rule("lm_head", "head"),)
