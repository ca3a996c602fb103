"""Small encoders that are trained to predict the decided words."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.files import LockedFolder, cache_folder, naming_checkpoint, read_checkpoint
from ...errors import HeadwayError
from ...models import Encoder, TransformerConfig
from ...nn import Head
from ...positions import encoding
from ..models import EMBEDDING_SCALE, start_alike
from ..protocol import Training, derived_seed
from ..tasks import Task
from ..tasks._base import IGNORED
from ..train import thread_count, train
from ._cases import Cases
from ._grammar import FARTHEST, FEW, Language, Sentence
from ._languages import named_language
from ._tokens import MASK, encoded, vocabulary

LAYERS, HEADS, WIDTH = 2, 4, 64
ENCODING = "t5"
"""A learned bias for each head and distance, beside the content: heads may attend to a place, or to a word anywhere."""
SENTENCES = 40_000
"""The sentences that batches are drawn from."""
MEASURED = 1000
"""The sentences of each relation that a model is measured in."""
MASKED = 0.8
"""The share of the decided words that are masked in training."""

TRAININGS = {
    "full": Training(steps=3500, batch=32, length=64, learning_rate=3e-3),
    "quick": Training(steps=1500, batch=32, length=64, learning_rate=3e-3),
}
"""The trainings by name."""


class PlantedWords(Task):
    """Predicts the decided words of sentences, from the nouns that decide them.

    [MASK] replaces four of five decided words. One of the relation's decided words, drawn evenly, replaces the others.
    The token in that place therefore gives no information. A batch has sentences of one length.

    Args:
        language: the language.
        sentences: the sentences to train on.
    """

    name = "planted words"

    def __init__(self, language: Language, sentences: Sequence[Sentence]) -> None:
        self.language = language
        ids = vocabulary(language)
        self.vocabulary, self.mask = len(ids), ids[MASK]
        decided = [torch.tensor([ids[word] for word in relation.nouns]) for relation in language.relations]
        self.decided = nn.utils.rnn.pad_sequence(decided, batch_first=True)
        self.choices = torch.tensor([len(one) for one in decided])
        number_of = {relation.name: number for number, relation in enumerate(language.relations)}
        by_length = defaultdict(list)
        for sentence in sentences:
            by_length[len(sentence.words)].append(sentence)
        self.groups = []
        for length in sorted(by_length):
            alike = by_length[length]
            relations = torch.full((len(alike), length + 1), -1)
            for row, sentence in enumerate(alike):
                for link in sentence.links:
                    relations[row, link.word + 1] = number_of[link.relation]
            self.groups.append((torch.tensor(encoded(language, alike)), relations))
        self.sizes = torch.tensor([float(len(whole)) for whole, _ in self.groups])

    def batch(self, training: Training, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns ids with some words replaced, and as targets the decided words where they stood; see ``Task``."""
        group = int(torch.multinomial(self.sizes, 1, generator=generator))
        whole, relations = self.groups[group]
        rows = torch.randint(len(whole), (training.batch,), generator=generator)
        whole, relations = whole[rows], relations[rows]
        which = torch.rand(whole.shape, generator=generator) * self.choices[relations]
        drawn = self.decided[relations, which.long()]
        masked = torch.rand(whole.shape, generator=generator) < MASKED
        decided = relations >= 0
        ids = torch.where(decided, drawn.masked_fill(masked, self.mask), whole)
        return ids, whole.masked_fill(~decided, IGNORED)

    def measure(self, model: nn.Module, length: int) -> dict[str, Any]:
        """Returns the accuracy of each relation in new sentences of the training kind, whatever the ``length``."""
        accuracies = {}
        for relation in (one.name for one in self.language.relations):
            sentences = self.language.sentences(MEASURED, derived_seed(0, "measured"), relation=relation)
            accuracies[relation] = float(Cases.of(self.language, sentences, relation).right(model).double().mean())
        return accuracies


def build(language: Language, seed: int) -> Encoder:
    """Builds an encoder with a head, which maps ids of the language's words to logits."""
    config = TransformerConfig(
        len(vocabulary(language)),
        embed_dim=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        attention_scale=(WIDTH // HEADS) ** -0.5,
        embedding_scale=EMBEDDING_SCALE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "encoding"))
        headless = Encoder(config, encoding(ENCODING, num_heads=HEADS))
    start_alike(headless, seed)
    return Encoder.of_parts(headless.embedding, headless.stack, Head(WIDTH, config.vocab_size, tied=True))


def trained(
    language: str | Language,
    seed: int = 0,
    *,
    training: str | Training = "quick",
    folder: str | Path | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> Encoder:
    """Returns a trained encoder: trains it the first time, and later reads it from a folder.

        model = trained("chinese", training="quick", watch=print)    # about a minute

    A training that was stopped resumes. What a seed learns depends on the processor: ``pretrained`` returns a model
    that is the same everywhere, and ``pretrain`` tries seeds until one meets the criteria.

    Args:
        language: "chinese", "english", or a language of your own.
        seed: the seed of the initial parameters, of the sentences, and of the batches.
        training: "quick", "full", or settings of your own.
        folder: where models are kept. Default: ``planted`` in the folder that the environment variable HEADWAY_CACHE
            names, or in ~/.cache/headway.
        watch: is called after each step with the steps done and the loss in bits.

    Returns:
        The model in eval mode, which maps ids [batch, n] to logits [batch, n, vocabulary]. ``tokenizer`` makes its ids.

    Raises:
        HeadwayError: if there is no such language or training, if the folder cannot be written to, or if another
            process trains this model at the moment.
    """
    language, settings = named_language(language), named_training(training)
    model = build(language, seed)
    place = (cache() if folder is None else Path(folder)) / f"{language.name}-{seed}-{recipe_of(language, settings)}"
    checkpoint = place / "model.pt"
    state = read_checkpoint(checkpoint)
    if state is not None:
        with naming_checkpoint(checkpoint):
            finished = state["step"] == settings.steps
            if finished:
                model.load_state_dict(state["model"])
        if finished:
            return model.eval()
    with _TrainedModel(place), thread_count(1):
        task = PlantedWords(language, language.sentences(SENTENCES, seed))
        train(model, task, settings, seed, checkpoint=checkpoint, watch=watch)
    return model.eval()


class _TrainedModel(LockedFolder):
    """The folder of one model."""

    used_by = "training"
    called = "the model's folder"
    remedy = "name another folder in HEADWAY_CACHE"


def cache() -> Path:
    """Returns the folder where models are kept, if none is given."""
    return cache_folder() / "planted"


def recipe_of(language: Language, settings: Training) -> str:
    """Returns a name for all that a model depends on, so that a model of other settings is not taken for it."""
    facts = (replace(language, examples=()), settings, LAYERS, HEADS, WIDTH, ENCODING, SENTENCES, MASKED, FARTHEST, FEW)
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:12]


def named_training(training: str | Training) -> Training:
    """Returns the settings of a training by its name; settings are returned as they are.

    Raises:
        HeadwayError: if there is none of this name.
    """
    if isinstance(training, Training):
        return training
    if training not in TRAININGS:
        raise HeadwayError(f"training is {training!r}: give {' or '.join(map(repr, TRAININGS))}, or a Training")
    return TRAININGS[training]
