"""Which layers compute a sequence that several processes share. ``headway.parallel.context`` registers them here.

Layers and stacks ask ``sharing_of`` in each call. It is a file of its own so that they import no process groups.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ._torch import compiles
from .coordinates import Coordinates
from .errors import HeadwayError


class Sharing(Protocol):
    """What a context does for a layer that is in it."""

    def attention(self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, cross: bool, **arguments: Any) -> Tensor:
        """Returns the attention of this rank's queries to all keys; ``cross`` if these are a context's."""

    @property
    def tokens(self) -> object:
        """Which tokens each rank has."""

    def cached_attention(
        self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, cache: Any, prepared_by: Any,
        attended: Callable[[Tensor], Tensor], **arguments: Any,
    ) -> Tensor:  # fmt: skip
        """Returns the attention to a cache whose keys the ranks share. The call that fills it has the rank's tokens."""

    def prompt(self, ids: Tensor, at: Coordinates | None) -> tuple[Tensor, Coordinates]:
        """Returns this rank's tokens of a prompt [batch, n], which every rank has as a whole."""

    def common(self, x: Tensor, *, of_last: bool) -> Tensor:
        """Returns the tensor of the rank of the last token, or of the first rank, on every rank."""

    def coordinates(self, positions: Tensor | Coordinates | None, count: int, device: torch.device) -> Coordinates:
        """Returns the coordinates of this rank's tokens; without positions, by their places in the sequence."""

    def context_coordinates(self, positions: Tensor | Coordinates | None, context: Tensor) -> Coordinates:
        """Returns those of the context [batch, m, …] of cross-attention."""

    def whole_sizes(self, n: int, m: int, *, cross: bool) -> tuple[int, int]:
        """Returns the numbers of queries and keys of the whole call, from the n and m of this rank."""

    def placed(self, encoding: Any, at: Coordinates) -> Coordinates:
        """Returns where an encoding sees the tokens of a stack, which all of its layers share."""

    def refuse(self, layer: nn.Module, **parts: object) -> None:
        """Raises HeadwayError if an argument is given that layers in a context do not support."""


class Library(Protocol):
    """The attention of another library's models."""

    def why_not(self, module: nn.Module) -> str | None:
        """Returns why a context does not reach a layer of the library; None if it does."""

    def entered(self, model: nn.Module, shared: Sharing) -> AbstractContextManager[None]:
        """Returns a block in which the library's models within a model are in a context."""


libraries: dict[str, Library] = {}
"""The libraries whose layers call ``sharing_of``, by the name of the function that they call in place of attention."""

entered: dict[int, list[Sharing]] = {}
"""The contexts of each module that is in one, by its id; the last one counts. The contexts keep the modules alive."""


def sharing_of(module: nn.Module) -> Sharing | None:
    """Returns the context that a module is in; None outside of one.

    Args:
        module: the module.

    Raises:
        HeadwayError: within ``torch.compile``, if any module is in a context.
    """
    if not entered:
        return None
    if compiles():
        raise HeadwayError(
            "attention over several processes runs only in eager mode: leave torch.compile out within "
            "headway.parallel.context"
        )
    contexts = entered.get(id(module))
    return contexts[-1] if contexts else None
