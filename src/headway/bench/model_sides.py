"""The sides of whole models, by headway and by transformers, loaded from published or random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import checkpoints
from .._common.text_files import read_text
from ..integrations.transformers import use_bias_table
from ..nn import prepack
from .cases import DTYPES, STEP_MODELS, TOKEN_MODELS, ModelCase
from .sides import HF_EAGER, HF_SDPA, HF_TABLE, NOT_PREPACKED, OURS, Run

FOLDERS = {"MiniLM": "minilm", "SmolLM2": "smollm2"}
"""The folders of published weights, as ``make weights`` creates them."""

WRITTEN = 8
"""Tokens that a run decodes one by one."""

T5_SMALL: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
T5_CLASSES = {"T5 encoder": "T5EncoderModel", "T5": "T5ForConditionalGeneration"}


class Loaded:
    """The models of both sides, loaded on demand; the models of the last case are kept."""

    def __init__(self, weights: Path, scratch: Path) -> None:
        self.weights, self.scratch = weights, scratch
        self._last: tuple[Any, Any] = (None, None)

    def has(self, model: str) -> bool:
        """Returns whether the weights of a ``model`` are there; models that are trained have random weights."""
        return model in (*T5_CLASSES, *STEP_MODELS, *TOKEN_MODELS) or self._source(model) is not None

    def sides(self, case: ModelCase) -> dict[str, Run]:
        """Returns the sides of a ``case``, headway's first.

        Each runs a batch, a prompt, some tokens, or a training step.
        """
        quiet()
        kinds = {"encode": self._encode, "prefill": self._prefill, "decode": self._decode, "train": self._train}
        return kinds[case.task](case)

    def t5(self, model: str) -> Path:
        """Returns a folder with a T5 of random weights, for the ``model`` "T5" or "T5 encoder"."""
        folder = self.scratch / T5_CLASSES[model]
        if not folder.exists():
            quiet()
            transformers = import_module("transformers")
            torch.manual_seed(0)
            drawn = getattr(transformers, T5_CLASSES[model])(transformers.T5Config(**T5_SMALL))
            drawn.save_pretrained(folder)
        return folder

    def _source(self, model: str) -> Path | None:
        folder = self.weights / FOLDERS[model]
        if (folder / "config.json").exists():
            return folder
        return next(iter(sorted(folder.glob("*.gguf"))), None)

    def _ours(self, model: str, dtype: str) -> Any:
        source = self._source(model)
        assert source is not None
        return checkpoints.load(source, dtype=DTYPES[dtype])

    def _theirs(self, kind: str, model: str, dtype: str, **more: Any) -> Any:
        """The model of transformers, which reads a GGUF file that headway has written."""
        source = self._source(model)
        assert source is not None
        if source.is_file():
            written = self.scratch / model
            if not written.exists():
                checkpoints.save(self._ours(model, "float32"), written)
            source = written
        load = getattr(import_module("transformers"), kind).from_pretrained
        return load(source, dtype=DTYPES[dtype], attn_implementation="sdpa", trust_remote_code=False, **more)

    def _once(self, key: tuple[str, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self._last[0] != key:
            self._last = (None, None)  # frees the models of the case before
            self._last = (key, make())
        models: dict[str, Any] = self._last[1]
        return models

    def _encode(self, case: ModelCase) -> dict[str, Run]:
        models = self._once(
            ("encode", case.model, case.dtype),
            lambda: {
                OURS: prepack(self._ours(case.model, case.dtype)),
                NOT_PREPACKED: self._ours(case.model, case.dtype),
                HF_SDPA: self._theirs("AutoModel", case.model, case.dtype, add_pooling_layer=False),
            },
        )
        ids = _ids(case.batch, case.n, models[OURS].checkpoint.config["vocab_size"])
        return {name: partial(_encode, model, ids) for name, model in models.items()}

    def _writers(self, case: ModelCase) -> dict[str, HeadwayWriter]:
        return self._once(
            ("write", case.model, case.dtype),
            lambda: {
                OURS: HeadwayWriter(prepack(self._ours(case.model, case.dtype))),
                HF_SDPA: TransformersWriter(self._theirs("AutoModelForCausalLM", case.model, case.dtype)),
            },
        )

    def _prefill(self, case: ModelCase) -> dict[str, Run]:
        writers = self._writers(case)
        ids = _ids(case.batch, case.n, writers[OURS].vocab_size)
        return {name: partial(_prefill, writer, ids) for name, writer in writers.items()}

    def _decode(self, case: ModelCase) -> dict[str, Run]:
        writers = self._writers(case)
        prompt, written = _ids(case.batch, case.n + WRITTEN, writers[OURS].vocab_size).split([case.n, WRITTEN], 1)
        for writer in writers.values():
            if writer.length != case.n:
                _prefill(writer, prompt)
        return {name: partial(_decode, writer, written) for name, writer in writers.items()}

    def _train(self, case: ModelCase) -> dict[str, Run]:
        names = (OURS, HF_TABLE, HF_EAGER, HF_SDPA) if case.model == "T5 encoder" else (OURS, HF_EAGER)
        folder = self.t5(case.model)
        self._last = (None, None)
        return {name: Trainer(name, folder).step(case.batch, case.n) for name in names}


@torch.inference_mode()
def _encode(model: Any, ids: Tensor) -> list[Tensor]:
    return [_first(model(ids))]


@torch.inference_mode()
def _prefill(writer: HeadwayWriter, ids: Tensor) -> list[Tensor]:
    return [writer.prefill(ids)]


@torch.inference_mode()
def _decode(writer: HeadwayWriter, ids: Tensor) -> list[Tensor]:
    """The logits of each token; afterwards the cache is as before."""
    logits = [writer.step(one) for one in ids.split(1, dim=1)]
    writer.forget(ids.shape[1])
    return logits


class HeadwayWriter:
    """A ``Decoder`` with the cache of the last prompt, which has ``length`` tokens."""

    length = 0

    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, None

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        size: int = self.model.checkpoint.config["vocab_size"]
        return size

    def prefill(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, n] to the logits of the last token [batch, 1, vocab_size], and fills the cache."""
        self.cache, self.length = self.model.new_cache(), ids.shape[1]
        logits: Tensor = self.model.logits(self.model.hidden(ids, cache=self.cache)[:, -1:])
        return logits

    def step(self, ids: Tensor) -> Tensor:
        """Maps ``ids`` [batch, 1] to logits [batch, 1, vocab_size], and appends them to the cache."""
        logits: Tensor = self.model(ids, cache=self.cache)
        return logits

    def forget(self, count: int) -> None:
        """Removes the last ``count`` tokens from the cache."""
        self.cache.crop(self.length)  # type: ignore[attr-defined]


