"""Typesets equations, which docstrings and pages write as lines of plain text, in MathML.

Browsers render MathML themselves, so that the pages need no script and no network. The notation:

    xᵢ, x_i, x_{i+1}, x², xᵀ, x^(2c/d), x'     indices and exponents, of one sign or in brackets
    a/b                                        a fraction of what stands beside the slash: 2c/d, (a + b)/(c·d)
    a·b / c                                    with spaces, a fraction of the whole product before it
    Σ_{t=j+1…i}, √(x + 1), ⟨q, k⟩, |x|, ⌊x⌋    as usual
    head_dim, score, where c < 3               words are upright; two letters or more on both sides of _ are one name
    two spaces or more                         a gap; what is set below one another in the text is aligned
"""

import re
import unicodedata
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ᵀ", "0123456789+−()T", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₖₗₘₙₚᵣₛₜₓ", "0123456789+−ijklmnprstx", strict=True))
RAISED, LOWERED = "".join(SUPERSCRIPTS), "".join(SUBSCRIPTS)
OPEN, CLOSE, BARS = "([{⟨⌊⌈", ")]}⟩⌋⌉", "|‖"
LARGE = {"Σ": "∑", "Π": "∏"}
LIMITS = {"argmax", "max", "mean", "min"}
"""Words that have their index below them, as sums have."""
ACCENTS = {"\u0302": "^", "\u0303": "~", "\u0304": "¯"}

LETTER = rf"[^\W\d_{RAISED}{LOWERED}]"
WORD = r"[A-Za-z][A-Za-z0-9]+(?:_[A-Za-z][A-Za-z0-9]+)*"
TOKEN = re.compile(
    r'(?P<gap> {2,})|(?P<space> )|(?P<quoted>"[^"]*")|(?P<number>\d+(?:\.\d+)?|[½¼¾])'
    # genitives, words with hyphens, and the article
    rf"|(?P<word>[A-Za-z]+'s\b|[a-z]{{3,}}s'(?= [a-z])|[A-Za-z]+(?:-[A-Za-z]{{2,}})+|{WORD}"
    r"|(?<= )a(?= (?!and|is|of|or|to|where|with)[a-z]{3}))"
    rf"|(?P<letter>{LETTER}[{''.join(ACCENTS)}]?|[∂∞…⋯])"
    rf"|(?P<raised>[{RAISED}]+)|(?P<lowered>[{LOWERED}]+)|(?P<prime>['′])"
    rf"|_(?P<index>{LETTER}(?:{LETTER}|\d)*(?:,{LETTER}+)*|\d+)|(?P<sign>.)"
)


class Token(NamedTuple):
    """A part of a line."""

    kind: str
    """A name of a group of TOKEN, or end."""
    text: str


class Piece(NamedTuple):
    """A part of a row."""

    kind: str
    """atom, word, large (the sign of a sum), sign, space, or gap."""
    html: str
    """What is shown; of a sign, its text."""
    span: range
    """The places of its tokens."""
    alone: bool = False
    """Whether it is a pair of brackets, which a fraction and an exponent do not need."""


# ---------------------------------------------------------------- elements


def tag(name: str, *inner: str, **attributes: str) -> str:
    given = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<{name}{given}>{''.join(inner)}</{name}>"


def row(*inner: str) -> str:
    return inner[0] if len(inner) == 1 else tag("mrow", *inner)


def sign(text: str, **attributes: str) -> str:
    return tag("mo", escape(text), **attributes)


def letter(text: str) -> str:
    """Returns a variable of one letter, with its accent above it."""
    base, *accents = unicodedata.normalize("NFD", text)
    made = tag("mi", base)
    for accent in accents:
        made = tag("mover", made, sign(ACCENTS[accent], stretchy="false"), accent="true")
    return made


def index(text: str) -> str:
    """Returns an index: numbers, letters side by side, words of three letters or more."""
    made = []
    for part in re.findall(r"[A-Za-z]{3,}|\d+|[^\W\d]|.", text):
        if part.isdigit():
            made.append(tag("mn", part))
        else:
            made.append(tag("mi", part) if part.isalpha() else sign(part, lspace="0", rspace="0"))
    return row(*made)


