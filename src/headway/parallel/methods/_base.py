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
        backward: those of the backward pass, if q, k, v and the layer's input require gradients and are used.
        skipped: the bytes of both that the mask makes needless.
    """

    forward: int
    backward: int
    skipped: int = 0


class Method(ABC):
    """The base class of methods: ways to compute a call whose tokens several processes share.

    A method knows shards, calls and their parts, never an encoding. It has a row in ``METHODS``.
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
        """Returns the bytes that this rank sends in a call, but for those by which ranks agree on it and on a seed.

        Args:
            call: the call.
        """

    @abstractmethod
    def run(self, call: SharedCall) -> tuple[Tensor, Tensor | None]:
        """Computes a call for which ``why_not`` has no reason. Every rank of the group calls it.

        Args:
            call: the call.

        Returns:
            The output of this rank's queries, [batch, heads, n, v_dim] in q's dtype, and their log-sum-exp,
            [batch, heads, n], if the call wants it.
        """
