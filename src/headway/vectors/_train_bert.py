"""Training of a small BERT on a user's own texts by masked language modeling."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common import training as loop
from .._common.extras import need
from .._common.files import from_json, make_folder, write_text
from .._common.lines import write_lines
from .._common.progress import Share, nobody
from ..checkpoints import BERT, Checkpoint, Config, load, save
from ..checkpoints import tokenizer as read_tokenizer
from ..errors import HeadwayError
from ..models import Encoder
from ._text import need_texts

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP, MASK = (SPECIAL.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""The share of tokens to be predicted, and of these, the shares that are masked or replaced by a random token."""
STD, WIDTH = 0.02, 768
"""The standard deviation of initial values in the paper, and the width it is for."""
WARMUP, WEIGHT_DECAY, CLIP = 0.1, 0.01, 1.0
WAVES = 2.0
"""The initial size of position embeddings relative to those of words."""
HELD_OUT = 20
"""One row out of this many is held out."""
MOST_HELD_OUT = 200
EVALUATIONS = 10
SETTINGS, STATE, RESULTS = "training.json", "training.pt", "training.jsonl"


@dataclass(frozen=True)
class Settings:
    """The settings of a training; raises HeadwayError for one that is out of range."""

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    length: int
    steps: int
    batch: int
    learning_rate: float
    seed: int

    def __post_init__(self) -> None:
        least = {"vocab_size": 32, "length": 8, **dict.fromkeys(("embed_dim", "num_layers", "num_heads"), 1)}
        for name, value in {**least, "steps": 1, "batch": 1}.items():
            if getattr(self, name) < value:
                raise HeadwayError(f"{name} is {getattr(self, name)}: give at least {value}")
        if self.embed_dim % self.num_heads:
            raise HeadwayError(f"embed_dim is {self.embed_dim}, not a multiple of num_heads {self.num_heads}: give one")
        if not 0 < self.learning_rate < math.inf:
            raise HeadwayError(f"learning_rate is {self.learning_rate}: give a number above 0, such as 0.002")

    @property
    def std(self) -> float:
        """The standard deviation of initial values, which keeps a layer's output as large as at the paper's width."""
        return STD * (WIDTH / self.embed_dim) ** 0.5

    def config(self, vocab_size: int) -> dict[str, Any]:
        """The config.json of the model."""
        return {
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "vocab_size": vocab_size,
            "hidden_size": self.embed_dim,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": 4 * self.embed_dim,
            "hidden_act": "gelu",
            "max_position_embeddings": self.length,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "initializer_range": self.std,
            "pad_token_id": 0,
        }


