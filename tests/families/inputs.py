"""What a model is called with, by the names of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .configs import END, FIRST_WORD, PAD, VOCABULARY

ROWS, TOKENS = 3, 12
LENGTHS = (12, 7, 4)
"""The tokens of each row that are no padding."""

Inputs = dict[str, Any]


def words(rows: int = ROWS, n: int = TOKENS) -> Tensor:
    return torch.randint(FIRST_WORD, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(1))


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def padded(side: str) -> Inputs:
    """Rows with padding on a side, each of whose texts ends with its token."""
    slot, lengths = torch.arange(TOKENS), torch.tensor(LENGTHS)[:, None]
    mask = slot < lengths if side == "right" else slot >= TOKENS - lengths
    last = lengths - 1 if side == "right" else TOKENS - 1
    ids = torch.where(slot == last, END, words()).where(mask, PAD)
    return {"input_ids": ids, "attention_mask": mask.long()}


def of_names(*names: str) -> Callable[[Any], int | None]:
    """A number that a config, or one of its parts, has under one of some names."""

    def found(config: Any) -> int | None:
        for part in (config, *(one for one in vars(config).values() if hasattr(one, "to_dict"))):
            for name in names:
                value = getattr(part, name, None) if name in dir(part) else None
                value = value[0] if isinstance(value, list | tuple) and value else value
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    return found


channels = of_names("num_channels", "in_channels", "in_chans")
pixels = of_names("image_size", "img_size")
patch = of_names("patch_size")
frames = of_names("num_frames")
mels = of_names("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "num_mels", "n_mels")
inner = of_names("hidden_size", "d_model")


def images(config: Any) -> Iterator[Inputs]:
    side, depth = pixels(config), channels(config) or 3
    for size in dict.fromkeys(size for size in (side, 16, 32, 64) if size):
        yield {"pixel_values": noise(2, depth, size, size)}
        video = noise(2, frames(config) or 2, depth, size, size)
        yield {"pixel_values": video}
        yield {"pixel_values_videos": video}
    patch_size, times = patch(config) or 4, of_names("temporal_patch_size")(config)
    many = noise(16, depth * (times or 1) * patch_size**2)
    grid = torch.tensor([[1, 4, 4]])
    yield {"pixel_values": many, "grid_thw": grid}
    yield {"hidden_states": many, "grid_thw": grid}
    yield {"pixel_values": many, "image_grid_thw": grid}


def sounds(config: Any) -> Iterator[Inputs]:
    for n in (400, 4000, 16000):
        yield {"input_values": noise(2, n)}
        yield {"input_values": noise(2, 1, n)}
    many, length = mels(config) or 8, of_names("max_source_positions", "max_length")(config) or 32
    stacked = {many, 4 * many, 7 * many}  # frames side by side
    for n, features in product(dict.fromkeys((2 * length, length, 32, 64, 3000)), sorted(stacked)):
        for shape in ((2, features, n), (2, n, features)):
            yield {"input_features": noise(*shape)}
            yield {"input_features": noise(*shape), "attention_mask": torch.ones(2, n).long()}
            yield {"input_features": noise(*shape), "input_features_mask": torch.ones(2, n).long()}
            yield {"input_values": noise(*shape)}


def texts(config: Any) -> Iterator[Inputs]:
    ids = {"input_ids": words()}
    yield ids
    yield {**ids, "bbox": torch.arange(4).expand(ROWS, TOKENS, 4)}
    yield {**ids, "decoder_input_ids": words(n=9).flip(0)}


def vectors(config: Any) -> Iterator[Inputs]:
    width = inner(config) or 32
    yield {"inputs_embeds": noise(ROWS, TOKENS, width)}
    yield {"hidden_states": noise(ROWS, TOKENS, width)}
    yield {"query_embeds": noise(ROWS, TOKENS, width)}
    yield {"inputs_embeds": noise(ROWS, TOKENS, width), "encoder_hidden_states": noise(ROWS, 9, width)}
    yield {"flattened_patches": noise(ROWS, 9, 2 + width).abs()}
    length = of_names("context_length")(config) or 16
    times = {"past_time_features": noise(2, length + 2, 1), "future_time_features": noise(2, 4, 1)}
    seen = {"past_observed_mask": torch.ones(2, length + 2), "future_values": noise(2, 4)}
    yield {"past_values": noise(2, length + 2), **times, **seen}
    yield {"past_values": noise(2, length)}
    yield {"past_values": noise(2, length, of_names("num_input_channels")(config) or 1)}


def candidates(model: Any) -> Iterator[Inputs]:
    """Inputs whose names a model has, from the plainest on."""
    config = model.config
    names = inspect.signature(model.forward).parameters
    kinds = [list(make(config)) for make in (texts, images, sounds, vectors)]
    alone = [one for kind in kinds for one in kind]
    together = [{**a, **b} for a, b in product(kinds[0], kinds[1] + kinds[2])]
    for one in alone + together:
        if one.keys() <= names.keys():
            if "input_ids" in one and "pixel_values" in one:
                one = {name: value[: len(one["pixel_values"])] for name, value in one.items()}
            if config.is_encoder_decoder and "decoder_input_ids" in names and "decoder_input_ids" not in one:
                first = next(iter(one.values()))
                one = {**one, "decoder_input_ids": words(len(first), 9).flip(0)}
            yield one
