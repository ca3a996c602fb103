r"""Makes transfo_xl.json: what the last Transformer-XL of transformers computes, from weights drawn by numpy.

In an environment of its own, with transformers 4.57.6, whose code first wants one mistake put right:

    sed -i 's/dtype=torch.int64).type_as($/dtype=torch.int64).to(/' \
        …/transformers/models/deprecated/transfo_xl/modeling_transfo_xl.py
    python tests/golden/transfo_xl.py
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SEGMENTS, TOKENS, ROWS = 3, 4, 2
SMALL = {
    "vocab_size": 40,
    "cutoffs": [10, 18, 30],
    "d_model": 32,
    "d_embed": 24,
    "n_layer": 2,
    "n_head": 4,
    "d_head": 8,
    "d_inner": 48,
    "div_val": 2,
    "mem_len": 6,
    "clamp_len": 3,
}
CASES: dict[str, dict[str, Any]] = {
    "TransfoXLLMHeadModel": SMALL,
    "TransfoXLModel": {**SMALL, "clamp_len": -1, "d_head": 6, "pre_lnorm": True, "same_length": False},
}


def drawn(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """Weights of these names and shapes; numpy promises that this stream stays as it is."""
    stream = np.random.RandomState(0)
    found = {}
    for name in sorted(shapes):
        value = torch.tensor(stream.standard_normal(shapes[name]))
        norm = name.endswith("layer_norm.weight")
        by = 0.2 if value.ndim == 1 else value.shape[-1] ** -0.5
        found[name] = (norm + by * value).float()
    return found


def rounded(x: Tensor) -> Any:
    return [[float(f"{value:.7g}") for value in row] for row in x.flatten(0, -2).tolist()]


@torch.no_grad()
def facts(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """Outputs of segments behind one another: from an empty memory, and the first from zeros."""
    from transformers import TransfoXLConfig
    from transformers.models.deprecated import transfo_xl

    model = getattr(transfo_xl, architecture)(TransfoXLConfig(**config)).eval()
    shapes = {name: list(value.shape) for name, value in model.named_parameters()}
    model.load_state_dict(drawn(shapes), strict=False)
    model.tie_weights() if hasattr(model, "crit") else None
    ids = torch.tensor(np.random.RandomState(1).randint(0, 40, (ROWS, SEGMENTS * TOKENS)))
    mems: Any = [torch.zeros(0, ROWS, config["d_model"]) for _ in range(config["n_layer"])]
    outputs, states = [], []
    for segment in ids.split(TOKENS, dim=1):
        out = model(segment, mems=mems, output_hidden_states=True)
        outputs.append(out[0])
        states.append(torch.stack(out.hidden_states[1:]))
        mems = out.mems
    return {
        "config": {**config, "model_type": "transfo-xl", "architectures": [architecture]},
        "shapes": shapes,
        "ids": ids.tolist(),
        "outputs": rounded(torch.cat(outputs, dim=1)),
        "hidden_states": rounded(torch.cat(states, dim=2)),
        "from_zeros": rounded(model(ids[:, :TOKENS])[0]),
    }


if __name__ == "__main__":
    import transformers

    said = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, by transfo_xl.py"}
    found = {**said, **{architecture: facts(architecture, config) for architecture, config in CASES.items()}}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    Path(__file__).with_suffix(".json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
