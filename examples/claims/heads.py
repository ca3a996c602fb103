"""Claims about many heads: what they need, cost and learn."""

from typing import Any

from ._base import Claim, Pair, Subject, Verdict

LESSON = "lesson_7_many_heads"
MINILM = ('`make weights ARGS="minilm"`', '`make weights ARGS="minilm"`')
TREEBANK = (
    'MiniLM (`make weights ARGS="minilm"`) and `en_pud-ud-test.conllu` of Universal Dependencies in the folder $HEADWAY_DATA',
    ' MiniLM（`make weights ARGS="minilm"`），以及 $HEADWAY_DATA 文件夹中 Universal Dependencies 的 `en_pud-ud-test.conllu`',
)
PRONOUNS = (
    'MiniLM (`make weights ARGS="minilm"`) and `gap-test.tsv` of Google\'s GAP in the folder $HEADWAY_DATA',
    ' MiniLM（`make weights ARGS="minilm"`），以及 $HEADWAY_DATA 文件夹中 Google GAP 的 `gap-test.tsv`',
)
SYNTAX = {  # what one end of the dependency is
    "obj": ("objects", "宾语"),
    "det": ("articles", "冠词"),
    "case": ("prepositions", "介词"),
    "nsubj": ("subjects", "主语"),
    "amod": ("adjectives", "形容词"),
    "conj": ("conjuncts", "并列成分"),
}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def every(rows: list[list[float]]) -> list[float]:
    """The numbers of all heads of all layers."""
    return [value for row in rows for value in row]


def relation(f: Any, name: str) -> tuple[float, float]:
    """How often the best head finds the governor, and the best fixed offset."""
    found = f.trained["treebank"]["relations"][name]
    return found["to governor"]["found"], found["baseline"]


def interval(found: Any) -> str:
    """A 95 % interval, such as 63–77%."""
    return f"{100 * found['low']:.0f}–{found['high']:.0%}"


def relations(f: Any) -> Pair:
    """Both numbers of each, and the interval, listed."""
    english, chinese = [], []
    for name, (one, other) in SYNTAX.items():
        found, offset = relation(f, name)
        between = interval(f.trained["treebank"]["relations"][name]["to governor"])
        english.append(f"{one} {found:.0%} ({between}; {offset:.0%})")
        chinese.append(f"{other} {found:.0%}（{between}；{offset:.0%}）")
    return ", ".join(english), "，".join(chinese)


