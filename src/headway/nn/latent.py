"""Multi-head latent attention: keys and values of all heads from one latent vector of each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Never

from .._torch import calls_forward_alone
from ..attention import attention
from ..call import prepared
from ..coordinates import Coordinates
from ..errors import HeadwayError, need_positive, need_whole, refuse, refuses_others, right_call
from ..jagged import Sequences, is_nested, need_none
from ..masks import AnyMask, Mask, mask_or_tensor
from ..positions._base import PositionEncoding
from ..positions._naming import encoding as encoding_of
from ..positions._naming import shared_encoding
from ..terms import DenseBias, DistanceBias, QueryScale, Sink, SoftCap, Term, TokenBias
from ..tracing import refuse_script, refuse_tracers
from ._coordinates import check_coordinates, continued
from ._retention import reads_others
from ._transaction import transaction
from .attention import caches_prepared, check_encoding, coordinates_of_keys, make_parts
from .cache import KeyValueCache
from .linear import apply_linear, reset_projections
from .norm import make_norm
from .parts import LayerSizes, Part, PartLike, parts_of

FORMS = ("auto", "expanded", "absorbed")
OF_SCORES = (DistanceBias, TokenBias, DenseBias, QueryScale, Sink, SoftCap)
"""Terms that read neither queries nor keys, whose width differs between the two forms."""


class LatentAttention(nn.Module):
    """Applies multi-head latent attention: keys and values of all heads are linear maps of one latent of each token.

        c_j = norm(Wc·x_j)                    the latent of a token, latent_dim wide, which all heads share
        r_j = R(p_j)·Wr·x_j                   the rotary part of its key, rotary_dim wide, likewise
        q_h = [R(p_i)·Wqr_h·x̃_i, Wqc_h·x̃_i],  x̃ = x, or norm(Wd·x) with query_latent_dim
        k_h = [r_j, Wk_h·c_j],  v_h = Wv_h·c_j,  out = Wo·concat_h( attention(q_h, k_h, v_h) )

    A cache holds only c and r: (latent_dim + rotary_dim) numbers for each token, in place of num_heads·(head_dim +
    rotary_dim + value_dim).

    There are two forms, whose results are the same up to rounding. The expanded form computes keys and values of all
    heads. The absorbed form moves Wk to the query and Wv to the output, ⟨q, Wk·c⟩ = ⟨Wkᵀ·q, c⟩ and Σ A·Wv·c = Wv·Σ A·c,
    so all heads attend to c itself. "auto" takes the absorbed form for calls with a cache if it needs fewer
    multiplications, as in decoding.

    The rotary dimensions of each head come first, and the others follow. DeepSeek's weights have them last.

    Args:
        embed_dim: the width of input and output.
        num_heads: the number of heads.
        latent_dim: the width of the latent of keys and values (DeepSeek's kv_lora_rank).
        rotary_dim: the width of the part of queries and keys that the encoding transforms (qk_rope_head_dim).
        head_dim: the width of the other part of queries and keys (qk_nope_head_dim); embed_dim / num_heads if None.
        value_dim: the width of the values of each head (v_head_dim); ``head_dim`` if None.
        query_latent_dim: the width of the latent of queries (q_lora_rank); queries come from the input if None.
        encoding: a position encoding of heads that are rotary_dim wide, such as RoPE or YaRN, or its name. It may
            also add biases that depend on neither queries nor keys.
        norm: the norm of the latents: "rms", "layer" or a function of the width.
        bias: whether the projections from the input and the last one have biases.
        dropout: the probability of dropping an attention weight in training, 0 ≤ dropout < 1.
        scale: the factor of the scores; (head_dim + rotary_dim)^−½ if None, or the encoding's own scale for this width.
        parts: what the layer computes around attention, as in MultiHeadAttention. Only parts that change just the
            output, such as "head-gate".
        layer: the number of the layer in its stack, from 0, for parts that depend on it.
        form: "auto", "expanded" or "absorbed". The absorbed form calls no hooks of ``k_proj`` and ``v_proj``.
        kernel: the name of an attention kernel, or "auto".
        device: the device of the parameters created here; an encoding passed in keeps its own.
        dtype: the dtype of the parameters created here, likewise.

    Shape:
        query: [batch, n, embed_dim]
        Output: [batch, n, embed_dim]

    Raises:
        HeadwayError: if sizes are below 1 or do not divide, dropout is outside of its range, a name is unknown, the
            encoding reads the layer's input or transforms values, or a part changes values.

    References:
        DeepSeek-AI 2024, arXiv:2405.04434, section 2.1; DeepSeek-AI 2024, arXiv:2412.19437.

    Example:
        layer = LatentAttention(512, 8, latent_dim=128, rotary_dim=32, encoding="rope")
        layer(x, mask=Causal(), cache=cache)
    """

    @right_call("LatentAttention(embed_dim=512, num_heads=8, latent_dim=128, rotary_dim=32, encoding='rope')")
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        latent_dim: int,
        rotary_dim: int,
        head_dim: int | None = None,
        value_dim: int | None = None,
        query_latent_dim: int | None = None,
        encoding: PositionEncoding | str | None = None,
        norm: str | Callable[[int], nn.Module] = "rms",
        bias: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
        parts: Sequence[PartLike] = (),
        layer: int = 0,
        form: str = "auto",
        kernel: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "latent_dim": latent_dim, "rotary_dim": rotary_dim}
        further = {"head_dim": head_dim, "value_dim": value_dim, "query_latent_dim": query_latent_dim}
        given = sizes | {name: size for name, size in further.items() if size is not None}
        need_positive(**given)
        need_whole(**given)
        if head_dim is None and embed_dim % num_heads:
            raise HeadwayError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}: give head_dim")
        if not 0 <= dropout < 1:
            raise HeadwayError(f"dropout is {dropout}: give at least 0 and less than 1")
        if form not in FORMS:
            raise HeadwayError(f"form is {form!r}: give {', '.join(map(repr, FORMS))}")
        if isinstance(encoding, str):
            made_for = {"num_heads": num_heads, "head_dim": rotary_dim, "embed_dim": embed_dim}
            encoding = encoding_of(encoding, **made_for).to(device=device, dtype=dtype)
        _need_rotary_alone(encoding, rotary_dim)
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.latent_dim = latent_dim
        self.rotary_dim = rotary_dim
        self.head_dim = head_dim or embed_dim // num_heads
        self.value_dim = value_dim or self.head_dim
        self.dropout = dropout
        self.scale = scale
        self.form = form
        self.kernel = kernel
        self.encoding = encoding
        self.q_down_proj: nn.Linear | None = None
        self.q_norm: nn.Module | None = None
        if query_latent_dim is not None:
            self.q_down_proj = nn.Linear(embed_dim, query_latent_dim, bias=bias, **made)
            self.q_norm = make_norm(norm, query_latent_dim, **made)
        width = num_heads * (rotary_dim + self.head_dim)
        self.q_proj = nn.Linear(query_latent_dim or embed_dim, width, bias=False, **made)
        self.latent_proj = nn.Linear(embed_dim, latent_dim, bias=bias, **made)
        self.rotary_proj = nn.Linear(embed_dim, rotary_dim, bias=bias, **made)
        self.latent_norm = make_norm(norm, latent_dim, **made)
        self.k_proj = nn.Linear(latent_dim, num_heads * self.head_dim, bias=False, **made)
        self.v_proj = nn.Linear(latent_dim, num_heads * self.value_dim, bias=False, **made)
        self.out_proj = nn.Linear(num_heads * self.value_dim, embed_dim, bias=bias, **made)
        of_output = LayerSizes(embed_dim, num_heads, num_heads, self.value_dim, layer)
        self.parts = make_parts(parts, of_output, device, dtype)
        for part in parts_of(self.parts):
            if type(part).values is not Part.values or type(part).attended is not Part.attended:
                raise HeadwayError(
                    f"parts has a {type(part).__name__}, which changes values, but the cache holds latents: drop it"
                )
        self._reset_own()  # parts already have their initial or given values

    __prepare_scriptable__ = refuse_script

    def reset_parameters(self) -> None:
        """Resets projections to uniform values of variance 2/(in + out) (Glorot and Bengio 2010), and biases to 0.

        Norms and parts are reset, too.
        """
        self._reset_own()
        for part in parts_of(self.parts):
            part.reset_parameters()

    def _reset_own(self) -> None:
        """Resets all parameters but those of parts."""
        reset_projections(*(one for one in self.children() if isinstance(one, nn.Linear)))
        for norm in (self.q_norm, self.latent_norm):
            if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
                norm.reset_parameters()

    @refuses_others
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        *,
        mask: AnyMask = None,
        positions: Tensor | Coordinates | None = None,
        key_positions: Tensor | Coordinates | None = None,
        cache: KeyValueCache | None = None,
        encoding: PositionEncoding | str | None = None,
        **others: Never,
    ) -> Tensor:
        """Returns the self-attention of the query, [batch, n, embed_dim].

        Args:
            query: [batch, n, embed_dim], or a jagged tensor of sequences of different lengths (``torch.nested``); the
                output is one too.
            key: None or the query itself.
            mask: which keys each query may see; all if None.
            positions: the positions of the query; if None, they start at 0 or continue those of the cache.
            key_positions: the positions of all keys, those of the cache included.
            cache: the latents of past tokens, to which those of the query are appended.
            encoding: used in place of the layer's own; a name, as for ``headway.attention``.

        Raises:
            HeadwayError: if shapes, positions, mask, cache or encoding do not fit, or key is another tensor.
        """
        refuse_tracers(query)
        if others:
            refuse(type(self).__name__, self.forward, others)
        if key is not None and key is not query:
            raise HeadwayError("key is given but LatentAttention is self-attention: leave key, context and memory out")
        mask = mask_or_tensor(mask)
        if isinstance(encoding, str):
            encoding = shared_encoding(encoding, self.num_heads, self.rotary_dim)
        encoding = self.encoding if encoding is None else encoding
        _need_rotary_alone(encoding, self.rotary_dim)
        if is_nested(query):
            need_none({"cache": cache, "key_positions": key_positions})
            rows = Sequences.of("query", query)
            at = rows.coordinates("positions", positions)
            return rows.jagged(self._attend(rows.row, rows.mask(mask), at, None, None, encoding))
        with transaction(cache):
            return self._attend(query, mask, positions, key_positions, cache, encoding)

    def _attend(
        self,
        x: Tensor,
        mask: Mask | Tensor | None,
        positions: Tensor | Coordinates | None,
        key_positions: Tensor | Coordinates | None,
        cache: KeyValueCache | None,
        encoding: PositionEncoding | None,
    ) -> Tensor:
        if x.ndim != 3 or x.shape[-1] != self.embed_dim:
            raise HeadwayError(f"query has shape {tuple(x.shape)}: give [batch, tokens, {self.embed_dim}]")
        if cache is not None:
            cache.need_room(x.shape[1])
            cache.need_mask(mask, encoding)
        new = continued(None if cache is None else cache.coordinates, positions, x.shape[1], x.device)
        check_coordinates(new, x)
        if cache is not None and not new.padding:
            cache.need_new_lengths(mask, len(cache), x.shape[1])
        given = x if self.q_down_proj is None or self.q_norm is None else self.q_norm(apply_linear(self.q_down_proj, x))
        q = apply_linear(self.q_proj, given).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        own = self.latent_norm(apply_linear(self.latent_proj, x))[:, None]
        rotary = apply_linear(self.rotary_proj, x)[:, None]

        all_keys = new if cache is None else coordinates_of_keys(cache, new, key_positions)
        stored = caches_prepared(encoding)
        if encoding is not None:
            new = encoding.for_one_forward(new)
            all_keys = new if cache is None else all_keys
            q = _prepared_part(encoding, "query", q, new, self.rotary_dim, self.kernel)
            rotary = prepared(encoding, "key", rotary, new, self.kernel) if stored else rotary
        latents = torch.cat([rotary.to(own.dtype), own], dim=-1)
        if cache is not None:
            cache.need_prepared_by(encoding if stored else None)
            latents, _ = cache.append(latents, latents[..., :0])
        terms: tuple[Term, ...] = ()
        if encoding is not None:
            if not stored and "prepare" in encoding.acts:
                at = encoding.for_one_forward(all_keys)
                width = latents.shape[-1] - self.latent_dim
                latents = _prepared_part(encoding, "key", latents, at, width, self.kernel)
            if "terms" in encoding.acts:
                terms = encoding._terms_of(new, encoding.place(all_keys), None, None)
                _need_terms_of_scores(encoding, terms)

        form = self._absorbed if self._absorbs(x.shape[1], latents.shape[2], cache) else self._expanded
        q_at = new.as_given()
        width = self.head_dim + self.rotary_dim
        scale = width**-0.5 if encoding is None else encoding.default_scale(width)
        out = form(
            q,
            latents,
            mask=mask,
            terms=terms or None,
            scale=scale if self.scale is None else self.scale,
            dropout=self.dropout if self.training else 0.0,
            kernel=self.kernel,
            q_positions=q_at,
            k_positions=q_at if cache is None else all_keys.as_given(),
        )
        if self.parts is not None:
            v = apply_linear(self.v_proj, own[:, 0]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in parts_of(self.parts):
                out = part.output(out, x, v)
        return apply_linear(self.out_proj, out.transpose(1, 2).flatten(2))

    def _expanded(self, q: Tensor, latents: Tensor, **options: Any) -> Tensor:
        """Returns the output of each head, from keys and values of all heads."""
        latent = latents[:, 0, :, -self.latent_dim :]
        k, v = (
            apply_linear(projection, latent).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.k_proj, self.v_proj)
        )
        rotary = latents[..., : -self.latent_dim].expand(-1, self.num_heads, -1, -1)
        return attention(q, torch.cat([rotary, k], dim=-1), v, **options)

    def _absorbed(self, q: Tensor, latents: Tensor, **options: Any) -> Tensor:
        """Returns the output of each head, from the latents as keys and values that all heads share."""
        rotary, content = q.split([q.shape[-1] - self.head_dim, self.head_dim], dim=-1)
        k_weight, v_weight = (proj.weight.unflatten(0, (self.num_heads, -1)) for proj in (self.k_proj, self.v_proj))
        absorbed = torch.cat([rotary, content @ k_weight], dim=-1)
        return attention(absorbed, latents, latents[..., -self.latent_dim :], **options) @ v_weight.transpose(1, 2)

    def _absorbs(self, n: int, m: int, cache: KeyValueCache | None) -> bool:
        """Whether n queries attend to the latents of m keys themselves."""
        projections = (self.k_proj, self.v_proj)
        if self.form == "absorbed":
            for proj in projections:
                if type(proj) is not nn.Linear or "forward" in proj.__dict__:
                    raise HeadwayError(
                        "form is 'absorbed', which takes the weights of k_proj and v_proj, and one of them computes "
                        "more than an nn.Linear: give form='auto'"
                    )
        if self.form != "auto":
            return self.form == "absorbed"
        plain = all(type(proj) is nn.Linear and calls_forward_alone(proj) for proj in projections)
        if cache is None or not plain:
            return False
        expansion = self.latent_dim * (self.head_dim + self.value_dim)  # for a token, or for a query and its output
        wider = 2 * self.latent_dim - self.head_dim - self.value_dim  # extra cost of a score and a weight
        return n * (m * wider + expansion) < m * expansion

    def why_not_shared(self) -> str | None:
        """Returns why ``headway.parallel.context`` cannot share the attention of this layer."""
        return "attends to latents: leave it out of the context"

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, latent_dim={self.latent_dim}, "
            f"rotary_dim={self.rotary_dim}"
        )


def _prepared_part(
    encoding: PositionEncoding, side: str, x: Tensor, at: Coordinates, width: int, kernel: str
) -> Tensor:
    """Returns queries or keys whose first dimensions the encoding has prepared."""
    if "prepare" not in encoding.acts:
        return x
    first, rest = x[..., :width], x[..., width:]
    return torch.cat([prepared(encoding, side, first, at, kernel).to(x.dtype), rest], dim=-1)


def _need_rotary_alone(encoding: PositionEncoding | None, rotary_dim: int) -> None:
    if encoding is None:
        return
    check_encoding(encoding, rotary_dim)
    why = "transforms values" if "values" in encoding.acts else None
    if reads_others(encoding):
        why = "reads the layer's input, or moves tokens in each layer"
    if why is not None:
        raise HeadwayError(
            f"encoding is a {type(encoding).__name__}, which {why}, and heads share latents: give one that transforms "
            f"only queries and keys, such as headway.encoding('rope', head_dim={rotary_dim})"
        )


def _need_terms_of_scores(encoding: PositionEncoding, terms: tuple[Term, ...]) -> None:
    for term in terms:
        if not isinstance(term, OF_SCORES):
            raise HeadwayError(
                f"encoding is a {type(encoding).__name__}, whose {type(term).__name__} reads queries or keys, and these"
                " are latents: give one whose terms do not"
            )
