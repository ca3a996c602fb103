"""`import headway` costs little more than `import torch`: it loads nothing that only some users need."""

import subprocess
import sys

import pytest

HEAVY = {
    "triton",
    "transformers",
    "matplotlib",
    "jinja2",
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


def gained_by(code: str) -> set[str]:
    """The names of the modules that `code` loads in a fresh interpreter, beside those of torch."""
    lines = "import sys, torch", "before = {*sys.modules}", code, "print(*{*sys.modules} - before, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_is_lean() -> None:
    gained = gained_by("import headway")
    assert "headway" in gained
    assert gained & HEAVY == set()


@pytest.mark.slow
def test_study_is_there_when_asked_for() -> None:
    assert "headway.study" in gained_by("import headway\nheadway.study")


@pytest.mark.slow
def test_vectors_count_and_learn_lazily() -> None:
    gained = gained_by("import headway.vectors")
    assert gained & {"gensim", "sklearn", "scipy", "jieba", "tokenizers", "safetensors"} == set()


@pytest.mark.slow
def test_study_draws_and_prints_lazily() -> None:
    gained = gained_by("import headway.study")
    assert gained & {"jinja2", "matplotlib", "rich", "typer", "transformers", "triton"} == set()