class TransformersWriter(HeadwayWriter):
    """The same by a language model of transformers."""

    @property
    def vocab_size(self) -> int:
        size: int = self.model.config.vocab_size
        return size

    def prefill(self, ids: Tensor) -> Tensor:
        output = self.model(ids, use_cache=True, logits_to_keep=1)
        self.cache, self.length = output.past_key_values, ids.shape[1]
        logits: Tensor = output.logits
        return logits

    def step(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids, past_key_values=self.cache, use_cache=True).logits
        return logits

    def forget(self, count: int) -> None:
        self.cache.crop(-count)  # type: ignore[attr-defined]


class Trainer:
    """A T5 of one side, with its optimizer."""

    def __init__(self, side: str, folder: Path) -> None:
        name = json.loads(read_text(folder / "config.json"))["architectures"][0]
        self.ours, self.whole = side == OURS, name == T5_CLASSES["T5"]
        self.model: nn.Module
        if self.ours:
            self.model = checkpoints.load(folder)
            places = ("embedding.weight", "encodings.0.table")
        else:
            kind = getattr(import_module("transformers"), name)
            attention = "sdpa" if side == HF_SDPA else "eager"
            self.model = kind.from_pretrained(folder, attn_implementation=attention)
            if side == HF_TABLE:
                use_bias_table(self.model)
            places = ("shared.weight", "block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        self.model.train()
        # the first match, which in the whole T5 is the encoder's table
        self.watched = [next(p for key, p in self.model.named_parameters() if key.endswith(at)) for at in places]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self, batch: int, n: int, *, update: bool = True) -> Run:
        """Returns a step on random tokens; the step returns the loss and the gradients of embeddings and bias."""
        vocab_size = self.watched[0].shape[0]
        ids, targets = _ids(batch, n, vocab_size), _ids(batch, max(1, n // 4), vocab_size)
        labels = targets if self.whole else ids
        inputs: dict[str, Any] = {"ids" if self.ours else "input_ids": ids}
        if self.whole:
            inputs |= {"decoder_ids": targets} if self.ours else {"decoder_input_ids": targets, "use_cache": False}

        def step() -> list[Tensor]:
            self.optimizer.zero_grad()
            out = _first(self.model(**inputs))
            loss = F.cross_entropy(out.flatten(0, 1), labels.flatten() % out.shape[-1])
            loss.backward()
            if update:
                self.optimizer.step()
            embeddings, table = (parameter.grad for parameter in self.watched)
            assert embeddings is not None
            assert table is not None
            return [loss, embeddings, table if self.ours else table.mT]  # [buckets, heads] in transformers

        return step


def quiet() -> None:
    """Turns off the progress bars and loading reports of transformers."""
    logging = import_module("transformers").utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _ids(batch: int, n: int, vocab_size: int) -> Tensor:
    """Random ids, the same for all sides, without the first ones, which are special."""
    return torch.randint(4, vocab_size, (batch, n), generator=torch.Generator().manual_seed(0))


def _first(out: Any) -> Tensor:
    """The output of a model, or the first one of a model of transformers."""
    first: Tensor = out if isinstance(out, Tensor) else out[0]
    return first
