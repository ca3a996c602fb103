"""Names into encodings and back; and everything a name can have wrong with it."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.errors import HeadwayError
from headway.positions import (
    ENCODINGS,
    ALiBi,
    Compose,
    Learned,
    PositionEncoding,
    RoPE,
    Sinusoidal,
    citation,
    encoding,
    encoding_name,
)
from headway.positions._naming import label_of

SIZES: dict[str, Any] = {
    "num_heads": 4,
    "head_dim": 8,
    "embed_dim": 32,
    "max_length": 64,
    "bidirectional": False,
}

MINE = """
from headway.positions import PositionEncoding
from neighbour import FACTOR

class Helper:
    pass

class Mine(PositionEncoding):
    citation = "@misc{mine}"

    def __init__(self, head_dim, width=1, name="a"):
        super().__init__()
        self.head_dim, self.width, self.name = head_dim, width * FACTOR, name
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file, in the folder where the user stands."""
    (tmp_path / "neighbour.py").write_text("FACTOR = 1\n")
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    yield tmp_path / "mine.py"
    for name in set(sys.modules) - known:
        if name == "neighbour" or str(tmp_path) in name:
            del sys.modules[name]


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_model_may_give_every_size_to_every_name(name: str) -> None:
    built = encoding(name, **SIZES)
    assert type(built) is ENCODINGS[name]
    for size, value in SIZES.items():
        assert getattr(built, size, value) == value


def test_arguments_of_the_encoding_itself() -> None:
    assert encoding("rope", head_dim=8, base=500.0).base == 500.0
    assert encoding("learned", **SIZES, initial=torch.ones(64, 32)).table.all()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("rope(base=500000)", {"base": 500000, "head_dim": 8}),
        ("rope()", {"base": 10000.0}),
        (" rope(base = 5e5, layout='half') ", {"base": 5e5, "layout": "half"}),
        ("rope(16)", {"head_dim": 16}),
        ("rope(head_dim=2)", {"head_dim": 2}),
        ("t5(bidirectional=True, num_buckets=8)", {"bidirectional": True, "num_buckets": 8}),
        ("learned(extend='interpolate')", {"extend": "interpolate", "max_length": 64}),
        ("transformer-xl(base=10)", {"base": 10, "num_heads": 4}),
        ('sinusoidal(variant="tensor2tensor")', {"variant": "tensor2tensor"}),
    ],
)
def test_arguments_in_brackets(spec: str, expected: dict[str, Any]) -> None:
    built = encoding(spec, **SIZES)
    assert {key: getattr(built, key) for key in expected} == expected


def test_objects_and_classes_pass_through() -> None:
    rope = RoPE(8)
    assert encoding(rope, num_heads=4) is rope
    assert encoding(RoPE, **SIZES).head_dim == 8


def test_a_users_file_is_pickled(mine: Path) -> None:
    built = encoding("mine.py:Mine(width=3)", **SIZES)
    assert pickle.loads(pickle.dumps(built)).width == 3


@pytest.mark.parametrize("spec", ["mine.py:Mine(width=3)", "./mine.py:Mine(width=3)", "mine.py(width=3)"])
def test_a_users_file(mine: Path, spec: str) -> None:
    built = encoding(spec, **SIZES)
    assert isinstance(built, PositionEncoding)
    assert (built.head_dim, built.width) == (8, 3)
    assert encoding_name(built) == "Mine(width=3)"
    assert citation("mine.py:Mine") == "@misc{mine}"


def test_names_are_joined_by_a_plus_between_blanks(mine: Path) -> None:
    """One in a path, a bracket or quotes joins nothing."""
    folder = mine.parent / "c++"
    folder.mkdir()
    for file in list(mine.parent.glob("*.py")):
        (folder / file.name).write_bytes(file.read_bytes())
    assert type(encoding("c++/mine.py:Mine", **SIZES)).__name__ == "Mine"
    both = encoding("c++/mine.py:Mine(width=3) + rope(base=5e+5)", **SIZES)
    assert encoding_name(both) == "Mine(width=3) + rope(base=500000.0)"
    with pytest.raises(HeadwayError, match="layout is 'half \\+ half'"):
        encoding("rope(layout='half + half')", **SIZES)


def test_a_file_by_its_full_path_with_brackets_and_colons_in_the_arguments(mine: Path) -> None:
    folder = mine.parent / "a (b)"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE.replace("from neighbour import FACTOR", "FACTOR = 2"))
    built = encoding(f"{folder}/mine.py:Mine(name='x:Y(1)')", **SIZES)
    assert (built.width, built.name) == (2, "x:Y(1)")


def test_a_file_is_read_anew_and_leaves_the_path_alone(mine: Path) -> None:
    before = list(sys.path)
    encoding("mine.py:Mine", **SIZES)
    mine.write_text(MINE.replace("width=1", "width=77"))
    assert encoding("mine.py:Mine", **SIZES).width == 77
    assert sys.path == before


def test_a_class_that_takes_any_arguments(mine: Path) -> None:
    mine.write_text(MINE.replace('width=1, name="a"', "**more").replace("width * FACTOR, name", 'more["width"], "b"'))
    assert encoding("mine.py(width=5)", head_dim=2).width == 5
    assert encoding("mine.py", head_dim=2, width=6).width == 6


def test_a_class_of_a_module() -> None:
    assert type(encoding("headway.positions:RoPE(base=20)", head_dim=4)) is RoPE


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("roppe", "^there is no encoding 'roppe': did you mean 'rope', .*[?] `headway encodings` has all$"),
        ("RoPE", "did you mean 'rope'"),
        ("transformer_xl", "did you mean 'transformer-xl'"),
        ("zzz", "^there is no encoding 'zzz': `headway encodings` has all [0-9]+$"),
        ("rope(bas=3)", "unexpected keyword argument 'bas'; it takes head_dim, base, layout"),
        ("rope(base=open('x'))", "give arguments as literals"),
        ("rope(base=", "cannot be read|give arguments as literals"),
        ("rope(base=1)) + (2", "cannot be read|give arguments as literals"),
        ("rope(**{'base': 3})", "give arguments as literals"),
        ("rope(1, 2, 3, 4)", "too many positional arguments"),
        ("rope(base='x')", r"rope\(base='x'\) cannot be built with .*base='x'.*TypeError"),
        ("rope(base=0.5)", "base is 0.5: give a number above 1"),
        ("", "cannot be read"),
        ("rope:", "cannot be read"),
        ("nowhere.py:Mine", "nowhere.py is not a file"),
        ("mine.py:Other", "mine.py has no Other: it has Mine"),
        ("mine.py:Helper", "mine.py:Helper is a class, but no encoding"),
        ("mine.py:FACTOR", "mine.py:FACTOR is a int: derive it"),
        ("neighbour.py", "neighbour.py has no class derived .*: give neighbour.py:Class"),
        ("no_such_module_at_all:Mine", "module no_such_module_at_all cannot be imported: ModuleNotFoundError"),
        ("headway.positions._encodings.rope:Nope", "headway.positions._encodings.rope has no Nope: it has RoPE"),
        ("broken.py:Mine", "broken.py has a syntax error in line 2"),
        ("failing.py:Mine", "failing.py cannot be run: ZeroDivisionError: division by zero"),
    ],
)
def test_wrong_names_raise_in_one_line(mine: Path, spec: str, said: str) -> None:
    (mine.parent / "broken.py").write_text("x = 1\ndef f(:\n    pass\n")
    (mine.parent / "failing.py").write_text("1 / 0\n")
    with pytest.raises(HeadwayError, match=said) as caught:
        encoding(spec, **SIZES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: encoding("rope"), r"rope needs head_dim: give encoding\('rope', head_dim=…\)"),
        (lambda: encoding("learned"), "learned needs max_length and embed_dim"),
        (lambda: encoding("alibi", num_heads=4, slope=2), "alibi has no argument 'slope': it takes num_heads"),
        (lambda: encoding("none", base=2), "none has no argument 'base': it takes no arguments"),
        (lambda: encoding("none(head_dim=2)"), "unexpected keyword argument 'head_dim'"),
        (lambda: encoding(int), "int is a class, but no encoding"),
        (lambda: encoding(None), "encoding is None: give a name"),  # type: ignore[arg-type]
        (lambda: encoding(3), "encoding is 3: give a name"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_raise(call: Any, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        call()


@pytest.mark.parametrize(
    ("built", "name"),
    [
        (RoPE(8), "rope"),
        (RoPE(8, base=10000), "rope"),
        (RoPE(64, base=5e5, layout="half"), "rope(base=500000.0, layout='half')"),
        (Learned(8, 4, extend="interpolate"), "learned(extend='interpolate')"),
        (Learned(8, 4), "learned"),
        (Compose(Sinusoidal(8), ALiBi(4)), "sinusoidal + alibi"),
    ],
)
def test_names_for_reports(built: PositionEncoding, name: str) -> None:
    assert encoding_name(built) == name
    if not isinstance(built, Compose):
        assert repr(encoding(name, **built.arguments())) == repr(built)


def test_tuples_and_none_are_arguments_too() -> None:
    class Axial(PositionEncoding):
        def __init__(self, sections: tuple[int, ...] = (1, 2), limit: int | None = 3, start: object = None) -> None:
            super().__init__()
            self.sections, self.limit, self.start = sections, limit, start

    assert encoding_name(Axial((16, 24), None, torch.ones(1))) == "Axial(sections=(16, 24), limit=None)"
    assert encoding_name(Axial()) == "Axial"


def test_a_repr_tells_the_arguments() -> None:
    assert repr(RoPE(8)) == "RoPE(head_dim=8, base=10000.0, layout='interleaved')"
    assert repr(Compose(RoPE(8), ALiBi(2))) == f"Compose({RoPE(8)!r}, ALiBi(num_heads=2))"


@pytest.mark.parametrize("name", ENCODINGS)
def test_citations_are_bibtex(name: str) -> None:
    text = citation(name)
    if name in ("index", "unit-index"):
        assert text.startswith("%")
        return
    assert text.startswith("@")
    assert text.count("{") == text.count("}")
    for field in ("title", "author", "year"):
        assert f"  {field}" in text
    assert "  eprint" in text or "  url" in text


def test_citations_of_objects() -> None:
    assert citation(RoPE(8)) == citation("rope") == citation("rope(base=3)") == citation(RoPE)
    both = citation(Compose(RoPE(8), ALiBi(4)))
    assert "2104.09864" in both
    assert "2108.12409" in both
    assert both == citation("rope(base=3) + alibi")
    with pytest.raises(HeadwayError, match="no encoding 'yarnn': did you mean"):
        citation("yarnn")


def test_a_label_is_what_tables_call_an_encoding() -> None:
    assert label_of("rope(base=5000, label='RoPE 5k')") == "RoPE 5k"
    assert label_of("rope(base=5000)") == "rope(base=5000)"
    assert label_of("randomized + rope(base=5000, label='RoPE 5k')") == "randomized + RoPE 5k"
    assert label_of("mine.py:A(label='a + b') + mine.py:B(width=3)") == "a + b + mine.py:B(width=3)"
    assert label_of("randomized  +  rope") == "randomized  +  rope"
    for wrong in ("no name at all (", "rope(label=)", "rope(label=mine)", "RoPE(no label)"):
        assert label_of(wrong) == wrong
    built = encoding("rope(base=5000, label='RoPE 5k')", head_dim=8)
    assert isinstance(built, RoPE)
    assert encoding_name(built) == "rope(base=5000)"
    for wrong in ("rope(label=3)", "randomized + rope(label=3)"):
        with pytest.raises(HeadwayError, match="has the label 3: give a text"):
            label_of(wrong)
    with pytest.raises(HeadwayError, match="give arguments as literals"):
        encoding("rope(label=mine)", head_dim=8)
