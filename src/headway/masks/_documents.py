"""The mask of documents that are packed into one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..coordinates import Coordinates
from ..errors import HeadwayError, need_lengths
from ..records import named
from ._base import Bounds, Mask


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """A query attends to the keys of its own document, in rows of packed sequences.

    Args:
        ids: the document of each key, integers [m] or [batch, m]. Default: the ``document`` of the coordinates, as
            ``Coordinates.packed`` has it.
        query_ids: the document of each query, [n] or [batch, n]. Default: the queries are the last n of the keys.
    """

    axes = named(ids=("keys", "1|batch keys"), query_ids=("queries", "1|batch queries"))

    whole: ClassVar[tuple[str, ...]] = ("ids", "query_ids")

    ids: Tensor | None = None
    query_ids: Tensor | None = None

    @staticmethod
    def lengths(lengths: list[int], device: torch.device | str | None = None) -> Documents:
        """The mask of documents of these ``lengths``, which follow one another, with ids on ``device``."""
        need_lengths(lengths)
        sizes = torch.tensor(lengths, device=device)
        return Documents(torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes))

    def ids_of(self, q: Coordinates, k: Coordinates) -> tuple[Tensor, Tensor]:
        """Returns the document of each query and of each key, [b, n] and [b, m], where b is 1 or the batch.

        Args:
            q: coordinates of the queries.
            k: coordinates of the keys.

        Raises:
            HeadwayError: if neither the mask nor the coordinates have documents.
        """
        n, m = q.index.shape[1], k.index.shape[1]
        if self.ids is None:
            if q.document is None or k.document is None:
                raise HeadwayError(
                    "Documents() has no ids and the coordinates no documents: give Documents(ids) or "
                    "positions=Coordinates.packed(lengths)"
                )
            return q.document, k.document
        ids = _by_row(self.ids)
        return (ids[:, m - n :] if self.query_ids is None else _by_row(self.query_ids)), ids

    def check(self, batch: int, heads: int, n: int, m: int) -> None:
        """Checks that ids fit a call, and that there are ids for its queries.

        Raises:
            HeadwayError: if not.
        """
        super().check(batch, heads, n, m)
        if self.ids is None and self.query_ids is not None:
            raise HeadwayError("Documents has query_ids and no ids: give ids of the keys too")
        if n > m and self.ids is not None and self.query_ids is None:
            raise HeadwayError(
                f"Documents has ids for {m} keys but there are {n} queries: give query_ids [{n}] or [{batch}, {n}] too"
            )

    def _with_query_ids(self, n: int) -> Documents:
        """Returns the mask with ``query_ids``, for queries that are no longer the last of the keys."""
        if self.ids is None or self.query_ids is not None:
            return self
        ids = _by_row(self.ids)
        return self._with(ids=ids, query_ids=ids[:, ids.shape[1] - n :])

    def block(self, start: int, stop: int, n: int) -> Mask:
        return self._with_query_ids(n).cut("queries", start, stop)

    def of_keys(self, start: int, stop: int, n: int, m: int) -> Mask:
        return self._with_query_ids(n).cut("keys", start, stop)

    def interval(self, q: Coordinates, k: Coordinates) -> Bounds | None:
        own, ids = (x.long() for x in self.ids_of(q, k))
        # otherwise the ids must be read, which would synchronize with a device that has streams
        known = self.ids is None and k.documents_in_order
        if not known and not (ids.is_cpu and bool((ids[:, 1:] >= ids[:, :-1]).all())):
            return None
        rows = max(own.shape[0], ids.shape[0])
        ids, own = (x.expand(rows, -1).contiguous() for x in (ids, own))
        return torch.searchsorted(ids, own), torch.searchsorted(ids, own, right=True)

    def allowed(self, q: Coordinates, k: Coordinates) -> Tensor:
        own, ids = self.ids_of(q, k)
        return (own[:, :, None] == ids[:, None, :])[:, None]


def _by_row(ids: Tensor) -> Tensor:
    return ids if ids.ndim == 2 else ids[None]
