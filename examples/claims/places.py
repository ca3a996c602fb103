"""Claims about marking positions: integers, the unit interval, sinusoids, learned tables."""

from typing import Any

from ._base import Claim, Subject, Verdict

LESSON = "lesson_5_marking_positions"


def beyond(f: Any, name: str, times: int = 1) -> str:
    """Accuracy at twice (1), four times (2), eight times (3) the trained length."""
    return f"{f.accuracy[name][times]:.0%}"


def having(f: Any, kind: str) -> int:
    return sum(kind in positions for positions in f.families.values())


SUBJECT: Subject = (
    ("Marking positions", "标记位置"),
    (
        Claim(
            "004.2, 004.3",
            (
                "Integers are unbounded and work badly on sequences longer than those of training.",
                "用整数标记位置：取值无界，遇到比训练时更长的序列泛化不好。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"At a million tokens the number is {f.numbers['index'][3]:,.0f}. A small decoder that learned at 16 tokens to name the previous token is right for "
                f"{f.accuracy['index'][0]:.0%} there and {beyond(f, 'index')} at 32. With a layer norm the index has no effect: it adds the same number to every dimension, which such a norm subtracts."
                "",
                f"到一百万个词元时，编码就是 {f.numbers['index'][3]:,.0f}。一个小解码器在长度 16 上学着说出前一个词元：在 16 时对 {f.accuracy['index'][0]:.0%}，到 32 只有 "
                f"{beyond(f, 'index')}。若后面紧接 LayerNorm，整数下标完全不起作用：每一维都加同一个数，正好被减掉。",
            ),
            lambda f: f.verdicts["index"][3] == "no" and f.accuracy["index"][1] < f.accuracy["index"][0] - 0.1,
        ),
        Claim(
            "004.5",
            (
                "With positions in [0, 1], the same distance has a different value in every length.",
                "用 [0, 1] 标记位置：序列长度不同，词元间的相对距离就不同。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"One step is {f.unit_steps[0]:g} among 11 tokens and {f.unit_steps[1]:g} among 101. In that task the effect is smaller than expected: trained at 16, it still has "
                f"{beyond(f, 'unit-index')} at 32 and {beyond(f, 'unit-index', 3)} at 128, more than any other encoding here.",
                f"11 个词元时一步是 {f.unit_steps[0]:g}，101 个词元时是 {f.unit_steps[1]:g}。但在上面那个任务里，代价没有想象的大：在 16 上训练，到 32 仍对 {beyond(f, 'unit-index')}，到 128 对 "
                f"{beyond(f, 'unit-index', 3)}，高于这里其他任何编码。",
            ),
            lambda f: f.verdicts["unit-index"][2] == "no" and f.unit_steps[0] > 5 * f.unit_steps[1],
        ),
        Claim(
            "004.6, 004.7, 004.8, 004.9",
            (
                "An encoding should distinguish positions, show distances, be alike at every position and in every length, and be bounded; sinusoids have these properties.",
                "位置编码应能区分位置、体现距离、在任何长度和位置上一致、并且有界；正弦编码都做到了。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                "Measured over 1,024 positions: sinusoids have all four properties; the index lacks the last, [0, 1] the third, and an untrained learned table the second and third.",
                "在 1,024 个位置上测量：正弦编码四条都满足；整数下标不满足第四条，[0, 1] 不满足第三条，刚初始化的可学习表不满足第二、三条。",
            ),
            lambda f: f.verdicts["sinusoidal"] == ["yes"] * 4 and f.verdicts["learned"] == ["yes", "no", "no", "yes"],
        ),
        Claim(
            "002.35",
            ("The sinusoidal encodings of any two positions differ.", "任意两个位置的正弦编码都不相同。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"With d = 64 or 512 no two positions up to 100,000 apart are closer than neighbours ({f.closest['512']:.2f} at 512). With d = 2 they differ in theory, since π is "
                f"irrational, and come within {f.closest['2']:.0e} ({f.closest_offset['2']} apart); in bfloat16 only {f.distinct_bfloat16['2']:,} of 10,000 remain "
                "different then.",
                f"d = 64、512 时，相隔 100,000 以内，没有哪两个位置比相邻的更接近（512 时相邻的相距 {f.closest['512']:.2f}）。d = 2 时理论上也不同（π 是无理数），但最近只差 "
                f"{f.closest['2']:.0e}（相隔 {f.closest_offset['2']}）；换成 bfloat16，10,000 个编码只剩 {f.distinct_bfloat16['2']:,} 个不同。",
            ),
            lambda f: (
                f.closest_offset["512"] == 1
                and f.closest["2"] < 1e-3
                and f.distinct_bfloat16["2"] < 5000 <= f.distinct_bfloat16["512"]
            ),
        ),
        Claim(
            "002.34, 002.36, 004.16",
            (
                "High frequencies measure finely and low ones coarsely, like rulers of several scales.",
                "高频像精细的尺，低频像粗略的尺，多个尺度一起测量。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"At d = 512 wavelengths run from {f.wavelengths[0]:.2f} to {f.wavelengths[-1]:,.0f} tokens. The fastest quarter of the pairs has "
                f"{f.quarters[0][0]:.0%} of the difference between neighbours, and is unambiguous up to {f.quarters[0][2] - 1:.0f} tokens; the slowest quarter is up to "
                f"{f.quarters[3][2] - 1:,.0f}. At a distance of 1,000 the slow pairs add little ({f.quarters[3][1]:.0%}): their advantage is not their size there, but that they are unambiguous.",
                f"d = 512 时，波长从 {f.wavelengths[0]:.2f} 到 {f.wavelengths[-1]:,.0f} 个词元。最快的四分之一贡献了相邻位置差异的 {f.quarters[0][0]:.0%}，读出的距离在 "
                f"{f.quarters[0][2] - 1:.0f} 个词元以内没有歧义；最慢的四分之一到 {f.quarters[3][2] - 1:,.0f}。相隔 1,000 时，慢的那些贡献并不大（{f.quarters[3][1]:.0%}）："
                "它们的长处不在大，而在没有歧义。",
            ),
            lambda f: f.quarters[0][0] > 0.9 and f.quarters[0][2] < 10 and f.quarters[3][2] > 1000,
        ),
        Claim(
            "003.86, 003.87",
            (
                "Different positions and different dimensions have different frequencies.",
                "不同位置和不同维度的编码有不同的频率。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "Pairs of dimensions do; positions do not. Over 6,000 positions the angle of one step differs by at most "
                f"{f.frequency_spread:.0e} within a pair; positions differ only in the total angle.",
                f"不同维度对的频率不同，不同位置的频率却相同：6,000 个位置上，同一对维度每一步转过的角度最多相差 {f.frequency_spread:.0e}。随位置而变的是转到了哪里，不是转得多快。",
            ),
            lambda f: f.frequency_spread < 1e-6,
        ),
        Claim(
            "001.22, 004.19, 004.20",
            (
                "The encoding of position p + k follows from that of p by the angle addition formulas, which helps to learn relative positions.",
                "由两角和公式，位置 p + k 的编码可由 p 的编码推出，有助于学到相对位置。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"Both equations hold within {f.addition_error:.1e} for all p and k tried: one linear map for each k, the same for all p. The notes call them the law "
                f"of cosines, which is another theorem. A small decoder does learn from sinusoids to name the previous token ({f.accuracy['sinusoidal'][0]:.0%}; without positions "
                f"{f.accuracy['none'][0]:.0%}); whether it uses this map was not measured.",
                f"对所有试过的 p 和 k，两个等式的误差不超过 {f.addition_error:.1e}：每个 k 对应一个线性映射，对所有 p 都一样。笔记称之为“余弦定理”，其实是两角和公式。小解码器确实能借助正弦编码学会说出前一个词元（{f.accuracy['sinusoidal'][0]:.0%}；没有位置时 {f.accuracy['none'][0]:.0%}），但它是否用的就是这个映射，这里没有测。",
            ),
            lambda f: f.addition_error < 1e-6 and f.accuracy["sinusoidal"][0] > f.accuracy["none"][0] + 0.5,
        ),
        Claim(
            "004.21",
            (
                "So the dot product of two encodings determines the relative position, and with it the distance.",
                "因此位置编码的点积可以表示相对位置信息，从而表示词元间的相对距离。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"PE(p)·PE(p + k) = Σ cos(kω) depends on k alone (within {f.dot_place_error:.0e}) and is the same for −k ({f.dot_symmetry_error:.0e}): distance, not "
                f"direction. It falls for a few tokens only, and rises again from {f.dot_rises_at['32']} on at d = 32, from {f.dot_rises_at['512']} at 512. With random maps W_q and W_k, as in an untrained layer,"
                f" the offset explains {f.projected_share:.0%} of its variance.",
                f"PE(p)·PE(p + k) = Σ cos(kω) 只与 k 有关（误差 {f.dot_place_error:.0e}），而且 k 与 −k 相同（{f.dot_symmetry_error:.0e}）：有距离，没有方向。它只在很近的范围内"
                f"下降，d = 32 时到 {f.dot_rises_at['32']} 就回升，512 时到 {f.dot_rises_at['512']}。经过随机的 W_q、W_k（好比还没训练的一层），偏移只能解释其方差的 {f.projected_share:.0%}。",
            ),
            lambda f: (
                f.dot_place_error < 1e-6
                and f.dot_symmetry_error < 1e-6
                and f.dot_rises_at["512"] < 100
                and f.projected_share < 0.5
            ),
        ),
        Claim(
            "000.15, 001.23",
            (
                "Sinusoidal encodings generalize to long sequences, because they are periodic.",
                "正弦、余弦编码具有周期性，因而能泛化到长序列。",
            ),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                f"The encoding exists for every position, but the model has not been trained on it. In a small task, trained at 16 tokens, {f.accuracy['sinusoidal'][0]:.0%} is right there and "
                f"{beyond(f, 'sinusoidal')} at 32 (chance: 6%). {f.unfinished} of 32 pairs do not complete a period in training. Periods are not the reason: with a base of 2.5 all pairs do, and the result is"
                f" {beyond(f, 'sinusoidal(base=2.5)')}. Relative encodings get worse more slowly: T5 {beyond(f, 't5')}, RoPE {beyond(f, 'rope')}. "
                "On text sinusoids fail as well; RoPE loses 0.45 bits per byte there at twice the trained length and 2.4 at eight times: [comparison.md](comparison.md).",
                f"编码在任何位置都有，模型却没有见过。在一个小任务上，只用长度 16 训练：16 时对 {f.accuracy['sinusoidal'][0]:.0%}，32 时对 {beyond(f, 'sinusoidal')}（随机猜测 6%）。32 对频率中有 "
                f"{f.unfinished} 对在训练中没转完一圈；但问题不在周期：底数取 2.5，每一对都转完了，仍只有 {beyond(f, 'sinusoidal(base=2.5)')}。相对位置编码下降得慢些：T5 "
                f"{beyond(f, 't5')}，RoPE {beyond(f, 'rope')}。在真实文本上，正弦编码同样失效；RoPE 在两倍长度上每字节多 0.45 比特，八倍长度上多 2.4 比特，见 [comparison.md](../comparison.md)（英文）。",
            ),
            lambda f: (
                f.accuracy["sinusoidal"][0] > 0.9
                and max(f.accuracy["sinusoidal"][1], f.accuracy["sinusoidal(base=2.5)"][1]) < 0.3 < f.accuracy["t5"][1]
            ),
        ),
        Claim(
            "003.88",
            (
                "A fixed encoding exists for any position, in any model.",
                "固定的位置编码可以为任何模型的任意位置提供编码。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"At position 1,000,000 its length is {f.far_code_length:g} as everywhere (√(d/2) at d = 512); whether a model can use it is a different question; see the previous claim. A learned table ends: “{f.beyond_table}”",
                f"在位置 1,000,000，它的长度仍与各处一样是 {f.far_code_length:g}（√(d/2)，d = 512）；模型用不用得上是另一回事，见上一条。可学习的表则有尽头，超出时报错：“{f.beyond_table}”",
            ),
            lambda f: abs(f.far_code_length - 16) < 1e-6 and f.beyond_table != "",
        ),
        Claim(
            "003.95",
            (
                "Learned positions can be initialized with given values and trained from there.",
                "可学习的位置编码也可以先给定初始值，再在训练中调整。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"Initialized with sinusoids, the trained rows moved by {f.moved['learned, from sinusoidal']:.0%} of their length; "
                f"{f.untouched_rows['learned, from sinusoidal']} rows beyond the trained length stayed bitwise the same, so that a longer sequence uses untrained rows."
                "",
                f"从正弦编码的值开始训练，用到的行移动了自身长度的 {f.moved['learned, from sinusoidal']:.0%}；训练长度之外的 "
                f"{f.untouched_rows['learned, from sinusoidal']} 行逐比特未变，更长的序列用到的正是这些从未训练过的行。",
            ),
            lambda f: (
                0 < f.moved["learned, from sinusoidal"] < f.moved["learned"]
                and f.untouched_rows["learned, from sinusoidal"] == 112
            ),
        ),
        Claim(
            "003.81",
            (
                "Pretrained language models usually have learned positions.",
                "现有的预训练语言模型通常使用可学习的位置编码。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"Of the {len(f.families)} families of published models that headway reads, {having(f, 'learned')} have a learned table: BERT, GPT-2, BART and their successors, and two that are not language models"
                f" (ViT, Whisper). {having(f, 'rope')} rotate queries and keys, among them the newest (LLaMA, Gemma 3, ModernBERT); T5, BLOOM and MPT add a bias.",
                f"headway 能读取的 {len(f.families)} 个公开模型系列中，{having(f, 'learned')} 个用可学习的表：BERT、GPT-2、BART 及其后继，还有并非语言模型的 ViT 和 Whisper；{having(f, 'rope')} 个旋转查询和键，"
                "包括最新的 LLaMA、Gemma 3、ModernBERT；T5、BLOOM、MPT 则加偏置。",
            ),
            lambda f: len(f.families) / 4 < having(f, "learned") < len(f.families) / 2,
        ),
        Claim(
            "000.14, 001.28, 002.25, 003.75",
            (
                "The sum of a word's vector and the encoding contains both the word and its position.",
                "位置编码与词向量相加，得到的输入同时包含词义和位置。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"This needs enough width. With 200 words at 50 positions a linear map recovers the word from the sum in {f.probe_words['16']:.0%} and the position in "
                f"{f.probe_places['16']:.0%} of cases at d = 16, {f.probe_words['64']:.0%} and {f.probe_places['64']:.0%} at 64, {f.probe_words['512']:.0%} and "
                f"{f.probe_places['512']:.0%} at 512.",
                f"前提是维数够大。200 个词、50 个位置，用线性映射从二者之和里读回：d = 16 时词对 {f.probe_words['16']:.0%}、位置对 {f.probe_places['16']:.0%}；64 时 "
                f"{f.probe_words['64']:.0%} 和 {f.probe_places['64']:.0%}；512 时 {f.probe_words['512']:.0%} 和 {f.probe_places['512']:.0%}。",
            ),
            lambda f: min(f.probe_words["512"], f.probe_places["512"]) > 0.95 > f.probe_places["16"],
        ),
    ),
)
