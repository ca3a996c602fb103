"""Claims about relative positions, all of the book."""

from ._base import Claim, Subject, Verdict

LESSON = "lesson_6_relative_and_rotary"

SUBJECT: Subject = (
    ("Relative positions", "相对位置"),
    (
        Claim(
            "003.96",
            (
                "Relative encodings depend only on the offset of key and query.",
                "相对位置编码只取决于键与查询之间的偏移量。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                "When all positions move by a million, the scores of Shaw, DeBERTa, T5, ALiBi and KERPLE do not change at all, those of Transformer-XL, Gopher and "
                f"RoPE by {max(f.shifts[name][2] for name in ('transformer-xl', 'gopher', 'rope')):.0e} of the largest (rounding of angles in float64). With "
                f"sinusoids added to the input they change by {f.shifts['sinusoidal'][0]:.2f} when positions move by one.",
                "所有位置一起平移一百万，Shaw、DeBERTa、T5、ALiBi、KERPLE 的分数毫无变化，Transformer-XL、Gopher、RoPE 的变化是最大分数的 "
                f"{max(f.shifts[name][2] for name in ('transformer-xl', 'gopher', 'rope')):.0e}（float64 中角度的舍入）。"
                f"若把正弦编码加到输入上，平移一个位置就变 {f.shifts['sinusoidal'][0]:.2f}。",
            ),
            lambda f: (
                max(
                    max(f.shifts[name])
                    for name in ("shaw", "deberta", "t5", "alibi", "kerple-log", "transformer-xl", "gopher", "rope")
                )
                < 1e-9
                and f.shifts["sinusoidal"][0] > 0.05
            ),
        ),
        Claim(
            "003.97",
            (
                "There is no general and widely accepted formula for relative encodings.",
                "相对位置编码没有通用且广泛接受的标准公式。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "No formula is accepted by all, and every paper has its own; but one sum contains most of them: products with rows of a table or with sinusoids, a number for the distance, a rotation of query and key ("
                f"[DESIGN.md](../DESIGN.md)). Of the {len(f.relative)} encodings here that read only distances, {len(f.relative) - len(f.with_function)} are "
                f"parts of it; {len(f.with_function)} need a function of their own ({', '.join(f.with_function)}).",
                "公认的公式确实没有，每篇论文都有自己的写法；但一个求和式能容纳其中的大多数：与表中的行或正弦波的点积、由距离决定的一个数、对查询和键的旋转"
                f"（见 [DESIGN.md](../../DESIGN.md)，英文）。这里只看距离的 {len(f.relative)} 种编码中，{len(f.relative) - len(f.with_function)} 种可以写成其中的项，"
                f"{len(f.with_function)} 种需要自己的函数（{'、'.join(f.with_function)}）。",
            ),
            lambda f: len(f.with_function) < len(f.relative) / 4,
        ),
        Claim(
            "003.98, 003.99",
            (
                "Transformer-XL adds learnable embeddings of relative positions to the scores.",
                "Transformer-XL 在注意力分数中引入与相对位置对应的可学习嵌入。",
            ),
            Verdict.CONDITION,
            LESSON,
            lambda f: (
                "The embeddings of the distances are fixed sinusoids. The learned parameters are the map W_R of them ("
                f"{f.xl_learned['W_R']:,} numbers in the example) and the vectors u and v that take the place of a query ({f.xl_learned['u']} and {f.xl_learned['v']}). "
                f"The four parts of the paper, computed separately, add up to headway's score within {f.xl_error:.1e}.",
                f"距离本身的嵌入是固定的正弦波；学习的是它们要经过的映射 W_R（例中 {f.xl_learned['W_R']:,} 个数），以及代替查询的向量 u、v"
                f"（各 {f.xl_learned['u']}、{f.xl_learned['v']} 个数）。把论文中的四项分别算出再相加，与 headway 的分数相差 {f.xl_error:.1e}。",
            ),
            lambda f: f.xl_error < 1e-10 and set(f.xl_learned) == {"W_R", "u", "v"},
        ),
        Claim(
            "003.100, 003.102",
            (
                "T5 makes it simpler: a learned number is added to the score.",
                "T5 进一步简化：在分数上加一个可学习的标量。",
            ),
            Verdict.HOLDS,
            LESSON,
            lambda f: (
                f"32 numbers for each head, {f.parameters['t5']} in a model of 12 heads, shared by all layers; distances up to 7 have one each, longer ones share them up "
                f"to 128. They have an effect: a small model that learned its table needs {f.t5_bits:.2f} bits for a byte, and the same model {f.t5_bits_without:.2f} with the table set to 0.",
                f"每个头 32 个数，12 个头的模型共 {f.parameters['t5']} 个，各层共用；距离 0 到 7 各有一个，更远的分桶共用，直到 128。它们很有用：一个训练好的小模型每字节 "
                f"{f.t5_bits:.2f} 比特，同一个模型把表清零后是 {f.t5_bits_without:.2f}。",
            ),
            lambda f: (
                f.parameters["t5"] == 384 and f.t5_bits < f.t5_bits_without - 0.2 and f.t5_terms == ["DistanceBias"]
            ),
        ),
        Claim(
            "003.101",
            ("Gopher uses T5's method.", "T5 的方法随后被 Gopher 采纳。"),
            Verdict.FAILS,
            LESSON,
            lambda f: (
                "Its authors (Rae et al. 2021) write that they use the relative encoding of Transformer-XL (Dai et al. 2019). In headway `gopher` consists of "
                f"{f.gopher_terms[0]}, as does Transformer-XL (difference {f.gopher_is_xl:g}), and its bias at one distance differs between queries "
                f"(standard deviation {f.gopher_by_query:.2f}); T5's is {f.t5_terms[0]}, the same for every query.",
                "Gopher 的作者（Rae et al. 2021）写明用的是 Transformer-XL（Dai et al. 2019）的相对编码。headway 中的 `gopher` 由 "
                f"{f.gopher_terms[0]} 构成，与 Transformer-XL 相同（差 {f.gopher_is_xl:g}），同一距离上加的数随查询而变（标准差 {f.gopher_by_query:.2f}）；"
                f"T5 的则是 {f.t5_terms[0]}，对每个查询都一样。",
            ),
            lambda f: f.gopher_terms == ["RelativeKeys"] and f.gopher_is_xl == 0 and f.gopher_by_query > 0.1,
        ),
    ),
)
