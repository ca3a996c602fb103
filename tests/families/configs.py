"""Small configs of any architecture, made from its default config by the names of its fields."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

from transformers import PreTrainedConfig

VOCABULARY, PAD, START, END = 128, 0, 1, 2
FIRST_WORD = 64
"""Ids from here on are words; below are the ids that a config gives a meaning."""

SIZES = {
    r"(.*_)?vocab_size(_.*)?|codebook_size|n_codes|num_embeddings": VOCABULARY,
    r"(.*_)?(num_key_value_heads|num_kv_heads|multi_query_group_num)": 2,
    r"(.*_)?(num_|n_)?(attention_)?heads?": 4,
    r"(.*_)?(head_dim|head_size|d_kv|head_channels)": 8,
    r"(.*_)?(num_hidden_layers|num_layers|n_layers?|depth|(num_)?(encoder|decoder)_layers)": 2,
    r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|dim|model_dim|width|embed_size)": 32,
    r"(.*_)?(projection_(dim|size)|proj_dim|conv_dim|out_dim|output_dim|cross_attention_dim|word_embed_proj_dim)": 32,
    r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|mlp_dim|intermediate_dim|ffn_size)": 48,
    r"(.*_)?(max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|context_length)": 64,
    r"(.*_)?image_size": 16,
    r"(.*_)?patch_size": 4,
    r"(.*_)?lora_rank": 16,
    r"(.*_)?(num_experts|n_routed_experts|num_local_experts)": 4,
    r"(.*_)?(experts_per_tok(en)?|top_?k_experts|moe_top_?k)": 2,
    r"n_group|topk_group|num_expert_groups?|n_shared_experts|first_k_dense_replace": 1,
    r"sliding_window|local_attention": 6,
    r"(.*_)?chunk_size": 4,
    r"index_n_heads": 2,
    r"(.*_)?(state_size|d_state)": 8,
}
"""What a field of a name that matches is lowered to."""

TOKENS = {"pad": PAD, "bos": START, "eos": END, "decoder_start": START}

ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
THREE_AXES = {"rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}}
EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 4}
KINDS = ["full_attention", "sliding_attention"]
SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}

GIVEN: dict[str, dict[str, Any]] = {
    "BambaConfig": {**MAMBA, "attn_layer_indices": [1]},
    "CohereCompassTextConfig": {"rope_parameters": {"full_attention": ROPE}},
    "Cosmos3EdgeTextConfig": THREE_AXES,
    "DbrxConfig": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "DeepseekOcr2TextConfig": {**EXPERTS, "mlp_layer_types": ["dense", "sparse"]},
    "DeepseekV2Config": EXPERTS,
    "DiffusionGemmaTextConfig": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    "Dots1Config": {**EXPERTS, "layer_types": KINDS},
    "EfficientLoFTRConfig": {"hidden_size": 256},
    "EomtConfig": {"num_blocks": 1, "num_queries": 5},
    "EomtDinov3Config": {"num_blocks": 1, "num_queries": 5},
    "Ernie4_5_MoeConfig": {"moe_k": 2},
    "Ernie4_5_VLMoeTextConfig": {
        "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]},
        "moe_k": 2,
        "moe_num_experts": 4,
        "moe_intermediate_size": [48, 32],
    },
    "EsmConfig": {"vocab_size": VOCABULARY, "pad_token_id": PAD, "mask_token_id": 3},
    "EsmcConfig": {"vocab_size": VOCABULARY},
    "FalconH1Config": {**MAMBA, "mamba_d_ssm": 64},
    "Gemma3nTextConfig": {"num_kv_shared_layers": 0},
    "Glm4vMoeTextConfig": {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}},
    "Glm4vTextConfig": THREE_AXES,
    "GlmImageTextConfig": THREE_AXES,
    "GlmOcrTextConfig": THREE_AXES,
    "GraniteMoeHybridConfig": {**MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "GraniteSpeech5EncoderConfig": {"context_size": 8},
    "HrmTextConfig": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "HunYuanDenseV1Config": {"head_dim": 8},
    "HunYuanMoEV1Config": {"head_dim": 8},
    "HunYuanVLTextConfig": {"head_dim": 8},
    "InformerConfig": SERIES,
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "LongcatFlashConfig": {"qk_head_dim": 16},
    "LwDetrViTConfig": {"image_size": 64, "pretrain_image_size": 64, "num_windows": 4},
    "MinistralConfig": {"head_dim": 8, "layer_types": KINDS},
    "MoonshineConfig": {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    "NemotronConfig": {"num_key_value_heads": 2},
    "NemotronHConfig": {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "use_mamba_kernels": False},
    "NeoMMEConfig": {"head_dim": 16},
    "PaddleOCRTextConfig": THREE_AXES,
    "Pix2StructTextConfig": {"initializer_range": 0.02},
    "Qwen2MoeConfig": {"sliding_window": 6},
    "Qwen2VLTextConfig": THREE_AXES,
    "Qwen2_5OmniTalkerConfig": THREE_AXES,
    "Qwen2_5OmniTextConfig": THREE_AXES,
    "Qwen2_5_VLTextConfig": THREE_AXES,
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "RecurrentGemmaConfig": {"block_types": ["recurrent", "attention"], "lru_width": 32},
    "SamHQVisionConfig": {"output_channels": 32, "num_pos_feats": 16},
    "SamVisionConfig": {"output_channels": 32, "num_pos_feats": 16},
    "Step3p7TextConfig": {
        "sliding_window": 6,
        "layer_types": KINDS,
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
    },
    "SwinConfig": {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16, "window_size": 4, "image_size": 32},
    "T5Gemma2DecoderConfig": {"dropout_rate": 0.0},
    "T5Gemma2TextConfig": {"dropout_rate": 0.0},
    "TimeSeriesTransformerConfig": SERIES,
    "VideomtConfig": {"num_blocks": 1, "num_queries": 5},
    "XmodConfig": {"default_language": "en_XX"},
    "YolosConfig": {"image_size": [64, 64], "num_detection_tokens": 5},
    "Zamba2Config": {"n_mamba_heads": 8, "use_mamba_kernels": False},
    "ZambaConfig": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
}
"""Fields that no rule makes, by the config's class."""


