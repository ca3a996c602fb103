"""An unknown name gets the nearest ones, wherever a name is looked up."""

from collections.abc import Callable

import pytest
import torch

import headway as hw
from headway import HeadwayError
from headway.bench.cases import Plan
from headway.checkpoints import ARCHITECTURES
from headway.errors import FEW, nearest, unknown
from headway.inspection import ROLES, STATISTICS, head_roles
from headway.kernels import KERNELS
from headway.nn import FeedForward
from headway.positions import ENCODINGS
from headway.study import compare
from headway.study.extension import METHODS, need_method
from headway.study.planted import named_language
from headway.study.word_vectors import chosen_methods
from headway.vectors import VECTORS

Q = torch.zeros(1, 1, 2, 4)

LOOK_UPS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "encoding": (hw.encoding, "rop", "rope"),
    "part of a sum": (lambda name: hw.encoding(f"rope + {name}", head_dim=4), "shw", "shaw"),
    "kernel": (lambda name: hw.attention(Q, Q, Q, kernel=name), "spda", "sdpa"),
    "statistic": (lambda name: hw.attention_statistics(Q, Q, statistics=name), "entrpy", "entropy"),
    "role": (lambda name: head_roles(torch.nn.Identity(), [], name), "inductoin", "induction"),
    "activation": (lambda name: FeedForward(8, 8, name), "gleu", "gelu"),
    "method of extending": (need_method, "yam", "yarn"),
    "method for word vectors": (lambda name: chosen_methods([name]), "two-hot", "one-hot"),
    "baseline": (lambda name: compare(encodings=["rope"], baselines=[name]), "lstn", "lstm"),
    "language": (named_language, "chines", "chinese"),
    "mask of a benchmark": (lambda name: Plan(masks=(name,)), "casual", "causal"),
    "dtype of a benchmark": (lambda name: Plan(dtypes=(name,)), "float23", "float32"),
}


@pytest.mark.parametrize("what", LOOK_UPS)
def test_an_unknown_name_gets_the_nearest_and_no_list(what: str) -> None:
    look_up, wrong, meant = LOOK_UPS[what]
    with pytest.raises(HeadwayError) as raised:
        look_up(wrong)
    said = str(raised.value)
    assert said.startswith("there is no ")
    assert f" {wrong!r}: did you mean " in said
    assert repr(meant) in said
    assert said.count("'") <= 2 + 2 * 3
    assert "\n" not in said


@pytest.mark.parametrize("table", [ENCODINGS, ARCHITECTURES, STATISTICS, ROLES, KERNELS, METHODS, VECTORS])
def test_each_name_is_the_nearest_to_itself_without_a_letter(table: dict[str, object]) -> None:
    for name in table:
        if len(name) > 3:
            assert name in nearest(name[:-1], table)


def test_case_and_hyphens_do_not_count() -> None:
    assert nearest("Transformer_XL", ENCODINGS)[0] == "transformer-xl"
    assert nearest("Previous-Token", ["previous_token"]) == ["previous_token"]


def test_of_many_names_none_is_listed() -> None:
    many = [f"{number:03}" for number in range(FEW + 1)]
    assert str(unknown("thing", "xyz", many, see="the page")) == "there is no thing 'xyz': the page has all 16"
    assert str(unknown("thing", "xyz", many[:2], see="the page")) == "there is no thing 'xyz': give one of 000, 001"
    assert str(unknown("thing", "012", ["0122", "0123", "0124", "0125"])).count("'") == 8
