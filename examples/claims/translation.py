"""Claims about encoder and decoder, measured on the translation of dates."""

from ._base import Claim, Subject, Verdict

LESSON = "lesson_9_encoder_decoder"

SUBJECT: Subject = (
    ("Encoder and decoder", "编码器与解码器"),
    (
        Claim(
            "003.79",
            (
                "Absolute positions are added at the bottom of encoder and decoder.",
                "在编码器和解码器的底部加入绝对位置编码。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                f"This describes the first Transformer, and it works: {f.exact['both']} of {f.asked:,} sentences about unseen dates are translated without an error. This task needs those of the encoder ("
                f"{f.exact['encoder alone']} with them alone, {f.exact['decoder alone']} with those of the decoder alone, {f.exact['neither']} with none); the decoder's mask contains order."
                f" And they need not be absolute: with RoPE it is {f.exact['rope']}.",
                f"这是最早 Transformer 的做法，也管用：{f.asked:,} 个句子（日期都没见过）译对 {f.exact['both']} 个。就这个任务而言，缺不得的是编码器那份（只有编码器 {f.exact['encoder alone']}，只有解码器 "
                f"{f.exact['decoder alone']}，都没有 {f.exact['neither']}）；解码器的掩码已经给出了次序。也不必是绝对位置编码：用 RoPE 是 {f.exact['rope']}。",
            ),
            lambda f: (
                min(f.exact["both"], f.exact["encoder alone"], f.exact["rope"]) > 0.9 * f.asked
                and max(f.exact["decoder alone"], f.exact["neither"]) <= f.ceiling * f.asked
            ),
        ),
        Claim(
            "003.68",
            (
                "Without positions a translation cannot distinguish sentences that differ only in the order of their words.",
                "没有位置编码，翻译就分不清只有词序不同的句子。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"If the encoder has no positions, “march 12, 2021” and “march 21, 2012” get the same translation: {f.twins['decoder alone'][0]}. Without the order of the words "
                f"no translator can have more than {f.ceiling:.0%} of such sentences right.",
                f"编码器没有位置编码时，“march 12, 2021”与“march 21, 2012”的译文完全相同，都是{f.twins['decoder alone'][0]}。看不到词序，这类句子最多只能译对 {f.ceiling:.0%}。",
            ),
            lambda f: f.twin_difference["decoder alone"] < 1e-4 < f.twin_difference["both"],
        ),
        Claim(
            "000.14, 001.20, 001.27, 002.23, 003.90, 004.35",
            (
                "The input of the first layer is the word's vector plus the encoding of its position.",
                "第一层的输入是词向量加位置编码。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"The input of the first block on either side differs from that sum by {max(f.bottom_difference.values()):g}.",
                f"两边第一层实际收到的输入，与这个和相差 {max(f.bottom_difference.values()):g}。",
            ),
            lambda f: max(f.bottom_difference.values()) < 1e-5,
        ),
    ),
)
