"""``headway inspect``: shows what each head of a model does, on your own texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._common.devices import device_named
from .._common.files import given_path, make_folder, need_file_place, need_folder_place
from .._common.language import LANGUAGES, retold, said
from .._common.table import Table
from ..errors import HeadwayError, unknown
from ._console import Screen, consoles, points, print_json
from ._inspected import is_model, published, small_model, texts_of
from ._options import Device, Json, Quiet, completing

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from ..inspection import HeadRoles, Seen
    from ..inspection._table import DataTable
    from ..inspection.texts import EncodedText
    from ._inspected import Inspected

FEWEST_TEXTS = 20
"""With fewer texts, roles are measured on other ones, since half of the texts are held out."""

SHORT = {
    "coreferential": "coref",
    "syntactic": "syntax",
    "induction": "induct",
    "duplicate_token": "dup",
    "rare_word": "rare",
    "positional": "pos",
    "delimiter": "delim",
}
"""The abbreviations of roles in the table of heads."""

PATHS = ("/", "./", "../", "~/")
"""The beginnings of a path; a text does not begin so."""

SEED = 0
"""The seed with which the roles of small models were measured."""

SILENT = ("delimiter", "sink", "broad")
"""Roles that do not depend on the words of a text."""

SHOWN, LINKS = 6, 4
"""The most heads whose links are printed, and the links of each."""


def run(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder with config.json and model.safetensors, a .gguf file, or an id on the Hugging Face hub, "
            "such as intfloat/e5-small-v2. Default: a small model that comes with headway."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            help="A text, a file, or - for standard input. Files: .conllu (treebank), .tsv (GAP), .conll (CoNLL-2012) "
            "or plain text with a text in each paragraph. Default: none; only roles are shown."
        ),
    ] = None,
    roles: Annotated[
        str | None,
        typer.Option(
            help="Roles, separated by commas, such as positional,induction. Default: all.",
            autocompletion=completing(lambda: _known("ROLES")),
        ),
    ] = None,
    statistics: Annotated[
        str | None,
        typer.Option(
            help="Statistics to print for each head as well, separated by commas, such as entropy. Default: none.",
            autocompletion=completing(lambda: _known("STATISTICS")),
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            help="Language of the small model: chinese or english. Default: the language of the text.",
            autocompletion=completing(lambda: ("chinese", "english")),
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Train the small model here instead: seeds are tried until one meets the criteria, which takes some "
            "minutes the first time. Default: the model that comes with headway.",
        ),
    ] = False,
    too_long: Annotated[
        str,
        typer.Option(
            help="What to do with texts of more tokens than the model reads: raise, which is an error, or 'leave out', "
            "which says how many were left out.",
            autocompletion=completing(_answers_to_long_texts),
        ),
    ] = "raise",
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder for pictures. Pictures of an earlier run are replaced. Default: none.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", help="CSV file with a row for each head. An existing file is replaced. Default: none."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="HTML file for a page that shows the attention of all heads to the text, offline. An existing file is "
            "replaced. Default: none."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    seed: Annotated[int, typer.Option(help="Seed of random texts and of the intervals.")] = SEED,
) -> None:
    """Show what each head of a model does: its role with score, interval and baseline, and its links in a text.

    Roles are measured on the given texts, or on sentences of Python's manual if there are fewer than 20 texts. One half
    of the texts selects the heads, and the scores are computed on the other half.

    Examples:
        headway inspect "The cat that the dogs saw was asleep ."
        headway inspect sentence-transformers/all-MiniLM-L6-v2 texts.txt
    """
    from ..inspection import ROLES, STATISTICS
    from ..inspection._run import chosen
    from ..inspection.texts import encode

    _check_words(too_long, language)
    say, telling = consoles(as_json, quiet)
    wanted = _names(roles, ROLES, "role")
    shown = _names(statistics, STATISTICS, "statistic")
    if shown:
        chosen(shown)
    place = device_named(device)
    _check_places(out, csv, report)
    model, text = _model_and_text(model, text, report, train)
    given = [] if text is None else texts_of(text)
    with Screen(telling) as progress:
        inspected = published(model) if model is not None else small_model(language, given, train, progress.progressed)
        inspected.model.to(place)
        told = encode(inspected.tokenizer, given, longest=inspected.longest, too_long=too_long)
        if given and not told:
            raise HeadwayError(
                f"each text has more tokens than the {inspected.longest} that the model reads: shorten one"
            )
        own = len(told) >= FEWEST_TEXTS
        measured = _measured(inspected, told if own else None, wanted, seed, progress)
    if not measured.roles:
        others = f", and {FEWEST_TEXTS} texts or more, of which there are {len(told)}" if told and not own else ""
        raise HeadwayError(f"no role can be measured: {measured.lacking}{others}; give such texts, or other --roles")
    about = said("{count} texts", count=len(told)) if own else inspected.about
    left_out = _left_out(len(given), len(told), inspected.longest)
    _print_warning(say, left_out)
    measured_on = said("roles measured on {about}, of which every other one is held out", about=about)
    say.print(f"[bold]{inspected.name}[/bold]{said(': ')}{measured_on}\n")
    _print_roles(say, measured)
    unknown_words = _unknown_words(inspected.tokenizer, told)
    _print_warning(say, unknown_words)
    rows = measured.table()
    if shown:
        _print_statistics(say, inspected.model, told or inspected.texts(), shown, rows)
    marked, seen = None, None
    if told and (len(told) <= 3 or report is not None):
        marked, seen = _marked(inspected.tokenizer, told[0]), _captured(inspected.model, told[0])
    if seen is not None and marked is not None and len(told) <= 3:
        _print_links(say, measured, marked, seen)
    files: list[Path] = []
    if csv is not None:
        rows.csv(csv)
        files.append(csv)
        say.print(said("one row for each head: {csv}", csv=csv), markup=False, soft_wrap=True)
    if out is not None:
        files += _draw(say, out, inspected.name, measured, marked, seen)
    if report is not None and seen is not None:
        with Screen(telling) as progress:
            seen.report(report, text=marked, roles=measured, name=inspected.name, watch=progress.progressed)
        files.append(report)
        sentence = "all heads: {report}" if len(told) == 1 else "all heads (the first of {count} texts): {report}"
        say.print(said(sentence, count=len(told), report=report), markup=False, soft_wrap=True)
    if as_json:
        lacking = [f"{role} is not measured: it needs {what}" for role, what in measured.not_measured.items()]
        notes = [f"roles measured on {about}", *filter(None, (left_out, unknown_words)), *lacking]
        print_json("inspect", rows, notes=notes, files=files)


def _measured(
    inspected: Inspected,
    texts: Sequence[EncodedText] | None,
    roles: Sequence[str] | None,
    seed: int,
    progress: Screen,
) -> HeadRoles:
    """The roles of a model on some texts, or on its own texts, for which they may be known already."""
    from ..inspection import head_roles

    if inspected.roles is not None and texts is None and seed == SEED:
        return inspected.roles if roles is None else inspected.roles.only(roles)
    return head_roles(
        inspected.model,
        inspected.texts() if texts is None else texts,
        roles,
        seed=seed,
        watch=lambda done, every: progress.progressed(said("measuring roles"), done / every),
    )


def _check_words(too_long: str, language: str | None) -> None:
    """Raises HeadwayError for a word that an option does not take."""
    if too_long not in _answers_to_long_texts():
        raise unknown("--too-long", too_long, _answers_to_long_texts())
    if language in LANGUAGES:
        raise HeadwayError(
            f"--language {language}: here it is that of the small model, chinese or english; that of the output is set "
            f"before the command, headway --language {language} inspect"
        )


def _model_and_text(
    model: str | None, text: str | None, report: Path | None, train: bool
) -> tuple[str | None, str | None]:
    """The model and the text that were given: one word alone may be either. Raises HeadwayError if any is wrong."""
    if model is not None and not model.strip():
        raise HeadwayError("the model or text is empty: give a model, a text in quotes, or a file")
    if model is not None and text is None and not is_model(model):
        if model.startswith(PATHS) and not os.path.exists(given_path(model)) and len(model.split()) == 1:
            raise HeadwayError(f"there is no {model}: give a model's folder or .gguf file, a text, or a text's file")
        model, text = None, model
    if report is not None and text is None:
        raise HeadwayError("--report shows what heads attend to in a text: give one")
    if train and model is not None:
        raise HeadwayError(f"--train trains the small model, and {model} is another: leave one of them out")
    return model, text


def _answers_to_long_texts() -> Iterable[str]:
    from ..inspection.texts._encode import TOO_LONG

    return TOO_LONG


def _known(table: str) -> Iterable[str]:
    from .. import inspection

    names: Iterable[str] = getattr(inspection, table)
    return names


def _check_places(out: Path | None, csv: Path | None, report: Path | None) -> None:
    """Raises HeadwayError before anything is measured if a result could not be written."""
    for file in (csv, report):
        if file is not None:
            need_file_place(file)
    if csv is not None and report is not None and given_path(csv).resolve() == given_path(report).resolve():
        raise HeadwayError(f"--csv and --report are both {report}: give two files")
    if out is not None:
        from .._common.pictures import need_format

        need_format(None)  # matplotlib must be installed
        need_folder_place(out)


def _names(given: str | None, known: dict[str, Any], what: str) -> list[str] | None:
    """The names in the value of an option. Raises HeadwayError for an unknown name."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise unknown(what, name, known, see=f"headway.inspection.{what.upper()}S")
    return names


