"""Every row of VECTORS passes every check, on English, and on Chinese by words and by characters."""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from gensim.test.utils import datapath

from headway.testing.vectors import VECTOR_CHECKS, Trial
from headway.vectors import VECTORS, Words

CHINESE = [
    f"{who}{when}在{where}{what},因为天气很好。{who}喜欢{where}。"
    for who, when, where, what in product(
        ("老师", "学生", "国王"), ("今天", "昨天"), ("北京", "学校", "图书馆"), ("读书", "唱歌", "喝茶")
    )
]
TEXTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "english": (Path(datapath("lee_background.cor")).read_text().splitlines()[:40], {}),
    "chinese words": (CHINESE, {"tokenizer": Words()}),
    "chinese characters": (CHINESE, {"tokenizer": Words(chinese="characters")}),
}
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"dim": 16, "num_heads": 2, "num_layers": 2, "vocab_size": 300, "steps": 20, "length": 32},
}
"""Options of a way whose defaults take too long for a test."""


@cache
def trial(name: str, text: str) -> Trial:
    texts, options = TEXTS[text]
    return Trial(VECTORS[name], texts, SMALL.get(name, {}) | options)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("check", VECTOR_CHECKS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str, text: str, check: str) -> None:
    VECTOR_CHECKS[check](trial(name, text))


@pytest.mark.parametrize("name", VECTORS)
def test_every_row_has_its_name(name: str) -> None:
    assert VECTORS[name].name == name


def test_the_chinese_is_cut_into_words() -> None:
    words = trial("one-hot", "chinese words").fitted.words
    assert {"老师", "图书馆", "天气"} <= set(words)
    assert max(map(len, trial("one-hot", "chinese characters").fitted.words)) == 1
