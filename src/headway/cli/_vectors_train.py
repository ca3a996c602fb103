"""``headway vectors train``: computes word vectors of a text by one of the methods."""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.extras import install_command, need
from .._common.files import LockedFolder, need_file_place, need_folder_place, remove_folder
from .._common.language import said
from ..errors import HeadwayError, unknown
from ..vectors import VECTORS
from ._console import Screen, consoles, going_on
from ._options import Quiet, completing
from ._remedies import with_options

if TYPE_CHECKING:
    from ..vectors import Vectors

SMALL_TEXT = 1_000_000
"""Of a text with fewer words, ``train`` says how often it was read by default."""


def train(
    method: Annotated[
        str,
        typer.Argument(help=f"The method: {', '.join(VECTORS)}.", autocompletion=completing(lambda: VECTORS)),
    ],
    corpus: Annotated[Path, typer.Argument(help="A file of UTF-8 text, with blank lines between documents.")],
    out: Annotated[
        Path,
        typer.Option(help="File to write, .safetensors, or a folder for bert. An existing one is replaced."),
    ],
    dim: Annotated[
        int | None,
        typer.Option(help="Numbers in a vector, for methods that let you choose. Default: that of the method."),
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
            help="Another option of the method as name=value, such as window=10; may be given several times. "
            "Default: those of the method."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compute vectors for the words of a text, by one of the seven methods.

    If the training of a bert is stopped, repeat the same command to continue it.

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
        said(
            "{out}: {words:,} words, {dim:,} numbers each, from {documents:,} documents in {seconds:.1f} s",
            out=out,
            words=len(made),
            dim=made.dim,
            documents=len(texts),
            seconds=time.monotonic() - began,
        ),
        soft_wrap=True,
    )
    epochs = made.options.get("epochs")
    words = 0 if made.counts is None else int(made.counts.sum())
    if isinstance(epochs, int) and "epochs" not in options and words < SMALL_TEXT:
        say.print(
            said(
                "the text has {words:,} words and was read {epochs} times: for so few, --option epochs={more} may give "
                "better vectors",
                words=words,
                epochs=epochs,
                more=4 * epochs,
            ),
            markup=False,
            soft_wrap=True,
        )
    if any(has_short_words([word]) for word in made.words):
        by = "into words, by jieba" if tokenizer.chinese == "words" else "into single characters"
        cut = said("Chinese was cut {by}", by=said(by))
        if chinese is None and tokenizer.chinese != "words":
            cut += said("; {command} for words", command=install_command("chinese"))
        say.print(cut, markup=False, soft_wrap=True)


class _Training(LockedFolder):
    """The folder in which a training works."""

    used_by = "training"
    called = "the folder of the training"


@contextmanager
def _kept_training(made: Vectors, out: Path) -> Iterator[None]:
    """A block in which a BERT without a folder of its own trains in one beside ``out``, removed once it is saved.

    After an error, a stop or a kill the folder stays, and the next training goes on from it.
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


def _option(method: type[Vectors], text: str) -> tuple[str, Any]:
    """The name and the value of "name=value". A value that is not a Python literal is a string."""
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
