"""The checks that every class of word vectors passes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadwayError
from ..models import Encoder, Stack
from ..nn import Block
from ..positions import encoding
from ..vectors import VECTORS, Vectors, Vocabulary
from ._checks import by_name, run_checks
from .tolerances import assert_close

Check = Callable[["Trial"], None]
ROUNDING = 1e-5
"""The largest difference between float32 and float64, for vectors and cosines of a size of about one."""
STRANGE = "ⵥⵣⵥⵣⵥ"
"""A word that occurs in no text, nor does any part of it."""
SAMPLE = 24
"""Words that are checked one by one."""


def check_vectors(kind: type[Vectors], texts: Sequence[str], **options: Any) -> list[str]:
    """Runs all checks of ``VECTOR_CHECKS`` on a class of word vectors.

    Args:
        kind: the class.
        texts: the texts that it is fitted to, with at least some hundred words, so that ``min_count`` leaves three.
        **options: the arguments of the class.

    Returns:
        The names of the checks that it passed, which are all of them.

    Raises:
        AssertionError: at the first check that fails; the message names the check and its result.
    """
    return run_checks(kind.__name__, VECTOR_CHECKS, Trial(kind, list(texts), options))


# ---------------------------------------------------------------- set-up


@dataclass
class Trial:
    """A class of word vectors, its options, and the texts that it is fitted to, once for all checks."""

    kind: type[Vectors]
    texts: list[str]
    options: dict[str, Any] = field(default_factory=dict)

    def new(self) -> Vectors:
        return self.kind(**self.options)

    @cached_property
    def fitted(self) -> Vectors:
        return self.new().fit(self.texts)

    @cached_property
    def sample(self) -> list[str]:
        """Words from the whole vocabulary, including the most frequent one."""
        words = self.fitted.words
        return list(words[:: -(-len(words) // SAMPLE)])

    @cached_property
    def text(self) -> str:
        """The first text with at least four different words of the vocabulary."""
        for text in self.texts:
            if len({token for token in self.fitted.tokenizer(text) if token in self.fitted.index}) >= 4:
                return text
        raise AssertionError("no text has four different words of the vocabulary: give more texts")

    @property
    def in_context(self) -> bool:
        """Whether a word's vector depends on its sentence, as it does if the class has its own ``encode``."""
        return self.kind.encode is not Vectors.encode

    @cached_property
    def cosines(self) -> Tensor:
        """The cosine of each pair of words in float64, [words, words]."""
        return _cosines(self.fitted.rows(torch.arange(len(self.fitted))).double())


def _cosines(rows: Tensor, others: Tensor | None = None) -> Tensor:
    """⟨x, y⟩/(|x|·|y|), 0 for a zero vector."""
    others = rows if others is None else others
    lengths = rows.norm(dim=1)[:, None] * others.norm(dim=1)
    return torch.where(lengths > 0, rows @ others.T / lengths, 0.0)


def _refused(what: str, act: Callable[[], object]) -> None:
    """Checks that ``act`` raises a HeadwayError of one line."""
    said = ""
    try:
        act()
    except HeadwayError as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}({error}) and no HeadwayError") from error
    assert said, f"{what} is not refused"
    assert "\n" not in said, f"{what}: the error is not one line: {said}"


def _refuses(act: Callable[[], object]) -> bool:
    try:
        act()
    except HeadwayError:
        return True
    return False


# ---------------------------------------------------------------- the checks


def is_documented(trial: Trial) -> None:
    """Checks that the class has a docstring and a name, and that its options are attributes that JSON can store."""
    assert (vars(trial.kind).get("__doc__") or "").strip(), f"{trial.kind.__name__} has no docstring"
    assert trial.kind.name, f"{trial.kind.__name__} has no name"
    vectors = trial.new()
    try:
        options = vectors.options
        again = trial.kind(**json.loads(json.dumps(options))).options
    except (AttributeError, TypeError) as error:
        raise AssertionError(f"an option is not kept: {error}") from error
    assert again == options, f"the options {options} became {again}"


