"""What published models lose without each head, and what their attention weights say about it.

`headway.inspection.head_effects` ablates every head alone: of MiniLM, an encoder, on sentences of the treebank PUD, by
how far the outputs of tokens turn; of SmolLM2, a language model, on Shakespeare, by the cross-entropy of the next
token. The rank correlation over all heads then says whether a number that is read off the weights, such as the largest
weight, tells which heads matter. Nothing is chosen by the results.

    HEADWAY_DATA=… python examples/without_a_head.py

prints both tables. It needs `make weights`, en_pud-ud-test.conllu and tinyshakespeare.txt in $HEADWAY_DATA, and about
half an hour on two cores. What is measured is kept in the folder without-a-head, from which it resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import headway as hw
from headway.inspection import HeadEffects, HeadRoles, head_effects, head_roles
from headway.inspection.texts import encode, read_conllu
from headway.masks import Padding
from lesson import data, table, weights

SENTENCES, ROWS = 100, 20  # of PUD, and how many of them in a batch
ANNOTATED = 400  # sentences of PUD from which roles are read off
WINDOWS, WINDOW = 8, 64  # of Shakespeare, evenly spaced, and the tokens in each
STATISTICS = ("entropy", "visible", "largest", "first", "received")
DRAWS = 1000


def sentences_of(treebank: Path, count: int) -> list[str]:
    """Returns the first sentences of a CoNLL-U file, as they are written."""
    lines = treebank.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")][:count]


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Returns rows of ids as a batch."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    return {"ids": ids, "mask": Padding([len(row) for row in rows])}


def windows_of(text: str, tokenizer: Any, count: int, length: int) -> Tensor:
    """Returns windows of a text, evenly spaced, as ids [count, length]."""
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    starts = torch.linspace(0, len(ids) - length, count).long()
    return ids[starts[:, None] + torch.arange(length)]


# ---------------------------------------------------------------- what weights say


def numbers_of(seen: Any, layer: str) -> dict[str, Tensor]:
    """Returns what the weights of a layer say of each head, summed over tokens or texts, [heads], with their counts."""
    found = seen.statistics(layer, STATISTICS)
    share = (found.entropy / found.visible.log()).masked_fill(found.visible < 2, torch.nan)
    tokens = found.counted.sum(-1)
    return {
        "entropy / ln(visible)": share.nanmean((0, 2)),
        "largest weight": found.largest.weight.nanmean((0, 2)),
        "weight of the first token": found.first.nanmean((0, 2)),
        "most received by one token": (found.received.amax(-1) / tokens).mean(0),
    }


def what_weights_say(model: Any, batches: Sequence[Any], losses: bool) -> dict[str, Tensor]:
    """Returns numbers of each head, [heads of all layers]: of its weights, of its norm-weighted weights, of gradients.

    The gradients are those of the cross-entropy of the next token, for a language model.
    """
    sums: dict[str, Tensor] = {}
    for batch in batches:
        arguments = batch if isinstance(batch, dict) else {"ids": batch}
        with torch.no_grad(), hw.capture(model, "qkv") as seen:
            model(**arguments)
        views = {"": seen, ", norm-weighted": seen.scores("norm_weighted")}
        for said, view in views.items():
            for name, value in all_layers(lambda layer, view=view: numbers_of(view, layer), seen.layers).items():
                sums[name + said] = sums.get(name + said, 0) + value / len(batches)
        if losses:
            with hw.capture(model, "gradients") as seen:
                F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").backward()
            model.zero_grad()
            importance = seen.scores("importance").mean().flatten()
            sums["gradient (Michel)"] = sums.get("gradient (Michel)", 0) + importance / len(batches)
    return sums


def all_layers(of: Callable[[str], dict[str, Tensor]], layers: Sequence[str]) -> dict[str, Tensor]:
    """Returns what a function returns of each layer, joined."""
    found = [of(layer) for layer in layers]
    return {name: torch.cat([one[name] for one in found]) for name in found[0]}


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Returns Spearman's rank correlation of two lists of numbers; equal numbers share the mean of their ranks."""
    ranks = []
    for one in (x.double(), y.double()):
        below, equal = (one[None] < one[:, None]).sum(1), (one[None] == one[:, None]).sum(1)
        ranks.append(below + (equal - 1) / 2)
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def with_interval(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Returns the rank correlation, and where it lies in 95 % of samples of heads drawn with replacement."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(len(x), (len(x),), generator=generator) for _ in range(DRAWS)]
    found = torch.tensor([rank_correlation(x[which], y[which]) for which in drawn])
    low, high = found.nanquantile(torch.tensor([0.025, 0.975])).tolist()
    return rank_correlation(x, y), low, high


def within_layers(x: Tensor, y: Tensor, layers: int) -> float:
    """Returns the mean over layers of the rank correlation of the heads of each layer."""
    found = [rank_correlation(*pair) for pair in zip(x.chunk(layers), y.chunk(layers), strict=True)]
    return sum(found) / layers


# ---------------------------------------------------------------- in words


def halves(effects: HeadEffects) -> float:
    """Returns the rank correlation of the effects on every other text with those on the rest: what noise leaves."""
    texts = torch.cat(list(effects.values()), dim=1)  # [texts, heads of all layers]
    return rank_correlation(texts[0::2].mean(0), texts[1::2].mean(0))


def by_role(effects: HeadEffects, roles: HeadRoles) -> dict[str, tuple[int, float]]:
    """Returns for each role the number of heads that have it, and their mean effect; 1 is the mean of their layer."""
    found: dict[str, list[float]] = {}
    for layer, means in zip(effects, effects.mean(), strict=True):
        for head, effect in enumerate((means / means.mean()).tolist()):
            for role in {one.role for one in roles.of(layer, head)} or {"none"}:
                found.setdefault(role, []).append(effect)
    return {
        role: (len(found[role]), sum(found[role]) / len(found[role]))
        for role in (*roles.roles, "none")
        if role in found
    }


def tell(title: str, effects: dict[str, HeadEffects], said: dict[str, Tensor], roles: HeadRoles | None = None) -> str:
    """Returns the report of a model: the effects with each replacement, by role, and the rank correlations."""
    parts = [title]
    for name, effect in effects.items():
        rows = effect.table()
        heads = sorted(rows, key=lambda row: -row[effect.name])
        total = sum(max(row[effect.name], 0) for row in rows)
        share = sum(row[effect.name] for row in heads[: len(rows) // 10]) / total
        above, below = (sum(row[end] * sign > 0 for row in rows) for end, sign in (("low", 1), ("high", -1)))
        parts += [
            "",
            f"{name}: {len(rows)} heads; interval above 0 for {above}, below 0 for {below}; the tenth of the heads "
            f"with the largest effects has {share:.0%} of the sum",
            table(
                [
                    [row["layer"], row["head"], *(f"{row[x]:.4f}" for x in (effect.name, "low", "high"))]
                    for row in heads[:5]
                ],
                ["layer", "head", effect.name, "low", "high"],
            ),
        ]
    measured = {name: effect.mean() for name, effect in effects.items()}
    rows = [
        [
            "itself, on the other half of the texts",
            *(x for one in effects.values() for x in (f"{halves(one):+.2f}", "")),
        ]
    ]
    for name, numbers in said.items():
        cells = []
        for effect in measured.values():
            r, low, high = with_interval(numbers, effect.flatten())
            cells += [
                f"{r:+.2f} ({low:+.2f} to {high:+.2f})",
                f"{within_layers(numbers, effect.flatten(), len(effect)):+.2f}",
            ]
        rows.append([name, *cells])
    if len(measured) > 1:
        both = [effect.flatten() for effect in measured.values()]
        rows.append(["the other replacement", *[f"{rank_correlation(*both):+.2f}", ""] * 2])
    head = ["", *(title for name in measured for title in (name, "within layers"))]
    by_layer = "; ".join(
        f"{name} " + ", ".join(f"{share:.0%}" for share in effect.sum(1) / effect.sum())
        for name, effect in measured.items()
    )
    parts += ["", f"share of each layer: {by_layer}"]
    if roles is not None:
        shares = {name: by_role(effect, roles) for name, effect in effects.items()}
        lines = [
            [role, count, *(f"{shares[name][role][1]:.2f}" for name in effects)]
            for role, (count, _) in next(iter(shares.values())).items()
        ]
        parts += ["", "effect by role; 1 is the mean of the layer", table(lines, ["role", "heads", *effects])]
    return "\n".join([*parts, "", "rank correlation over all heads, and within layers", table(rows, head)])


def effects_of(
    model: Any, batches: Sequence[Any], effect: str, file: Path, replacements: Sequence[str] = ("zero", "mean")
) -> dict[str, HeadEffects]:
    """Returns the effects of every head with each replacement."""
    found = {}
    for replacement in replacements:
        path = file.with_name(f"{file.stem}-{replacement}.jsonl")
        found[replacement] = head_effects(model, batches, effect, replacement=replacement, file=path, watch=progress)
        print(file=sys.stderr)
    return found


def progress(done: int, total: int) -> None:
    print(f"\r{done:,} of {total:,} passes", end="", file=sys.stderr)


def main() -> None:
    treebank, plays, minilm, smollm2 = (
        data("en_pud-ud-test.conllu"), data("tinyshakespeare.txt"), weights("minilm"), weights("smollm2")
    )  # fmt: skip
    out = Path("without-a-head")
    out.mkdir(exist_ok=True)
    if treebank and minilm:
        tokenizer = hw.checkpoints.tokenizer(minilm)
        tokenizer.no_padding()
        rows = [tokenizer.encode(text).ids for text in sentences_of(treebank, SENTENCES)]
        batches = [padded(rows[start : start + ROWS]) for start in range(0, len(rows), ROWS)]
        model = hw.load(minilm).eval()
        effects = effects_of(model, batches, "cosine", out / "minilm")
        said = what_weights_say(model, batches, False)
        roles = head_roles(model, encode(tokenizer, read_conllu(treebank)[:ANNOTATED]))
        print(tell(f"MiniLM, {len(rows)} sentences", effects, said, roles), "\n", flush=True)
    if plays and smollm2:
        (file,) = smollm2.glob("*.gguf")
        ids = windows_of(plays.read_text(encoding="utf-8"), hw.checkpoints.tokenizer(file), WINDOWS, WINDOW)
        model = hw.load(file).eval()
        effects = effects_of(model, [ids], "cross_entropy", out / "smollm2", ["zero"])
        print(tell(f"SmolLM2, {ids.numel():,} tokens", effects, what_weights_say(model, ids.split(4), True)))


if __name__ == "__main__":
    main()
