"""The roles of all heads of a model, measured on texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import HeadwayError, unknown
from .._capture import capture
from .._evaluation import evaluating
from .._run import Statistics, chosen
from ..statistics import Statistic
from ..texts import EncodedText
from ._base import Batch, Role
from ._equal import EqualWeights
from ._judge import Judged, judge
from ._results import HeadRoles, Measured
from ._table import ROLES

TOKENS, ROWS = 8192, 32
"""The most tokens and texts that the model reads at once."""


def head_roles(
    model: nn.Module,
    texts: Sequence[EncodedText],
    roles: str | Role | Sequence[str | Role] | None = None,
    *,
    layers: Collection[int | str] | None = None,
    longest: int | None = None,
    run: Callable[[Tensor], Any] | None = None,
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> HeadRoles:
    """Measures what each head of a model does, by definitions from the literature.

        texts = encode(tokenizer, read_conllu("en_pud-ud-test.conllu"))
        found = head_roles(model, texts)
        found.of("layers.2.attention", 3)     # the roles of a head
        found.best("syntactic")               # the best head for each relation

    Every figure has a baseline that needs no model. No figure is reported on the texts by which it was chosen.
    Candidates, heads and guesses are chosen on the texts 0, 2, 4, …. Figures and their 95 % intervals (a bootstrap over
    texts) are computed on the texts 1, 3, 5, …. A head has a role under three conditions. On both halves its figure is
    at least the role's threshold, and at least the role's margin above the baseline. The interval of the difference is
    above 0. Each half has at least 30 cases, in at least 10 texts. A head may have several roles.

    Args:
        model: the model, of any kind that ``capture`` sees.
        texts: texts as the model reads them, from ``encode``. Tokens are not padded: texts of equal length are read
            together. Shuffle texts that alternate, such as questions and answers, and leave out copies of a text: one
            half cannot check the other if both have the same texts.
        roles: names of ``headway.inspection.ROLES``, or objects such as ``Positional(by="weight")``. Default: all.
        layers: the layers, as for ``capture``. Default: all with self-attention.
        longest: the most tokens that the model reads, for the texts that some roles make. Default: as the model's
            encodings or its config say.
        run: is called with token ids [batch, n] and calls the model. Default: the model itself.
        seed: the seed of random texts and of the bootstrap.
        watch: a function that is called with the number of texts read, and of all texts.

    Returns:
        The roles. Those that cannot be measured on these texts are in ``not_measured``.

    Raises:
        HeadwayError: if there are no texts, a role does not exist, nothing of the model can be captured, or the layers
            have cross-attention, so that a decoder may read other tokens.
    """
    wanted = _chosen(roles)
    texts = list(texts)
    if len(texts) < 2 or not all(isinstance(text, EncodedText) for text in texts):
        said = f"{len(texts)} of them" if all(isinstance(text, EncodedText) for text in texts) else "something else"
        raise HeadwayError(f"texts are {said}: give two or more from headway.inspection.texts.encode")
    longest = longest_text(model) if longest is None else longest
    lacking = {role.name: role.why_not(texts, longest) for role in wanted}
    not_measured = {name: reason for name, reason in lacking.items() if reason is not None}
    measured_roles = [role for role in wanted if role.name not in not_measured]

    sets: list[tuple[list[EncodedText], list[Role]]] = []
    for role in measured_roles:
        probes = list(role.probes(texts, longest, torch.Generator().manual_seed(seed)))
        role = role.fitted(probes)
        same = next((roles_of for known, roles_of in sets if known == probes), None)
        if same is None:
            sets.append((probes, [role]))
        else:
            same.append(role)
    device = next((part.device for part in model.parameters()), torch.device("cpu"))
    every, done = sum(len(probes) for probes, _ in sets), 0
    judged: dict[str, Measured] = {}
    heads: list[tuple[str, int]] = []
    for probes, of_set in sets:
        evidence = [_Collected(role, role.candidates(probes), len(probes)) for role in of_set]
        for which in batches(probes):
            batch = Batch([probes[i] for i in which], device)
            for layer, (weights, equal) in _read(model, batch, of_set, layers, run).items():
                for one in evidence:
                    one.add(layer, which, batch, weights, equal)
            done += len(which)
            if watch is not None:
                watch(done, every)
        for one in evidence:
            heads = heads or one.heads()
            judged[one.role.name] = one.judged(seed)
    return HeadRoles(heads, {role.name: judged[role.name] for role in measured_roles}, not_measured)


def _chosen(roles: str | Role | Sequence[str | Role] | None) -> list[Role]:
    """The roles that are named or given, in the order of ROLES; a user's own come first."""
    given = list(ROLES) if roles is None else [roles] if isinstance(roles, (str, Role)) else list(roles)
    by_name: dict[str, Role] = {}
    for one in given:
        if isinstance(one, str):
            if one not in ROLES:
                raise unknown("role", one, ROLES, see="headway.inspection.ROLES")
            one = ROLES[one]()
        if not isinstance(one, Role):
            raise HeadwayError(f"roles holds {one!r}: give names such as 'positional', or objects of their classes")
        if one.name in by_name:
            raise HeadwayError(f"roles holds {one.name!r} twice: give it once, or ask in two calls")
        by_name[one.name] = one
    if not by_name:
        raise HeadwayError(f"roles is empty: give one or more of {', '.join(ROLES)}")
    place = {name: number for number, name in enumerate(ROLES)}
    return sorted(by_name.values(), key=lambda role: place.get(role.name, -1))