def train_bert(
    texts: Iterable[str],
    out: str | Path,
    *,
    vocab_size: int = 8000,
    embed_dim: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    length: int = 128,
    steps: int = 5000,
    batch: int = 8,
    learning_rate: float = 2e-3,
    seed: int = 0,
    watch: Share | None = None,
) -> Encoder:
    """Trains a BERT on texts, writes it to a folder, and returns it.

        loss = −mean over the chosen tokens t of ln p(t | the text with the chosen ones hidden)

    Pieces of words are learned from the texts (WordPiece, in lower case without accents, Chinese character by
    character). The texts are joined with [SEP] between them; a row is [CLS], length − 2 tokens from anywhere in
    them, [SEP]. The model must predict 15 % of its tokens: 80 % of those are replaced by [MASK], 10 % by another token
    at random, 10 % are kept. One row of twenty is held out. The optimizer is AdamW with a weight decay of 0.01 for
    matrices only; the learning rate rises linearly for a tenth of the steps and falls linearly to 0; gradients are
    clipped at 1.

    Four things differ from the paper, as a small model is trained for few steps. Matrices are initialised from N(0,
    0.02²·768/embed_dim), which is the paper's at its width of 768. The table of positions starts with sines and cosines
    (Vaswani et al. 2017). The head's bias starts with the logarithms of the tokens' frequencies. There is no dropout
    (Geiping and Goldstein 2023) and no prediction of the next sentence (Liu et al. 2019).

    ``out/training.jsonl`` has a line for each tenth of the steps: step, seconds, the losses of training and of the
    held-out rows in nats, the share of their hidden tokens that is predicted correctly (``accuracy``), and the same
    numbers of a prediction by the tokens' frequencies (``unigram_loss`` and ``unigram_accuracy``).

    A call that was stopped continues from the last checkpoint in ``out`` when it is repeated, with the same bits on the
    same CPU; one that is finished loads the model. The same seed gives the same model.

    Args:
        texts: the documents.
        out: the folder.
        vocab_size: the largest number of pieces; fewer if the texts have no more.
        embed_dim: the width of the hidden states, a multiple of num_heads; the feed-forward is four times as wide.
        num_layers: the number of layers.
        num_heads: the number of heads.
        length: the number of tokens of a row, at least 8, which is the most that the model reads.
        steps: the number of steps.
        batch: the number of rows of a step; training reads steps·batch·length tokens.
        learning_rate: the highest rate.
        seed: the seed of parameters, rows and hidden tokens.
        watch: called with the share of the work that is done, 0 … 1.

    Raises:
        Diverged: if the training diverges; ``out`` keeps the last checkpoint.
        HeadwayError: if a setting is out of range, the texts have less than two rows, or the folder holds a training
            with other settings or texts, or anything else.

    References:
        Devlin et al. 2019; Wu et al. 2016 (WordPiece).

    Example:
        model = train_bert(texts, "my-bert")
        headway.load("my-bert")                      # the same model; transformers reads the folder too
        Bert(path="my-bert").encode("the cat sat")
    """
    settings = Settings(vocab_size, embed_dim, num_layers, num_heads, length, steps, batch, learning_rate, seed)
    need_texts(texts)
    texts, out = _texts(texts), Path(out)
    _agree(out, {**asdict(settings), "texts": _digest(texts)})
    if (out / "config.json").is_file():  # written last
        (out / STATE).unlink(missing_ok=True)
        kept = load(out)
        assert isinstance(kept, Encoder)
        model = kept
    else:
        pieces = _pieces(texts, out, vocab_size)
        train, held_out = _split(_stream(texts, pieces), length)
        logs = _frequencies(train, pieces.get_vocab_size())
        model = _drawn(settings.config(len(logs)), logs, seed)
        _train(model, train, logs, held_out, settings, out, watch or nobody)
        save(model, out)
        (out / STATE).unlink(missing_ok=True)
    if watch is not None:
        watch(1.0)
    return model.eval()


