"""Claims that compare the Transformer with the RNN."""

from ._base import Claim, Subject, Verdict

LESSON = "lesson_8_recurrence"

SUBJECT: Subject = (
    ("Compared with the RNN", "与 RNN 对照"),
    (
        Claim(
            "003.72",
            (
                "An RNN represents the order of a sequence in its hidden state, without positions.",
                "RNN 通过隐藏状态自然地体现序列的顺序。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"h_t = tanh(U·x_t + W·h_(t−1)), y_t = V·h_t written out equals torch.nn.RNN within {f.rnn_error:.1e}. With the words in reverse order its last state differs "
                f"by {f.rnn_order:.2f} of its length; the sum of attention's outputs, without positions, by {f.attention_order:.0e}.",
                f"把 h_t = tanh(U·x_t + W·h_(t−1))、y_t = V·h_t 写出来，与 torch.nn.RNN 相差 {f.rnn_error:.1e}。词序颠倒后，最后的状态变化达到自身长度的 "
                f"{f.rnn_order:.2f} 倍；没有位置编码的注意力，输出之和只变 {f.attention_order:.0e}。",
            ),
            lambda f: f.rnn_error < 1e-6 and f.rnn_order > 0.1 and f.attention_order < 1e-9,
        ),
        Claim(
            "000.1, 003.16, 003.70",
            (
                "A Transformer processes a whole sequence at once, an RNN step by step.",
                "Transformer 并行处理整个序列，RNN 则逐个处理。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                "On one core the steps of an RNN take a multiple of the time one after another as side by side, which [lesson 8](lessons.md#8-the-rnn-it-is-contrasted-with) gives; the steps must run one after another, and attention's rows need not. With more cores, as on a GPU, the factor should be larger, which was not measured.",
                "单核上，RNN 逐步计算比并排计算慢，倍数见[第 8 课](lessons.md#8-作为对照的-rnn)；RNN 只能逐步算，注意力的各行则不必。核更多时（如 GPU）差距应当更大，这里没有测。",
            ),
            lambda f: f.side_by_side > 1.2,
            timed=True,
        ),
        Claim(
            "003.16, 003.52",
            ("Attention is efficient, since everything runs in parallel.", "注意力并行计算，因而效率高。"),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "Its work grows with n², that of an RNN with n: on one core attention is slower than an RNN and an LSTM of the same width from some "
                f"length on, which [lesson 8](lessons.md#8-the-rnn-it-is-contrasted-with) gives. A decoder also keeps keys and values of all tokens, {f.kept['attention'][-1]:,} numbers at 4,096, and the RNN "
                f"{f.kept['rnn'][-1]}.",
                "它的计算量随 n² 增长，RNN 的随 n 增长：单核上，从某个长度起，它比同维度的 RNN 和 LSTM 慢，见[第 8 课](lessons.md#8-作为对照的-rnn)。解码时还要留着所有词元的键和值："
                f"4,096 个词元时 {f.kept['attention'][-1]:,} 个数，RNN 只留 {f.kept['rnn'][-1]} 个。",
            ),
            lambda f: (
                f.time_exponent["attention"] > f.time_exponent["rnn"] + 0.3
                and f.kept["attention"][-1] > 100 * f.kept["rnn"][-1]
                and None not in f.attention_slower_from.values()
            ),
            timed=True,
        ),
        Claim(
            "001.30, 003.2",
            (
                "Self-attention finds dependencies between tokens that are far apart.",
                "自注意力能有效捕捉长距离依赖。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"Before training, the gradient from an output to an input falls by {1 - f.gradient_per_step['rnn']:.0%} with every step back in an RNN, by "
                f"{1 - f.gradient_per_step['lstm']:.0%} in an LSTM, and by {1 - f.gradient_per_step['attention']:.1%} in attention, where every token is one step away. "
                f"After at most 200 steps of training to recall a token behind 32 others, attention is right for {f.recall['attention'][3]:.0%}, the LSTM for "
                f"{f.recall['lstm'][3]:.0%} and the RNN for {f.recall['rnn'][3]:.0%} (chance: 12.5%); with more training an LSTM can reach further. Its cost is n² work, and the share of each token falls with n.",
                f"训练之前，输出对输入的梯度每往前一步，RNN 衰减 {1 - f.gradient_per_step['rnn']:.0%}，LSTM 衰减 {1 - f.gradient_per_step['lstm']:.0%}，注意力衰减 "
                f"{1 - f.gradient_per_step['attention']:.1%}：对它来说每个词元都只隔一步。训练至多 200 步，回忆隔着 32 个填充词的那个符号，注意力对 {f.recall['attention'][3]:.0%}，"
                f"LSTM 对 {f.recall['lstm'][3]:.0%}，RNN 对 {f.recall['rnn'][3]:.0%}（随机猜测 12.5%）；多训练一些，LSTM 可以记得更远。代价是 n² 的计算量，以及每个词元分到的份额随 n 变小。",
            ),
            lambda f: (
                f.gradient_per_step["attention"] > 0.99 > 0.8 > f.gradient_per_step["rnn"]
                and f.recall["attention"][3] > max(f.recall["rnn"][3], f.recall["lstm"][3]) + 0.3
            ),
        ),
    ),
)