def longest_text(model: nn.Module) -> int | None:
    """Returns the most tokens that a model reads, by its tables of positions or the config; None for any number.

    Args:
        model: the model, of headway or of transformers.
    """
    tables = [getattr(module, "max_length", None) for module in model.modules()]
    tables.append(getattr(getattr(model, "config", None), "max_position_embeddings", None))
    return min((number for number in tables if isinstance(number, int) and number > 0), default=None)


def batches(texts: Sequence[EncodedText]) -> Iterator[list[int]]:
    """Yields the numbers of texts with equal numbers of tokens, so that none is padded.

    Args:
        texts: the texts.
    """
    of_length: dict[int, list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        of_length[len(text.ids)].append(i)
    for length, same in sorted(of_length.items()):
        rows = max(1, min(ROWS, TOKENS // max(length, 1)))
        yield from (same[start : start + rows] for start in range(0, len(same), rows))


def _read(
    model: nn.Module,
    batch: Batch,
    roles: Sequence[Role],
    layers: Collection[int | str] | None,
    run: Callable[[Tensor], Any] | None,
) -> dict[str, tuple[Statistics, Statistics]]:
    """The statistics of each layer of self-attention, and those of equal weights."""
    statistics: dict[str, str | Statistic] = {}
    for role in roles:
        for one in role.statistics(batch):
            name = one if isinstance(one, str) else one.name
            assert statistics.setdefault(name, one) == one, f"two roles give different statistics the name {name!r}"
    asked = chosen(list(statistics.values()))
    with evaluating(model), capture(model, statistics=(*asked, EqualWeights(asked)), layers=layers) as seen:
        (model if run is None else run)(batch.ids)
    of_layers: dict[str, tuple[Statistics, Statistics]] = {}
    for record in seen.records:
        if record.kind != "self":
            raise HeadwayError(
                f"{record.layer!r} is cross-attention, so the decoder may read other tokens than the texts' (it shifts "
                "them by one in training): give layers= of the encoder, or run= and layers= of the decoder"
            )
        if (record.batch, record.n) != tuple(batch.ids.shape):
            raise HeadwayError(
                f"{record.layer!r} has {record.batch} × {record.n} queries for {len(batch.texts)} × "
                f"{batch.ids.shape[1]} tokens: give layers= that read one query for each token"
            )
        weights = record.statistics()
        of_layers[record.layer] = weights, weights[EqualWeights.name]
    return of_layers


class _Collected:
    """The evidence of one role on all texts, by layer."""

    def __init__(self, role: Role, candidates: tuple[str, ...], texts: int) -> None:
        self.role, self.candidates, self.texts = role, candidates, texts
        self._of_layer: dict[str, list[Tensor]] = {}

    def add(self, layer: str, which: list[int], batch: Batch, weights: Statistics, equal: Statistics) -> None:
        hits, cases = self.role.evidence(batch, weights)
        for number, part in enumerate((hits, cases, self.role.guesses(batch, weights, equal))):
            kept = self._of_layer.setdefault(layer, [])
            if number == len(kept):
                kept.append(torch.zeros(self.texts, *part.shape[1:], dtype=torch.float64))
            kept[number][which] = part.to("cpu", torch.float64)

    def heads(self) -> list[tuple[str, int]]:
        """Layer and number of each head."""
        return [(layer, head) for layer, (hits, _, _) in self._of_layer.items() for head in range(hits.shape[1])]

    def judged(self, seed: int) -> Measured:
        parts = [
            judge(hits, cases, guesses, self.role.threshold, self.role.margin, seed)
            for hits, cases, guesses in self._of_layer.values()
        ]
        every = Judged(**{name: torch.cat([vars(part)[name] for part in parts]) for name in Judged.__annotations__})
        has_baseline = all(guesses.shape[2] for _, _, guesses in self._of_layer.values())
        return Measured(self.role, self.candidates, every, has_baseline)