def hide(ids: Tensor, vocab_size: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of ids with some hidden, int64 [batch, n], and which ones the model must guess, bool [batch, n].

    It must guess 15 %, never special tokens. Of these, 80 % become [MASK], and 10 % another token that is not
    special.

    References:
        Devlin et al. 2019, section 3.1 and appendix A.1.
    """
    chosen = (torch.rand(ids.shape, generator=draws) < CHOSEN) & (ids >= len(SPECIAL))
    how = torch.rand(ids.shape, generator=draws)
    random = torch.randint(len(SPECIAL), vocab_size, ids.shape, generator=draws)
    changed = torch.where(how < MASKED, MASK, torch.where(how < MASKED + RANDOM, random, ids))
    return torch.where(chosen, changed, ids), chosen


# -------------------------------------------------------------------- training data


def _texts(texts: Iterable[str]) -> list[str]:
    documents = list(texts)
    for number, text in enumerate(documents):
        if not isinstance(text, str):
            raise HeadwayError(f"text {number} is a {type(text).__name__}: give texts as str")
    return documents


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\xff")
    return digest.hexdigest()


def _pieces(texts: Sequence[str], out: Path, vocab_size: int) -> Any:
    """Returns the tokenizer of the folder, or trains one and writes it there."""
    if not (out / "tokenizer.json").is_file():
        library = need("tokenizers", "train_bert", "checkpoints")
        made = library.Tokenizer(library.models.WordPiece(_vocabulary(texts, vocab_size, library), unk_token="[UNK]"))
        _dress(made, library)
        made.decoder = library.decoders.WordPiece(prefix="##")
        made.post_processor = library.processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
        made.add_special_tokens(list(SPECIAL))
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
        write_text(out / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")
        write_text(out / "tokenizer.json", made.to_str(pretty=True))
    tokenizer = read_tokenizer(out)
    if max(tokenizer.get_vocab().values()) >= tokenizer.get_vocab_size():
        raise HeadwayError(f"{out / 'tokenizer.json'} has other ids than 0, 1, 2 …: give a new folder as out")
    return tokenizer


def _vocabulary(texts: Sequence[str], vocab_size: int, library: Any) -> dict[str, int]:
    """Returns the pieces and their ids, special tokens first.

    The trainer numbers pieces of one letter within words ("##a") in the order of its hash table, which differs from run
    to run, and breaks ties by these numbers. They are therefore given as special tokens, whose numbers are fixed.
    """
    made = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
    _dress(made, library)
    words = Counter(
        word for text in texts for word, _ in made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(text))
    )
    anywhere, inside = Counter[str](), Counter[str]()
    for word, count in words.items():
        for place, letter in enumerate(word):
            anywhere[letter] += count
            inside[letter] += count * (place > 0)
    letters = _most(anywhere, vocab_size // 2)  # thousands for Chinese
    within = [letter for letter in _most(inside, vocab_size // 3) if letter in letters]
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIAL, *(f"##{letter}" for letter in within)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    vocabulary: dict[str, int] = made.get_vocab()
    return vocabulary


def _dress(made: Any, library: Any) -> None:
    """Sets the normalization and splitting of text before it is cut into pieces."""
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()


def _most(counts: Counter[str], most: int) -> list[str]:
    return sorted((letter for letter in counts if counts[letter]), key=lambda letter: (-counts[letter], letter))[:most]


def _stream(texts: Sequence[str], pieces: Any) -> Tensor:
    """Returns the tokens of all texts with [SEP] between them, int64 [tokens]."""
    parts = []
    for start in range(0, len(texts), 1000):
        for encoding in pieces.encode_batch(texts[start : start + 1000], add_special_tokens=False):
            if encoding.ids:
                parts.append(torch.tensor([*encoding.ids, SEP]))
    return torch.cat(parts)[:-1] if parts else torch.zeros(0, dtype=torch.int64)


def _split(stream: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Returns the training tokens, int64 [tokens], and the held-out rows, int64 [rows, length − 2]."""
    rows = len(stream) // (length - 2)
    if rows < 2:
        raise HeadwayError(
            f"the texts have {len(stream)} tokens, which is less than two rows of {length - 2}: give longer texts, or "
            "a lower length"
        )
    whole_rows, rest = stream[: rows * (length - 2)].view(rows, -1), stream[rows * (length - 2) :]
    held_out = torch.arange(rows) % HELD_OUT == 1
    return torch.cat([whole_rows[~held_out].flatten(), rest]), whole_rows[held_out][:MOST_HELD_OUT]


def _frequencies(train: Tensor, vocab_size: int) -> Tensor:
    """Returns the logarithms of the relative frequencies of tokens that may be masked, [vocab_size]; none is −∞."""
    counts = torch.bincount(train, minlength=vocab_size).float() + 1
    counts[: len(SPECIAL)] = 1
    return (counts / counts.sum()).log()


def _framed(rows: Tensor) -> Tensor:
    """Adds [CLS] before and [SEP] after each row."""
    return F.pad(F.pad(rows, (1, 0), value=CLS), (0, 1), value=SEP)


# -------------------------------------------------------------------- training


def _drawn(config: dict[str, Any], logs: Tensor, seed: int) -> Encoder:
    """Initializes the model of a config: matrices and tables normal, biases 0, norms 1, the head's bias as given."""
    with torch.random.fork_rng(devices=[]):
        model: Any = BERT().build(Config(config), head=True)
    draws = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=config["initializer_range"], generator=draws)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    table = model.stack.encodings[0].table
    with torch.no_grad():
        model.head.bias.copy_(logs)
        table.copy_(_waves(*table.shape) * (WAVES * config["initializer_range"]))
    model.checkpoint = Checkpoint("BertForMaskedLM", config)
    return model


def _waves(length: int, dim: int) -> Tensor:
    """Returns the sinusoids of Vaswani et al. 2017, scaled to a mean square of 1, [length, dim]."""
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :dim] * 2**0.5


def _train(
    model: Encoder, train: Tensor, logs: Tensor, held_out: Tensor, settings: Settings, out: Path, watch: Share
) -> None:
    """Trains in place, from the checkpoint in ``out`` on if there is one."""
    groups = ([p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim == 1])
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": WEIGHT_DECAY}, {"params": groups[1], "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    course = _Course(model, _Exam(held_out, logs, len(logs), settings), settings, out / RESULTS)
    offsets, room = torch.arange(settings.length - 2), len(train) - (settings.length - 2)

    def loss(model: Encoder, step: int) -> Tensor:
        starts = torch.randint(0, room + 1, (settings.batch, 1), generator=course.draws)
        return guesses(model, _framed(train[starts + offsets]), len(logs), course.draws)[0]

    loop.train(
        model,
        loss,
        optimizer,
        steps=settings.steps,
        rate=lambda step: rate(step, settings.steps),
        clip=CLIP,
        checkpoint=out / STATE,
        companion=course,
        watch=lambda step, _: watch(step / settings.steps),
    )


