"""``headway inspect``, and the pictures and reports of heads."""

INSPECT = {
    "{count} texts": "{count} 段文本",
    "{count} sentences of Python's manual": "Python 手册中的 {count} 个句子",
    "{count} planted sentences in {language} with nouns that are new in their places": (
        "{count} 个事先设定了关系的{language}句子（其中的名词没在这些位置上出现过）"
    ),
    "small {language} model": "{language}小模型",
    "roles measured on {about}, of which every other one is held out": "角色由{about}测得，其中每隔一个留作检验",
    "{left_out} of {given} texts have more than {longest} tokens and are left out": (
        "{given} 段文本中有 {left_out} 段超过 {longest} 个词元，已略去"
    ),
    "one row for each head: {csv}": "每个头一行：{csv}",
    "all heads: {report}": "所有的头：{report}",
    "all heads (the first of {count} texts): {report}": "所有的头（{count} 段文本中的第一段）：{report}",
    "pictures: {files}": "图：{files}",
    "layer": "层",
    "head": "头",
    "role": "角色",
    "for": "对象",
    "best head": "最好的头",
    "figure (95 %)": "数值（95% 区间）",
    "{figure:.2f} ({low:.2f} to {high:.2f})": "{figure:.2f}（{low:.2f} 到 {high:.2f}）",
    "baseline": "基线",
    "cases": "例数",
    "holds": "成立",
    "not measured": "没有测量",
    "{role}: needs {what}": "{role}：需要 {what}",
    "{name}, mean over the texts": "{name}，各段文本的平均",
    "{name}, mean over the tokens": "{name}，各词元的平均",
    "{unknown} of {count} tokens are unknown to this model ({which}), marked (?): links of them mean nothing": (
        "{count} 个词元中有 {unknown} 个是这个模型不认得的（{which}），后面标有 (?)：与它们之间的联系没有意义"
    ),
    "strongest links, from a token to another, with weights": "最强的联系：从一个词元到另一个，附权重",
    # pictures of heads
    "attention": "注意力",
    "head {head}": "头 {head}",
    "layer {layer}, head {head}": "层 {layer}，头 {head}",
    "{layer}, head {head}": "{layer}，头 {head}",
    "key, which is attended to": "键：被看的词元",
    "query, which attends": "查询：在看的词元",
    "queries above, keys below: an arrow leads from each token to what it attends to": (
        "上行是查询，下行是键：箭头从一个词元指向它所看的词元"
    ),
    "in colour: the arrows of {token}": "彩色的是“{token}”的箭头",
    "width and colour: weight; below {least:g}, together {share:.0%} of a query's weight, not drawn": (
        "线的粗细和深浅表示权重；小于 {least:g} 的没有画，合计占一个查询的 {share:.0%}"
    ),
    "head; in each map queries go down and keys across": "头；每个小图里，行是查询，列是键",
    "attention weight": "注意力权重",
    "weight of a query in a cell, mean of its queries": "一个查询在一格里的权重，取格内各查询的平均",
    "(grey: exactly 0, as where the mask hides a key{left})": "（灰色：恰为 0，例如被掩码遮住的键{left}）",
    ", or left out: key {keys}": "，或略去的键：{keys}",
    "no role held": "没有成立的角色",
    "the primary role of each head: what for, and its figure on held-out texts": (
        "每个头的主要角色：对象，以及在留出文本上的数值"
    ),
    "measuring roles": "正在测量角色",
    "training a small {language} model, seed {seed}": "正在训练{language}小模型，种子 {seed}",
    "measuring it, seed {seed}": "正在测量它，种子 {seed}",
    "measuring {layer}": "正在测量 {layer}",
    "encoding {layer}": "正在编码 {layer}",
    "showing the report": "正在显示报告",
}
