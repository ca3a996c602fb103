"""What heads of published models do: dependency relations, the names of pronouns, the atoms of reactions.

`headway.inspection.head_roles` measures it: of MiniLM, an encoder, and SmolLM2, a causal model, on the treebank PUD; of
MiniLM on GAP's ambiguous pronouns; of rxnmapper, which was trained to fill gaps in chemical reactions, on reactions
whose atoms chemists have mapped. Heads are chosen on every other text and measured on the rest.

    HEADWAY_DATA=… python examples/heads_of_published_models.py

prints the tables of docs/heads.md. It needs `make weights`, and in $HEADWAY_DATA what there is of
en_pud-ud-test.conllu, gap-test.tsv and golden_dataset.rdf. The last one is from Lin et al. 2020, "Atom-to-Atom Mapping"
(github.com/Laboratoire-de-Chemoinformatique/Reaction_Data_Cleaning), and is read with RDKit (`pip install rdkit`). All
takes half an hour on one core.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import headway as hw
from headway.inspection import head_roles
from headway.inspection.roles.coreferential import Coreferential
from headway.inspection.roles.syntactic import Syntactic
from headway.inspection.texts import AnnotatedText, EncodedText, encode, read_conllu, read_gap
from lesson import data, table, weights

SUBTYPES = ("aux:pass", "nsubj:pass", "nmod:poss")
"""Relations that are shown beside their kinds, since Clark et al. have them."""
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|.")
"""The signs of a reaction, as rxnmapper's tokenizer splits them."""


def progress(done: int, texts: int) -> None:
    print(f"\r{done:,} of {texts:,} texts", end="\n" if done == texts else "", file=sys.stderr)


def place(layer: str, head: int) -> str:
    """Returns "2.8" for "stack.blocks.2.attention" and 8; "stack.blocks.0.attention#10" is the tenth of shared ones."""
    name, _, turn = layer.partition("#")
    numbers = re.findall(r"\d+", name)
    return f"{int(turn) - 1 if turn else numbers[0]}.{head}"


def figures(found: Any, name: str, every: dict[str, int]) -> str:
    """Returns a table of the best head for each candidate of a role, the furthest above its guess first."""
    rows = [
        [
            one.candidate,
            place(one.layer, one.head),
            f"{one.figure:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            f"{one.baseline:.1%}",
            f"{one.cases:,} of {every[one.candidate]:,}",
            "yes" if one.holds else "",
        ]
        for one in sorted(found.best(name), key=lambda one: one.baseline - one.figure)
    ]
    held = [one for one in found.role(name) if one.holds]
    heads = len({(one.layer, one.head) for one in held})
    return (
        table(rows, ["", "head", "figure", "interval", "best guess", "cases", "holds"])
        + f"\n{heads} heads have the role, for {len({one.candidate for one in held})} candidates\n"
    )


def syntax(model: Any, texts: Sequence[EncodedText]) -> str:
    """Returns the table of dependency relations, and of the subtypes among them."""
    found = []
    for role in (Syntactic(), Syntactic(SUBTYPES, subtypes=True)):
        measured = head_roles(model, texts, role, watch=progress)
        found.append(figures(measured, role.name, role.arcs(texts[1::2])))
    return "\n".join(found)


def names(model: Any, texts: Sequence[EncodedText]) -> str:
    """Returns the table of pronouns, and how many were left out."""
    role = Coreferential()
    measured = head_roles(model, texts, role, watch=progress)
    every = {"right name": sum(text.text.choices[0].right is not None for text in texts[1::2])}
    return figures(measured, role.name, every) + f"{role.left_out(texts)} pronouns that are neither name are left out\n"


# ---------------------------------------------------------------- atoms of reactions


@dataclass(frozen=True)
class Reaction:
    """A reaction as SMILES, whose words are its atoms; each atom of a product depends on that of a reactant."""

    text: AnnotatedText
    reactants: int  # atoms of reactants, which come first
    kinds: list[str]  # of each atom; equivalent ones of a molecule have the same
    elements: list[str]