# ---------------------------------------------------------------- what is printed


def _left_out(given: int, told: int, longest: int | None) -> str:
    """A warning about texts that are too long; empty if there are none."""
    if given == told:
        return ""
    return said(
        "{left_out} of {given} texts have more than {longest} tokens and are left out",
        left_out=given - told,
        given=given,
        longest=longest,
    )


def _print_warning(say: Console, warning: str) -> None:
    if warning:
        say.print(warning, style="yellow", markup=False, soft_wrap=True)


def _print_roles(say: Console, measured: HeadRoles) -> None:
    """Prints a small table of all heads, and one of the best head for each role."""
    layers = measured.layers
    most = max(measured.heads(layer) for layer in layers)
    lines = []
    for number, layer in enumerate(layers):
        firsts = [next(iter(measured.of(layer, head)), None) for head in range(measured.heads(layer))]
        names = ["·" if one is None else SHORT.get(one.role, one.role) for one in firsts]
        lines.append([str(number), *names, *[""] * (most - len(names))])
    say.print(Table([said("layer"), *map(str, range(most))], lines).rich(no_wrap=True))
    shortened = [f"{short} = {role}" for role, short in SHORT.items() if any(short in line for line in lines)]
    if shortened:
        say.print(", ".join(shortened), style="dim", markup=False)
    rows = []
    for role in measured.roles:
        best = measured.best(role)
        held = sorted((one for one in best if one.holds), key=lambda one: -one.figure)
        for one in held or best[:1]:
            baseline = "–" if one.baseline != one.baseline else f"{one.baseline:.2f}"
            figure = said("{figure:.2f} ({low:.2f} to {high:.2f})", figure=one.figure, low=one.low, high=one.high)
            place = f"{layers.index(one.layer)}.{one.head}"
            rows.append(
                [role, one.candidate, place, figure, baseline, f"{one.cases:,}", said("yes" if one.holds else "no")]
            )
    titles = [*map(said, ("role", "for", "best head", "figure (95 %)", "baseline", "cases", "holds"))]
    say.print(Table(titles, rows).rich(no_wrap=True))
    lacking = [
        said("{role}: needs {what}", role=role.replace("_", " "), what=retold(what))
        for role, what in measured.not_measured.items()
    ]
    if lacking:
        say.print(said("not measured"))
        points(say, lacking, style="dim")
        say.print()