def knows_the_words(trial: Trial) -> None:
    """Checks that the vocabulary has the words of the texts, by frequency and then alphabet, with the right counts."""
    vectors = trial.fitted
    counted = Counter(token for text in trial.texts for token in vectors.tokenizer(text))
    kept = {word: count for word, count in counted.items() if count >= vectors.min_count}
    expected = sorted(kept, key=lambda word: (-kept[word], word))[: vectors.max_words]
    assert len(vectors) == len(expected), f"{len(vectors)} words, and the texts have {len(expected)}"
    for own, word in zip(vectors.words, expected, strict=True):
        assert own == word, f"{own!r} is in the place of {word!r}: the order is not that of counts"
    assert vectors.counts is not None, "no counts"
    assert vectors.counts.tolist() == [kept[word] for word in expected], "the counts are wrong"


def tells_how_far_it_is(trial: Trial) -> None:
    """Checks that ``watch`` is called with shares of the work that never decrease and end with 1."""
    told: list[float] = []
    trial.new().fit(trial.texts, watch=told.append)
    assert told, "watch is not called"
    assert told[-1] == 1, f"watch is called with {told[-1]} at the end"
    assert told == sorted(told), "watch is called with less than before"
    assert told[0] >= 0, f"watch is called with {told[0]}"


def gives_each_word_a_vector(trial: Trial) -> None:
    """Checks that each word has a finite float32 vector [dim] that is not zero, by itself and by ``rows``."""
    vectors = trial.fitted
    assert vectors.dim >= 1, f"dim is {vectors.dim}"
    rows = vectors.rows(torch.tensor([vectors.index[word] for word in trial.sample]))
    for word, row in zip(trial.sample, rows, strict=True):
        vector = vectors.vector(word)
        assert word in vectors, f"{word!r} has a vector but is not `in` the vectors"
        assert vector.dtype == torch.float32, f"the vector of {word!r} is {vector.dtype}"
        assert tuple(vector.shape) == (vectors.dim,), f"the vector of {word!r} has shape {tuple(vector.shape)}"
        assert not vector.requires_grad, f"the vector of {word!r} requires a gradient"
        assert vector.abs().max() > 0, f"the vector of {word!r} is zero"
        assert_close(f"rows of {word!r}", row, vector, ROUNDING)


def encodes_token_by_token(trial: Trial) -> None:
    """Checks that ``encode`` gives one vector for each token: its word's, or zeros for an unknown word.

    A vector in context must differ from one sentence to another.
    """
    vectors = trial.fitted
    for text in (trial.text, f"{STRANGE} {trial.text}"):
        tokens, rows = vectors.tokenizer(text), vectors.encode(text)
        assert rows.dtype == torch.float32, f"encode gives {rows.dtype}"
        assert not rows.requires_grad, "the result of encode requires a gradient"
        if trial.in_context:
            assert tuple(rows.shape) == (len(rows), vectors.dim), f"encode gives {tuple(rows.shape)}"
            assert torch.isfinite(rows).all(), "encode is not finite"
            continue
        nothing = torch.zeros(vectors.dim)
        expected = torch.stack([vectors.vector(token) if token in vectors else nothing for token in tokens])
        assert_close("encode", rows, expected, ROUNDING)
    assert tuple(vectors.encode("").shape) == (0, vectors.dim), f"encode('') gives {tuple(vectors.encode('').shape)}"
    if trial.in_context:
        first = vectors.tokenizer(trial.text)[0]
        apart = vectors.encode(f"{first} {trial.sample[0]}")[0] - vectors.encode(f"{first} {trial.sample[-1]}")[0]
        assert apart.abs().max() > 0, f"{first!r} has the same vector beside {trial.sample[0]!r} and another word"


