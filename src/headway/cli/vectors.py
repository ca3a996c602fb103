"""``headway vectors``: word vectors, and a comparison of the methods for them."""

from __future__ import annotations

import ast
import inspect
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.extras import install_command, need
from .._common.files import LockedFolder, atomic_write, need_file_place, need_folder_place, remove_folder, write_tensors
from .._common.table import Table
from .._common.templates import need_reports
from .._common.text_files import read_text
from ..errors import HeadwayError, unknown
from ..study.word_vectors import QUICK, Protocol
from ..vectors import VECTORS
from ._app import Group
from ._console import Screen, console, consoles, going_on, heading, print_json
from ._options import Json, OutFolder, Quiet, completing
from ._remedies import with_options

if TYPE_CHECKING:
    from rich.console import Console

    from ..study.word_vectors import Comparison
    from ..vectors import Vectors

File = Annotated[
    str,
    typer.Argument(
        help="A file of vectors, by headway vectors train or of word2vec, GloVe or fastText; or a BERT, as a folder or "
        "by its id on the Hugging Face hub, such as intfloat/e5-small-v2."
    ),
]
Count = Annotated[int, typer.Option(help="The number of words to print for each.")]
METHOD_NAMES = tuple(VECTORS)
SHOWN = 6
"""Numbers of a vector that are printed."""
MOST_FREQUENT = 60
"""Words on a map if none are given."""
COMMAS = str.maketrans("，、", ",,")
"""Chinese separators as commas."""
SMALL_TEXT = 1_000_000
"""Of a text with fewer words, ``train`` says how often it was read by default."""
SOME_FAILED = 1
"""The exit code if some of the words were answered, as that of ls or cat for a file that is missing."""

run = typer.Typer(cls=Group, rich_markup_mode="rich", add_completion=False)


@run.callback(invoke_without_command=True)
def vectors(context: typer.Context) -> None:
    """Make and use vectors of words: one-hot, bag of words, TF-IDF, word2vec, GloVe, fastText, BERT.

    Examples:
        headway vectors train word2vec text.txt --out words.safetensors
        headway vectors similar words.safetensors king
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@run.command()
def compare(
    corpus: Annotated[
        Path | None,
        typer.Argument(
            help="UTF-8 text, with blank lines between documents. Default: a sample of Wikipedia.", show_default=False
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods, separated by commas: {', '.join(METHOD_NAMES)}. Default: all.",
            autocompletion=completing(lambda: METHOD_NAMES),
        ),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(help="Words whose neighbours are shown, separated by commas. Default: some frequent ones."),
    ] = None,
    dim: Annotated[int, typer.Option(help="Numbers in a vector, if the method lets one choose.")] = Protocol.dim,
    min_count: Annotated[int, typer.Option(help="Leave out words that occur less often.")] = Protocol.min_count,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Training steps of each Transformer that reads the vectors. "
            f"Default: {Protocol.steps}; with --quick {QUICK['steps']}."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A published encoder to compare with: its folder, or its id on the Hugging Face hub, such as "
            "intfloat/e5-small-v2. Default: none."
        ),
    ] = None,
    bert_steps: Annotated[
        int | None,
        typer.Option(
            help=f"Training steps of the BERT. Default: {Protocol.bert_steps}; with --quick {QUICK['bert_steps']}."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds. Differences need several seeds to be reliable.")] = 1,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take a few minutes in all: fewer training steps. The report says so."),
    ] = False,
    out: OutFolder = "headway-vectors",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit every method to one text, and compare the vectors, their cost, and a Transformer that reads them.

    Writes results.jsonl, vectors.md, two pictures and the vectors to --out.

    Examples:
        headway vectors compare --quick
        headway vectors compare text.txt --methods glove,fasttext --words king,river
    """
    from ..study import word_vectors

    need_folder_place(Path(out))
    need_reports()
    asked = {"steps": steps, "bert_steps": bert_steps}
    protocol = Protocol(
        dim=dim,
        min_count=min_count,
        words=None if words is None else tuple(split(words, "--words")),
        encoder=encoder,
        quick=quick,
        **{**(QUICK if quick else {}), **{name: value for name, value in asked.items() if value is not None}},
    )
    names = None if methods is None else split(methods, "--methods")
    say, telling = consoles(as_json, quiet)
    with going_on(out), Screen(telling) as screen:
        found = word_vectors.compare(corpus, names, out=out, protocol=protocol, seeds=seeds, watch=screen)
    found.write(out)
    files = [f"{out}/{name}" for name in (*found.files(), "vectors/")]
    if as_json:
        print_json("vectors compare", found.rows, notes=found.conclusions(), files=files)
        return
    _show(say, found)
    say.print(f"\n{', '.join(files)}", markup=False, soft_wrap=True)