def _print_statistics(
    say: Console, model: nn.Module, texts: Sequence[EncodedText], names: Sequence[str], rows: DataTable
) -> None:
    """Prints a table for each statistic, the means over the texts, and adds its column to ``rows``."""
    import torch

    from ..inspection import capture
    from ..inspection.roles import batches

    totals: dict[tuple[str, int], dict[str, list[float]]] = {}
    for which in batches(texts):
        with torch.no_grad(), capture(model, statistics=names) as seen:
            model(torch.tensor([texts[i].ids for i in which], device=_device_of(model)))
        for row in seen.table():
            columns = {name: value for name, value in row.items() if isinstance(value, float) and value == value}
            for name, value in columns.items():
                totals.setdefault((row["layer"], row["head"]), {}).setdefault(name, []).extend([value] * len(which))
    means = {
        head: {name: sum(values) / len(values) for name, values in of_head.items()} for head, of_head in totals.items()
    }
    for row in rows:
        row |= means.get((row["layer"], row["head"]), {})
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    for name in dict.fromkeys(name for of_head in means.values() for name in of_head):
        lines = []
        for number, layer in enumerate(layers):
            cells = [of_head.get(name) for (of, _), of_head in means.items() if of == layer]
            lines.append([str(number), *("–" if cell is None else f"{cell:.3g}" for cell in cells)])
        most = max(map(len, lines))
        mean = "{name}, mean over the texts" if len(texts) > 1 else "{name}, mean over the tokens"
        say.print(said(mean, name=name), markup=False)
        padded = [[*line, *[""] * (most - len(line))] for line in lines]
        say.print(Table([said("layer"), *map(str, range(most - 1))], padded).rich(no_wrap=True))


