"""The configs of published models, at their sizes: which tensors headway asks of a file, held to transformers' own.

The numbers are facts of the models' config.json files, without what speaks of training, of special tokens and of
generation. Models are built without memory for their weights.
"""

from copy import deepcopy
from fnmatch import fnmatch
from typing import Any

import pytest
import torch

from headway import HeadwayError
from headway.checkpoints import ARCHITECTURES, Config, Family
from headway.checkpoints._load import _built, _Unfilled
from headway.checkpoints._rules import entries, named_tensors

pytest.importorskip("transformers")

# fmt: off
PUBLISHED: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads":
        12, "num_hidden_layers": 12, "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size":
        30522
    },
    "all-MiniLM-L6-v2": {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384,
        "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads":
        12, "num_hidden_layers": 6, "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522
    },
    "roberta-base": {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "num_attention_heads":
        12, "num_hidden_layers": 12, "type_vocab_size": 1, "vocab_size": 50265
    },
    "xlm-roberta-base": {
        "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "hidden_act": "gelu",
        "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "num_attention_heads": 12, "num_hidden_layers": 12, "position_embedding_type": "absolute",
        "type_vocab_size": 1, "vocab_size": 250002
    },
    "albert-base-v2": {
        "architectures": ["AlbertForMaskedLM"], "model_type": "albert", "embedding_size": 128, "hidden_act":
        "gelu_new", "hidden_size": 768, "inner_group_num": 1, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_groups": 1, "num_hidden_layers": 12,
        "type_vocab_size": 2, "vocab_size": 30000
    },
    "distilbert-base-uncased": {
        "architectures": ["DistilBertForMaskedLM"], "model_type": "distilbert", "activation": "gelu", "dim": 768,
        "hidden_dim": 3072, "max_position_embeddings": 512, "n_heads": 12, "n_layers": 6, "sinusoidal_pos_embds":
        False, "vocab_size": 30522
    },
    "electra-small-generator": {
        "architectures": ["ElectraForMaskedLM"], "model_type": "electra", "embedding_size": 128, "hidden_act":
        "gelu", "hidden_size": 256, "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings":
        512, "num_attention_heads": 4, "num_hidden_layers": 12, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "vocab_size": 30522
    },
    "electra-base-discriminator": {
        "architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 768, "hidden_act": "gelu",
        "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522
    },
    "mpnet-base": {
        "architectures": ["MPNetForMaskedLM"], "model_type": "mpnet", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "num_attention_heads":
        12, "num_hidden_layers": 12, "relative_attention_num_buckets": 32, "vocab_size": 30527
    },
    "roformer_chinese_char_small": {
        "architectures": ["RoFormerForMaskedLM"], "model_type": "roformer", "embedding_size": 384, "hidden_act":
        "gelu", "hidden_size": 384, "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings":
        512, "num_attention_heads": 6, "num_hidden_layers": 6, "rotary_value": False, "type_vocab_size": 2,
        "vocab_size": 12000
    },
    "ModernBERT-base": {
        "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert", "attention_bias": False,
        "decoder_bias": True, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "hidden_activation":
        "gelu", "hidden_size": 768, "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128,
        "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False, "norm_bias": False,
        "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22, "position_embedding_type":
        "absolute", "vocab_size": 50368
    },
    "deberta-base": {
        "architectures": ["DebertaForMaskedLM"], "model_type": "deberta", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "max_position_embeddings": 512, "relative_attention": True, "pos_att_type":
        "c2p|p2c", "layer_norm_eps": 1e-07, "padding_idx": 0, "num_attention_heads": 12, "num_hidden_layers": 12,
        "type_vocab_size": 0, "vocab_size": 50265, "max_relative_positions": -1, "position_biased_input": False
    },
    "deberta-v3-base": {
        "architectures": ["DebertaV2Model"], "model_type": "deberta-v2", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "max_position_embeddings": 512, "relative_attention": True, "position_buckets":
        256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps":
        1e-07, "max_relative_positions": -1, "position_biased_input": False, "num_attention_heads": 12,
        "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100
    },
    "xlnet-base-cased": {
        "architectures": ["XLNetLMHeadModel"], "model_type": "xlnet", "attn_type": "bi", "bi_data": False,
        "clamp_len": -1, "d_head": 64, "d_inner": 3072, "d_model": 768, "ff_activation": "gelu", "layer_norm_eps":
        1e-12, "mem_len": None, "n_head": 12, "n_layer": 12, "reuse_len": None, "same_length": False, "untie_r":
        True, "vocab_size": 32000
    },
    "vit-base-patch16-224-in21k": {
        "architectures": ["ViTModel"], "model_type": "vit", "hidden_act": "gelu", "hidden_size": 768, "image_size":
        224, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "num_attention_heads": 12, "num_channels": 3,
        "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True
    },
    "mms-tts-eng": {
        "architectures": ["VitsModel"], "model_type": "vits", "ffn_dim": 768, "ffn_kernel_size": 3, "flow_size":
        192, "hidden_act": "relu", "hidden_size": 192, "layer_norm_eps": 1e-05, "num_attention_heads": 2,
        "num_hidden_layers": 6, "use_bias": True, "vocab_size": 38, "window_size": 4
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size":
        50257
    },
    "opt-125m": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu",
        "do_layer_norm_before": True, "ffn_dim": 3072, "hidden_size": 768, "max_position_embeddings": 2048,
        "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 50272, "word_embed_proj_dim": 768
    },
    "opt-350m": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu",
        "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings": 2048,
        "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 512,
        "intermediate_size": 2048, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads":
        8, "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "use_parallel_residual": True, "vocab_size": 50304
    },
    "gpt-j-6b": {
        "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-05, "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28, "n_positions":
        2048, "rotary": True, "rotary_dim": 64, "scale_attn_weights": True, "tie_word_embeddings": False,
        "vocab_size": 50400
    },
    "phi-1_5": {
        "architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_act": "gelu_new", "hidden_size": 2048,
        "intermediate_size": 8192, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads":
        32, "num_hidden_layers": 24, "num_key_value_heads": None, "partial_rotary_factor": 0.5, "qk_layernorm":
        False, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 51200
    },
    "bloom-560m": {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "apply_residual_connection_post_layernorm":
        False, "layer_norm_epsilon": 1e-05, "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads":
        16, "pretraining_tp": 1, "vocab_size": 250880
    },
    "mpt-7b": {
        "architectures": ["MptForCausalLM"], "model_type": "mpt", "attn_config": {"alibi": True, "alibi_bias_max":
        8, "attn_impl": "torch", "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv":
        None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None}, "d_model": 4096, "expansion_ratio": 4,
        "logit_scale": None, "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": True, "norm_type":
        "low_precision_layernorm", "vocab_size": 50432
    },
    "falcon-7b": {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": False,
        "apply_residual_connection_post_layernorm": False, "bias": False, "hidden_size": 4544, "layer_norm_epsilon":
        1e-05, "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71,
        "num_hidden_layers": 32, "parallel_attn": True, "vocab_size": 65024
    },
    "falcon-rw-1b": {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": True,
        "apply_residual_connection_post_layernorm": False, "bias": True, "hidden_size": 2048, "layer_norm_epsilon":
        1e-05, "multi_query": False, "new_decoder_architecture": False, "num_attention_heads": 32,
        "num_hidden_layers": 24, "parallel_attn": False, "vocab_size": 50304
    },
    "falcon-11B": {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": False, "bias": False, "ff_factor":
        4, "ffn_hidden_size": 16384, "hidden_act": "gelu", "activation": "gelu", "hidden_size": 4096,
        "layer_norm_epsilon": 1e-05, "max_position_embeddings": 8192, "multi_query": True,
        "new_decoder_architecture": True, "num_attention_heads": 32, "num_hidden_layers": 60, "num_kv_heads": 8,
        "num_ln_in_parallel_attn": 1, "parallel_attn": True, "rope_scaling": None, "rope_theta": 5000042.0,
        "tie_word_embeddings": False, "vocab_size": 65024
    },
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": False, "vocab_size": 128256
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta":
        500000.0, "tie_word_embeddings": True, "vocab_size": 128256
    },
    "SmolLM2-135M": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_act": "silu",
        "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192, "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
        "vocab_size": 49152
    },
    "SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False, "hidden_act":
        "silu", "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta":
        5000000.0, "sliding_window": None, "use_sliding_window": False, "vocab_size": 128256
    },
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000
    },
    "Mistral-7B-v0.3": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32768
    },
    "Qwen2-0.5B": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
        "intermediate_size": 4864, "max_position_embeddings": 131072, "max_window_layers": 24,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": True, "use_sliding_window": False,
        "vocab_size": 151936
    },
    "Qwen2.5-7B": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False, "use_mrope": False,
        "use_sliding_window": False, "vocab_size": 152064
    },
    "Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
        "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act":
        "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size":
        9216, "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "sliding_window": 4096, "vocab_size": 256000
    },
    "gemma-3-270m": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "_sliding_window_pattern": 6,
        "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640, "intermediate_size": 2048, "layer_types":
        (["sliding_attention"] * 5 + ["full_attention"]) * 3, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
        "sliding_window": 512, "use_bidirectional_attention": False, "vocab_size": 262144
    },
    "t5-small": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 2048, "d_kv": 64, "d_model":
        512, "layer_norm_epsilon": 1e-06, "n_positions": 512, "num_heads": 8, "num_layers": 6,
        "relative_attention_num_buckets": 32, "vocab_size": 32128
    },
    "t5-v1_1-base": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 2048, "d_kv": 64, "d_model":
        768, "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-06, "num_decoder_layers": 12, "num_heads":
        12, "num_layers": 12, "relative_attention_num_buckets": 32, "tie_word_embeddings": False, "vocab_size":
        32128
    },
    "mt5-small": {
        "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5", "d_ff": 1024, "d_kv": 64, "d_model":
        512, "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-06, "num_decoder_layers": 8, "num_heads":
        6, "num_layers": 8, "relative_attention_num_buckets": 32, "tie_word_embeddings": False, "vocab_size": 250112
    },
    "umt5-small": {
        "architectures": ["UMT5ForConditionalGeneration"], "model_type": "umt5", "d_ff": 1024, "d_kv": 64,
        "d_model": 512, "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-06, "num_decoder_layers": 8,
        "num_heads": 6, "num_layers": 8, "relative_attention_max_distance": 128, "relative_attention_num_buckets":
        32, "tie_word_embeddings": False, "vocab_size": 256384
    },
    "bart-base": {
        "architectures": ["BartModel"], "model_type": "bart", "activation_function": "gelu", "add_final_layer_norm":
        False, "d_model": 768, "decoder_attention_heads": 12, "decoder_ffn_dim": 3072, "decoder_layers": 6,
        "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "encoder_layers": 6, "max_position_embeddings":
        1024, "normalize_before": False, "normalize_embedding": True, "num_hidden_layers": 6, "scale_embedding":
        False, "vocab_size": 50265
    },
    "opus-mt-en-de": {
        "architectures": ["MarianMTModel"], "model_type": "marian", "activation_function": "swish",
        "add_final_layer_norm": False, "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048,
        "decoder_layers": 6, "decoder_vocab_size": 58101, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
        "encoder_layers": 6, "max_position_embeddings": 512, "normalize_before": False, "normalize_embedding":
        False, "num_hidden_layers": 6, "scale_embedding": True, "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True, "vocab_size": 58101
    },
    "whisper-tiny": {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "activation_function":
        "gelu", "d_model": 384, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layers": 4,
        "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "encoder_layers": 4, "max_source_positions": 1500,
        "max_target_positions": 448, "num_hidden_layers": 4, "num_mel_bins": 80, "scale_embedding": False,
        "vocab_size": 51865
    },
}
# fmt: on
"""By the names of the repositories that hold them."""

