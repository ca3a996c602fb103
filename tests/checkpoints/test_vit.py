"""ViT: patches row by row, images of one size, and files that have a head of classes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headway import HeadwayError, load
from headway.checkpoints import Config
from headway.checkpoints.vit import Patches, ViT
from headway.testing.checkpoints import CLOSE, distance, their_model

CONFIG = ViT.examples[0]


@torch.no_grad()
def test_patches_go_row_by_row_behind_the_class() -> None:
    patches = Patches((4, 9), (2, 3), 1, 6)
    patches.patch.weight.copy_(torch.eye(6).view(6, 1, 2, 3))
    patches.patch.bias.zero_()  # type: ignore[union-attr]
    patches.first.fill_(7)
    image = torch.arange(36.0).view(1, 1, 4, 9)
    expected = [[7.0] * 6]
    for row in (0, 2):
        expected += [image[0, 0, row : row + 2, column : column + 3].flatten().tolist() for column in (0, 3, 6)]
    assert patches(image)[0].tolist() == expected


@torch.no_grad()
def test_a_file_with_a_head_of_classes_is_read_without(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model({**CONFIG, "architectures": ["ViTForImageClassification"]})
    theirs.save_pretrained(tmp_path)
    pixels = torch.randn(2, 3, 12, 12)
    assert distance(load(tmp_path, architecture="ViTModel")(pixels), theirs.vit(pixels)[0]) <= CLOSE


@torch.no_grad()
def test_images_need_not_be_square(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    theirs = their_model({**CONFIG, "image_size": [8, 12], "patch_size": [2, 4]})
    theirs.save_pretrained(tmp_path)
    pixels = torch.randn(2, 3, 8, 12)
    assert distance(load(tmp_path)(pixels), theirs(pixels)[0]) <= CLOSE


@pytest.mark.parametrize("shape", [(1, 3, 12, 16), (1, 3, 8, 8), (1, 1, 12, 12), (3, 12, 12)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    model: Any = ViT().build(Config(CONFIG), head=False)
    with pytest.raises(HeadwayError, match=r"give \[batch, 3, 12, 12\]"):
        model(torch.zeros(shape))


def test_it_is_as_large_as_published() -> None:
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    with torch.device("meta"):
        model: Any = ViT().build(Config({**sizes, "image_size": 224, "patch_size": 16}), head=False)
    assert model.num_parameters == 85_798_656