# ---------------------------------------------------------------- a line


class Line:
    """Reads a line from left to right. With ``inline``, a slash makes no fraction."""

    def __init__(self, tokens: list[Token], inline: bool = False) -> None:
        self.tokens, self.at, self.inline = tokens, 0, inline

    def peek(self, ahead: int = 0) -> Token:
        at = self.at + ahead
        return self.tokens[at] if 0 <= at < len(self.tokens) else Token("end", "")

    def take(self) -> Token:
        self.at += 1
        return self.peek(-1)

    def closing(self, opened: str) -> bool:
        """Whether the next token closes a group that this sign has opened."""
        token = self.peek()
        if opened in BARS:
            return token.text == opened and self.peek(-1).kind != "space"
        return token.kind == "sign" and token.text in CLOSE

    def opening(self) -> bool:
        """Whether the next token opens a group that the line closes."""
        opened, start, depth = self.peek(), self.at, 0
        if opened.kind != "sign" or opened.text not in OPEN + BARS:
            return False
        if opened.text in BARS and self.peek(1).kind in ("space", "gap", "end"):
            return False
        self.take()
        found = False
        while not found and self.peek().kind != "end":
            found = not depth and self.closing(opened.text)
            token = self.take()
            if token.kind == "sign" and opened.text not in BARS:
                depth += (token.text in OPEN) - (token.text in CLOSE)
        self.at = start
        return found

    def group(self, fences: bool = True) -> str:
        opened = self.take().text
        inner = self.row(opened)
        closed = self.take().text
        if not fences:
            return inner
        return row(sign(opened, form="prefix", fence="true"), inner, sign(closed, form="postfix", fence="true"))

    def argument(self, bare: str) -> str:
        """Returns what follows a sign such as ^: an atom, or a group, whose brackets are left out if they are these."""
        before, self.inline = self.inline, True
        if self.opening():
            made = self.group(fences=self.peek().text not in bare)
        elif (piece := self.atom()) is not None:
            made = piece.html
        else:
            made = sign(self.take().text)
        self.inline = before
        return made

    def script(self) -> tuple[str, str]:
        """Returns the next index and the next exponent, of which one may be empty."""
        token = self.take()
        if token.kind in ("index", "lowered"):
            return index("".join(SUBSCRIPTS.get(one, one) for one in token.text)), ""
        if token.kind == "raised":
            return "", index("".join(SUPERSCRIPTS[one] for one in token.text))
        if token.kind == "prime":
            return "", sign("′")
        return ("", self.argument("({")) if token.text == "^" else (self.argument("{"), "")

    def atom(self) -> Piece | None:
        """Returns the next number, letter, word or group with its indices and exponents, or None at another sign."""
        token, start = self.peek(), self.at
        kind, alone = "word" if token.kind in ("word", "quoted") else "atom", False
        if self.opening():
            alone, made = token.text in "({", self.group()
        elif token.text == "√":
            self.take()
            made = tag("msqrt", self.argument("({"))
        elif token.text in LARGE:
            kind, made = "large", sign(LARGE[self.take().text], largeop="true", movablelimits="false")
        elif token.kind in ("number", "letter", "word", "quoted"):
            text = self.take().text
            # of one letter, mi is a variable, and so italic
            name = "mn" if token.kind == "number" else "mi" if token.kind == "word" and len(text) > 1 else "mtext"
            made = letter(text) if token.kind == "letter" else tag(name, escape(text))
        else:
            return None
        limits = kind == "large" or token.text in LIMITS
        while self.peek().kind in ("index", "lowered", "raised", "prime") or self.peek().text in ("^", "_"):
            below, above = self.script()
            if below and (self.peek().kind == "index"):  # of a sign, as in uᵣ_h
                below = row(below, self.script()[0])
            if below and (self.peek().kind in ("raised", "prime") or self.peek().text == "^"):
                above = self.script()[1]
            elif above and (self.peek().kind in ("index", "lowered") or self.peek().text == "_"):
                below = self.script()[0]
            name = ("under" if below else "") + ("over" if above else "") if limits and below else ""
            name = name or ("sub" if below else "") + ("sup" if above else "")
            made, alone = tag("m" + name, made, *filter(None, (below, above))), False
        return Piece(kind, made, range(start, self.at), alone)

    def row(self, opened: str = "") -> str:
        """Returns what stands before the end of the line, or before the end of the group that was opened."""
        pieces: list[Piece] = []
        while self.peek().kind != "end" and not (opened and self.closing(opened)):
            start = self.at
            if (piece := self.atom()) is None:
                token = self.take()
                kind = token.kind if token.kind in ("space", "gap") else "sign"
                piece = Piece(kind, token.text, range(start, self.at))
            pieces.append(piece)
        if not self.inline:
            pieces = self.with_fractions(pieces)
        return row(*(self.shown(pieces, place) for place in range(len(pieces))))

    def spaced(self, piece: Piece) -> bool:
        """Whether a sign has a space on either side."""
        beside = (self.tokens[at : at + 1] for at in (max(piece.span.start - 1, 0), piece.span.stop))
        return all(token and token[0].kind == "space" for token in beside)

    def with_fractions(self, pieces: list[Piece]) -> list[Piece]:
        """Returns the pieces with a fraction in place of what stands on both sides of a slash."""
        made: list[Piece] = []
        at = 0
        while at < len(pieces):
            if pieces[at].html == "/" and pieces[at].kind == "sign":
                spaced = self.spaced(pieces[at])
                begin, end = start_of_product(made, spaced), at + 1 + spaced
                while end < len(pieces) and pieces[end].kind in ("atom", "word"):
                    end += 1
                above, below = made[begin : len(made) - spaced], pieces[at + 1 + spaced : end]
                if above and below:
                    span = range(above[0].span.start, below[-1].span.stop)
                    made[begin:] = [Piece("atom", tag("mfrac", self.part(above), self.part(below)), span)]
                    at = end
                    continue
            made.append(pieces[at])
            at += 1
        return made

    def part(self, pieces: list[Piece]) -> str:
        """Returns the numerator or the denominator of a fraction, without fractions and brackets of its own."""
        begin, end = pieces[0].span.start, pieces[-1].span.stop
        alone = len(pieces) == 1 and pieces[0].alone
        return Line(self.tokens[begin + alone : end - alone], inline=True).row()

    def shown(self, pieces: list[Piece], place: int) -> str:
        """Returns a piece as it is shown between its neighbours."""
        piece = pieces[place]
        before, after = (pieces[at] if 0 <= at < len(pieces) else None for at in (place - 1, place + 1))
        if piece.kind == "gap":
            return tag("mspace", width="2em")
        if piece.kind == "space":
            return self.space(before, after)
        if piece.kind != "sign":
            return piece.html
        text = piece.html
        if text == "~":
            return sign("∼")
        if text in ",;:":
            return sign(text, separator="true", lspace="0", rspace="0")
        if text in "/" + OPEN + CLOSE + BARS:
            beside = "0.28em" if text in BARS and self.spaced(piece) else "0"
            return sign(text, form="infix", stretchy="false", lspace=beside, rspace=beside)
        if text in "−+±" and (before is None or before.kind in ("sign", "space", "gap")):
            if [token.kind for token in self.tokens[piece.span.stop :][:1]] != ["space"]:
                return sign(text, form="prefix")
            if before is None:  # of a line that goes on
                return sign(text, form="infix")
        return sign(text)

    def space(self, before: Piece | None, after: Piece | None) -> str:
        """Returns the space between two pieces; signs have their own."""
        if before is None or after is None:
            return ""
        if after.kind == "sign":
            wide = before.kind == "word" and not self.spaced(after) and after.html not in CLOSE + ",;:"
        elif before.kind == "sign":
            wide = before.html in ",;:" or (after.kind == "word" and before.html in CLOSE)
        else:
            return tag("mspace", width="0.3em" if "word" in (before.kind, after.kind) else "0.17em")
        return tag("mspace", width="0.3em") if wide else ""


