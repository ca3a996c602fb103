"""Claims about what attention sees, how deep it is, how many dimensions it has, and images."""

from statistics import median
from typing import Any

from ._base import Claim, Subject, Verdict

SIZES = "lesson_12_span_depth_dimension"
IMAGES = "lesson_13_images"


def right(seeds: list[list[float]], column: int) -> float:
    """The median of an accuracy over the seeds."""
    return median(row[column] for row in seeds)


def of_layers(f: Any, hops: int, comma: str = ", ") -> str:
    """Accuracies after so many hops by the number of layers, listed."""
    return comma.join(f"{right(f.chase[str(depth)], hops - 1):.0%}" for depth in f.depths)


def of_dims(f: Any, hops: int, comma: str = ", ") -> str:
    """The same by dimension."""
    return comma.join(f"{right(f.chase_by_dim[str(dim)], hops - 1):.0%}" for dim in f.dims)


def largest(f: Any, of: str) -> float:
    """How many times as much the largest dimension takes as the smallest."""
    return float(getattr(f, of)[-1] / getattr(f, of)[0])


SUBJECT: Subject = (
    ("Span, depth, dimension, images", "范围、深度、维度与图像"),
    (
        Claim(
            "000.16, 000.17",
            (
                "Where attention sees only a part of its input, many heads relate the parts more closely.",
                "注意力只能关注一部分输入时，多头可以增强不同部分之间的依赖关系。",
            ),
            Verdict.FAILS,
            SIZES,
            lambda f: (
                "To name a symbol 16 tokens back, one layer with a window of 8 tokens and two heads is right for "
                f"{right(f.find['8'], 3):.0%}, and with eight heads for "
                f"{right(f.find['8, eight heads'], 3):.0%} (guessing: 12.5%): the output depends on tokens up to "
                f"{f.reach['8, eight heads']} back, with however many heads. "
                f"A wider window ({right(f.find['16'], 3):.0%} with 16), none ({right(f.find['all'], 3):.0%}) or a "
                f"second layer ({right(f.find['8, two layers'], 3):.0%}) reaches it. Attention has no window unless "
                "it is given one.",
                "找出往前第 16 个词元处的符号：窗口为 8 的一层注意力，两个头的正确率是 "
                f"{right(f.find['8'], 3):.0%}，八个头是 {right(f.find['8, eight heads'], 3):.0%}（随机猜测 12.5%）；"
                f"不论几个头，输出最远只依赖往前第 {f.reach['8, eight heads']} 个词元。放宽窗口（窗口 16："
                f"{right(f.find['16'], 3):.0%}）、不设窗口（{right(f.find['all'], 3):.0%}）或再加一层"
                f"（{right(f.find['8, two layers'], 3):.0%}）才够得着。而窗口是另加的，注意力本身并没有。",
            ),
            lambda f: (
                max(right(f.find[name], 3) for name in ("8", "8, eight heads")) < 0.3
                and min(right(f.find[name], 3) for name in ("16", "all", "8, two layers")) > 0.9
            ),
        ),
        Claim(
            "003.4",
            (
                "Layers of attention can be stacked, so that a model understands more.",
                "堆叠多层注意力可以增强模型的理解力。",
            ),
            Verdict.CONDITION,
            SIZES,
            lambda f: (
                "It holds where an answer takes several steps, one after another. On a circle of twelve tokens, "
                f"each of which names the next, one to six layers are right after two hops for {of_layers(f, 2)}, "
                f"after four for {of_layers(f, 4)} and after six for {of_layers(f, 6)} (medians of three seeds; "
                "guessing: 9.1%). Where one layer is enough, more layers do not help. With windows of 8 tokens each "
                "layer sees 8 further: "
                f"{f.reach['8']}, {f.reach['8, two layers']} and {f.reach['8, four layers']} with one, two and four.",
                "答案要一步接一步才能得到时成立。十二个词元连成一圈，每个写着下一个是谁：一到六层，"
                f"跳两步的正确率依次为 {of_layers(f, 2, '、')}，跳四步 {of_layers(f, 4, '、')}，跳六步 {of_layers(f, 6, '、')}"
                "（三个种子的中位数，随机猜测 9.1%）。一层就能完成的任务，多叠几层也没有好处。窗口为 8 时，每多一层能多看 8 "
                f"个词元：一、二、四层分别看到往前 {f.reach['8']}、{f.reach['8, two layers']}、"
                f"{f.reach['8, four layers']} 个。",
            ),
            lambda f: (
                all(right(f.chase[str(depth)], 1) > 0.95 for depth in f.depths)
                and right(f.chase["1"], 3) < 0.3 < 0.9 < min(right(f.chase[str(depth)], 3) for depth in f.depths[2:])
                and max(right(f.chase[depth], 5) for depth in "123") < 0.5 < 0.9 < right(f.chase["6"], 5)
            ),
        ),
        Claim(
            "003.59",
            (
                "Fewer dimensions reduce the cost of computation and make a model more efficient.",
                "降低维度有助于减少计算成本、提高效率。",
            ),
            Verdict.CONDITION,
            SIZES,
            lambda f: (
                "They cost less, and from some point on the quality falls. From 8 to 128 dimensions, of the same "
                f"model of three layers, the parameters grow {largest(f, 'dim_parameters'):.0f} times, what a "
                "training step keeps for its backward pass "
                f"{largest(f, 'dim_saved'):.0f} times, and its time {largest(f, 'dim_seconds'):.1f} times: small "
                f"matrices take little of it. A layer that reads 512 tokens takes {largest(f, 'layer_seconds'):.0f} "
                "times as long with 1,024 dimensions as with 64. "
                f"The dimensions 8, 16, 32, 64 and 128 are right after three hops for {of_dims(f, 3)}, and after "
                f"four for {of_dims(f, 4)} (medians of three seeds).",
                "成本确实降低，但低到一定程度，质量也会下降。同一个三层模型，从 8 维到 128 维，参数是 "
                f"{largest(f, 'dim_parameters'):.0f} 倍，训练一步为反向传播留存的数据是 "
                f"{largest(f, 'dim_saved'):.0f} 倍，用时只是 {largest(f, 'dim_seconds'):.1f} 倍"
                "（小矩阵占不了多少时间）；一层注意力读 512 个词元，1,024 维的用时是 64 维的 "
                f"{largest(f, 'layer_seconds'):.0f} 倍。8、16、32、64、128 维，跳三步的正确率依次为 "
                f"{of_dims(f, 3, '、')}，跳四步 {of_dims(f, 4, '、')}（三个种子的中位数）。",
            ),
            lambda f: (
                largest(f, "dim_parameters") > 50
                and largest(f, "dim_saved") > 5
                and largest(f, "dim_seconds") > 1.2
                and largest(f, "layer_seconds") > 5
                and right(f.chase_by_dim["8"], 2) < 0.9 < right(f.chase_by_dim["64"], 2)
            ),
            timed=True,
        ),
        Claim(
            "001.33",
            (
                "Many heads and positions together make the Transformer a strong model for images, too.",
                "多头注意力与位置编码合在一起，Transformer 处理图像也很强大。",
            ),
            Verdict.CONDITION,
            IMAGES,
            lambda f: (
                "It needs positions: on handwritten digits as 16 patches, a small encoder without "
                f"positions is right for {median(f.accuracy['none']['whole']):.0%}, with learned ones for "
                f"{median(f.accuracy['learned']['whole']):.0%}, with rotations by row and column for "
                f"{median(f.accuracy['axial-rope']['whole']):.0%}. But with 1,347 images it is not strong: logistic "
                "regression is right for "
                f"{median(f.logistic['whole']):.0%}, a vote of the three nearest images for "
                f"{median(f.nearest['whole']):.0%}. Large models and data were not measured.",
                "位置编码必不可少：手写数字切成 16 个图块，小编码器没有位置时正确率 "
                f"{median(f.accuracy['none']['whole']):.0%}，用可学习的位置 "
                f"{median(f.accuracy['learned']['whole']):.0%}，按行列旋转 "
                f"{median(f.accuracy['axial-rope']['whole']):.0%}。但只有 1,347 张训练图像时谈不上强大：逻辑回归 "
                f"{median(f.logistic['whole']):.0%}，最近三张图投票 {median(f.nearest['whole']):.0%}。大模型、"
                "大数据没有测。",
            ),
            lambda f: (
                median(f.accuracy["none"]["whole"]) + 0.2
                < min(median(f.accuracy[name]["whole"]) for name in ("learned", "axial-rope"))
                and max(median(by["whole"]) for by in f.accuracy.values()) < median(f.logistic["whole"])
            ),
        ),
    ),
)