RENAMED = ("gpt_neox", "vit")
"""Kinds of models whose tensors transformers renames as it reads a file: only their shapes are compared."""


def wanted(family: Family, config: Config, *, head: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor that a file should have."""
    tensors = named_tensors(_built(family, config, head))
    rules = family.rules(config, head=head, prefix=head)
    return {one.theirs: one.change.shape([tensors[name].shape for name in one.ours]) for one in entries(rules, tensors)}


def theirs(values: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    import transformers

    rest = deepcopy(values)
    (architecture,) = rest.pop("architectures")
    config = transformers.AutoConfig.for_model(rest.pop("model_type"), **rest)
    with torch.device("meta"), _Unfilled():
        model = getattr(transformers, architecture)(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_tensors_of_a_published_model_are_those_of_transformers(name: str) -> None:
    values = PUBLISHED[name]
    (architecture,) = values["architectures"]
    family = ARCHITECTURES[architecture]()
    ours, held = wanted(family, family.config(values), head=family.architectures[architecture]), theirs(values)
    if values["model_type"] in RENAMED:
        kept = [shape for key, shape in held.items() if not any(fnmatch(key, one) for one in family.ignored)]
        assert sorted(ours.values()) == sorted(kept)
        return
    assert ours == {key: held.get(key) for key in ours}
    left = [key for key in held if key not in ours]
    assert [key for key in left if not any(fnmatch(key, one) for one in family.ignored)] == []


def test_what_headway_cannot_say_is_refused() -> None:
    """DeBERTa v2's two largest models have a convolution."""
    config = Config({**PUBLISHED["deberta-v3-base"], "conv_kernel_size": 3, "conv_act": "gelu"})
    with pytest.raises(HeadwayError, match="conv_kernel_size is 3"):
        wanted(ARCHITECTURES["DebertaV2Model"](), config, head=False)
