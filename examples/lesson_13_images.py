"""Lesson 13: an image as a sequence of patches, and positions on two axes.

An image of 8×8 pixels is cut into 16 patches of 2×2. Each patch is a token: a linear map of its four pixels. An encoder
reads the 16 tokens, and the mean of its outputs says which digit it is. Nothing else is different from text, except
that a patch has a position on two axes, its row and its column.

    none          no positions: the image is a bag of patches
    learned       one learned vector for each place, the places counted 0 … 15 row by row
    rope          rotations by these numbers, so that scores depend on their difference
    axial-rope    half of the pairs rotated by the row, half by the column
    swin          a learned number for each distance in rows and columns

Images are whole, or with their patches in one shuffled order that is the same for all images, or with a shuffled order
for each image. A patch has the position of the place where it stands afterwards. The digits are those of scikit-learn:
1,797 images, of which 450 are held out, others for each seed.

Protocol: two layers of dimension 32, two heads, 300 steps of 64 images, one learning rate for all; they were chosen on
seed 100 with whole images, before seeds 0, 1 and 2 were run. `--train` measures all and stores it in measured/; the
lesson reads that, and trains one model again for the picture of its attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway.coordinates import Coordinates
from lesson import BLUE, FAINT, GREEN, ORANGE, SPEAK, Text, count, descend, matrix, measured, page, run, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE, PATCH = 4, 2  # patches in a row; pixels of a patch's side
PATCHES = SIDE * SIDE
DIGITS = 10
DIM, HEADS, LAYERS = 32, 2, 2
SEEDS, STEPS, BATCH, RATE = [0, 1, 2], 300, 64, 3e-3
HELD_OUT = 450
ARGUMENTS: dict[str, dict[str, int] | None] = {
    "none": None,
    "learned": {"embed_dim": DIM, "max_length": PATCHES},
    "rope": {"head_dim": DIM // HEADS},
    "axial-rope": {"head_dim": DIM // HEADS},
    "swin": {"num_heads": HEADS, "window": SIDE},
}
TWO_AXES = {"axial-rope", "swin"}
ORDERS = {"whole": BLUE, "shuffled": ORANGE, "each": GREEN}
SHOWN = 0  # which held-out image of seed 0 is drawn


@dataclass(frozen=True)
class Found:
    """Accuracies on held-out images have one number for each seed, by the order of the patches."""

    accuracy: dict[str, dict[str, list[float]]]  # by encoding and order
    training: dict[str, dict[str, list[float]]]  # the same on the images of the training
    nearest: dict[str, list[float]]  # scikit-learn's vote of the three nearest images, by order
    logistic: dict[str, list[float]]  # scikit-learn's logistic regression
    commonest: float  # the share of the commonest digit
    parameters: dict[str, int]
    order_of_patches: dict[str, float]  # largest change of a logit if patches and positions are listed in another order
    trained: float  # accuracy of the model drawn, trained in this run
    image: list[list[float]]  # a held-out digit, 8×8, 0 … 1
    shuffled: dict[str, list[list[float]]]  # the same with shuffled patches
    digit: int
    head: list[int]  # layer and head of the map
    attention: list[list[float]]  # 4×4: the mean weight that each patch gets in this head, in units of an equal share


# ---------------------------------------------------------------- images as patches


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Returns images [1797, 8, 8], 0 … 1, and the digits in them."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.images, dtype=torch.float32) / 16, torch.tensor(found.target)


def patches_of(images: Tensor) -> Tensor:
    """Cuts images [many, 8, 8] into patches [many, 16, 4], row by row."""
    return images.unflatten(2, (SIDE, PATCH)).unflatten(1, (SIDE, PATCH)).transpose(2, 3).flatten(3).flatten(1, 2)


def image_of(patches: Tensor) -> Tensor:
    """The inverse of ``patches_of``."""
    return patches.unflatten(2, (PATCH, PATCH)).unflatten(1, (SIDE, SIDE)).transpose(2, 3).flatten(3).flatten(1, 2)


def rearranged(patches: Tensor, order: str, random: torch.Generator) -> Tensor:
    """Returns the patches where they stand in the given order."""
    if order == "shuffled":
        return patches[:, torch.randperm(PATCHES, generator=random)]
    if order == "each":
        places = torch.rand(len(patches), PATCHES, generator=random).argsort(1)
        return patches.gather(1, places.unsqueeze(-1).expand_as(patches))
    return patches


def split(order: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns patches and digits for training, and those held out."""
    images, digit = digits()
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(images), generator=random)
    patches = rearranged(patches_of(images), order, random)[drawn]
    return patches[HELD_OUT:], digit[drawn[HELD_OUT:]], patches[:HELD_OUT], digit[drawn[:HELD_OUT]]


