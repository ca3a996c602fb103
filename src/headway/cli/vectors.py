"""``headway vectors``: computes and uses word vectors, and compares the methods for them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.extras import need
from .._common.files import atomic_write, need_file_place, write_tensors
from .._common.language import padded, retold, said
from .._common.table import Table
from .._common.text_files import read_text
from ..errors import HeadwayError
from ._app import Group
from ._console import console, consoles, print_json
from ._options import Json
from ._vectors_compare import compare
from ._vectors_train import train

if TYPE_CHECKING:
    from ..vectors import Vectors

File = Annotated[
    str,
    typer.Argument(
        help="A file of vectors from headway vectors train, word2vec, GloVe or fastText; or a BERT, as a folder or an "
        "id on the Hugging Face hub, such as intfloat/e5-small-v2."
    ),
]
Count = Annotated[int, typer.Option(help="Number of words to print for each word.")]
SHOWN = 6
"""Numbers of a vector that are printed."""
MOST_FREQUENT = 60
"""Words on a map if none are given."""
COMMAS = str.maketrans("，、", ",,")
"""Chinese separators as commas."""
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


run.command()(compare)
run.command()(train)


@run.command()
def similar(
    file: File,
    words: Annotated[list[str], typer.Argument(help="The words whose neighbours are printed.")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """Print the words nearest to each word, with their cosines; words without a vector and warnings go to stderr.

    The exit code is 0 if all words have a vector, 1 if some have none, and 2 if none has one.

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
    c: Annotated[str, typer.Argument(help="The word whose counterpart is wanted, such as woman.")],
    count: Count = 5,
    keep_question: Annotated[
        bool, typer.Option("--keep-question", help="Allow A, B and C as answers. Default: they are left out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the words that are to C as B is to A: `man king woman` asks for the queen.

    A, B and C are left out of the answers, as is usual; the nearest word of all is often B.

    Examples:
        headway vectors analogy words.safetensors man king woman
    """
    vectors = _load(file)
    a, b, c = (_as_written(vectors, word) for word in (a, b, c))
    found = vectors.analogy(a, b, c, count, keep_question=keep_question)
    notes = _made_of_parts(vectors, [a, b, c])
    if not keep_question:
        notes.append(said("{a}, {b} and {c} are left out of the answers; --keep-question shows them", a=a, b=b, c=c))
    if as_json:
        print_json("vectors analogy", [{"word": word, "cosine": cosine} for word, cosine in found], notes=notes)
    else:
        _ranked(said("{a} is to {b} as {c} is to", a=a, b=b, c=c), found)
    for note in notes:
        _complain(note)


@run.command()
def encode(
    file: File,
    text: Annotated[str, typer.Argument(help="The text, in quotes.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for all numbers, [tokens, dim]: .npy or .safetensors. An existing file is replaced. Default: "
            "none."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the vector of each token of a text, as a Transformer gets it; zeros for a token without a vector.

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
        say.print(
            f"{padded(token, 16)} {numbers}{'' if any(row) else said('   (no vector)')}", markup=False, soft_wrap=True
        )
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
    out: Annotated[Path, typer.Option(help="File for the picture: .png, .pdf or .svg. An existing file is replaced.")],
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
            "--words", help="UTF-8 file with words; a line such as `animals: dog cat` is a group. Default: none."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="How the vectors are reduced to two dimensions: t-sne or pca.")] = "t-sne",
    seed: Annotated[int, typer.Option(help="The seed of t-SNE; the same seed gives the same map.")] = 0,
    title: Annotated[
        str | None,
        typer.Option(help="The title of the picture. Default: the name of the file of vectors.", show_default=False),
    ] = None,
) -> None:
    """Draw words in two dimensions, similar words near each other, and say how far the map can be trusted.

    If words have no vector, stderr names them and the exit code is 1.

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
    made.plot(out, title or said("Words of {file}", file=Path(file).name))
    kept = "" if made.variance is None else said(", {share:.0%} of the variance", share=sum(made.variance))
    trusted = said("{count} words, trustworthiness {trust:.2f} of 1", count=len(made.words), trust=made.trustworthiness)
    console().print(
        f"{out}: {trusted}{kept}",
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

    The default tests are in English. They are left out for vectors of Chinese or Japanese words.

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
                said(
                    "{file}: its words are English, and those of the vectors are not; give --pairs or --questions",
                    file=path.name,
                )
            )
            continue
        result = test(found, path) if given else attempt(test, found, path)
        if isinstance(result, dict):
            reasons.append(path.name + said(": ") + retold(result["reason"]))
            continue
        if test is word_similarity:
            rows.append({"test": path.name, "measure": "spearman", "value": result.spearman})
            rows[-1] |= {"used": result.used, "total": result.total}
            lines.append([path.name, f"{result.spearman:.4f}", f"{result.used:,}", f"{result.total:,}"])
            continue
        for section in (*result.sections, result):
            name = section.name if section is not result else said("{file}, all", file=path.name)
            right = f"{100 * section.accuracy:.1f} %" if section.used else "—"
            rows.append({"test": name, "measure": "accuracy", "value": section.accuracy if section.used else None})
            rows[-1] |= {"used": section.used, "total": section.total}
            lines.append([name, right, f"{section.used:,}", f"{section.total:,}"])
    if as_json:
        print_json("vectors evaluate", rows, notes=reasons)
        return
    say = console()
    if lines:
        say.print(Table([*map(said, ("test", "Spearman, or right", "used", "of"))], lines).rich())
    for reason in reasons:
        say.print(f"• {reason}", markup=False, soft_wrap=True)


@run.command()
def convert(
    file: File,
    out: Annotated[
        Path,
        typer.Argument(
            help="The file to write: .safetensors is headway's format, .vec is word2vec's text. An existing file is "
            "replaced."
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(help="word2vec, word2vec-binary, glove or fasttext. Default: chosen by the ending of the file."),
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
    console().print(
        said("{out}: {words:,} words, {dim:,} numbers each", out=out, words=len(found), dim=found.dim),
        markup=False,
        soft_wrap=True,
    )


# ---------------------------------------------------------------- shared by the commands


def _load(file: str) -> Vectors:
    from ..vectors import load

    return load(file)


def _as_written(found: Vectors, word: str) -> str:
    """The word as the tokenizer writes it, for instance in lower case, if the vocabulary has only that form."""
    if word in found.index:
        return word
    tokens = found.tokenizer(word)
    return tokens[0] if len(tokens) == 1 and tokens[0] in found.index else word


def _made_of_parts(found: Vectors, words: Sequence[str]) -> list[str]:
    """Notes on words that are not in the vocabulary, so that their vectors are made of their parts."""
    return [
        said(
            "{word} is not in the vocabulary: its vector is made of its sub-words, so that words spelt like it are "
            "near",
            word=word,
        )
        for word in dict.fromkeys(words)
        if word not in found.index
    ]


def _groups_of(given: Sequence[str], file: Path | None) -> dict[str, list[str]]:
    """The words of each group, from arguments such as `animals=dog,cat` and a file; other words have group ""."""
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