def sums_up_a_document(trial: Trial) -> None:
    """Checks that ``document`` gives one vector for any text, and zeros for a text of unknown words.

    If vectors do not depend on the sentence, the order of the words must not matter, and a class without its own
    ``document`` must give the mean of their vectors.
    """
    vectors = trial.fitted
    vector = vectors.document(trial.text)
    assert vector.dtype == torch.float32, f"document gives {vector.dtype}"
    assert vector.ndim == 1, f"document gives {tuple(vector.shape)}"
    assert torch.isfinite(vector).all(), "document is not finite"
    assert vector.abs().max() > 0, "document is zero"
    if trial.in_context:
        return
    tokens = vectors.tokenizer(trial.text)
    straight, back = (vectors.document(" ".join(order)) for order in (tokens, tokens[::-1]))
    assert_close("document of the same words in another order", back, straight, ROUNDING)
    if trial.kind.document is Vectors.document:
        expected = torch.stack([vectors.vector(token) for token in tokens if token in vectors]).double().mean(0)
        assert_close("document", vector, expected, ROUNDING)
    for text in ("", STRANGE):
        nothing = vectors.document(text)
        assert nothing.shape == vector.shape, f"document of {text!r} has shape {tuple(nothing.shape)}"
        assert text in vectors or not nothing.any(), f"document of {text!r} is not zero"


def finds_the_nearest(trial: Trial) -> None:
    """Checks ``most_similar`` and ``similarity`` against cosines in float64; a word is not its own neighbour.

    A class without them must raise HeadwayError.
    """
    vectors, words = trial.fitted, trial.sample[:4]
    if _refuses(lambda: vectors.most_similar(words[0])):
        _refused("most_similar", lambda: vectors.most_similar(words[0]))
        _refused("most_similar of a vector", lambda: vectors.most_similar(vectors.vector(words[0])))
        return
    for word in words:
        own = vectors.index[word]
        expected = trial.cosines[own].clone()
        others = torch.cat([expected[:own], expected[own + 1 :]])
        for count in (1, 5, len(vectors) + 1):
            _right_order(f"most_similar({word!r}, {count})", vectors.most_similar(word, count), others, count)
            for near, value in vectors.most_similar(word, count)[:5]:
                assert near != word, f"{word!r} is among its own neighbours"
                _right_value(f"the cosine of {word!r} and {near!r}", value, expected[vectors.index[near]])
        by_vector = vectors.most_similar(vectors.vector(word), 3)
        _right_order(f"most_similar of the vector of {word!r}", by_vector, expected, 3)
    for a, b in pairwise(words):
        exact = trial.cosines[vectors.index[a], vectors.index[b]]
        _right_value(f"similarity({a!r}, {b!r})", vectors.similarity(a, b), exact)


def _right_order(what: str, neighbours: list[tuple[str, float]], cosines: Tensor, count: int) -> None:
    assert len({word for word, _ in neighbours}) == len(neighbours), f"{what} gives a word twice"
    values = torch.tensor([value for _, value in neighbours], dtype=torch.float64)
    assert bool((values.diff() <= 0).all()), f"{what} is not sorted"
    assert_close(what, values, cosines.sort(descending=True).values[:count], ROUNDING)


def _right_value(what: str, cosine: float, exact: Tensor) -> None:
    assert abs(cosine - exact.item()) <= ROUNDING, f"{what} is {cosine:.6f}, in float64 {exact.item():.6f}"


def solves_analogies(trial: Trial) -> None:
    """Checks ``analogy`` in float64: the words nearest to c + b − a, each of length one, except the three words.

    A class without it must raise HeadwayError.
    """
    vectors = trial.fitted
    a, b, c = trial.sample[1:4]
    if _refuses(lambda: vectors.analogy(a, b, c)):
        _refused("analogy", lambda: vectors.analogy(a, b, c))
        return
    rows = vectors.rows(torch.arange(len(vectors))).double()
    units = {word: vectors.vector(word).double() / vectors.vector(word).double().norm() for word in (a, b, c)}
    cosines = _cosines((units[b] - units[a] + units[c])[None], rows)[0]
    rest = torch.tensor([cosine for word, cosine in zip(vectors.words, cosines, strict=True) if word not in (a, b, c)])
    answers = vectors.analogy(a, b, c, 5)
    for word, value in answers:
        assert word not in (a, b, c), f"analogy answers with {word!r}, a word of the question"
        _right_value(f"analogy's {word!r}", value, cosines[vectors.index[word]])
    _right_order("analogy", answers, rest.double(), 5)


