"""The word pairs of the article with example sentences: in which head they show, and with which weight.

The article names four kinds of relation (grammar, reference, position, meaning), and for "The cat that was sleeping on
the mat woke up" three pairs of words. For each relation this script takes the head that finds it best in other
sentences, and reads the weight from the one word to the other there. So the head isn't chosen by the sentence that is
shown: by chance alone, some of 72 heads fit any pair.

    planted    the small models that come with headway; the decided word is masked, as in lesson 15
    MiniLM     heads chosen and measured on two halves of UD English PUD, and of GAP for reference

    HEADWAY_DATA=… python examples/article_pairs.py --train

measures again, in a few minutes, into measured/article_pairs.jsonl. It needs `make weights ARGS=minilm`,
en_pud-ud-test.conllu and gap-test.tsv. Without --train the table is printed that docs/lessons.md has, or that of
docs/zh-CN/lessons.md with --language zh.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import headway as hw
from heads_at_work import PASSAGES
from headway._common.files import atomic_write
from headway._common.language import of_environment
from headway.inspection import head_roles
from headway.inspection.roles import Finding
from headway.inspection.roles.syntactic import Syntactic
from headway.inspection.texts import encode, read_conllu, read_gap
from headway.study import planted
from lesson import LANGUAGES, MEASURED, SPEAK, Text, data, measured, weights

SENTENCE = "The cat that was sleeping on the mat woke up"
SENTENCES = 200  # of each planted relation
PAIRS = [  # of the sentence: relation, the words, what MiniLM's head is chosen by, and whether the article has the pair
    ("grammar", "cat", "sleeping", "governor → acl:relcl", True),
    ("meaning", "cat", "sleeping", "nsubj → governor", True),
    ("meaning", "mat", "sleeping", "obl → governor", True),
    ("reference", "that", "cat", "right name", False),
    ("position", "sleeping", "was", "-1", False),
]
CHINESE_NAMES = {"grammar": "语法", "meaning": "语义", "reference": "指代", "position": "位置"}


def train() -> Iterator[dict[str, Any]]:
    """Yields a row for each pair of each model."""
    for language, count in ((planted.ARTICLE, None), (planted.LANGUAGES["english"], 1)):
        yield from planted_rows(language, language.examples[:count])
    folder, treebank, passages = weights("minilm"), data("en_pud-ud-test.conllu"), data("gap-test.tsv")
    if not (folder and treebank and passages):
        raise SystemExit(
            "--train needs make weights ARGS=minilm, and PUD and GAP in the folder that HEADWAY_DATA names"
        )
    yield from published_rows(folder, treebank, passages)


def planted_rows(language: planted.Language, examples: Sequence[planted.Sentence]) -> Iterator[dict[str, Any]]:
    small = planted.pretrained(language)
    found = {
        row["relation"]: row
        for row in planted.measure(small.model, language, sentences=SENTENCES)
        if row["kind"] == "attention" and row["chosen"] and row["split"] == "words"
    }
    for sentence in examples:
        (text,) = planted.masked(language, [sentence])
        with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
            small.model(torch.tensor([text.ids]))
        for link in sentence.links:
            row = found[link.relation]
            kind, _, _ = link.relation.partition(":")
            names = [kind if kind in CHINESE_NAMES else "grammar", sentence.words[link.word], sentence.words[link.noun]]
            yield _row(
                f"planted {language.name}", (" " if language.spaced else "").join(sentence.words), names, row["layer"],
                row["head"], seen, link.word + 1, link.noun + 1, len(text.ids),
                {"found": row["found"], "low": row["low"], "high": row["high"], "guess": row["baseline"]},
            )  # fmt: skip


def published_rows(folder: Path, treebank: Path, passages: Path) -> Iterator[dict[str, Any]]:
    model, tokenizer = hw.load(folder).eval(), hw.checkpoints.tokenizer(folder)
    trees = encode(tokenizer, read_conllu(treebank))
    passages_known = [text for text in read_gap(passages) if text.choices[0].right][:PASSAGES]
    names = encode(tokenizer, passages_known, longest=512, too_long="leave out")
    best: dict[str, Finding] = {}
    for role, texts in (
        (Syntactic(("acl:relcl",), subtypes=True), trees),
        (Syntactic(("nsubj", "obl")), trees),
        ("positional", trees),
        ("coreferential", names),
    ):
        found = head_roles(model, texts, role)
        best |= {one.candidate: one for one in found.best(role if isinstance(role, str) else role.name)}
    (told,) = encode(tokenizer, [SENTENCE])
    with torch.no_grad(), hw.capture(model, keep="weights") as seen:
        model(torch.tensor([told.ids]))
    for kind, one, other, candidate, printed in PAIRS:
        chosen = best[candidate]
        first, second = told.tokens.index(one), told.tokens.index(other)
        yield _row(
            "MiniLM", SENTENCE, [kind, one, other], seen.layers.index(chosen.layer), chosen.head, seen, first, second,
            len(told), {"found": chosen.figure, "low": chosen.low, "high": chosen.high, "guess": chosen.baseline},
        ) | {"candidate": candidate, "printed": printed}  # fmt: skip


def _row(
    model: str, sentence: str, names: list[str], layer: int, head: int, seen: Any, first: int, second: int, tokens: int,
    share: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    kind, one, other = names
    every = torch.stack([seen.weights(layer)[0, :, first, second] for layer in range(len(seen.layers))])
    return {
        "model": model,
        "sentence": sentence,
        "relation": kind,
        "from": one,
        "to": other,
        "head": f"{layer}.{head}",
        **{name: round(value, 4) for name, value in share.items()},
        "weight": round(every[layer, head].item(), 4),
        "largest": round(every.max().item(), 4),
        "even": round(1 / tokens, 4),
        "candidate": "",
        "printed": True,
    }


def tell(rows: Sequence[dict[str, Any]], t: Text) -> str:
    """Returns the table as Markdown."""
    titles = [
        t("model", "模型"),
        t("relation", "关系"),
        t("words", "词对"),
        t("head", "头"),
        t("finds it in other sentences", "在其他句子里找到"),
        t("best guess", "最好的猜测"),
        t("weight here", "这里的权重"),
        t("largest of all heads", "所有头中最大"),
        t("equal weights", "权重均分"),
    ]
    lines = [" | ".join(titles), " | ".join("---" for _ in titles)]
    models = {
        "planted article": ("planted, lesson 15", "事先设定，第 15 课"),
        "planted english": ("planted, English", "事先设定，英文"),
        "MiniLM": ("MiniLM", "MiniLM"),
    }
    for row in rows:
        kind = t(row["relation"], CHINESE_NAMES[row["relation"]])
        lost = "" if row["printed"] else " *"
        lines.append(
            f"{t(*models[row['model']])} | {kind} | {row['from']} → {row['to']}{lost} | {row['head']} | "
            f"{row['found']:.0%} ({row['low']:.0%}–{row['high']:.0%}) | {row['guess']:.0%} | "
            f"{row['weight']:.2f} | {row['largest']:.2f} | {row['even']:.2f}"
        )
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--language", choices=LANGUAGES, default=of_environment(), help="of the table")
    parser.add_argument("--train", action="store_true", help="measure again, into measured/article_pairs.jsonl")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.train:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in train()]
        with atomic_write(MEASURED / "article_pairs.jsonl") as part:
            part.write_text("".join(lines), encoding="utf-8")
    print(tell(measured(__file__), SPEAK[chosen.language]))


if __name__ == "__main__":
    main()
