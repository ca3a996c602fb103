"""LLaMA's own traps: rotations that depend on the length, windows by layer."""

import copy
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import HeadwayError
from headway.checkpoints import Config
from headway.checkpoints.llama import ROPES, LLaMA
from headway.masks import Window
from headway.testing.checkpoints import compare, their_model

pytest.importorskip("transformers")
WINDOWED = {
    "sliding_window": 5,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
SMALL = {key: value for key, value in LLaMA.examples[0].items() if key not in ("head_dim", "attention_bias")}


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_rotation_that_changes_beyond_the_trained_length(kind: str, tmp_path: Path) -> None:
    """11 tokens where 8 were trained; token by token transformers keeps keys as they were turned first, so that its
    generation is another function there."""
    rope: dict[str, Any] = copy.deepcopy(next(one for one in ROPES if one["rope_type"] == kind))
    if kind == "longrope":
        rope["original_max_position_embeddings"] = 8
    config = {**SMALL, "rope_parameters": rope, "max_position_embeddings": 8 if kind == "dynamic" else 16}
    theirs = their_model(config)
    theirs.save_pretrained(tmp_path)
    ours = headway.load(tmp_path)
    compare(ours, theirs)
    plain = {**config, "rope_parameters": ROPES[0]}
    theirs = their_model(plain)
    with pytest.raises(AssertionError, match="differ"):
        compare(ours, theirs)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_window_of_no_tokens_is_refused(size: Any) -> None:
    with pytest.raises(HeadwayError, match=f"the config's sliding_window is {size}: give a whole number above 0"):
        LLaMA().build(Config({**SMALL, "model_type": "mistral", "sliding_window": size}), head=False)


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({"model_type": "llama", **WINDOWED}, [None, None, None]),
        ({"model_type": "mistral", **WINDOWED}, [4, 4, 4]),
        ({"model_type": "mistral", "sliding_window": None}, [None, None, None]),
        ({"model_type": "qwen2", "sliding_window": 5}, [None, None, None]),
        ({"model_type": "qwen2", **WINDOWED, "layer_types": None}, [None, None, 4]),
        ({"model_type": "qwen3", **WINDOWED}, [4, None, 4]),
        ({"architectures": ["Qwen3Model"], "model_type": "unknown", **WINDOWED}, [4, None, 4]),
    ],
)
def test_which_layers_have_a_window(values: dict[str, Any], windows: list[int | None]) -> None:
    model = LLaMA().build(Config({**SMALL, **values}), head=False)
    found = [one.left if isinstance(one, Window) else None for one in model.stack.masks]  # type: ignore[union-attr]
    assert found == windows


def test_contradicting_keys_of_windows_are_refused() -> None:
    """transformers has no window then in Qwen's own words, but one in its mask."""
    with pytest.raises(HeadwayError, match="use_sliding_window is False"):
        LLaMA().build(Config({**SMALL, "model_type": "smollm3", **WINDOWED, "use_sliding_window": False}), head=False)


def test_a_type_that_nothing_names_is_refused() -> None:
    with pytest.raises(HeadwayError, match=r"there is no type \(the config's model_type\) 'other'"):
        LLaMA().build(Config({**SMALL, "architectures": ["Other"], "model_type": "other"}), head=False)
