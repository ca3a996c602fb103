"""A repository for the kernels hub: loaded from its folder as the package `kernels` does, and used by a model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from headway.kernels.cpu import _library

ROOT = Path(__file__).parents[1]
USE = """
import copy, importlib.util, json, sys
from pathlib import Path
import torch
from transformers import AttentionInterface, AttentionMaskInterface, MistralConfig, MistralForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

variant = Path(sys.argv[1])
name = json.loads((variant / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")      # as kernels.importer does
kernel = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
assert kernel.supports_flash_attn() and "headway" not in sys.modules
AttentionInterface.register("owner/headway", kernel.flash_attn_forward)           # as transformers does
AttentionMaskInterface.register("owner/headway", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

torch.manual_seed(0)
config = MistralConfig(vocab_size=50, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=2, sliding_window=5)
eager = MistralForCausalLM._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
ours = copy.deepcopy(eager)
ours.config._attn_implementation_internal = "owner/headway"
ids, real = torch.randint(1, 50, (2, 12)), torch.tensor([[0] * 4 + [1] * 8, [1] * 12])
with torch.no_grad():
    there, here = eager(ids, attention_mask=real).logits, ours(ids, attention_mask=real).logits
assert not torch.equal(there, here), "the kernel ran"
torch.testing.assert_close(here[real > 0], there[real > 0])
found = [model.generate(ids, attention_mask=real, max_new_tokens=6, do_sample=False, pad_token_id=0)
         for model in (eager, ours)]
assert torch.equal(*found)
q, k, v = torch.randn(3, 1, 4, 9, 16)
print(kernel.headway.explain(q, k, v, encoding="alibi", mask="causal").kernel)
"""


@pytest.mark.skipif(_library.why_not() is not None, reason="the C++ library is not built")
def test_a_model_runs_with_the_kernel_of_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "repository"
    subprocess.run([sys.executable, str(ROOT / "packaging" / "kernels_hub"), str(out)], check=True, timeout=60)
    variants = sorted((out / "build").iterdir())
    assert [variant.name for variant in variants] == ["torch-cpu", "torch-cuda"]
    assert [json.loads((one / "metadata.json").read_text())["backend"]["type"] for one in variants] == ["cpu", "cuda"]
    done = subprocess.run(
        [sys.executable, "-c", USE, str(variants[0])], capture_output=True, text=True, timeout=180, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cpu\n"
    again = subprocess.run([sys.executable, str(ROOT / "packaging" / "kernels_hub"), str(out)], capture_output=True)
    assert b"is not empty: give another folder" in again.stderr
