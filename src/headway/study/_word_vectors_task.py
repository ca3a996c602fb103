"""The Transformer of ``word_vectors``, with word vectors as its input and the next word as its task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models import Decoder, Stack, TransformerConfig
from ..nn import Embedding, Head
from ..positions._encodings.rope import RoPE
from ..vectors import Vectors, Vocabulary
from .evaluate import predictions
from .models import start_alike
from .protocol import Training, derived_seed
from .tasks._base import IGNORED, Task


class NextWord(Task):
    """Predicts the next word of documents; the measure is the loss on the held-out ones.

        nats per word = −1/N Σₜ ln p(wordₜ | the words before it in its window)

    Words outside of the vocabulary are read as one unknown word, and not predicted.
    """

    name = "next_word"

    def __init__(self, vocabulary: Vocabulary, train: Sequence[str], held_out: Sequence[str]) -> None:
        self.words = len(vocabulary)
        self.train, self.held_out = (
            torch.cat([vocabulary.ids(text) for text in texts] or [torch.zeros(0, dtype=torch.int64)])
            for texts in (train, held_out)
        )

    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns windows from random places in the training part; see ``Task``."""
        starts = torch.randint(len(self.train) - training.length, (training.batch, 1), generator=generator)
        return self._asked(self.train[starts + torch.arange(training.length + 1)])

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the loss in separate windows of the held-out documents."""
        count = (len(self.held_out) - 1) // length
        inputs, targets = (side.view(count, length) for side in self._asked(self.held_out[None, : count * length + 1]))
        asked = targets != IGNORED
        nats = predictions(model, inputs, targets).bits[asked] * math.log(2)
        return {"nats_per_word": float(nats.mean()), "held_out_words": int(asked.sum())}

    def _asked(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        targets = windows[:, 1:]
        return windows[:, :-1], targets.masked_fill(targets == self.words, IGNORED)


class Frozen(nn.Module):
    """A table that is not learned and not in the state_dict: ids int64 [batch, n] → [batch, n, dim]."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


def inputs_of(vectors: Vectors, vocabulary: Vocabulary) -> Tensor:
    """Returns a vocabulary's vectors as input of the Transformer, [words + 1, dim]; the last row is the unknown word's.

    Each vector is divided by its length, their mean is subtracted, and all have one factor, so that the mean square
    length is one. Columns of zeros, such as those of words outside the vocabulary, are left out.
    """
    rows = F.normalize(vectors.embedding(vocabulary).weight[:-1].detach(), dim=1)
    rows = rows[:, rows.any(0)]
    rows = rows - rows.mean(0)
    rows = rows / rows.square().sum(1).mean().sqrt().clamp_min(1e-12)
    return torch.cat([rows, torch.zeros(1, rows.shape[1])])


def build(inputs: Tensor | None, words: int, *, layers: int, width: int, heads: int, seed: int) -> Decoder:
    """Builds a causal Transformer over word vectors, with rotary positions and its own head.

        logits = head(stack(W·v(w))),   W N(0, 1)

    W is learned and maps ``inputs`` [words + 1, dim], which are constant, to the width. If they are None, a learned
    embedding from N(0, 1) takes their place, which is W for one-hot vectors. Parameters of the same name start from the
    same values, for all inputs.
    """
    config = TransformerConfig(words, embed_dim=width, num_layers=layers, num_heads=heads)
    with torch.random.fork_rng(devices=[]):
        stack = Stack.of(config, RoPE(width // heads))
        embedding: nn.Module = Embedding(words + 1, width) if inputs is None else Frozen(inputs)
        learned = embedding
        if inputs is not None:
            learned = stack.entry = nn.Linear(inputs.shape[1], width, bias=False)
        model = Decoder.of_parts(embedding, stack, Head(width, words))
        model.initialise()
    start_alike(model, seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(derived_seed(seed, "input"))
        learned.weight.normal_(generator=generator)  # type: ignore[operator]
    return model