class _Course(loop.Companion):
    """Draws rows and hidden tokens, and writes a line of results for each tenth of the steps."""

    def __init__(self, model: Encoder, exam: _Exam, settings: Settings, path: Path) -> None:
        self.model, self.exam, self.settings, self.path = model, exam, settings, path
        self.draws = torch.Generator().manual_seed(settings.seed + 1)
        self.lines: list[dict[str, float]] = []
        self.losses: list[float] = []

    def after(self, step: int, loss: float, seconds: float) -> None:
        self.losses.append(loss)
        if step % max(1, self.settings.steps // EVALUATIONS) == 0 or step == self.settings.steps:
            mean = math.fsum(self.losses) / len(self.losses)
            self.lines.append({"step": step, "seconds": round(seconds, 1), "loss": mean, **self.exam.grade(self.model)})
            write_lines(self.path, self.lines)
            self.losses = []

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws.get_state(), "lines": self.lines, "losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws.set_state(state["draws"])
        lines, losses = state["lines"], state["losses"]
        numbers = [*losses, *(number for line in lines for number in line.values())]
        if not all(isinstance(number, (int, float)) for number in numbers):
            raise ValueError("its lines or losses are not numbers")
        self.lines, self.losses = list(map(dict, lines)), list(losses)


def guesses(model: Encoder, ids: Tensor, vocab_size: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hides tokens of rows and has the model guess them: the mean loss in nats, and which guesses are right."""
    hidden, chosen = hide(ids, vocab_size, draws)
    logits = model.logits(model.hidden(hidden)[chosen])  # the other tokens are not predicted
    right = ids[chosen]
    return F.cross_entropy(logits, right, reduction="sum") / max(1, len(right)), logits.detach().argmax(-1) == right


def rate(step: int, steps: int) -> float:
    """The share of the learning rate: up in a line for a tenth of the steps, then down in a line."""
    warmup = max(1, round(WARMUP * steps))
    return (step + 1) / warmup if step < warmup else (steps - step) / max(1, steps - warmup)


class _Exam:
    """An evaluation on held-out rows with fixed masked tokens, and the loss of predicting by frequency only."""

    def __init__(self, rows: Tensor, logs: Tensor, vocab_size: int, settings: Settings) -> None:
        self.rows, self.vocab_size, self.settings = _framed(rows), vocab_size, settings
        _, chosen = hide(self.rows, vocab_size, self._draws())
        words = self.rows[chosen]
        n = max(1, len(words))
        self.unigram = {
            "unigram_loss": float(-logs[words].double().sum()) / n,
            "unigram_accuracy": float((words == logs.argmax()).sum()) / n,
        }

    def _draws(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.seed + 2)

    @torch.no_grad()
    def grade(self, model: Encoder) -> dict[str, float]:
        """The held-out loss in nats and the share of right guesses, beside those of the frequencies."""
        model.eval()
        loss, right = guesses(model, self.rows, self.vocab_size, self._draws())
        model.train()
        accuracy = float(right.double().mean()) if len(right) else 0.0
        return {"held_out_loss": float(loss), "accuracy": accuracy, **self.unigram}


# -------------------------------------------------------------------- the folder


def _agree(out: Path, settings: dict[str, Any]) -> None:
    """Writes the settings to a new folder, or raises HeadwayError if the folder has other ones."""
    path = out / SETTINGS
    if not path.is_file():
        taken = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if (out / name).exists()]
        if out.exists() and not out.is_dir():
            taken = [out.name]
        if taken:
            raise HeadwayError(f"{out} holds {taken[0]} that train_bert did not write: give a new folder as out")
        make_folder(out)
        write_text(path, json.dumps(settings, indent=2) + "\n")
        return
    try:
        before = from_json(path.read_text())
        differs = [(name, before.get(name)) for name, value in settings.items() if before.get(name) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise HeadwayError(f"{path} cannot be read ({error}): give a new folder as out") from None
    for name, value in differs:
        if name == "texts":
            raise HeadwayError(f"{out} holds a training on other texts: give those, or a new folder as out")
        raise HeadwayError(
            f"{out} holds a training with {name} = {value}, now {settings[name]}: give {name}={value}, or a new folder "
            "as out"
        )
