"""Reasons and notes that results and their files have in English, keyed by the templates that functions fill in."""

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
    # why some numbers of word vectors are missing
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
    "none of the {pairs} pairs has a vector for both words: give others": (
        "{pairs} 对词里，没有一对两个词都有向量：请换一份"
    ),
    "none of the {asked} questions has four known words: give others": (
        "{asked} 道题里，没有一道四个词都认得：请换一份"
    ),
    "one-hot vectors hold no relation between {a}, {b} and {c}: {instead}": ("独热向量里没有 {a}、{b}、{c} 之间的关系"),
    "one-hot vectors are all at right angles, none is near to {given}: {instead}": (
        "独热向量两两垂直，没有哪个与 {given} 相近"
    ),
    "{name} says in which documents {a}, {b} and {c} stand, and the differences are not relations: fit word2vec, glove or "
    "fasttext": "{name} 只说明 {a}、{b}、{c} 在哪些文档里，它们的差不是一种关系：请用 word2vec、glove 或 fasttext",
    # notes, cases and sides of a benchmark, whose files are in English
    "This machine is busy, with a load average of {load} on {count} cores before anything is measured: end other "
    "processes, or times will be too long.": (
        "这台机器正忙：还没开始测量，{count} 个核上的平均负载就有 {load}。请先结束其他进程，否则测得的时间会偏长。"
    ),
    "No share of the roof, which the cpu kernel measures: {missing}": "没有与处理器上限的比例，它由内核 cpu 测量：{missing}",
    "Checked before anything was measured: {checked}.": "测量之前检查了：{checked}。",
    "{checked}; with them all statistics, alone and in the pass of attention": (
        "{checked}；连同全部统计量，单独计算的和随注意力计算的"
    ),
    "{kernels}: {terms} kinds of terms with every gradient in two dtypes and {masks} kinds of masks, against float64; and "
    "{count} of the cases measured, cut to {tokens} tokens, output and every gradient against the reference kernel": (
        "{kernels}：{terms} 种项，两种 dtype，连同每个梯度，以及 {masks} 种掩码，与 float64 比较；还有要测的 {count} 项，"
        "截到 {tokens} 个词元，输出和每个梯度与参考内核比较"
    ),
    "No number for the kernel {kernel}, whose checks fail: {why}": "内核 {kernel} 没有数字，它没有通过检查：{why}",
    "No number: {error}": "没有数字：{error}",
    "Nothing is measured: {error}": "什么也没有测：{error}",
    "{model} is left out: {folder} has no weights; make weights downloads them.": (
        "没有测 {model}：{folder} 里没有权重；make weights 可以下载。"
    ),
    "cache: {queries} queries, {keys} keys, {heads} heads of {width} on {groups}, {dtype}": (
        "cache：{queries} 个查询，{keys} 个键，{heads} 个头共用 {groups} 个键头，每头 {width} 维，{dtype}"
    ),
    "{what}, {mask}, {tokens} tokens, {heads} heads of {width}, {dtype}, {direction}": (
        "{what}，{mask}，{tokens} 个词元，{heads} 个头，每头 {width} 维，{dtype}，{direction}"
    ),
    "{task}: {model}, {tokens} tokens, {dtype}": "{task}：{model}，{tokens} 个词元，{dtype}",
    "full": "无掩码",
    "forward": "前向",
    "backward": "反向",
    "forward and backward": "前向和反向",
    "headway, no encoding": "headway（无编码）",
    "headway, reference kernel": "headway（参考内核）",
    "headway, full causal": "headway（整个因果掩码）",
    "headway, contiguous": "headway（不拼接，不填充）",
    "headway, not packed": "headway（没有重排权重）",
    "headway, torch's linear maps": "headway（线性映射用 torch 的）",
    "SDPA, dense bias": "SDPA（稠密偏置）",
    "SDPA, dense bias with its gradient": "SDPA（稠密偏置及其梯度）",
    "FlexAttention, compiled": "FlexAttention（编译过）",
    "copy": "复制",
    "reading": "只读",
    "transformers, headway's bias table": "transformers（用 headway 的偏置表）",
    "torch, materialized weights": "torch（存下权重）",
    "statistics alone": "只算统计量",
    "received alone": "只算 received",
    "by hand": "手写",
    "with all of one pass": "带全部一遍算完的统计量",
    "with {name}": "带 {name}",
}