def start_of_product(pieces: list[Piece], spaced: bool) -> int:
    """Returns where the numerator begins of a slash behind these pieces: a factor, or with spaces a whole product."""
    start = len(pieces)
    while start and (
        pieces[start - 1].kind in ("atom", "word")
        or (spaced and (pieces[start - 1].kind in ("large", "space") or pieces[start - 1].html == "·"))
    ):
        start -= 1
    while start < len(pieces) and pieces[start].kind == "space":
        start += 1
    return start


def tokens(line: str) -> list[Token]:
    """Returns the parts of a line."""
    found = TOKEN.finditer(re.sub(r" +(?== )", " ", line))
    return [Token(match.lastgroup or "", match[match.lastgroup or 0]) for match in found]


# ---------------------------------------------------------------- lines


def stops(line: str) -> set[tuple[int, int]]:
    """Returns the columns at which a line may be aligned: behind its gaps, and at its signs of equality.

    Beside a sign of equality stands the column at which its left side begins, which aligned lines have in common.
    """
    gaps = [match.end() for match in re.finditer(r" {2,}(?! |= )", line)]
    signs = [match.end() - 1 for match in re.finditer(r" =(?= )", line)]
    return {(gap, gap) for gap in gaps} | {
        (equals, max((gap for gap in gaps if gap < equals), default=0)) for equals in signs
    }