def makes_an_embedding(trial: Trial) -> None:
    """Checks that ``embedding`` has a vocabulary's vectors as rows, zeros for unknown words, and a last row of zeros.

    The rows must be constant or trainable, as requested.
    """
    vectors = trial.fitted
    vocabulary = Vocabulary([*trial.sample[::-1], STRANGE], vectors.tokenizer)
    nothing = torch.zeros(vectors.dim)
    expected = [vectors.vector(word) if word in vectors else nothing for word in vocabulary.words] + [nothing]
    for words in (vocabulary, list(vocabulary.words)):
        made = vectors.embedding(words)
        assert isinstance(made, nn.Embedding), f"embedding is a {type(made).__name__}"
        assert_close("rows of the embedding", made.weight, torch.stack(expected), ROUNDING)
        assert not made.weight.requires_grad, "a frozen embedding requires a gradient"
    whole = vectors.embedding(trained=True)
    assert len(whole.weight) == len(vectors) + 1, f"{len(whole.weight)} rows for {len(vectors)} words"
    assert not whole.weight[-1].any(), "the row of the unknown word is not zero"
    assert_close("the whole embedding's rows", whole.weight[: len(vectors)], vectors.rows(_all(vectors)), ROUNDING)
    assert whole.weight.requires_grad, "a trained embedding requires no gradient"
    with torch.no_grad():
        whole.weight.zero_()
    assert vectors.vector(trial.sample[0]).any(), "training an embedding changes the vectors"


def _all(vectors: Vectors) -> Tensor:
    return torch.arange(len(vectors))


def feeds_a_transformer(trial: Trial) -> None:
    """Checks that an encoder can read the vectors: its outputs are finite and depend on order; gradients if trained."""
    vectors = trial.fitted
    vocabulary = Vocabulary(trial.sample, vectors.tokenizer)
    rows = vectors.embedding(vocabulary).weight[:-1]
    far = int((rows - rows[0]).norm(dim=1).argmax())
    assert far, "all words have the same vector"
    ids = torch.tensor([[0, far, far, 0, far, far]])
    for trained in (False, True):
        torch.manual_seed(0)
        embedding = vectors.embedding(vocabulary, trained=trained)
        stack = Stack([Block(16, 2)], encoding("rope", head_dim=8), entry=nn.Linear(vectors.dim, 16))
        model = Encoder.of_parts(embedding, stack)
        out = model(ids)
        assert tuple(out.shape) == (1, 6, 16), f"the Transformer gives {tuple(out.shape)}"
        assert torch.isfinite(out).all(), "the Transformer's output is not finite"
        assert not torch.allclose(model(ids.flip(1)).flip(1), out, atol=1e-7), "the output does not depend on order"
        out.square().sum().backward()
        gradient = embedding.weight.grad
        if trained:
            assert gradient is not None, "no gradient reaches the vectors"
            assert gradient[ids[0]].abs().amax(1).min() > 0, "the gradient of a vector that was used is zero"
        else:
            assert gradient is None, "a gradient reaches frozen vectors"


