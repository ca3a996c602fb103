"""Computes figures of heads, with intervals, from the evidence of single texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._bootstrap import interval

FEWEST, FEWEST_TEXTS = 30, 10
"""The fewest cases in each half, and texts with cases, since a bootstrap over few texts says little."""


@dataclass(frozen=True)
class Judged:
    """The figures of all heads for all candidates of a role, [heads, candidates] each."""

    chosen_by: Tensor
    """The figure above the baseline on the even texts, by which heads and candidates are chosen."""
    figure: Tensor
    """The figure on the odd texts."""
    low: Tensor
    high: Tensor
    baseline: Tensor
    """The share of hits of the best guess on the odd texts; the guess was chosen on the even ones."""
    guess: Tensor
    """The number of that guess."""
    cases: Tensor
    """The cases on the odd texts."""
    holds: Tensor
    """Whether a head has the role for a candidate."""


def judge(hits: Tensor, cases: Tensor, guesses: Tensor, threshold: float, margin: float, seed: int) -> Judged:
    """Judges heads by halves of the texts.

    Candidates and guesses are chosen on the texts 0, 2, 4, …; all figures are those of the texts 1, 3, 5, …, with
    percentile intervals of a bootstrap over these texts (Efron 1979). Hits are [texts, heads, candidates], cases
    [texts, 1 or heads, candidates], guesses [texts, 1 or heads, guesses, candidates].
    """
    hits, cases, guesses = hits.double(), cases.double(), guesses.double()
    if not guesses.shape[2]:
        guesses = torch.zeros_like(cases)[:, :, None]
    all_cases = [cases[half::2].sum(0) for half in (0, 1)]
    figures = [hits[half::2].sum(0) / all_cases[half] for half in (0, 1)]
    shares = [guesses[half::2].sum(0) / all_cases[half][:, None] for half in (0, 1)]  # [heads, guesses, candidates]
    guess = shares[0].nan_to_num(-1.0).argmax(1, keepdim=True)
    baselines = [one.gather(1, guess)[:, 0] for one in shares]

    odd, odd_cases = hits[1::2], cases[1::2]
    of_guess = guesses[1::2].expand(-1, *shares[1].shape)
    of_guess = of_guess.gather(2, guess.expand(len(odd), -1, -1, -1))[:, :, 0]
    low, high = interval(odd, odd_cases, seed=seed)
    gain_low, _ = interval(odd - of_guess, odd_cases, seed=seed)

    enough = (all_cases[0] >= FEWEST) & (all_cases[1] >= FEWEST)
    for half in (0, 1):
        enough = enough & ((cases[half::2] > 0).sum(0) >= FEWEST_TEXTS)
    above = [(f >= threshold) & (f - b >= margin) for f, b in zip(figures, baselines, strict=True)]
    return Judged(
        chosen_by=(figures[0] - baselines[0]).masked_fill(~enough, torch.nan),
        figure=figures[1],
        low=low,
        high=high,
        baseline=baselines[1].expand_as(figures[1]),
        guess=guess[:, 0].expand(figures[1].shape),
        cases=all_cases[1].expand_as(figures[1]),
        holds=enough & above[0] & above[1] & (gain_low > 0),
    )
