"""Claims about the order of words and its effect on attention."""

from ._base import Claim, Subject, Verdict

LESSON = "lesson_4_order"

SUBJECT: Subject = (
    ("Order", "词序"),
    (
        Claim(
            "000.1, 001.17, 002.19, 002.20, 003.67, 003.68",
            (
                "Attention by itself does not see order: two sentences of the same words are the same to it.",
                "注意力本身看不到词序：词相同、次序不同的两句话，对它毫无差别。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"In “the cat chases the mouse” and “the mouse chases the cat” each word has the same vector after two layers "
                f"(largest difference {f.word_differences['en'][0]:.0e}), and likewise in 我吃苹果 and 苹果吃我 ({f.word_differences['zh'][0]:.0e}). With sinusoidal "
                f"positions they differ by up to {f.word_differences['en'][1]:.1f}.",
                f"“我吃苹果”与“苹果吃我”，过两层之后每个词的向量都相同（最大差 {f.word_differences['zh'][0]:.0e}）；the cat chases the mouse 与 the mouse "
                f"chases the cat 也一样（{f.word_differences['en'][0]:.0e}）。加上正弦位置编码，差别可达 {f.word_differences['en'][1]:.1f}。",
            ),
            lambda f: (
                max(f.word_differences["en"][0], f.word_differences["zh"][0])
                < 1e-12
                < 0.1
                < f.word_differences["en"][1]
            ),
        ),
        Claim(
            "003.76, 003.77",
            (
                "Self-attention and the position-wise feed-forward are permutation invariant.",
                "自注意力模块和逐位置前馈层是置换不变的。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "One word's output is invariant to exchanges of the other words (in a stack of four blocks it changes by "
                f"{f.shuffled['stack'][2]:.0e}), and so is a later sum over all words. All outputs together are equivariant: if the words are permuted, their vectors are permuted in the "
                f"same way. f(Px) and P·f(x) differ by {f.shuffled['stack'][0]:.0e}, while f(Px) and f(x) differ by {f.shuffled['stack'][1]:.1f}.",
                f"只交换其他词，一个词的输出不变（叠了四层，变化为 {f.shuffled['stack'][2]:.0e}），之后对所有词的汇总也不变。所有输出合起来则是“等变”：词换了位置，各自的向量跟着走。"
                f"f(Px) 与 P·f(x) 相差 {f.shuffled['stack'][0]:.0e}，而 f(Px) 与 f(x) 相差 {f.shuffled['stack'][1]:.1f}。",
            ),
            lambda f: all(max(same, one) < 1e-12 and moved > 0.1 for same, moved, one in f.shuffled.values()),
        ),
        Claim(
            "000.2, 001.19, 002.22, 003.69",
            (
                "So a Transformer needs positions to use the order.",
                "因此 Transformer 必须引入位置编码才能知道词序。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "This is strictly true without a mask. A causal mask contains order: with one layer the full stop, which attends to all words, still does not change ("
                f"{f.causal['1']:.0e}), with two it does ({f.causal['2']:.2f}). In one small task, naming who chases whom, an encoder without positions is right for "
                f"{f.accuracy['none']:.0%}, with sinusoids for {f.accuracy['sinusoidal']:.0%}, and two causal layers without any for "
                f"{f.accuracy['causal, 2 layers']:.0%}.",
                f"没有掩码时确实如此。而因果掩码本身就带来词序：一层时，看得到所有词的句号仍察觉不到（{f.causal['1']:.0e}），两层就能（{f.causal['2']:.2f}）。在回答“谁在追”这个小任务上，"
                f"没有位置编码的编码器对 {f.accuracy['none']:.0%}，加正弦位置编码对 {f.accuracy['sinusoidal']:.0%}，没有位置编码的两层因果模型对 {f.accuracy['causal, 2 layers']:.0%}。",
            ),
            lambda f: (
                f.accuracy["none"] <= 0.55
                and min(f.accuracy["sinusoidal"], f.accuracy["causal, 2 layers"]) > 0.9
                and f.causal["1"] < 1e-12 < f.causal["2"]
            ),
        ),
        Claim(
            "002.25",
            (
                "With a position added, the same word at positions 1 and 3 can be distinguished.",
                "加上位置编码之后，位置 1 和位置 3 上的同一个词可以区分开。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"The word “cat” occurs twice in one sentence: its vectors differ by {f.twice[0]:g} without positions and by {f.twice[1]:.2f} with them.",
                f"同一句中的两个“猫”：没有位置编码时向量相差 {f.twice[0]:g}，加上后相差 {f.twice[1]:.2f}。",
            ),
            lambda f: f.twice[0] < 1e-12 and f.twice[1] > 0.1,
        ),
        Claim(
            "000.1, 003.5, 003.6, 003.16",
            (
                "Attention processes the sequence as a whole: every output depends on every word.",
                "注意力把序列作为整体处理，每个输出都综合了整个序列的信息。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"If one word is replaced, every output changes, by at least {f.smallest_reach:.2f}; computed one query at a time or all at once, outputs agree "
                f"within {f.one_by_one:.0e}.",
                f"换掉一个词，连最不敏感的词也会变化 {f.smallest_reach:.2f}；逐个查询计算与一次算完，输出相差 {f.one_by_one:.0e}。",
            ),
            lambda f: f.smallest_reach > 0.01 and f.one_by_one < 1e-12,
        ),
        Claim(
            "000.16",
            (
                "Ordinary attention can only attend to some parts of its input.",
                "传统的注意力机制只能关注输入序列的某些部分。",
            ),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                "The attention of translators before the Transformer reads the whole source. Of 50 words, that of Bahdanau et al. (2015) gives a weight to "
                f"{f.older['additive']} and the global one of Luong et al. (2015) to {f.older['global']}; only the local one of Luong et al. has a window, and gives a weight to "
                f"{f.older['local']}. Many heads do not see more words either: they have more sets of weights for the same words.",
                f"Transformer 之前，翻译模型的注意力就能看到整个原文。50 个词中，Bahdanau 等（2015）的注意力给 {f.older['additive']} 个词权重，Luong 等（2015）的全局注意力给 "
                f"{f.older['global']} 个；只有 Luong 等的局部注意力有窗口，给 {f.older['local']} 个。多头看到的词也并不更多，只是对同样的词多了几组权重。",
            ),
            lambda f: f.older == {"additive": 50, "global": 50, "local": 20},
        ),
    ),
)
