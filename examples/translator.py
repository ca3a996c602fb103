"""Lesson 14's translator: sub-words, an encoder–decoder, and its training, which resumes."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import catalogues
import headway as hw
from catalogues import Pair
from headway._common import training
from headway._common.processor import has
from headway.bench.machine import cores, processor
from lesson import count, padded

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY = 8000
PAD, START, END = 0, 1, 2
SPECIAL = ("<pad>", "<start>", "<end>")
IGNORED = -100

LONGEST = 64
"""Tokens of the longest source or translation; longer pairs are left out of the training."""
STEPS, BATCH, POOL = 8000, 64, 50
RATE, WARM_UP, CLIP = 1e-3, 500, 1.0
SMOOTHING = 0.1
SEED = 0


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model."""

    embed_dim: int = 256
    num_layers: int = 3
    num_heads: int = 4
    dropout: float = 0.2


# ---------------------------------------------------------------- tokens


def byte_pairs(pairs: Sequence[Pair]) -> Tokenizer:
    """Returns one tokenizer for both languages, of the bytes' pairs that are the most frequent."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((side for pair in pairs for side in pair), trainer)
    return made


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """Returns the text of each token, a space as "␣"; the first of several tokens of a character has it."""
    found, end = [], 0
    for first, last in tokenizer.encode(text).offsets:
        found.append(text[max(first, end) : last].replace(" ", "␣") or "·")
        end = max(end, last)
    return found


# ---------------------------------------------------------------- the model


class Translator:
    """An encoder–decoder with sinusoidal positions on both sides, and its tokenizer."""

    def __init__(self, tokenizer: Tokenizer, sizes: Sizes) -> None:
        self.tokenizer = tokenizer
        torch.manual_seed(SEED)
        config = hw.models.TransformerConfig(tokenizer.get_vocab_size(), **asdict(sizes))
        sides = [hw.encoding("sinusoidal", embed_dim=sizes.embed_dim) for _ in range(2)]
        self.model = hw.models.EncoderDecoder(config, *sides)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch(list(texts))]

    def losses(self, model: Any, source: list[list[int]], target: list[list[int]], smoothing: float) -> Tensor:
        """Returns the mean cross-entropy of the target's tokens and its end, in nats for each."""
        logits = model(
            padded(source, PAD),
            padded([[START, *row] for row in target], PAD),
            mask=hw.masks.Padding([len(row) for row in source]),
        )
        wanted = padded([[*row, END] for row in target], IGNORED)
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, label_smoothing=smoothing)

    def translate(self, texts: Sequence[str], shuffled: bool = False) -> list[str]:
        """Translates greedily; if ``shuffled`` is true, with the tokens of each source in a random order."""
        rows = self.ids(texts)
        if shuffled:
            draw = random.Random(SEED)
            rows = [draw.sample(row, len(row)) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: dict[int, str] = {}
        for first in range(0, len(order), BATCH):
            numbers = order[first : first + BATCH]
            ids = hw.models.generate(self.model, [rows[i] for i in numbers], LONGEST, decoder_start=START, stop=END).ids
            found.update(zip(numbers, self.tokenizer.decode_batch(ids), strict=True))
        return [found[i] for i in range(len(rows))]

    @torch.no_grad()
    def cross_attention(self, source: str, target: str) -> list[list[list[list[float]]]]:
        """Returns the weights of the decoder on the source, [layer][head][token of the target and its end][key]."""
        (ids,), (written,) = self.ids([source]), self.ids([target])
        with hw.capture(self.model, "weights") as seen:
            self.model(torch.tensor([ids]), torch.tensor([[START, *written]]))
        return [[[[round(w, 4) for w in row] for row in head] for head in layer[0].tolist()]
                for layer in seen.cross_attentions]  # fmt: skip


class Epochs:
    """The batches of pairs: in each epoch all of them in another order, those of similar length together.

    Args:
        lengths: the length of each pair.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.epoch = lengths, -1
        self.batches: list[list[int]] = []

    def at(self, step: int) -> list[int]:
        """Returns the numbers of the pairs of a step, from 0."""
        epoch, place = divmod(step, -(-len(self.lengths) // BATCH))
        if epoch != self.epoch:
            draw = random.Random(f"{SEED} {epoch}")
            order = draw.sample(range(len(self.lengths)), len(self.lengths))
            pools = (order[i : i + BATCH * POOL] for i in range(0, len(order), BATCH * POOL))
            rows = [i for pool in pools for i in sorted(pool, key=lambda i: self.lengths[i])]
            self.batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
            draw.shuffle(self.batches)
            self.epoch = epoch
        return self.batches[place]


class Course(training.Companion):
    """Measures and prints the loss on the validation part at regular steps."""

    EVERY = 500

    def __init__(self, translator: Translator, validation: Sequence[Pair]) -> None:
        self.translator = translator
        self.sides = [translator.ids(side) for side in zip(*validation, strict=True)]
        self.losses: list[list[float]] = []

    @torch.no_grad()
    def after(self, step: int, loss: float, seconds: float) -> None:
        if step % self.EVERY:
            return
        model = self.translator.model.eval()
        found = self.translator.losses(model, *self.sides, smoothing=0.0).item()
        model.train()
        self.losses.append([step, round(found, 4)])
        left = seconds / step * (STEPS - step) / 60
        print(f"step {step:,} of {STEPS:,}: validation loss {found:.3f} nats/token, {left:.0f} min left", flush=True)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]


def learned(parts: catalogues.Parts) -> tuple[Translator, dict[str, Any]]:
    """Returns the trained translator, resumed from its checkpoint if there is one, and the row of the training."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", cores())))
    dtype = torch.bfloat16 if has("avx512_bf16") else None
    sizes = Sizes()
    translator = Translator(byte_pairs(parts.training), sizes)
    source, target = (translator.ids(side) for side in zip(*parts.training, strict=True))
    short = [i for i in range(len(source)) if max(len(source[i]), len(target[i])) < LONGEST]
    epochs = Epochs([len(source[i]) + len(target[i]) for i in short])

    def loss(model: Any, step: int) -> Tensor:
        rows = [short[i] for i in epochs.at(step)]
        return translator.losses(model, [source[i] for i in rows], [target[i] for i in rows], SMOOTHING)

    settings = [asdict(sizes), VOCABULARY, STEPS, BATCH, POOL, RATE, WARM_UP, CLIP, SMOOTHING, SEED, str(dtype)]
    digest = hashlib.sha256(json.dumps([settings, parts.training]).encode()).hexdigest()[:16]
    checkpoint = catalogues.home() / f"{digest}.pt"
    course = Course(translator, parts.validation)
    optimizer = torch.optim.AdamW(translator.model.parameters(), RATE, betas=(0.9, 0.98), fused=True)
    print(f"training of {STEPS:,} steps; it can be stopped, and goes on from {checkpoint}", flush=True)
    done = training.train(
        translator.model,
        loss,
        optimizer,
        steps=STEPS,
        rate=lambda step: min((step + 1) / WARM_UP, (STEPS - step) / (STEPS - WARM_UP)),
        clip=CLIP,
        checkpoint=checkpoint,
        companion=course,
        dtype=dtype,
    )
    translator.model.eval()
    return translator, {
        "row": "training",
        "date": str(date.today()),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "dtype": "bfloat16" if dtype else "float32",
        "torch": torch.__version__,
        "parameters": count(translator.model),
        "pairs": len(short),
        "epochs": round(STEPS * BATCH / len(short), 1),
        "minutes": round(done.seconds / 60, 1),
        "validation": course.losses,
    }