# ---------------------------------------------------------------- the encoder


class Reader(nn.Module):
    """From patches [batch, 16, 4] to a logit for each digit."""

    def __init__(self, name: str) -> None:
        super().__init__()
        config = hw.models.TransformerConfig(1, embed_dim=DIM, num_layers=LAYERS, num_heads=HEADS)
        given = ARGUMENTS[name]
        encoding = None if given is None else hw.encoding(name, **given)
        stack = hw.models.Stack.of(config, encoding)
        self.encoder = hw.models.Encoder.of_parts(nn.Linear(PATCH * PATCH, DIM), stack)
        self.answer = nn.Linear(DIM, DIGITS)
        places = torch.arange(PATCHES)
        self.positions = torch.stack([places // SIDE, places % SIDE], -1) if name in TWO_AXES else places.unsqueeze(-1)

    def forward(self, patches: Tensor, places: Tensor | None = None) -> Tensor:
        """``places`` are those of the patches; 0 … 15 if None."""
        positions = self.positions if places is None else self.positions[places]
        hidden = self.encoder(patches, positions=positions.expand(len(patches), -1, -1))
        logits: Tensor = self.answer(hidden.mean(1))
        return logits


def trained(name: str, order: str, seed: int) -> tuple[Reader, float, float]:
    """Returns a trained model, its accuracy on held-out images, and that on the images of its training."""
    patches, digit, held_out, right = split(order, seed)
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Reader(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        rows = torch.randint(len(patches), (BATCH,), generator=random)
        descend(optimizer, F.cross_entropy(model(patches[rows]), digit[rows]), longest=1.0)
    with torch.no_grad():
        accuracy = [
            (model(asked).argmax(-1) == answer).double().mean().item()
            for asked, answer in ((held_out, right), (patches, digit))
        ]
    return model, round(accuracy[0], 4), round(accuracy[1], 4)


def train() -> Iterator[dict[str, Any]]:
    """Measures what takes minutes: the accuracy by encoding and order of the patches."""
    for name in ARGUMENTS:
        for order in ORDERS:
            for seed in SEEDS:
                _, accuracy, training = trained(name, order, seed)
                yield {"encoding": name, "order": order, "seed": seed, "accuracy": accuracy, "training": training}


@torch.inference_mode()
def change_by_order(name: str) -> float:
    """Lists the patches of some images in another order, each with its own place: the largest change of a logit."""
    torch.manual_seed(0)
    model, patches = Reader(name).double(), patches_of(digits()[0][:8]).double()
    order = torch.randperm(PATCHES)
    return (model(patches[:, order], places=order) - model(patches)).abs().max().item()


@torch.inference_mode()
def most_selective_head(model: Reader, patches: Tensor) -> tuple[list[int], Tensor]:
    """Returns layer and head of least entropy, and what each patch gets in it, [4, 4], where equal shares are 1."""
    with hw.capture(model, "weights") as seen:
        model(patches)
    weights = torch.stack([seen.weights(layer)[0] for layer in range(LAYERS)])  # [layers, heads, 16, 16]
    entropy = -(weights * weights.clamp_min(1e-12).log()).sum(-1).mean(-1)
    layer, head = divmod(int(entropy.argmin()), HEADS)
    return [layer, head], PATCHES * weights[layer, head].mean(0).unflatten(0, (SIDE, SIDE))


@cache
def drawn_model() -> tuple[Reader, float]:
    """Returns the model whose attention is drawn, trained in this run, and its accuracy."""
    model, accuracy, _ = trained("axial-rope", "whole", SEEDS[0])
    return model, accuracy


def page_data() -> dict[str, Any]:
    """The model of the picture, its first held-out digits, and the stored accuracies."""
    model, accuracy = drawn_model()
    _, _, held_out, digit = split("whole", SEEDS[0])
    attention = model.encoder.stack.blocks[0].attention
    (encoding,) = model.encoder.stack.encodings
    tensors = {name.removeprefix("encoder."): tensor for name, tensor in model.state_dict().items()}
    first = [int((digit == number).nonzero()[0]) for number in range(DIGITS)]
    return {
        "title": ["Lesson 13: a digit as sixteen patches", "第 13 课：把数字切成十六块"],
        "model": {
            "layers": LAYERS,
            "heads": attention.num_heads,
            "width": DIM,
            "angles": encoding.phases(Coordinates.of(model.positions[None], PATCHES))[0].tolist(),
            "tensors": {name: [round(x, 5) for x in tensor.flatten().tolist()] for name, tensor in tensors.items()},
        },
        "accuracy": accuracy,
        "image": (16 * image_of(held_out[[SHOWN]])[0]).int().tolist(),
        "images": [(16 * image_of(held_out[[i]])[0]).int().tolist() for i in first],
        "head": most_selective_head(model, held_out[SHOWN : SHOWN + 1])[0],
        "names": {name: [axes_of(name, t) for t in SPEAK.values()] for name in ARGUMENTS},
        "orders": {name: [names(t)[name] for t in SPEAK.values()] for name in ORDERS},
        "right": {
            name: {
                order: [
                    row["accuracy"] for row in measured(__file__) if (row["encoding"], row["order"]) == (name, order)
                ]
                for order in ORDERS
            }
            for name in ARGUMENTS
        },
    }


# ---------------------------------------------------------------- what others get


def of_scikit_learn(kind: str, order: str, seed: int) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    model = KNeighborsClassifier(3) if kind == "nearest" else LogisticRegression(max_iter=200)
    patches, digit, held_out, right = split(order, seed)
    model.fit(patches.flatten(1).numpy(), digit.numpy())
    accuracy: float = model.score(held_out.flatten(1).numpy(), right.numpy())
    return accuracy


# ---------------------------------------------------------------- the lesson


def measure() -> Found:
    rows = measured(__file__)

    def stored(name: str, order: str, what: str) -> list[float]:
        return [row[what] for row in rows if (row["encoding"], row["order"]) == (name, order)]

    def table_of(what: str) -> dict[str, dict[str, list[float]]]:
        return {name: {order: stored(name, order, what) for order in ORDERS} for name in ARGUMENTS}

    model, accuracy = drawn_model()
    _, _, held_out, digit = split("whole", SEEDS[0])
    shown = held_out[SHOWN : SHOWN + 1]
    head, attention = most_selective_head(model, shown)
    random = torch.Generator().manual_seed(SEEDS[0])
    return Found(
        accuracy=table_of("accuracy"),
        training=table_of("training"),
        nearest={order: [of_scikit_learn("nearest", order, seed) for seed in SEEDS] for order in ORDERS},
        logistic={order: [of_scikit_learn("logistic", order, seed) for seed in SEEDS] for order in ORDERS},
        commonest=(digits()[1].bincount().max() / len(digits()[1])).item(),
        parameters={name: count(Reader(name)) for name in ARGUMENTS},
        order_of_patches={name: change_by_order(name) for name in ARGUMENTS},
        trained=accuracy,
        image=image_of(shown)[0].tolist(),
        shuffled={order: image_of(rearranged(shown, order, random))[0].tolist() for order in ("shuffled", "each")},
        digit=int(digit[SHOWN]),
        head=head,
        attention=attention.tolist(),
    )


def names(t: Text) -> dict[str, str]:
    return {
        "whole": t("whole", "完整"),
        "shuffled": t("one shuffled order for all", "统一打乱"),
        "each": t("a shuffled order for each", "逐张打乱"),
    }


def axes_of(name: str, t: Text) -> str:
    """The name of an encoding and the number of axes on which it places patches."""
    axes = 0 if ARGUMENTS[name] is None else 2 if name in TWO_AXES else 1
    return name if not axes else t(f"{name}, {axes} ax{'i' if axes == 1 else 'e'}s", f"{name}（{axes} 轴）")


def shares(values: list[float]) -> str:
    """The median and the range."""
    return f"{median(values):.1%} ({100 * min(values):.0f}–{100 * max(values):.0f})"


def tell(found: Found, t: Text) -> str:
    rows = [
        [axes_of(name, t), f"{found.parameters[name]:,}", *(shares(by[order]) for order in ORDERS)]
        for name, by in found.accuracy.items()
    ]
    rows += [
        [name, "", *(shares(by[order]) for order in ORDERS)]
        for name, by in (
            (t("three nearest images", "最近的三张图"), found.nearest),
            (t("logistic regression", "逻辑回归"), found.logistic),
        )
    ]
    learned = [[axes_of(name, t), *(shares(by[order]) for order in ORDERS)] for name, by in found.training.items()]
    ink = [[f"{value:.2f}" for value in row] for row in found.attention]
    orders = list(names(t).values())
    return "\n".join(
        [
            t(
                f"Accuracy on {HELD_OUT} held-out images: median of three seeds, and the range. The commonest digit: "
                f"{found.commonest:.1%}.",
                f"{HELD_OUT} 张留出图像上的正确率：三个种子的中位数与范围。总猜最常见的数字：{found.commonest:.1%}。",
            ),
            table(rows, ["", t("parameters", "参数"), *orders]),
            t("\nThe same on the images of the training:", "\n训练所用图像上的正确率："),
            table(learned, ["", *orders]),
            t(
                f"\nListed in another order, each patch with its own place, no logit changes by more than "
                f"{max(found.order_of_patches.values()):.0e}.\n"
                f"Layer {found.head[0]}, head {found.head[1]} of axial-rope, trained again here ({found.trained:.1%}): "
                f"what each patch of a {found.digit} gets, where an equal share is 1:",
                f"\n把图块连同各自的位置换个顺序排列，各类别得分最多变化 {max(found.order_of_patches.values()):.0e}。\n"
                f"axial-rope 当场重训一次（{found.trained:.1%}），层 {found.head[0]} 的头 {found.head[1]}："
                f"一个 {found.digit} 的各图块得到的权重（平均分配时为 1）：",
            ),
            table(ink),
        ]
    )


def picture(axes: Any, image: list[list[float]], title: str) -> None:
    """Draws 8×8 pixels, dark on light, with lines between the patches."""
    axes.imshow(1 - torch.tensor(image).unsqueeze(-1).expand(-1, -1, 3).numpy())
    for line in range(PATCH, SIDE * PATCH, PATCH):
        axes.axhline(line - 0.5, color=ORANGE, linewidth=1)
        axes.axvline(line - 0.5, color=ORANGE, linewidth=1)
    axes.set(title=title, xticks=[], yticks=[])


def draw(found: Found, t: Text) -> Figure:
    figure = page(6.4)
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.35])
    images = above.subplots(1, 4)
    called = names(t)
    for axes, image, title in zip(images, (found.image, *found.shuffled.values()), ORDERS, strict=False):
        picture(axes, image, called[title])
    attention = images[3]
    highest = max(map(max, found.attention))
    numbers = [""] * SIDE
    matrix(attention, found.attention, numbers, numbers, top=highest, says=lambda i, j: f"{found.attention[i][j]:.1f}")
    attention.set_aspect("equal")
    attention.set_title(
        t(f"weight, layer {found.head[0]} head {found.head[1]}", f"权重（层 {found.head[0]} 头 {found.head[1]}）")
    )

    axes = below.subplots()
    markers = dict(zip(ORDERS, "osD", strict=True))
    every = {**found.accuracy, t("nearest 3", "最近三张"): found.nearest, t("logistic", "逻辑回归"): found.logistic}
    for number, by in enumerate(every.values()):
        for shift, (order, colour) in enumerate(ORDERS.items()):
            place = number + 0.22 * (shift - 1)
            axes.plot([place, place], [min(by[order]), max(by[order])], color=colour)
            axes.plot(place, median(by[order]), markers[order], color=colour, label=None if number else called[order])
    axes.axhline(found.commonest, color=FAINT, linewidth=1.2, zorder=0)
    axes.text(len(every) - 0.45, found.commonest - 0.015, t("commonest digit", "最常见的数字"), va="top", ha="right")
    labels = [
        axes_of(name, t).replace(", ", "\n").replace("（", "\n（") if name in ARGUMENTS else name for name in every
    ]
    axes.set_xticks(range(len(every)), labels)
    axes.set(
        ylim=(0, 1.03), xlim=(-0.5, len(every) - 0.4), ylabel=t("accuracy on held-out images", "留出图像上的正确率")
    )
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


if __name__ == "__main__":
    run(__name__)
