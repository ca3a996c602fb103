"""A Chinese language with the relations of the article with example sentences, for lesson 15."""

from __future__ import annotations

from dataclasses import replace

from ._chinese import CHINESE
from ._grammar import Link, Relation, Sentence

ACT = Relation(
    "grammar: act",
    "object",
    {
        "吃": ("苹果", "梨", "桃子", "西瓜", "面包", "蛋糕"),
        "喝": ("水", "茶", "牛奶", "果汁", "咖啡", "豆浆"),
        "读": ("小说", "日记", "报纸", "词典", "杂志", "课本"),
        "唱": ("山歌", "儿歌", "民歌", "情歌", "国歌", "老歌"),
    },
    (
        "{actor} {few} {word} {noun}",
        "{actor} 把 {noun} {fill} {word} 了",
        "{noun} {fill} 被 {actor} {word} 了",
        "{actor} 想 {word} {fill} 的 {noun}",
    ),
)
PLACE = replace(CHINESE.relation("association"), name="meaning: place")
PREY = Relation(
    "meaning: prey",
    "creature",
    {
        "老鼠": ("小猫", "花猫", "黑猫", "白猫", "老猫", "野猫"),
        "骨头": ("小狗", "花狗", "黑狗", "白狗", "老狗", "野狗"),
        "萝卜": ("小兔", "花兔", "黑兔", "白兔", "老兔", "野兔"),
        "青草": ("小马", "花马", "黑马", "白马", "老马", "野马"),
    },
    (
        "{noun} {fill} 看见 了 {word}",
        "{noun} {fill} 在 找 {word}",
        "{word} {fill} 引 来 了 {noun}",
        "{noun} {fill} 跑 向 {word}",
    ),
)
NEIGHBOUR = Relation(
    "position: neighbour",
    "thing",
    CHINESE.relation("modifier").nouns,
    (
        "{actor} {few} 有 一 {word} {noun}",
        "这 是 一 {word} {noun}",
        "那里 {few} 有 一 {word} {noun}",
        "一 {word} {noun} {few} 在 那里",
    ),
)
PRONOUN = replace(CHINESE.relation("subject pronoun"), name="reference: pronoun")

ARTICLE = replace(
    CHINESE,
    name="article",
    relations=(ACT, PLACE, PREY, NEIGHBOUR, PRONOUN),
    lists={**CHINESE.lists, "actor": CHINESE.lists["eater"]},
    examples=(
        Sentence.of("小明 吃 苹果 。", Link(ACT.name, 1, 2)),
        Sentence.of("医生 在 医院 工作 。", Link(PLACE.name, 2, 0)),
        Sentence.of("小猫 在 找 老鼠 。", Link(PREY.name, 3, 0)),
        Sentence.of("这 是 一 本 书 。", Link(NEIGHBOUR.name, 3, 4)),
        Sentence.of("小猫 很 可爱 ， 它 在 睡觉 。", Link(PRONOUN.name, 4, 0)),
    ),
)
"""The article's relations of grammar, meaning, position and reference. Its own sentences are the examples."""