def read_reactions(path: Path) -> Iterator[Reaction]:
    """Yields the reactions of an RDF file with mapped atoms, with their molecules as canonical SMILES, sorted."""
    from rdkit import Chem

    def written(blocks: Sequence[str]) -> tuple[str, list[tuple[int, str, str]]]:
        molecules = []
        for block in blocks:
            molecule = Chem.MolFromMolBlock(block)
            numbers = [atom.GetAtomMapNum() for atom in molecule.GetAtoms()]
            for atom in molecule.GetAtoms():
                atom.SetAtomMapNum(0)
            smiles, kinds = Chem.MolToSmiles(molecule), Chem.CanonicalRankAtoms(molecule, breakTies=False)
            order = molecule.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]
            symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
            molecules.append((smiles, [(numbers[i], f"{smiles} {kinds[i]}", symbols[i]) for i in order]))
        molecules.sort()
        return ".".join(smiles for smiles, _ in molecules), [atom for _, atoms in molecules for atom in atoms]

    for number, block in enumerate(path.read_text(encoding="latin-1").split("$RXN")[1:], 1):
        head, *molecules = block.split("$DTYPE")[0].split("$MOL\n")
        count = int(next(line for line in reversed(head.split("\n")) if line.strip()).split()[0])
        (left, reactants), (right, products) = written(molecules[:count]), written(molecules[count:])
        text = f"{left}>>{right}"
        spans = [one.span() for one in SMILES.finditer(text) if one[0][0].isalpha() or one[0][0] == "["]
        source = {atom[0]: i for i, atom in enumerate(reactants) if atom[0]}
        governors = [-2] * len(reactants) + [source.get(atom[0], -2) for atom in products]
        relations = ["" if governor < 0 else "atom" for governor in governors]
        atoms = [*reactants, *products]
        yield Reaction(
            AnnotatedText(text, tuple(spans), governors=tuple(governors), relations=tuple(relations), name=f"{number}"),
            len(reactants),
            [kind for _, kind, _ in atoms],
            [element for *_, element in atoms],
        )


def atoms(model: Any, tokenizer: Any, reactions: Sequence[Reaction]) -> str:
    """Returns the table of atoms, and the figures with equivalent atoms and with guesses by elements."""
    texts = encode(tokenizer, [one.text for one in reactions], longest=512)
    role = Syntactic(("atom",))
    measured = head_roles(model, texts, role, watch=progress)
    best = next(one for one in measured.best(role.name) if one.candidate == "atom → governor")
    counts: Counter[str] = Counter()
    for text, one in list(zip(texts, reactions, strict=True))[1::2]:
        with torch.no_grad(), hw.capture(model, "weights", heads=[best.head]) as seen:
            model(torch.tensor([text.ids]))
        weight = seen.weights(best.layer)[0, 0]
        token = {word: i for i, word in enumerate(text.word_of)}
        given = weight[:, [token[atom] for atom in range(one.reactants)]]
        passed: Counter[str] = Counter()
        for atom, source in enumerate(one.text.governors):
            if source >= 0:
                alike = [i for i in range(one.reactants) if one.elements[i] == one.elements[atom]]
                equal = {i for i in range(one.reactants) if one.kinds[i] == one.kinds[source]}
                found = int(given[token[atom]].argmax())
                in_order = alike[min(passed[one.elements[atom]], len(alike) - 1)]
                passed[one.elements[atom]] += 1
                for name, guess in (("the head, among reactants", found), ("atoms of an element in order", in_order)):
                    counts[name] += guess == source
                    counts[f"{name}; equivalent atoms count"] += guess in equal
                counts["any atom of the element"] += 1 / len(alike)
                counts["any atom of the element; equivalent atoms count"] += len(equal & {*alike}) / len(alike)
                counts["cases"] += 1
    cases = counts.pop("cases")
    rows = [[name, f"{count / cases:.1%}"] for name, count in counts.items()]
    return figures(measured, role.name, role.arcs(texts[1::2])) + table(rows, [place(best.layer, best.head), ""])


def main() -> None:
    torch.set_num_threads(1)
    treebank, passages, reactions = map(data, ("en_pud-ud-test.conllu", "gap-test.tsv", "golden_dataset.rdf"))
    for name, file in (("minilm", "."), ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("rxnmapper", ".")):
        folder = weights(name)
        if folder is None:
            continue
        model, tokenizer = hw.load(folder / file).eval(), hw.checkpoints.tokenizer(folder / file)
        if treebank and name != "rxnmapper":
            print(f"{name}, {treebank.name}\n{syntax(model, encode(tokenizer, read_conllu(treebank)))}")
        if passages and name == "minilm":
            texts = encode(tokenizer, read_gap(passages), longest=512)
            print(f"{name}, {passages.name}\n{names(model, texts)}")
        if reactions and name == "rxnmapper":
            print(f"{name}, {reactions.name}\n{atoms(model, tokenizer, list(read_reactions(reactions)))}")


if __name__ == "__main__":
    main()