def small(kind: type[PreTrainedConfig], **given: Any) -> PreTrainedConfig:
    """Returns a config of a class with two layers, or as many as it has kinds of layers, of a few numbers each."""
    default = kind()
    held = {name: value for name, value in default.__dict__.items() if name in fields(kind)}
    meaning = count(3)
    layers, kept = chosen_layers(default)
    made = {}
    for name, value in held.items():
        if isinstance(value, PreTrainedConfig):
            made[name] = small(type(value))
        elif name.endswith(("token_id", "token_index")):
            made[name] = token(name, value, meaning)
        elif isinstance(value, float) and "drop" in name:
            made[name] = 0.0
        elif isinstance(value, int) and not isinstance(value, bool):
            made[name] = lowered(name, value)
        elif isinstance(value, list | tuple) and len(value) == layers and layers > len(kept):
            made[name] = type(value)(value[layer] for layer in kept)
    if isinstance(made.get("num_key_value_heads"), int) and not is_grouped(default):
        made["num_key_value_heads"] = made.get("num_attention_heads", 4)
    for name in ("num_hidden_layers", kind.attribute_map.get("num_hidden_layers")):
        if name in made and kept:
            made[name] = len(kept)
    if "use_sliding_window" in held:
        made["use_sliding_window"] = True
    return kind(**{**made, **GIVEN.get(kind.__name__, {}), **given})


def fields(kind: Any) -> set[str]:
    """The names of a config's own fields, and of its tokens."""
    return {name for name in kind.__dataclass_fields__ if name not in PreTrainedConfig.__dataclass_fields__} | {
        name for name in kind.__dataclass_fields__ if name.endswith("token_id")
    }


def chosen_layers(config: PreTrainedConfig) -> tuple[int, list[int]]:
    """The number of layers, and those that are kept: the first of each kind, and at least two; none if unknown."""
    kinds = config.__dict__.get("layer_types") or config.__dict__.get("layers_block_type")
    if not kinds:
        layers = getattr(config, "num_hidden_layers", None)
        return (layers, [0, 1]) if isinstance(layers, int) and layers > 2 else (0, [])
    kept = sorted(kinds.index(one) for one in set(kinds))
    return len(kinds), kept if len(kept) > 1 else list(range(min(2, len(kinds))))


def is_grouped(config: PreTrainedConfig) -> bool:
    heads, groups = (config.__dict__.get(name) for name in ("num_attention_heads", "num_key_value_heads"))
    return isinstance(heads, int) and isinstance(groups, int) and groups < heads


def token(name: str, value: Any, meaning: Any) -> Any:
    if value is None:
        return None
    known = TOKENS.get(name.removesuffix("_token_id"))
    found = next(meaning) if known is None else known
    return [found] if isinstance(value, list) else found


def lowered(name: str, value: int) -> int:
    for pattern, size in SIZES.items():
        if re.fullmatch(pattern, name):
            return min(value, size)
    return value