def survives_saving(trial: Trial) -> None:
    """Checks that a file restores words, options and vectors; by ``_tensors`` if the class is not in VECTORS."""
    vectors, expected = trial.fitted, trial.fitted.options
    if VECTORS.get(trial.kind.name) is trial.kind:
        from ..vectors._files import load

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vectors.safetensors"
            vectors.save(path)
            back: Vectors = load(path)
        # the path that it was read from may be one of its options
        expected = {name: value if back.options[name] != str(path) else str(path) for name, value in expected.items()}
    else:
        back = trial.kind(**vectors.options, tokenizer=vectors.tokenizer)
        back._take(vectors.words, vectors.counts)
        back._restore({name: tensor.clone() for name, tensor in vectors._tensors().items()})
    assert type(back) is trial.kind, f"a file of {trial.kind.__name__} gives a {type(back).__name__}"
    assert back.words == vectors.words, "the words changed in a file"
    assert back.counts is not None, "the counts are lost in a file"
    assert vectors.counts is not None, "no counts"
    assert torch.equal(back.counts, vectors.counts), "the counts changed in a file"
    assert back.options == expected, f"the options {expected} became {back.options}"
    text = f"{STRANGE} {trial.sample[0]}s {trial.text}"
    assert torch.equal(back.rows(_all(back)), vectors.rows(_all(vectors))), "the vectors changed in a file"
    assert torch.equal(back.encode(text), vectors.encode(text)), "encode changed in a file"
    assert torch.equal(back.document(text), vectors.document(text)), "document changed in a file"
    if not _refuses(lambda: vectors.most_similar(trial.sample[0])):
        nearest = back.most_similar(trial.sample[0])
        assert nearest == vectors.most_similar(trial.sample[0]), "most_similar changed in a file"


def repeats_itself(trial: Trial) -> None:
    """Checks that the same options and seed give the same vectors, and another seed gives others."""
    rows = trial.fitted.rows(_all(trial.fitted))
    torch.manual_seed(12345)  # torch's own generator must have no effect
    again = trial.new().fit(trial.texts)
    assert torch.equal(again.rows(_all(again)), rows), "the same seed gives other vectors"
    if "seed" in trial.fitted.options:
        options = trial.options | {"seed": trial.fitted.options["seed"] + 1}
        other = trial.kind(**options).fit(trial.texts)
        assert not torch.equal(other.rows(_all(other)), rows), "another seed gives the same vectors"


def refuses_what_it_cannot(trial: Trial) -> None:
    """Checks that wrong texts, words, counts and vectors, and calls before ``fit``, raise a HeadwayError."""
    vectors, word = trial.fitted, trial.sample[0]
    empty = trial.new()
    before: dict[str, Callable[[], object]] = {
        "vector": lambda: empty.vector(word),
        "encode": lambda: empty.encode(word),
        "document": lambda: empty.document(word),
        "similarity": lambda: empty.similarity(word, word),
        "most_similar": lambda: empty.most_similar(word),
        "analogy": lambda: empty.analogy(word, word, word),
        "embedding": lambda: empty.embedding(),
        "save": lambda: empty.save(Path(tempfile.gettempdir()) / "never.safetensors"),
    }
    for name, act in before.items():
        _refused(f"{name} before fit", act)
    assert word not in empty, f"{word!r} has a vector before fit"
    one: Any = 1
    text: Any = trial.texts[0]
    _refused("a text in place of texts", lambda: trial.new().fit(text))
    _refused("no texts", lambda: trial.new().fit([]))
    _refused("texts without words", lambda: trial.new().fit(["", " ", "!"]))
    _refused("a text that is a number", lambda: trial.new().fit([one]))
    if STRANGE not in vectors:
        _refused("the vector of a word that no text has", lambda: vectors.vector(STRANGE))
        _refused("neighbours of a word that no text has", lambda: vectors.most_similar(STRANGE))
        _refused("an analogy of a word that no text has", lambda: vectors.analogy(word, word, STRANGE))
        _refused("similarity of a word that no text has", lambda: vectors.similarity(word, STRANGE))
    _refused("no neighbours", lambda: vectors.most_similar(word, 0))
    _refused("neighbours of a vector of another length", lambda: vectors.most_similar(torch.ones(vectors.dim + 1)))


VECTOR_CHECKS: dict[str, Check] = by_name(
    is_documented,
    knows_the_words,
    tells_how_far_it_is,
    gives_each_word_a_vector,
    encodes_token_by_token,
    sums_up_a_document,
    finds_the_nearest,
    solves_analogies,
    makes_an_embedding,
    feeds_a_transformer,
    survives_saving,
    repeats_itself,
    refuses_what_it_cannot,
)
"""The checks of a class of word vectors by name."""
