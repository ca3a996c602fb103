"""`import headway` costs little more than `import torch`: it loads nothing that only some users need."""

import subprocess
import sys
from functools import cache

import pytest

HEAVY = {
    "triton",
    "transformers",
    "matplotlib",
    "rich",
    "typer",
    "hypothesis",
    "pytest",
    "safetensors",
    "tokenizers",
    "gguf",
    "huggingface_hub",
    "gensim",
    "sklearn",
    "scipy",
    "jieba",
    "torch._dynamo",
    "torch._inductor",
    "headway.checkpoints",
    "headway.integrations",
    "headway.vectors",
    "headway.study",
    "headway.bench",
    "headway.cli",
}


@cache
def modules_after(code: str) -> set[str]:
    """The names of all modules loaded in a fresh interpreter once `code` has run."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_is_lean() -> None:
    gained = modules_after("import headway") - modules_after("import torch")
    assert "headway" in gained
    assert gained & HEAVY == set()


@pytest.mark.slow
def test_study_is_there_when_asked_for() -> None:
    assert "headway.study" in modules_after("import headway\nheadway.study")


@pytest.mark.slow
def test_vectors_count_and_learn_lazily() -> None:
    gained = modules_after("import headway.vectors") - modules_after("import torch")
    assert gained & {"gensim", "sklearn", "scipy", "jieba", "tokenizers", "safetensors"} == set()


@pytest.mark.slow
def test_study_draws_and_prints_lazily() -> None:
    gained = modules_after("import headway.study") - modules_after("import torch")
    assert gained & {"matplotlib", "rich", "typer", "transformers", "triton"} == set()
