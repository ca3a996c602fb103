"""The base class of methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor

from .._call import SharedCall


class Traffic(NamedTuple):
    """What a rank sends for a call.

    Attributes:
        forward: the bytes of the forward pass.
        backward: the bytes of the backward pass, if q, k, v and the layer's input require gradients and are used.
        skipped: the bytes of both passes that the mask saves.
    """

    forward: int
    backward: int
    skipped: int = 0


class Method(ABC):
    """The base class of methods, which compute a call whose tokens are divided among processes.

    A method knows shards, calls and their parts, but no particular encoding. It has a row in ``METHODS``.
    """

    name: ClassVar[str]

    @abstractmethod
    def why_not(self, call: SharedCall) -> str | None:
        """Returns why this method cannot compute a call, in one line; None if it can. Nothing is sent.

        Args:
            call: the call.
        """

    @abstractmethod
    def traffic(self, call: SharedCall) -> Traffic:
        """Returns the bytes that this rank sends in a call, without those by which ranks agree on it and on a seed.

        Args:
            call: the call.
        """

    @abstractmethod
    def run(self, call: SharedCall) -> tuple[Tensor, Tensor | None]:
        """Computes a call for which ``why_not`` returns None. Every rank of the group must call it.

        Args:
            call: the call.

        Returns:
            The output of this rank's queries, [batch, heads, n, v_dim] in q's dtype, and their log-sum-exp,
            [batch, heads, n], if the call wants it.
        """