SUBJECT: Subject = (
    ("Many heads", "多头"),
    (
        Claim(
            "001.3, 002.2",
            ("A single head can capture only one kind of relation.", "单个注意力头只能捕捉一种关系模式。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "This is true of one softmax followed by a linear map, in this task. In naming the tokens one and three positions back, in order, one head has at most "
                f"{f.bound:.0%} by proof and {mean(f.both['one head']):.0%} after training; two heads of half the width have {mean(f.both['two heads']):.0%}. But one head followed by a feed-forward network has"
                f" {mean(f.both['one head and a feed-forward']):.1%}, since the network distinguishes unequal weights.",
                f"对一个 softmax 加线性映射来说，在这个任务上成立。要按次序说出往前第 1 个和第 3 个词元，可以证明单头不超过 {f.bound:.0%}，实测 {mean(f.both['one head']):.0%}；两个维度减半的头为 "
                f"{mean(f.both['two heads']):.0%}。但单头后面接一个前馈层就有 {mean(f.both['one head and a feed-forward']):.1%}，因为前馈层能分辨大小不同的权重。",
            ),
            lambda f: (
                max(f.both["one head"]) <= f.bound
                and min(f.both["two heads"]) > 0.95
                and min(f.both["one head and a feed-forward"]) > 0.95
            ),
        ),
        Claim(
            "002.12",
            (
                "Each head has d_k = d_model / num_heads numbers; concatenated they are d_model wide again.",
                "每个头的维度 d_k = d_model / num_heads，拼接后恢复为 d_model。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"512 over 8 heads is {f.d_k}. The article's loop with its `// num_heads` equals `hw.nn.MultiHeadAttention` with the same weights (difference "
                f"{f.loop_error:g}); as printed, without it, the concatenated heads are {f.printed_width:,} wide.",
                f"512 分给 8 个头，每头 {f.d_k}。补回 `// num_heads` 后，例句讲解中的循环与同权重的 `hw.nn.MultiHeadAttention` 一致（差 {f.loop_error:g}）；若照原样不写，"
                f"拼接后的维度是 {f.printed_width:,}。",
            ),
            lambda f: f.d_k == 64 and f.loop_error < 1e-5 and f.printed_width == 4096,
        ),
        Claim(
            "000.25, 003.53",
            (
                "Many heads run in parallel, which makes the computation efficient.",
                "多个注意力头并行运行，提高了计算效率。",
            ),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                "Compared with one head they save nothing. The numbers of parameters and multiplications are the same for any number of heads, and each head computes n² weights of its own. Many heads cost little while each has some width, and several times the time of one head where each is narrow. Running them in parallel only saves the loop over heads, which takes longer for few tokens and as long for many. [Lesson 7](lessons.md#7-many-heads) has the times.",
                "与单头相比，什么也没省。参数和乘法次数与头数无关，而每个头都有自己的 n² 个权重。只要每个头还有一定的维度，多头的代价很小；每个头很窄时，用时是单头的几倍。并行省下的只是逐头循环：词元少时循环慢一些，词元多时没有差别。用时见[第 7 课](lessons.md#7-多头)。",
            ),
            lambda f: (
                min(f.cost_training["1024"]) > 0.85
                and len(set(f.cost_parameters)) == 1
                and f.cost_training["1024"][6] > 1.5
            ),
            timed=True,
        ),
        Claim(
            "000.26",
            (
                "With many heads, attention is not limited to certain dimensions.",
                "多头避免了单头注意力局限于特定维度。",
            ),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                f"One head reads all {f.inputs_read[0]} numbers of a token already, and so does each of eight, through a map of rank {f.head_rank[0]}. Many heads add several sets of weights, not more dimensions: each head compares by fewer."
                "",
                f"单头本来就读入词元的全部 {f.inputs_read[0]} 维；八个头中的每一个也一样，只是经过秩为 {f.head_rank[0]} 的映射。多头增加的是权重的组数，不是维度：每个头用来比较的维度反而更少。",
            ),
            lambda f: set(f.inputs_read) == {512} and set(f.head_rank) == {64},
        ),
        Claim(
            "000.17, 000.24, 000.35, 001.2, 001.6, 001.14, 001.15, 001.31, 003.44",
            (
                "Different heads learn different things: near and far, position, special tokens.",
                "不同的头学到不同的东西：短程、长程、位置等。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"Of MiniLM's 72 heads one gives {max(every(f.trained['kinds']['previous'])):.1%} of its weight to the previous word, another "
                f"{max(every(f.trained['kinds']['next'])):.0%} to the next word, {sum(row.count('special') for row in f.trained['roles'])} half or more to [CLS] and [SEP], "
                f"and {sum(row.count('broad') for row in f.trained['roles'])} spread it over half of all tokens or more. Mean distances run from {min(every(f.trained['distance'])):.1f} to "
                f"{max(every(f.trained['distance'])):.1f} tokens.",
                f"MiniLM 的 72 个头中，一个把 {max(every(f.trained['kinds']['previous'])):.1%} 的权重给前一个词，另一个把 {max(every(f.trained['kinds']['next'])):.0%} "
                f"给后一个词，{sum(row.count('special') for row in f.trained['roles'])} 个把一半以上给 [CLS] 和 [SEP]，{sum(row.count('broad') for row in f.trained['roles'])} "
                f"个把权重摊到一半以上的词元上。平均距离从 {min(every(f.trained['distance'])):.1f} 到 {max(every(f.trained['distance'])):.1f} 个词元。",
            ),
            lambda f: (
                max(every(f.trained["kinds"]["previous"])) > 0.9
                and max(every(f.trained["kinds"]["next"])) > 0.5
                and max(every(f.trained["distance"])) > 3 * min(every(f.trained["distance"]))
            ),
            needs=("trained", MINILM),
        ),
        Claim(
            "002.3, 002.8",
            ("Some heads learn grammar: who does what.", "有的头学到语法关系：谁做了什么。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "They do for some relations, compared with a baseline. Chosen on one half of "
                f"{f.trained['sentences']:,} sentences and tested on the other, the best head finds the word on which another depends in (in brackets its 95% interval and the "
                f"best fixed offset): {relations(f)[0]}. For objects and prepositions heads are much better than any offset, for adjectives and conjuncts hardly. The picture of a single sentence may mislead:"
                " for “cat → sleeping” in the article's example one can point to "
                f"{f.trained['ties']['cat → sleeping']['heads']} heads, and by chance it would be 7.",
                f"有些关系成立，但要与基线比。在 {f.trained['sentences']:,} 句的一半上挑头、另一半上考，最好的头找到支配词的比例（括号内是 95% 区间和最好的固定偏移）：{relations(f)[1]}。"
                "宾语和介词远胜任何固定偏移，形容词和并列成分则几乎没有优势。从一句话的图里读出来的可能只是运气：例句讲解中的 cat → sleeping，有 "
                f"{f.trained['ties']['cat → sleeping']['heads']} 个头可以为证，而随机也该有 7 个左右。",
            ),
            lambda f: (
                relation(f, "obj")[0] > relation(f, "obj")[1] + 0.1
                and relation(f, "conj")[0] < relation(f, "conj")[1] + 0.1
            ),
            needs=("trained.treebank", TREEBANK),
        ),
        Claim(
            "002.7, 002.10",
            (
                "Each head attends to one kind of relation, a division of labour.",
                "每个头专注于一种语言现象，分工合作。",
            ),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                f"{len(f.trained['treebank']['follows'])} of MiniLM's 72 heads are better than the best fixed offset by ten points on some relation, and "
                f"{sum(len(names) > 1 for names in f.trained['treebank']['follows'].values())} of these on several, one on "
                f"{max(len(names) for names in f.trained['treebank']['follows'].values())}. And "
                f"{sum(row.count('mixed') for row in f.trained['roles'])} heads give no single kind of position half of their weight.",
                f"MiniLM 的 72 个头中有 {len(f.trained['treebank']['follows'])} 个在某种关系上比最好的固定偏移高出十个百分点，其中 "
                f"{sum(len(names) > 1 for names in f.trained['treebank']['follows'].values())} 个同时管好几种，有一个管 "
                f"{max(len(names) for names in f.trained['treebank']['follows'].values())} 种；另外，有 {sum(row.count('mixed') for row in f.trained['roles'])} 个头没有把一半权重给任何一类位置。",
            ),
            lambda f: sum(len(names) > 1 for names in f.trained["treebank"]["follows"].values()) >= 3,
            needs=("trained.treebank", TREEBANK),
        ),
        Claim(
            "002.6",
            ("A head can find what a pronoun refers to.", "有的头能弄清代词指的是谁。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"It can, better than chance but not reliably. Of two names for an ambiguous pronoun (GAP, {f.trained['pronouns']['passages']} passages not used to choose the head) the "
                f"best head prefers the right one in {f.trained['pronouns']['found']:.0%} (95% interval {interval(f.trained['pronouns'])}), all heads together in "
                f"{f.trained['pronouns']['mean']:.0%}; the better one of two guesses, the nearer and the longer name, is right in {f.trained['pronouns']['baseline']:.0%}.",
                f"比随机好，但远谈不上可靠。代词有歧义时（GAP，未参与挑选的 {f.trained['pronouns']['passages']} 段），最好的头选对的占 {f.trained['pronouns']['found']:.0%}（95% 区间 {interval(f.trained['pronouns'])}），"
                f"所有头平均 {f.trained['pronouns']['mean']:.0%}；总选较近的或总选较长的名字，好的一种对 {f.trained['pronouns']['baseline']:.0%}。",
            ),
            lambda f: 0.55 < f.trained["pronouns"]["found"] < 0.9,
            needs=("trained.pronouns", PRONOUNS),
        ),
        Claim(
            "002.5",
            ("Words that are near each other are often more closely related.", "挨得近的词往往关系更密切。"),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"{f.trained['treebank']['adjacent']:.0%} of the dependencies in {f.trained['sentences']:,} English sentences join neighbours, which are {f.trained['treebank']['neighbours']:.0%} "
                f"of all pairs. MiniLM's heads give a neighbour {f.trained['neighbour']:.1f} times what equal weights would.",
                f"{f.trained['sentences']:,} 句英文的依存关系中 {f.trained['treebank']['adjacent']:.0%} 连接相邻的词，而相邻词对只占全部的 {f.trained['treebank']['neighbours']:.0%}。"
                f"MiniLM 的头给相邻词的权重是平均分配的 {f.trained['neighbour']:.1f} 倍。",
            ),
            lambda f: f.trained["treebank"]["adjacent"] > 2 * f.trained["treebank"]["neighbours"],
            needs=("trained.treebank", TREEBANK),
        ),
        Claim(
            "003.6, 003.8",
            (
                "Attention selects what is important instead of averaging over everything.",
                "注意力突出关键部分，避免对所有输入平均、无重点地处理。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"Many heads do. A query of MiniLM attends to {min(every(f.trained['keys'])):.1f} keys in its narrowest head, {sorted(every(f.trained['keys']))[36]:.1f} in the "
                f"median one and {max(every(f.trained['keys'])):.1f} in its broadest, of {f.trained['keys_alike']:.1f} (e to the entropy). And the selected tokens are often not words:"
                f" [CLS] and [SEP] get {mean(every(f.trained['kinds']['special'])):.0%} of all weight, where equal shares would be "
                f"{f.trained['kinds_alike']['special']:.0%}.",
                f"许多头如此。MiniLM 的一个查询，在最集中的头里相当于看 {min(every(f.trained['keys'])):.1f} 个键，中位的头 {sorted(every(f.trained['keys']))[36]:.1f} 个，最分散的头 "
                f"{max(every(f.trained['keys'])):.1f} 个，总共 {f.trained['keys_alike']:.1f} 个（有效个数：e 的 H 次方，H 为权重的熵）。而且突出的常常并不是词：[CLS] 和 [SEP] 拿走了全部权重的 "
                f"{mean(every(f.trained['kinds']['special'])):.0%}，平均分只该有 {f.trained['kinds_alike']['special']:.0%}。",
            ),
            lambda f: (
                min(every(f.trained["keys"])) < 2 and max(every(f.trained["keys"])) > 0.7 * f.trained["keys_alike"]
            ),
            needs=("trained", MINILM),
        ),
        Claim(
            "003.7",
            ("The size of a weight shows the importance of its value.", "权重大小反映了对应“值”的重要性。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "It does mostly in rank, but not in amount. In MiniLM the order of the weights and the order of what would change without each key agree with a rank correlation of "
                f"{mean(every(f.trained['importance'])):.2f} over all heads, {min(every(f.trained['importance'])):.2f} in the worst. But [CLS] and [SEP], which get "
                f"{mean(every(f.trained['kinds']['special'])):.0%} of the weight, make up {mean(every(f.trained['special_share'])):.0%} of the sum: their values are short vectors. A large weight on them means that a head adds little."
                "",
                "顺序大体如此，数量则不然。在 MiniLM 中，按权重排序与按“去掉这个键输出会变多少”排序，所有头的秩相关平均为 "
                f"{mean(every(f.trained['importance'])):.2f}，最差的头 {min(every(f.trained['importance'])):.2f}。但 [CLS] 和 [SEP] 拿走 "
                f"{mean(every(f.trained['kinds']['special'])):.0%} 的权重，在相加的内容中却只占 {mean(every(f.trained['special_share'])):.0%}：它们的值很短。"
                "权重落在那里，意思是这个头没有什么要补充的。",
            ),
            lambda f: (
                mean(every(f.trained["importance"])) > 0.8
                and mean(every(f.trained["special_share"])) < mean(every(f.trained["kinds"]["special"])) / 2
            ),
            needs=("trained", MINILM),
        ),
    ),
)
