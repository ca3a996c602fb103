"""Token embeddings, and the head that computes logits from hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .._common.devices import need_numbers
from ..errors import HeadwayError
from .linear import linear

Product = Callable[[Tensor, Tensor | None], Tensor]
"""x, b → x·Eᵀ + b with the matrix E of the token embeddings."""


class Embedding(nn.Embedding):
    """A table of token embeddings, with a second one for token types if there are any.

        x = scale·E[id] + S[type]

    E is initialized from N(0, 1/embed_dim).

    Args:
        vocab_size: the number of token ids.
        embed_dim: the width of an embedding.
        scale: the factor of the token embeddings.
        num_types: the number of token types; 0 for a model without types.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
        **options: further arguments of torch.nn.Embedding for the token embeddings, such as ``padding_idx``,
            ``max_norm``, ``scale_grad_by_freq`` and ``sparse``.

    Shape:
        ids: int64 [batch, n], each 0 to vocab_size − 1
        types: int64 [batch, n], each 0 to num_types − 1, or None: type 0 for all tokens
        Output: [batch, n, embed_dim]

    References:
        Vaswani et al. 2017, section 3.4 (scale); Devlin et al. 2019 (types).
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        scale: float = 1.0,
        num_types: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(vocab_size, embed_dim, **options, **made)
        self.scale = scale
        self.types = nn.Embedding(num_types, embed_dim, **made) if num_types else None

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        scale: float = 1.0,
        num_types: int = 0,
    ) -> Self:
        """Returns an ``Embedding`` whose token embeddings are a given matrix, as torch.nn.Embedding.from_pretrained.

        The parameter shares the memory of the matrix and has its device and dtype. The embeddings of token types are
        initialized at random.

        Args:
            embeddings: E, floats [vocab_size, embed_dim].
            freeze: whether E is constant, without a gradient.
            padding_idx: the token id whose embedding keeps the given value and gets no gradient.
            max_norm: as in torch.nn.Embedding, like the next three.
            norm_type: the p of the norm that ``max_norm`` bounds.
            scale_grad_by_freq: whether gradients are divided by the number of occurrences of each id.
            sparse: whether the gradient of E is a sparse tensor.
            scale: the factor of the token embeddings.
            num_types: the number of token types; 0 for a model without types.

        Raises:
            HeadwayError: if ``embeddings`` is not a matrix of floats.
        """
        if not isinstance(embeddings, Tensor):
            raise HeadwayError(f"embeddings is a {type(embeddings).__name__}: give floats [vocab_size, embed_dim]")
        if embeddings.ndim != 2 or not embeddings.is_floating_point():
            raise HeadwayError(
                f"embeddings are {embeddings.dtype} of shape {tuple(embeddings.shape)}: give floats "
                "[vocab_size, embed_dim]"
            )
        module: Self = nn.utils.skip_init(
            cls,
            *embeddings.shape,
            scale=scale,
            num_types=num_types,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq,
            sparse=sparse,
            device=embeddings.device,
            dtype=embeddings.dtype,
        )
        module.weight = nn.Parameter(embeddings, requires_grad=not freeze)
        if module.types is not None:
            module.types.reset_parameters()
        return module

    def reset_parameters(self) -> None:
        """Resets the token embeddings to values from N(0, 1/embed_dim), that of ``padding_idx`` to 0."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        self._fill_padding_idx_with_zero()

    def forward(
        self,
        ids: Tensor | None,
        types: Tensor | None = None,
        *,
        hidden: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Returns the embeddings of token ids, [batch, n, embed_dim], or the logits of a tied head.

        Args:
            ids: int64 [batch, n].
            types: int64 [batch, n]; type 0 for all tokens if None.
            hidden: floats [..., embed_dim] in place of ids, which are None then, for x·Eᵀ + b [..., vocab_size].
            bias: b [vocab_size], only with ``hidden``; none if None.

        Raises:
            HeadwayError: if ids or types are not integers [batch, n], types are given to a model without types, or, on
                a CPU, an id is not in the vocabulary.
        """
        return self.embed(cast(Tensor, ids), types) if hidden is None else linear(hidden, self.weight, bias)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """Returns the embeddings of token ids; subclasses override it, and callers call the module.

        Args:
            ids: as for ``forward``.
            types: as for ``forward``.

        Raises:
            HeadwayError: as ``forward`` does.
        """
        _need_ids("ids", ids)
        try:
            x = super().forward(ids)
        except IndexError:
            raise HeadwayError(
                f"ids go from {ids.min()} to {ids.max()}: give ids from 0 to {self.num_embeddings - 1}, the vocabulary"
            ) from None
        x = x if self.scale == 1 else x * self.scale
        if types is not None:
            _need_ids("types", types)
            if self.types is None or types.shape != ids.shape:
                why = "the model has no types of tokens: leave it out"
                raise HeadwayError(
                    f"types have shape {tuple(types.shape)} but "
                    + (why if self.types is None else f"ids {tuple(ids.shape)}: give one type for each id")
                )
        if self.types is not None:
            x = x + self.types(ids.new_zeros(1, 1) if types is None else types)
        return x


