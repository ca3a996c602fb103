"""Claims about scores and weights: the lookup, the five steps, the scale."""

from ._base import Claim, Subject, Verdict

LOOKUP, STEPS, SCALE = "lesson_1_weighted_lookup", "lesson_2_five_steps", "lesson_3_scaling"

SUBJECT: Subject = (
    ("Scores and weights", "分数与权重"),
    (
        Claim(
            "004.25",
            (
                "Weights of all keys, by a softmax of their scores, predict better than the mean of the two nearest.",
                "用 softmax 把所有键的分数变成权重，比取最近两个的平均更准确。",
            ),
            Verdict.CONDITION,
            LOOKUP,
            lambda f: (
                f"Three people cannot show which is more accurate, but the result depends on the score. With the dot product of the formula the answer for a waist of 57 is "
                f"{f.product_answer:g}, the value of the largest key, for every query. With "
                f"−(q − k)²/2 it is {f.distance_answer:.1f}, the mean of the two nearest, although every key contributes ({f.distance_weights[0]:.1e} for 51).",
                f"三个人的数据分不出哪种更准确，但结果取决于用什么分数。用公式里的点积，腰围 57 得到 {f.product_answer:g}，也就是最大的键所对应的体重，查询什么腰围都一样；"
                f"用 −(q − k)²/2 则得 {f.distance_answer:.1f}，正是最近两个的平均，虽然每个键都有份（51 占 {f.distance_weights[0]:.1e}）。",
            ),
            lambda f: f.product_answer == 48 and abs(f.distance_answer - 45.5) < 1e-3,
        ),
        Claim(
            "004.28",
            (
                "The softmax amplifies the keys that match the query.",
                "softmax 会放大与查询匹配度高的键的影响。",
            ),
            Verdict.CONDITION,
            LOOKUP,
            lambda f: (
                "It amplifies the largest score. For a query of 57 that is the key 58 by the dot product (3306 against "
                f"3192 gives a weight of {f.product_weights[2]:g}), although 56 is as near; in the example with two columns "
                "both queries get the value of the longest key, and the gradient is "
                f"{f.two_product_slope:g}.",
                "放大的是分数最大的键。查询 57 按点积得到的是键 58（3306 对 3192，权重 "
                f"{f.product_weights[2]:g}），尽管 56 一样近；两列的例子里，两个查询得到的都是最长的键所对应的值，梯度为 {f.two_product_slope:g}。",
            ),
            lambda f: f.product_weights[2] == 1 and f.two_product_slope == 0,
        ),
        Claim(
            "003.13, 003.14, 003.15",
            (
                "Unrelated queries and keys are at right angles and have a dot product of 0; fully related ones have the same direction and a dot product of 1.",
                "查询与键完全无关时互相垂直，点积为 0；完全相关时方向相同，点积为 1。",
            ),
            Verdict.CONDITION,
            SCALE,
            lambda f: (
                "The value 1 is only that of vectors of length 1, and 0 is only a mean. Of vectors with entries from N(0, 1) "
                f"the product of two independent ones is 0 on average with a standard deviation of √d ({f.unrelated_std[2]:.1f} "
                f"at d = 64), and of one with itself d ({f.itself[2]:.0f}). At length 1 the standard deviation is 1/√d ({f.unit_unrelated_std[2]:.3f}), and the product with itself 1.",
                "只有长度为 1 的向量，与自身的点积才是 1；0 也只是平均值，不是每次都取到。分量取自 N(0, 1) 时，两个毫不相干的向量点积平均为 0，标准差却是 √d"
                f"（d = 64 时为 {f.unrelated_std[2]:.1f}）；与自身的点积是 d（{f.itself[2]:.0f}）。长度为 1 时，标准差是 1/√d（{f.unit_unrelated_std[2]:.3f}），与自身的点积是 1。",
            ),
            lambda f: 7 < f.unrelated_std[2] < 9 and 60 < f.itself[2] < 68 and abs(f.unit_itself[2] - 1) < 1e-3,
        ),
        Claim(
            "003.22",
            ("The larger the dot product, the closer the directions.", "点积越大，方向越接近。"),
            Verdict.CONDITION,
            SCALE,
            lambda f: (
                "It holds if all keys have the same length. Of 64 random keys the one with the largest product is not the one at the smallest angle "
                f"for {f.not_closest[0]:.0%} of queries at d = 4, {f.not_closest[2]:.0%} at 64 and {f.not_closest[4]:.0%} at 1024; with keys of "
                f"length 1 for {f.unit_not_closest[2]:.0%}. A product also grows with the length of the key, whatever its direction.",
                "键的长度相同时成立。64 个随机键中，点积最大的键不是夹角最小的键：这样的查询在 d = 4 时占 "
                f"{f.not_closest[0]:.0%}，64 时 {f.not_closest[2]:.0%}，1024 时 {f.not_closest[4]:.0%}；键的长度都为 1 时为 {f.unit_not_closest[2]:.0%}。"
                "点积还随键的长度增大，与方向无关。",
            ),
            lambda f: f.not_closest[0] > 0.3 and f.unit_not_closest[2] == 0,
        ),
        Claim(
            "003.25, 004.32, 004.33",
            (
                "With a large d_k the products grow large, and the softmax tends to 0 and 1.",
                "d_k 较大时点积会很大，softmax 的输出趋向 0 和 1。",
            ),
            Verdict.HOLDS,
            SCALE,
            lambda f: (
                f"The variance of a product is d: {f.variance['unscaled'][0]:.0f} at d = 4, {f.variance['unscaled'][4]:.0f} at 1024. The largest of 64 "
                f"weights goes from {f.largest['unscaled'][0]:.2f} to {f.largest['unscaled'][4]:.2f} (median). The notes say that the output tends to 1; "
                "one of the weights does, and all others to 0.",
                f"点积的方差就是 d：d = 4 时为 {f.variance['unscaled'][0]:.0f}，1024 时为 {f.variance['unscaled'][4]:.0f}。64 个权重中最大的一个，中位数从 "
                f"{f.largest['unscaled'][0]:.2f} 升到 {f.largest['unscaled'][4]:.2f}。笔记说“输出趋向 1”：趋向 1 的只有一个，其余都趋向 0。",
            ),
            lambda f: (
                f.variance["unscaled"][4] > 900 and f.largest["unscaled"][4] > 0.99 > 0.5 > f.largest["unscaled"][0]
            ),
        ),
        Claim(
            "003.28",
            (
                "Where a softmax gives nearly 0 or 1, its derivative is nearly 0.",
                "softmax 的输出接近 0 或 1 时，导数接近 0。",
            ),
            Verdict.HOLDS,
            SCALE,
            lambda f: (
                "The derivative of a weight a by its own score is a(1 − a): "
                + ", ".join(f"{d:.2g} at {a:g}" for a, d in zip(f.weights, f.derivatives, strict=True))
                + ". That of ln a, as in a cross-entropy of the weight itself, is 1 − a and stays near 1 if a is near 0.",
                "权重 a 对自己分数的导数是 a(1 − a)："
                + "，".join(f"a = {a:g} 时 {d:.2g}" for a, d in zip(f.weights, f.derivatives, strict=True))
                + "。若损失直接取 ln a（交叉熵），导数则是 1 − a，在 a 接近 0 时仍接近 1。",
            ),
            lambda f: min(f.derivatives[0], f.derivatives[-1]) < 0.02,
        ),
        Claim(
            "003.25, 004.32",
            ("Without the scale gradients vanish.", "不缩放就会梯度消失。"),
            Verdict.CONDITION,
            SCALE,
            lambda f: (
                f"They do for most queries at large d, with random queries and keys. The gradient that reaches a query at d = 1024 has a median of {f.gradient['unscaled'][4]:.4f} without the "
                f"scale and {f.gradient['scaled'][4]:.2f} with it; at d = 64, the usual width of a head, it is {f.gradient['unscaled'][2]:.2f} and so "
                f"{f.gradient['unscaled'][2] / f.gradient['scaled'][2]:.0f} times larger without. The mean grows too "
                f"({f.gradient_mean['unscaled'][4]:.1f} against {f.gradient_mean['scaled'][4]:.2f}): if two keys are close, the factor √d more than compensates for the slope that the softmax usually loses. Gradients become uneven, not zero."
                "",
                f"只对大的 d、多数查询成立（查询和键都是随机的）。d = 1024 时传到查询的梯度，中位数在不缩放时是 {f.gradient['unscaled'][4]:.4f}，缩放时是 {f.gradient['scaled'][4]:.2f}；"
                f"而在每头常用的维度 d = 64，不缩放是 {f.gradient['unscaled'][2]:.2f}，是缩放时的 {f.gradient['unscaled'][2] / f.gradient['scaled'][2]:.0f} 倍。"
                f"平均值同样变大（{f.gradient_mean['unscaled'][4]:.1f} 对 {f.gradient_mean['scaled'][4]:.2f}）：softmax 的斜率多数时候很小，但在两个键相近的地方，"
                "√d 这个因子又把梯度放得更大。与其说梯度消失，不如说梯度变得极不均匀。",
            ),
            lambda f: (
                f.gradient["unscaled"][4] < f.gradient["scaled"][4] / 20
                and f.gradient["unscaled"][2] > 2 * f.gradient["scaled"][2]
                and f.gradient_mean["unscaled"][4] > 3 * f.gradient_mean["scaled"][4]
            ),
        ),
        Claim(
            "003.29, 004.34",
            (
                "Dividing by √d_k keeps the softmax and its gradients stable and helps learning.",
                "除以 √d_k 使 softmax 与梯度保持稳定，有利于学习。",
            ),
            Verdict.HOLDS,
            SCALE,
            lambda f: (
                f"From d = 4 to 1024 the median largest weight stays at {min(f.largest['scaled']):.2f} to {max(f.largest['scaled']):.2f} and the gradient at "
                f"{min(f.gradient['scaled']):.2f} to {max(f.gradient['scaled']):.2f}. A layer of width 256 that learns to look up by content is right for "
                f"{f.final_accuracy['scaled']:.0%} after 120 steps with the scale and for {f.final_accuracy['unscaled']:.0%} without (one task, mean of three seeds). "
                "It need not be a scale: initial weights of W_q divided by √d, as in T5, give the same outputs at the start and the same learning ("
                f"{f.final_accuracy['folded, Wq slower']:.0%}) if the learning rate of W_q is divided too; otherwise {f.final_accuracy['folded']:.0%}.",
                f"从 d = 4 到 1024，最大权重的中位数保持在 {min(f.largest['scaled']):.2f} 到 {max(f.largest['scaled']):.2f}，梯度保持在 "
                f"{min(f.gradient['scaled']):.2f} 到 {max(f.gradient['scaled']):.2f}。让维度 256 的一层学按内容查表，120 步后缩放的正确率 {f.final_accuracy['scaled']:.0%}，"
                f"不缩放 {f.final_accuracy['unscaled']:.0%}（一个任务，三个种子的平均）。不一定非要缩放：像 T5 那样把 W_q 的初始值除以 √d，起初的输出完全相同；W_q 的学习率也除以 √d，"
                f"学习效果也相同（{f.final_accuracy['folded, Wq slower']:.0%}），不除则是 {f.final_accuracy['folded']:.0%}。",
            ),
            lambda f: (
                max(f.largest["scaled"]) < 0.15
                and f.final_accuracy["scaled"] > f.final_accuracy["unscaled"] + 0.2
                and f.folded_difference < 1e-5
            ),
        ),
        Claim(
            "003.30",
            (
                "A mask sets excluded scores to a very large negative number, and their weights are close to 0.",
                "掩码把不该看的分数设成非常大的负数，使权重接近 0。",
            ),
            Verdict.CONDITION,
            STEPS,
            lambda f: (
                f"If a row has a key to attend to, −1e9 and −∞ give the same weights (difference {f.ordinary_difference:g}). If it has none, as with padding under a causal mask, −1e9 gives"
                f" {f.empty_weights['-1e9'][0]:g} to each of five excluded keys, −∞ through torch.softmax NaN, and headway "
                "0. −1e4, added, fails for an excluded score that is larger by 20,000; and float16 cannot represent −1e9, which is −∞ there.",
                f"一行里还有可看的键时，−1e9 与 −∞ 的权重相同（差 {f.ordinary_difference:g}）。一个都不剩时（例如因果掩码下的填充），−1e9 让五个被禁的键各得 "
                f"{f.empty_weights['-1e9'][0]:g}，torch.softmax 遇到全 −∞ 给出 NaN，headway 给 0。加上 −1e4 挡不住领先 20,000 的被禁分数；float16 里没有 −1e9，写了就是 −∞。",
            ),
            lambda f: (
                f.ordinary_difference == 0
                and f.empty_weights["-1e9"][0] > 0.19
                and f.empty_weights["headway"] == [0.0] * 5
            ),
        ),
        Claim(
            "003.31",
            ("The mask prevents information from later words from leaking in decoding.", "掩码防止解码时的信息泄露。"),
            Verdict.HOLDS,
            STEPS,
            lambda f: (
                f"With other words from the sixth position on, the five outputs before it change by {max(f.change_causal[:5]):g} under a causal mask, bit for bit, and by "
                f"up to {max(f.change_open[:5]):.2f} without one. Word by word with a cache no mask is needed: the outputs are the same without it (difference"
                f" {f.cache_open_difference:.0e}). The mask is needed if all words are computed at once, as in training.",
                f"从第六个位置起换成别的词，因果掩码下前五个输出逐比特相同（相差 {max(f.change_causal[:5]):g}），没有掩码则变化可达 {max(f.change_open[:5]):.2f}。"
                f"用缓存逐词解码时，后面的词还没写出，不加掩码结果也一样（差 {f.cache_open_difference:.0e}）。掩码是为训练时一次算完所有词而设的。",
            ),
            lambda f: max(f.change_causal[:5]) == 0 and max(f.change_open[:5]) > 0.1 and f.cache_open_difference < 1e-5,
        ),
        Claim(
            "003.33, 003.34, 004.27",
            (
                "The softmax turns any real numbers into a distribution that sums to 1.",
                "softmax 把任意实数向量变成和为 1 的概率分布。",
            ),
            Verdict.HOLDS,
            STEPS,
            lambda f: (
                f"Sums of 64 weights are within {max(v for k, v in f.sum_error.items() if 'bfloat16' not in k):.1e} of 1 for scores up to 1e30. Computed as the formula is "
                f"printed, eˣ/Σeˣ, it is NaN from a score of {f.overflow} on; libraries subtract the largest score first.",
                f"分数大到 1e30，64 个权重之和与 1 的差仍不超过 {max(v for k, v in f.sum_error.items() if 'bfloat16' not in k):.1e}。但若照公式 eˣ/Σeˣ 直接计算，"
                f"分数到 {f.overflow} 就成了 NaN；各种库都会先减去最大的分数。",
            ),
            lambda f: max(v for k, v in f.sum_error.items() if "bfloat16" not in k) < 1e-5 and 80 < f.overflow < 100,
        ),
        Claim(
            "003.35, 003.40",
            (
                "An output is the sum of the values, each weighted by how well its key matches.",
                "输出是各个值按权重的加权和。",
            ),
            Verdict.HOLDS,
            STEPS,
            lambda f: (
                f"`attention_steps` and the formula in three lines of torch differ by {f.formula_difference:g}, and no output of 64,000 random rows leaves the range of its "
                f"values by more than {f.beyond_values:.1e}: it is a mixture of the values and nothing else.",
                f"`attention_steps` 与三行 torch 写出的公式相差 {f.formula_difference:g}；64,000 个随机行中，输出超出值的范围不超过 {f.beyond_values:.1e}："
                "它只能混合已有的值，不能无中生有。",
            ),
            lambda f: f.formula_difference < 1e-5 and f.beyond_values < 1e-4,
        ),
        Claim(
            "003.3",
            ("Self-attention takes sequences of any length.", "自注意力能处理不同长度的输入。"),
            Verdict.HOLDS,
            STEPS,
            lambda f: (
                "The same "
                + f"{f.lengths['1'][0]:,.0f} parameters run on 1, 7 and 1,000 tokens. But the softmax changes: the largest weight falls from "
                f"{f.lengths['1'][2]:.2f} over {f.lengths['7'][2]:.2f} to {f.lengths['1000'][2]:.3f} on random input.",
                f"同样的 {f.lengths['1'][0]:,.0f} 个参数可以处理 1、7、1,000 个词元。变的是 softmax：随机输入下最大权重从 {f.lengths['1'][2]:.2f} 降到 "
                f"{f.lengths['7'][2]:.2f}，再到 {f.lengths['1000'][2]:.3f}。",
            ),
            lambda f: len({numbers[0] for numbers in f.lengths.values()}) == 1,
        ),
    ),
)
