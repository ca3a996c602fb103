"""Reasons that results give in English, in files too, by the templates of what functions make of them."""

REASONS = {
    # roles of heads that were not measured
    "{least} different tokens to repeat, where the texts have {count}": (
        "{least} 个不同的词元来重复，而文本里只有 {count} 个"
    ),
    "a model that reads {fewest} tokens, not {longest}": "能读 {fewest} 个词元的模型，而这个最多读 {longest} 个",
    "texts of several sentences that the model can read": "模型读得下的、含几个句子的文本",
    "mentions and choices: read a file of GAP or CoNLL-2012": "标出的指称和候选：请读入 GAP 或 CoNLL-2012 的文件",
    "cases of {kinds}": "{kinds} 的例子",
    "more than {least} different tokens: they have {known}": "多于 {least} 个不同的词元，而这里只有 {known} 个",
    "dependency relations: read a CoNLL-U file": "依存关系：请读入 CoNLL-U 文件",
    # numbers of word vectors that there are none of
    "the words of this test are English, and the text is not": "这项测试用的是英文词，而文本不是英文",
    "every two words have the same cosine, so that no word is nearer than another": (
        "任意两个词的余弦都相同，没有哪个词比别的更近"
    ),
    "none of the {pairs} pairs of {test} has both of its words in the vocabulary": (
        "{test} 的 {pairs} 对词里，没有一对两个词都在词表里"
    ),
    "no word of the text is long enough to be misspelt": "文本里没有够长的词可以故意拼错",
    "{word}, whose senses are compared, is not in the vocabulary": "要比较意义的 {word} 不在词表里",
    "{words} words of the map have a vector: there is nothing to draw": "图上的词只有 {words} 个有向量，无图可画",
    "the text has too few of the words that the map has groups of": "图上各组的词，文本里太少",
    "the training was stopped and resumed later": "训练中途停过，后来才接着做",
    "of none of the {pairs} pairs have both words a vector: give others": (
        "{pairs} 对词里，没有一对两个词都有向量：请换一份"
    ),
    "of none of the {asked} questions are all four words known: give others": (
        "{asked} 道题里，没有一道四个词都认得：请换一份"
    ),
    "one-hot vectors hold no relation between {a}, {b} and {c}: {instead}": ("独热向量里没有 {a}、{b}、{c} 之间的关系"),
    "one-hot vectors are all at right angles, none is near to {given}: {instead}": (
        "独热向量两两垂直，没有哪个与 {given} 相近"
    ),
    "{name} says in which documents {a}, {b} and {c} stand, and a difference of that is no relation: fit word2vec, glove or "
    "fasttext": "{name} 只说明 {a}、{b}、{c} 在哪些文档里，它们的差不是一种关系：请用 word2vec、glove 或 fasttext",
}
