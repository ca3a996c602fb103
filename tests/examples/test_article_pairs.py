"""The table of the article's word pairs: the pages have the stored rows, and the small models still give them."""

import pytest
import torch

import article_pairs
import headway as hw
from headway.study import planted
from lesson import DOCS, SPEAK, measured

ROWS = measured(article_pairs.__file__)
PAGES = {"en": DOCS / "lessons.md", "zh": DOCS / "zh-CN" / "lessons.md"}


@pytest.mark.parametrize("language", PAGES)
def test_the_page_has_the_rows(language: str) -> None:
    assert article_pairs.tell(ROWS, SPEAK[language]) in PAGES[language].read_text(encoding="utf-8")


def test_each_model_has_the_article_s_relations() -> None:
    for model in ("planted article", "MiniLM"):
        assert {row["relation"] for row in ROWS if row["model"] == model} == set(article_pairs.CHINESE_NAMES)
    printed = {(row["from"], row["to"]) for row in ROWS if row["model"] == "MiniLM" and row["printed"]}
    assert printed == {("cat", "sleeping"), ("mat", "sleeping")}
    assert all(row["low"] <= row["found"] <= row["high"] for row in ROWS)
    assert all(row["weight"] <= row["largest"] for row in ROWS)


@pytest.mark.parametrize("language", [planted.ARTICLE, planted.LANGUAGES["english"]], ids=lambda one: one.name)
def test_the_small_models_give_these_weights(language: planted.Language) -> None:
    small = planted.pretrained(language)
    rows = iter([row for row in ROWS if row["model"] == f"planted {language.name}"])
    for sentence in language.examples:
        (text,) = planted.masked(language, [sentence])
        with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
            small.model(torch.tensor([text.ids]))
        for link, row in zip(sentence.links, rows, strict=False):
            layer, head = map(int, row["head"].split("."))
            weight = seen.weights(layer, head)[0, link.word + 1, link.noun + 1].item()
            assert (row["from"], row["to"]) == (sentence.words[link.word], sentence.words[link.noun])
            assert row["weight"] == pytest.approx(weight, abs=1e-4)
            assert row["even"] == pytest.approx(1 / len(text.ids), abs=1e-4)
