"""What headway uses of torch beyond its documentation: all of it in one file, and none of it indispensable."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch as dispatch
from torch.utils import checkpoint

SOURCE = Path(__file__).parents[1] / "src" / "headway"
PRIVATE = re.compile(
    r"torch\.(\w+\.)*_(?!_)\w+(\.\w+)*|_dynamo_marked_constant|\._version\b|^from torch\.[\w.]*\._|forward_ad"
)
DOCUMENTED = {"torch._dynamo.mark_dynamic", "torch._dynamo.reset"}
"""By torch's pages on dynamic shapes and on compile times."""

LACKED: list[tuple[object, str]] = [
    (torch._C, "_dispatch_tls_local_include_set"),
    (torch._C, "_len_torch_function_stack"),
    (torch._C, "_len_torch_dispatch_stack"),
    (torch._C, "_are_functorch_transforms_active"),
    (torch._C, "_is_any_autocast_enabled"),
    (torch._C._functorch, "peek_interpreter_stack"),
    (torch._C._functorch, "is_legacy_batchedtensor"),
    (forward_ad, "_current_level"),
    (torch.cpu, "_is_amx_tile_supported"),
    (torch._C, "_get_mkldnn_enabled"),
    (torch._C, "_get_fp32_precision_getter"),
    (torch.nn.modules.module, "_has_any_global_hook"),
    (checkpoint, "CheckpointFunction"),
    (checkpoint, "_CheckpointFrame"),
    (dispatch, "_get_current_dispatch_mode"),
    (dispatch, "_pop_mode"),
    (dispatch, "_push_mode"),
]
"""What has a fallback."""


def test_private_functions_of_torch_are_named_in_one_file() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {match[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "_torch.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := PRIVATE.search(line)) and match[0] not in DOCUMENTED
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(("owner", "name"), LACKED, ids=lambda x: x if isinstance(x, str) else "")
def test_this_version_of_torch_has_it(owner: object, name: str) -> None:
    assert hasattr(owner, name), f"torch {torch.__version__} lacks it, and headway takes its fallback"


SCRIPT = """
import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch, checkpoint
owners = {{"_C": torch._C, "_functorch": torch._C._functorch, "forward_ad": forward_ad, "cpu": torch.cpu}}
owners["module"] = torch.nn.modules.module
owners.update(checkpoint=checkpoint, dispatch=_python_dispatch)
lacked = [(owners[owner], name, getattr(owners[owner], name)) for owner, name in {names!r}]
for owner, name, _ in lacked:
    delattr(owner, name)
import headway as hw
for owner, name, function in lacked:  # torch cannot do without
    setattr(owner, name, function)
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 20, 8, requires_grad=True) for _ in range(3))
given = dict(encoding=hw.encoding("rope + alibi", num_heads=2, head_dim=8), mask=hw.masks.Causal())
found = []
for kernel in ("cpu", "reference"):
    if hw.explain(q, k, v, **given).reasons[kernel]:
        continue
    out = hw.attention(q, k, v, **given, kernel=kernel)
    found.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    with torch.no_grad():
        torch.testing.assert_close(hw.attention(q, k, v, **given, kernel=kernel), out)
    with torch.autocast("cpu", torch.bfloat16):
        assert hw.attention(q, k, v, **given, kernel=kernel).dtype == torch.bfloat16
for others in found[1:]:
    torch.testing.assert_close(others, found[0])
print("right", len(found))
"""


@pytest.mark.slow
def test_a_version_without_them_computes_the_same() -> None:
    owners = {
        id(torch._C): "_C",
        id(torch._C._functorch): "_functorch",
        id(forward_ad): "forward_ad",
        id(torch.cpu): "cpu",
        id(torch.nn.modules.module): "module",
        id(checkpoint): "checkpoint",
        id(dispatch): "dispatch",
    }
    names = [(owners[id(owner)], name) for owner, name in LACKED if hasattr(owner, name)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(names=names)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("right")
