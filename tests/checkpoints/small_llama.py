"""A small Llama with random weights, and models of other families by changes of its config."""

from typing import Any

import torch

from headway.checkpoints import FAMILIES, Config
from headway.checkpoints._load import Checkpoint

WINDOW, VOCABULARY = 16, 40
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "rope_theta": 100.0,
}


def small(**changes: Any) -> Any:
    """A model with random weights, as ``load`` makes it."""
    config = {**CONFIG, **changes}
    (architecture,) = config["architectures"]
    torch.manual_seed(0)
    model: Any = next(family for family in FAMILIES.values() if architecture in family.architectures)().build(
        Config(config), head=True
    )
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model.checkpoint = Checkpoint(architecture, config)
    return model.eval()


def tokens(count: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(3))