def groups(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yields the lines that are aligned with one another, and the columns at which they are."""
    start, columns = 0, set[int]()
    for at in range(len(lines)):
        shared = {column for column, _ in stops(lines[at]) & stops("".join(lines[at + 1 : at + 2]))}
        columns |= shared
        if not shared:
            yield lines[start : at + 1], sorted(columns)
            start, columns = at + 1, set()


def cells(line: str, columns: list[int]) -> list[tuple[str, int]]:
    """Returns the parts of a line, each with the number of columns that it spans."""
    own = {column for column, _ in stops(line)}
    edges = [0, *(column for column in columns if column in own), len(line)]
    bounds = [0, *columns]
    spans = [len(bounds) if end == len(line) else bounds.index(end) for end in edges[1:]]
    starts = [bounds.index(begin) for begin in edges[:-1]]
    return [(line[edges[at] : edges[at + 1]].strip(), spans[at] - starts[at]) for at in range(len(starts))]


def table(lines: list[str], columns: list[int]) -> str:
    """Returns lines that are aligned at these columns."""
    rows = []
    for line in lines:
        parts = cells(line, columns)
        behind = [tag("mspace", width="1em") if part[:1] not in ("", "=") else "" for part, _ in parts[1:]] + [""]
        inner = [
            tag("mtd", Line(tokens(part)).row(), space, **({"columnspan": str(span)} if span > 1 else {}))
            for (part, span), space in zip(parts, behind, strict=True)
        ]
        rows.append(tag("mtr", *inner))
    return tag("mtable", *rows, displaystyle="true")


def mathml(text: str) -> str:
    """Returns an equation of one line or more as HTML. A line that is not aligned with others may break at its gaps."""
    made = []
    for lines, columns in groups([line.rstrip() for line in text.splitlines() if line.strip()]):
        if columns:
            found = {"\n".join(lines): table(lines, columns)}
        else:
            parts = re.split(r" {2,}(?!=)", lines[0].strip())
            found = {part: Line(tokens(part)).row() for part in parts}
        maths = [tag("math", html, display="block", alttext=escape(part)) for part, html in found.items()]
        kind = "line continued" if lines[0].startswith("  ") and not columns else "line"
        made.append(f'<div class="{kind}">{"".join(maths)}</div>')
    return f'<div class="equation">{"".join(made)}</div>'
