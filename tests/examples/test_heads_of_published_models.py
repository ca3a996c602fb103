"""The measurement of published heads: the reader of reactions, and the report of atoms of a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import heads_of_published_models as example
from headway.inspection.texts import AnnotatedText
from headway.models import Encoder, TransformerConfig

RDF = """$RDFILE 1
$RFMT
$RXN

      test

  2  1
$MOL

  x

  2  1  0  0  0  0            999 V2000
    0.0000    0.0000    0.0000 C   0  0  0  0  0  0  0  0  0  7  0  0
    1.0000    0.0000    0.0000 O   0  0  0  0  0  0  0  0  0  8  0  0
  1  2  1  0  0  0  0
M  END
$MOL

  x

  1  0  0  0  0  0            999 V2000
    0.0000    0.0000    0.0000 Cl  0  0  0  0  0  0  0  0  0  9  0  0
M  END
$MOL

  x

  2  1  0  0  0  0            999 V2000
    0.0000    0.0000    0.0000 C   0  0  0  0  0  0  0  0  0  7  0  0
    1.0000    0.0000    0.0000 Cl  0  0  0  0  0  0  0  0  0  9  0  0
  1  2  1  0  0  0  0
M  END
$DTYPE ID
$DATUM 1
"""


def test_places_are_counted_from_0() -> None:
    assert example.place("stack.blocks.2.attention", 8) == "2.8"
    assert example.place("stack.blocks.0.attention#10", 5) == "9.5"


def test_reactions(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    file = tmp_path / "some.rdf"
    file.write_text(RDF, encoding="latin-1")
    [one] = example.read_reactions(file)
    assert one.text.text == "CO.Cl>>CCl"
    assert [one.text.word(i) for i in range(len(one.text))] == ["C", "O", "Cl", "C", "Cl"]
    assert one.text.governors == (-2, -2, -2, 0, 2)
    assert (one.reactants, one.elements) == (3, ["C", "O", "Cl", "C", "Cl"])


def test_the_report_of_a_tiny_model() -> None:
    reactions = []
    for number in range(40):
        written = "C" * (1 + number % 4) + "O>>" + "C" * (1 + number % 4)
        spans = tuple((i, i + 1) for i, sign in enumerate(written) if sign != ">")
        n, left = len(spans), 2 + number % 4
        text = AnnotatedText(
            written,
            spans,
            governors=(-2,) * left + tuple(range(n - left)),
            relations=("",) * left + ("atom",) * (n - left),
        )
        elements = [text.word(i) for i in range(n)]
        reactions.append(example.Reaction(text, left, [f"{i}" for i in range(n)], elements))
    tokenizer = Tokenizer(models.WordLevel({sign: i for i, sign in enumerate(["?", "C", "O", ">>"])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(example.SMILES.pattern), behavior="isolated")
    model = Encoder(TransformerConfig(vocab_size=4, embed_dim=16, num_heads=2, num_layers=2)).eval()
    with torch.no_grad():
        said = example.atoms(model, tokenizer, reactions)
    assert "atom → governor" in said
    assert "60 of 60" in said  # of every other reaction 2, 4, 2, 4 … atoms
    in_order = next(line for line in said.split("\n") if "in order; equivalent" in line)
    assert in_order.split()[-1] == "100.0%"