class Head(nn.Module):
    """Computes a logit for each token id from hidden states.

        logits = cap(scale·W·transform(x) + b),  cap(y) = soft_cap·tanh(y/soft_cap)

    Args:
        width: the number of features that W takes: embed_dim, unless ``transform`` changes it.
        vocab_size: the number of token ids.
        tied: whether W is the matrix of the token embeddings, passed in each call, or a parameter of its own.
        bias: whether to add the bias b [vocab_size].
        transform: a module applied to x first; none if None.
        scale: the factor of W·transform(x).
        soft_cap: bounds the logits if given.
        device: the device of W and b; ``transform`` keeps its own.
        dtype: the dtype of W and b, likewise.

    Shape:
        x: [..., embed_dim]
        embeddings: [vocab_size, width]
        Output: [..., vocab_size]
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        width: int,
        vocab_size: int,
        *,
        tied: bool = False,
        bias: bool = False,
        transform: nn.Module | None = None,
        scale: float = 1.0,
        soft_cap: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.soft_cap = scale, soft_cap
        self.transform = transform
        self.prepacked: nn.Module | None = None
        """W and b as ``prepack`` lays them out; None for a head that is not prepacked."""
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter("weight", None if tied else nn.Parameter(torch.empty(vocab_size, width, **made)))
        self.register_parameter("bias", nn.Parameter(torch.empty(vocab_size, **made)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets W to values from N(0, 0.02²) and b to 0."""
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, embeddings: Tensor | Product | None = None) -> Tensor:
        """Returns the logits of x [..., embed_dim], [..., vocab_size].

        Args:
            x: [..., embed_dim].
            embeddings: the matrix of the token embeddings [vocab_size, width], which a tied head uses as W, or a
                function of x and b that returns x·Eᵀ + b.
        """
        x = x if self.transform is None else self.transform(x)
        x = x if self.scale == 1 else x * self.scale
        if self.prepacked is not None:
            logits: Tensor = self.prepacked(x)
        elif self.weight is None and not isinstance(embeddings, Tensor):
            logits = cast(Product, embeddings)(x, self.bias)
        else:
            logits = linear(x, cast(Tensor, embeddings) if self.weight is None else self.weight, self.bias)
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)


def tied(embedding: nn.Module) -> Product:
    """Returns the product with the token embeddings of a module, for a tied head.

    An ``Embedding`` computes it in its own ``forward``, so that a library that keeps weights elsewhere (accelerate's
    cpu_offload) fetches them. Hooks on its calls, which are meant for embeddings, are not called.

    Args:
        embedding: the module that owns the matrix of the token embeddings.
    """

    def product(x: Tensor, bias: Tensor | None) -> Tensor:
        if type(embedding).forward is Embedding.forward:
            logits: Tensor = embedding.forward(None, hidden=x, bias=bias)
            return logits
        need_numbers(embedding, x.device, "the token embeddings")
        return linear(x, cast(Tensor, embedding.weight), bias)

    return product


def _need_ids(name: str, ids: Tensor) -> None:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise HeadwayError(f"{name} are {kind}: give an int64 tensor [batch, n]")
    if ids.ndim != 2:
        raise HeadwayError(f"{name} have shape {tuple(ids.shape)}: give [batch, n]")