@run.command()
def train(
    method: Annotated[
        str,
        typer.Argument(help=f"The method: {', '.join(METHOD_NAMES)}.", autocompletion=completing(lambda: METHOD_NAMES)),
    ],
    corpus: Annotated[Path, typer.Argument(help="A file of UTF-8 text, with blank lines between documents.")],
    out: Annotated[
        Path,
        typer.Option(help="File to write, .safetensors, or a folder for bert; one that exists is replaced."),
    ],
    dim: Annotated[
        int | None,
        typer.Option(help="Numbers in a vector, if the method lets one choose. Default: that of the method."),
    ] = None,
    chinese: Annotated[
        str | None,
        typer.Option(
            help="Cut Chinese into words (by jieba) or characters. Default: words if jieba is installed.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Any other option of the method, name=value, such as window=10; may be given several times. "
            "Default: those of the method."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compute the vectors of the words of a text, by one of the seven methods.

    A bert that was stopped in training goes on when the same command is repeated.

    Examples:
        headway vectors train glove text.txt --out words.safetensors
        headway vectors train fasttext text.txt --out w.safetensors --option min_n=2
    """
    from ..study._word_vectors_text import documents_of
    from ..vectors import Words
    from ..vectors._text import TooRareError, has_short_words

    if method not in VECTORS:
        raise unknown("method", method, VECTORS)
    options = dict(_option(VECTORS[method], one) for one in option or ())
    if dim is not None:
        options |= [_option(VECTORS[method], f"dim={dim}")]
    if method == "bert":
        need_folder_place(out)
    else:
        need_file_place(out)
    need("safetensors", "--out", extra="checkpoints")
    tokenizer = Words(chinese=chinese or "")
    own = {name: f"--option {name}=" for name in VECTORS[method]().options if name != "dim"}
    with with_options(own):
        made = VECTORS[method](**options, tokenizer=tokenizer)
    texts = documents_of(corpus)
    say, telling = consoles(as_json=False, quiet=quiet)
    began = time.monotonic()
    with _kept_training(made, out), with_options(own), Screen(telling) as screen:
        try:
            made.fit(texts, watch=lambda part: screen.progressed(method, part))
        except TooRareError as error:
            raise HeadwayError(f"{error}, as in --option min_count=1") from None
        made.save(out)
    say.print(
        f"{out}: {len(made):,} words, {made.dim:,} numbers each, from {len(texts):,} documents in "
        f"{time.monotonic() - began:.1f} s",
        soft_wrap=True,
    )
    epochs = made.options.get("epochs")
    words = 0 if made.counts is None else int(made.counts.sum())
    if isinstance(epochs, int) and "epochs" not in options and words < SMALL_TEXT:
        say.print(
            f"the text has {words:,} words and was read {epochs} times: for so few, --option epochs={4 * epochs} may "
            "give better vectors",
            markup=False,
            soft_wrap=True,
        )
    if any(has_short_words([word]) for word in made.words):
        by = "into words, by jieba" if tokenizer.chinese == "words" else "into single characters"
        wanted = chinese is None and tokenizer.chinese != "words"
        more = f"; {install_command('chinese')} for words" if wanted else ""
        say.print(f"Chinese was cut {by}{more}", markup=False, soft_wrap=True)


@run.command()
def similar(
    file: File,
    words: Annotated[list[str], typer.Argument(help="The words whose neighbours are printed.")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """Print the words nearest to each word, with their cosines; words without a vector and doubts go to stderr.

    The exit code is 0 if all words have a vector, 1 if some have none, 2 if none has.

    Examples:
        headway vectors similar words.safetensors king queen --count 5
    """
    from ..vectors import UnknownWordError

    found = _load(file)
    results = found.neighbours([_as_written(found, word) for word in words], count)
    without = [one.word for one in results if not one.known]
    if len(without) == len(results):
        raise UnknownWordError(without, found)
    notes = [str(UnknownWordError([word], found)) for word in without]
    notes += _made_of_parts(found, [one.word for one in results if one.known])
    notes += [f"{one.word}: {one.doubt}" for one in results if one.doubt is not None]
    if as_json:
        rows = [
            {"word": one.word, "neighbour": near, "cosine": cosine} for one in results for near, cosine in one.nearest
        ]
        print_json("vectors similar", rows, notes=notes)
    else:
        for one in results:
            if one.known:
                _ranked(one.word, one.nearest)
    for note in notes:
        _complain(note)
    if without:
        raise typer.Exit(SOME_FAILED)


@run.command()
def analogy(
    file: File,
    a: Annotated[str, typer.Argument(help="The first word, such as man.")],
    b: Annotated[str, typer.Argument(help="What the first word is to, such as king.")],
    c: Annotated[str, typer.Argument(help="The word whose counterpart is asked for, such as woman.")],
    count: Count = 5,
    as_json: Json = False,
) -> None:
    """Print which words are to C as B is to A: `man king woman` asks for the queen.

    Examples:
        headway vectors analogy words.safetensors man king woman
    """
    vectors = _load(file)
    a, b, c = (_as_written(vectors, word) for word in (a, b, c))
    found = vectors.analogy(a, b, c, count)
    notes = _made_of_parts(vectors, [a, b, c])
    if as_json:
        print_json("vectors analogy", [{"word": word, "cosine": cosine} for word, cosine in found], notes=notes)
    else:
        _ranked(f"{a} is to {b} as {c} is to", found)
    for note in notes:
        _complain(note)


@run.command()
def encode(
    file: File,
    text: Annotated[str, typer.Argument(help="The text, in quotes.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for all numbers, [tokens, dim]: .npy or .safetensors; one that exists is replaced. Default: "
            "none."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the vector of each token of a text, as a Transformer gets them; of one without a vector, zeros.

    Examples:
        headway vectors encode words.safetensors "the king of France" --out rows.npy
    """
    from ..vectors import UnknownWordError

    if out is not None and out.suffix not in (".npy", ".safetensors"):
        raise HeadwayError(f"--out {out} has an unknown ending: give .npy or .safetensors")
    if out is not None:
        need_file_place(out)
    found = _load(file)
    tokens, rows = found.tokenizer(text), found.encode(text)
    if not tokens:
        raise HeadwayError(f"the text {text!r} has no words: give some")
    without = [token for token, row in zip(tokens, rows, strict=True) if not row.any()]
    if len(without) == len(tokens):
        raise UnknownWordError(list(dict.fromkeys(tokens))[:SHOWN], found)
    say, _ = consoles(as_json)
    for token, row in zip(tokens, rows.tolist(), strict=True):
        numbers = " ".join(f"{value:8.4f}" for value in row[:SHOWN]) + (" …" if len(row) > SHOWN else "")
        say.print(f"{_wide(token, 16)} {numbers}{'' if any(row) else '   (no vector)'}", markup=False, soft_wrap=True)
    say.print(f"[{len(tokens)}, {rows.shape[1]}]", markup=False)
    for token in dict.fromkeys(without):
        _complain(str(UnknownWordError([token], found)))
    if out is not None:
        _write(rows, out)
        say.print(str(out), markup=False, soft_wrap=True)
    if as_json:
        its = [{"token": token, "vector": row} for token, row in zip(tokens, rows.tolist(), strict=True)]
        print_json("vectors encode", its, files=[out] if out else [])


@run.command("map")
def draw(
    file: File,
    out: Annotated[Path, typer.Option(help="File for the picture: .png, .pdf or .svg; one that exists is replaced.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Words, or groups such as animals=dog,cat. Default: the {MOST_FREQUENT} most frequent words.",
            show_default=False,
        ),
    ] = None,
    file_of_words: Annotated[
        Path | None,
        typer.Option(
            "--words", help="File of words in UTF-8; a line such as `animals: dog cat` is a group. Default: none."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="How words get two dimensions: t-sne or pca.")] = "t-sne",
    seed: Annotated[int, typer.Option(help="The seed of t-SNE; the same seed gives the same map.")] = 0,
    title: Annotated[
        str | None,
        typer.Option(help="The title of the picture. Default: the name of the file of vectors.", show_default=False),
    ] = None,
) -> None:
    """Draw words in two dimensions, near words near each other, and say how far the map can be trusted.

    Words without a vector are named on stderr; the exit code is then 1.

    Examples:
        headway vectors map words.safetensors --out map.png
        headway vectors map w.safetensors animals=dog,cat numbers=one,two --out a.png
    """
    from ..vectors import UnknownWordError, word_map
    from ..vectors._map import picture_place

    picture_place(out)
    asked = _groups_of(words or [], file_of_words)
    found = _load(file)
    if not asked:
        asked = {"": _frequent(found)}
    written = {group: [_as_written(found, word) for word in its] for group, its in asked.items()}
    made = word_map(found, written, method=method, seed=seed)
    made.plot(out, title or f"Words of {Path(file).name}")
    kept = "" if made.variance is None else f", {sum(made.variance):.0%} of the variance"
    console().print(
        f"{out}: {len(made.words)} words, trustworthiness {made.trustworthiness:.2f} of 1{kept}",
        markup=False,
        soft_wrap=True,
    )
    for word in made.without:
        _complain(str(UnknownWordError([word], found)))
    if made.without:
        raise typer.Exit(SOME_FAILED)


@run.command()
def evaluate(
    file: File,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(help="A file with two words and a score on each line. Default: WordSim-353 and SimLex-999."),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="A file with four words on each line. Default: Google's questions-words.txt.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the vectors with human judgements of pairs of words, and test them on analogies.

    The default tests are English, and left out for vectors of Chinese or Japanese words.

    Examples:
        headway vectors evaluate words.safetensors
        headway vectors evaluate words.safetensors --pairs my-pairs.tsv
    """
    from ..study.word_vectors import TESTS, attempt, test_set
    from ..vectors import word_analogies, word_similarity
    from ..vectors._text import has_short_words

    found = _load(file)
    given = pairs is not None or questions is not None
    tests = pairs if given else [Path(test_set(name)) for name in TESTS[:2]]
    asked = questions if given else Path(test_set(TESTS[2]))
    lines: list[list[str]] = []
    reasons = []
    rows: list[dict[str, Any]] = []
    jobs: list[tuple[Path, Any]] = [(path, word_similarity) for path in tests or ()]
    jobs += [] if asked is None else [(asked, word_analogies)]
    foreign = not given and has_short_words(found.words, found.counts)
    for path, test in jobs:
        if foreign:
            reasons.append(
                f"{path.name}: its words are English, and those of the vectors are not; give --pairs or --questions"
            )
            continue
        result = test(found, path) if given else attempt(test, found, path)
        if isinstance(result, dict):
            reasons.append(f"{path.name}: {result['reason']}")
            continue
        if test is word_similarity:
            rows.append({"test": path.name, "measure": "spearman", "value": result.spearman})
            rows[-1] |= {"used": result.used, "total": result.total}
            lines.append([path.name, f"{result.spearman:.4f}", f"{result.used:,}", f"{result.total:,}"])
            continue
        for section in (*result.sections, result):
            name = section.name if section is not result else f"{path.name}, all"
            right = f"{100 * section.accuracy:.1f} %" if section.used else "—"
            rows.append({"test": name, "measure": "accuracy", "value": section.accuracy if section.used else None})
            rows[-1] |= {"used": section.used, "total": section.total}
            lines.append([name, right, f"{section.used:,}", f"{section.total:,}"])
    if as_json:
        print_json("vectors evaluate", rows, notes=reasons)
        return
    say = console()
    if lines:
        say.print(Table(["test", "Spearman, or right", "used", "of"], lines).rich())
    for reason in reasons:
        say.print(f"• {reason}", markup=False, soft_wrap=True)


@run.command()
def convert(
    file: File,
    out: Annotated[
        Path,
        typer.Argument(
            help="The file to write: .safetensors is headway's format, .vec is word2vec's text; one that exists is "
            "replaced."
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(help="word2vec, word2vec-binary, glove or fasttext. Default: by the ending of the file."),
    ] = None,
) -> None:
    """Write vectors in another format.

    Examples:
        headway vectors convert words.safetensors words.vec
    """
    from ..vectors import write

    found = _load(file)
    if out.suffix.lower() == ".safetensors" and format is None:
        found.save(out)
    else:
        write(found, out, format)
    console().print(f"{out}: {len(found):,} words, {found.dim:,} numbers each", markup=False, soft_wrap=True)


# ---------------------------------------------------------------- shared by the commands


class _Training(LockedFolder):
    """The folder in which a training works."""

    used_by = "training"
    called = "the folder of the training"


@contextmanager
def _kept_training(made: Vectors, out: Path) -> Iterator[None]:
    """A block in which a BERT that names no folder of its own trains in one beside ``out``, removed once it is saved.

    An error, a stop or a kill leaves it, and the next training goes on from there.
    """
    from ..vectors import Bert

    if not isinstance(made, Bert) or made.path is not None or made.out is not None:
        yield
        return
    place = out.absolute()
    with going_on(out), _Training(place.with_name(f".{place.name}.training")) as training:
        made.out = str(training.out)
        yield
    remove_folder(training.out)


def split(text: str, name: str) -> list[str]:
    """Returns names separated by commas; raises HeadwayError if there is none."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    if not found:
        raise HeadwayError(f"{name} is {text!r}: give names separated by commas")
    return found


def _load(file: str) -> Vectors:
    from ..vectors import load

    return load(file)


def _as_written(found: Vectors, word: str) -> str:
    """The word as the tokenizer writes it, such as in lower case, if it is in the vocabulary only so."""
    if word in found.index:
        return word
    tokens = found.tokenizer(word)
    return tokens[0] if len(tokens) == 1 and tokens[0] in found.index else word


def _made_of_parts(found: Vectors, words: Sequence[str]) -> list[str]:
    """What is to be said of words whose vectors are made of their parts, since they are not in the vocabulary."""
    return [
        f"{word} is not in the vocabulary: its vector is made of its sub-words, so that words spelt like it are near"
        for word in dict.fromkeys(words)
        if word not in found.index
    ]


def _groups_of(given: Sequence[str], file: Path | None) -> dict[str, list[str]]:
    """The words of each group, of arguments such as `animals=dog,cat` and of a file; other words are of group ""."""
    lines = []
    for one in given:
        group, equals, its = one.partition("=")
        lines.append((group, its.translate(COMMAS).split(",")) if equals else ("", [one]))
    if file is not None:
        for line in read_text(file, f"--words {file}").replace("：", ":").splitlines():
            group, colon, its = line.partition(":")
            words = (its if colon else line).translate(COMMAS).replace(",", " ").split()
            lines.append((group.strip() if colon else "", words))
    found: dict[str, list[str]] = {}
    for group, words in lines:
        found.setdefault(group, []).extend(word.strip() for word in words if word.strip())
    found = {group: list(dict.fromkeys(its)) for group, its in found.items() if its}
    if file is not None and not found:
        raise HeadwayError(f"--words {file} has no words: give a file with words in it")
    return found


def _frequent(found: Vectors) -> list[str]:
    """The most frequent words except for short ones, which are mostly grammatical."""
    from .._common.words import is_alphabetic
    from ..vectors._text import has_short_words

    least = 2 if has_short_words(found.words[:MOST_FREQUENT]) else 4
    words = [word for word in found.words[: 20 * MOST_FREQUENT] if len(word) >= least and is_alphabetic(word)]
    return words[:MOST_FREQUENT] or list(found.words[:MOST_FREQUENT])


def _complain(line: str) -> None:
    typer.echo(f"headway: {line}", err=True)


def _wide(text: str, columns: int) -> str:
    """Fills a text with blanks; a Chinese character takes two columns of a terminal."""
    from rich.cells import cell_len

    return text + " " * max(0, columns - cell_len(text))


def _option(method: type[Vectors], text: str) -> tuple[str, Any]:
    """The name and the value of "name=value"; the value is a Python literal if it can be read as one, else a string."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    known = method().options
    if not equals:
        raise HeadwayError(f"--option is {text!r}: give name=value, such as {next(iter(known))}=…")
    if name not in known:
        raise unknown(f"option of {method.name}", name, known)
    try:
        found = ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        found = value.strip()
    kinds = _kinds(method, name)
    kind = "None" if found is None else type(found).__name__
    if kind not in (*kinds, *(["int"] if "float" in kinds else [])):
        raise HeadwayError(f"{name} is {value!r}: give {' or '.join(kinds)}, such as {known[name]!r}")
    return name, found


def _kinds(method: type[Vectors], name: str) -> list[str]:
    """The types that an option may have, by the signature of the constructor."""
    for kind in method.__mro__:
        own = inspect.signature(vars(kind)["__init__"]).parameters if "__init__" in vars(kind) else {}
        if name in own:
            return list(dict.fromkeys(str(own[name].annotation).replace("Path", "str").split(" | ")))
    return []


def _ranked(title: str, found: Sequence[tuple[str, float]]) -> None:
    say = console()
    say.print(title, style="bold", markup=False)
    for word, cosine in found:
        say.print(f"  {cosine:7.4f}  {word}", markup=False, soft_wrap=True)


def _write(rows: Any, out: Path) -> None:
    if out.suffix == ".npy":
        numpy = need("numpy", "writing .npy")
        held = io.BytesIO()
        numpy.save(held, rows.numpy())
        with atomic_write(out) as part:
            part.write_bytes(held.getbuffer())
    else:
        write_tensors(out, {"vectors": rows.contiguous()})


def _show(out: Console, found: Comparison) -> None:
    from rich.markup import escape

    for title, table in found.parts().items():
        out.print(f"\n[bold]{title}[/bold]")
        out.print(table.rich(overflow="fold"))
    for note in found.footnotes():
        out.print(note, style="dim", markup=False)
    for word, its in found.neighbours().items():
        out.print(f"\n[bold]Nearest to “{escape(word)}”[/bold]")
        for method, near in its.items():
            out.print(f"  {method:<20} {near}", markup=False, soft_wrap=True)
    heading(out, "\nConclusions", found.conclusions())