def _captured(model: nn.Module, text: EncodedText) -> Seen:
    import torch

    from ..inspection import capture

    with torch.no_grad(), capture(model, keep="qk") as seen:
        model(torch.tensor([text.ids], device=_device_of(model)))
    return seen


def _device_of(model: nn.Module) -> torch.device:
    return next(parameter.device for parameter in model.parameters())


def telling_heads(measured: HeadRoles, most: int = SHOWN) -> list[tuple[str, str, int]]:
    """Returns the few heads that say most about a text: role, layer and number, the largest figures first."""
    chosen: dict[tuple[str, int], str] = {}
    telling = [role for role in measured.roles if role not in SILENT]
    for role in telling or measured.roles:
        named: set[str] = set()
        for one in sorted((one for one in measured.role(role) if one.holds), key=lambda one: -one.figure):
            if one.candidate not in named:
                named.add(one.candidate)
                chosen.setdefault((one.layer, one.head), f"{one.role} ({one.candidate})")
    return [(role, *head) for head, role in list(chosen.items())[:most]]


def _unknown_words(tokenizer: Any, texts: Sequence[EncodedText]) -> str:
    """A warning about tokens that the model does not know and reads as one and the same; empty if there are none."""
    words = [one.tokens[i] for one in texts for i in _unknown(tokenizer, one)]
    if not words:
        return ""
    count = sum(word >= 0 for one in texts for word in one.word_of)
    which = ", ".join(dict.fromkeys(words))
    return said(
        "{unknown} of {count} tokens are unknown to this model ({which}), marked (?): links of them mean nothing",
        unknown=len(words),
        count=count,
        which=which,
    )


def _unknown(tokenizer: Any, text: EncodedText) -> list[int]:
    """The tokens of a text that the model does not know."""
    find = getattr(tokenizer, "token_to_id", None) or tokenizer.convert_tokens_to_ids
    known = getattr(tokenizer, "unk_token_id", None)
    ids = {known} if known is not None else {find(name) for name in ("[UNK]", "<unk>")} - {None}
    return [i for i, token in enumerate(text.ids) if token in ids and text.word_of[i] >= 0]


def _marked(tokenizer: Any, text: EncodedText) -> EncodedText:
    """The text for tables and pictures, with a question mark at each token that the model does not know."""
    unknown_ones = set(_unknown(tokenizer, text))
    return replace(text, tokens=tuple(f"{one} (?)" if i in unknown_ones else one for i, one in enumerate(text.tokens)))


def _print_links(say: Console, measured: HeadRoles, text: EncodedText, seen: Seen) -> None:
    """Prints the strongest links between the words of a text, for the heads that have roles."""
    words = [i for i, word in enumerate(text.word_of) if word >= 0]
    lines = []
    for role, layer, head in telling_heads(measured) if len(words) > 1 else ():
        weights = seen.weights(layer, head)[0][words][:, words].float()
        weights.fill_diagonal_(-1)
        weight, at = weights.max(-1)
        strongest = weight.argsort(descending=True)[:LINKS].tolist()
        links = [f"{text.tokens[words[i]]} → {text.tokens[words[at[i]]]} {weight[i]:.2f}" for i in strongest]
        lines.append([f"{measured.layers.index(layer)}.{head}", role, ",  ".join(links)])
    if lines:
        titles = [*map(said, ("head", "role", "strongest links, from a token to another, with weights"))]
        say.print(Table(titles, lines, right=()).rich())


def _draw(
    say: Console, out: Path, title: str, measured: HeadRoles, text: EncodedText | None, seen: Seen | None
) -> list[Path]:
    make_folder(out)
    written = [out / "roles.png"]
    measured.plot(title=title, out=written[0])
    if seen is not None and text is not None:
        written.append(out / "heads.png")
        seen.plot(out=written[-1])
        for role, layer, head in telling_heads(measured):
            name = role.partition(" ")[0]
            written.append(out / f"{measured.layers.index(layer)}.{head}-{name}.png")
            kind = "arcs" if len(text) <= 80 else "map"
            seen.plot(layer, head, tokens=text.tokens, kind=kind, out=written[-1])
    say.print(said("pictures: {files}", files=", ".join(map(str, written))), markup=False, soft_wrap=True)
    return written
