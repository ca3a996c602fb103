"""The site of the documentation has every page and every public name in one place, and its build is strict."""

import ast
import base64
import builtins
import importlib
import inspect
import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from headway.positions import ENCODINGS

from .test_public_surface import MODULES

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
DIRECTIVE = re.compile(r"^\.\. (?:py:data|auto(?!module)\w+):: (\S+)$", re.M)
TOOLS = ["sphinx", "myst_parser", "furo", "sphinx_copybutton", "jieba"]


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module("reference")


@pytest.fixture
def navigation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module("navigation")


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module("notebooks")


def test_every_page_has_one_place(navigation: ModuleType) -> None:
    patterns = ("*.md", "[a-z]*/README.md", "docs/**/*.md", "src/**/README.md", "benchmarks/**/*.md")
    there = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)} - {"README.md"}
    placed = [page for pages in navigation.NAVIGATION.values() for page in pages]
    assert {page for page in placed if not page.startswith("reference/")} == there
    assert len(placed) == len(set(placed))


def test_a_file_that_a_page_links_to_can_be_shown(navigation: ModuleType) -> None:
    pages = [ROOT / page for pages in navigation.NAVIGATION.values() for page in pages if "reference/" not in page]
    linked = {
        (page.parent / target).resolve()
        for page in [ROOT / "README.md", *pages]
        for target in re.findall(r"(?<!!)\[[^\]]*\]\(<?([^)>#\s]+)", page.read_text(encoding="utf-8"))
    }
    files = {path for path in linked if path.is_file()}
    assert {path.suffix for path in files} >= {".py", ".html", ".png"}
    for path in files:
        if path.suffix not in navigation.WHOLE:
            assert "\0" not in path.read_text(encoding="utf-8"), path


def test_a_page_in_chinese_is_the_twin_of_one_in_english(navigation: ModuleType) -> None:
    twins = navigation.twins()
    placed = {page.removesuffix(".md") for pages in navigation.NAVIGATION.values() for page in pages} | {"index"}
    assert set(twins) <= placed
    assert {page for page in placed if "zh-CN" in page} <= set(twins)
    assert all(twins[twins[page]] == page for page in twins)


def test_every_public_name_is_documented_once(reference: ModuleType) -> None:
    assert sorted(reference.MODULES) == sorted({"headway", *(f"headway.{name}" for name in MODULES)})
    places, pages = reference.places(), reference.pages()
    offered = {f"{module}.{name}" for module in reference.MODULES for name in importlib.import_module(module).__all__}
    assert set(places) == offered - set(reference.MODULES)

    texts = {module: reference.module_page(module) for module in reference.MODULES}
    own = {full: reference.entry(full) for full, page in pages.items() if page.startswith("encodings/")}
    found = Counter(name for text in [*texts.values(), *own.values()] for name in DIRECTIVE.findall(text))
    assert set(found) == set(places.values())
    assert [name for name, times in found.items() if times > 1] == []

    # a name that is documented elsewhere is a link on the page of its module
    for full, documented in places.items():
        module, _, name = full.rpartition(".")
        assert (documented == full and pages[full] == module) != (f"[{name}](#{documented})" in texts[module]), full


def test_every_public_constant_is_described(reference: ModuleType) -> None:
    constants = [full for full in reference.pages() if not reference.has_docstring(reference.thing(full))]
    assert constants
    assert [full for full in constants if not reference.said_of(full)] == []


# ---------------------------------------------------------------- equations


@pytest.fixture
def equations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module("equations")


FORMS = {"mfrac": "frac({0}, {1})", "msub": "{0}[{1}|]", "msup": "{0}[|{1}]", "msubsup": "{0}[{1}|{2}]"}
FORMS |= {"munder": "{0}[{1}|]", "munderover": "{0}[{1}|{2}]"}


def read(element: ElementTree.Element) -> str:
    """Returns MathML as text, with the index and the exponent of x as x[index|exponent]."""
    inner = [read(child) for child in element]
    if element.tag in FORMS:
        return FORMS[element.tag].format(*inner)
    if element.tag == "mspace":
        return {"2em": "    ", "1em": "", "0.3em": " ", "0.17em": " "}[element.attrib["width"]]
    if element.tag == "mo" and not {"form", "lspace"} & set(element.attrib) and (element.text or "") in "=<+−":
        return f" {element.text} "
    joined = (" | " if element.tag == "mtr" else "").join(inner)
    return f"sqrt({joined})" if element.tag == "msqrt" else joined + (element.text or "")


@pytest.mark.parametrize(
    ("text", "typeset"),
    [
        ("score[i,j] = s·⟨qᵢ, kⱼ₊₁⟩", "score[i,j] = s·⟨q[i|], k[j+1|]⟩"),
        ("ω_c = base^(−2c/d)", "ω[c|] = base[|−2c/d]"),
        ("x'ᵢ = W_R,h·x̂_t + w_{h,c}", "x[i|′] = W[R,h|]·x^[t|] + w[h,c|]"),
        ("f(x) = 1/(1 + e^(−x))", "f(x) = frac(1, 1 + e[|−x])"),
        ("a·b/c·d", "a·frac(b, c)·d"),
        ("Σ_c a_c·b_c / (8h/H) + d", "frac(∑[c|] a[c|]·b[c|], 8h/H) + d"),
        ("−2π/θ_c, (a + b)/2", "−frac(2π, θ[c|]), frac(a + b, 2)"),
        ("a/Σⱼ b_j", "a/∑[j|] b[j|]"),
        ("u/√(‖u‖² + 10⁻⁶)", "frac(u, sqrt(‖u‖[|2] + 10[|−6]))"),
        ("u_(1) < u_(i)", "u[(1)|] < u[(i)|]"),
        ("Σ_{t=j+1…i} ln f_h(t)", "∑[t = j + 1…i|] ln f[h|](t)"),
        ("|δ|^r2_h, P(w | h)", "|δ|[|r2[h|]], P(w|h)"),
        ("head_dim − max_b + log_frequencies_c", "head_dim − max[b|] + log_frequencies[c|]"),
        ("c < r, else ±(w − 1) with the sign's", "c < r, else ±(w − 1) with the sign's"),
        ("U[0, 1)", "U[0, 1)"),
        ("cap( s·( q )", "cap(s·(q)"),
        ("uᵣ_h + S_h^T", "u[rh|] + S[h|T]"),
    ],
)
def test_an_equation_is_typeset(equations: ModuleType, text: str, typeset: str) -> None:
    assert read(ElementTree.fromstring(equations.mathml(text))) == typeset


def test_lines_are_aligned_where_the_text_is(equations: ModuleType) -> None:
    lines = ['a     = 1,  b = 2   for "x"', "a + b = 3,  b = 4   else", "      = 5", "c = 6"]
    page = ElementTree.fromstring(equations.mathml("\n".join(lines)))
    assert [read(line) for line in page.iter("mtr")] == [
        'a |  = 1, | b |  = 2 | for "x"',
        "a + b |  = 3, | b |  = 4 | else",
        " |  = 5",
    ]
    assert [one.get("columnspan") for one in page.iter("mtd")] == [*[None] * 11, "4"]
    assert read(list(page)[-1]) == "c = 6"


def test_a_line_may_break_at_its_gaps(equations: ModuleType) -> None:
    page = ElementTree.fromstring(equations.mathml("a = b + c,   d = e\n      + f   for g"))
    assert [[read(math) for math in line] for line in page] == [["a = b + c,", "d = e"], ["+f", "for g"]]
    assert [line.get("class") for line in page] == ["line", "line continued"]
    assert [sign.get("form") for sign in page.iter("mo") if sign.text == "+"] == [None, "infix"]


def test_the_equations_of_the_docstrings_keep_their_signs(equations: ModuleType) -> None:
    lower = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ᵢⱼₗₘₙₚᵣₜ⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀΣΠ", "0123456789+−ijlmnprt0123456789−T∑∏", strict=True))

    def signs(text: str) -> str:
        plain = "".join(lower.get(one, one) for one in unicodedata.normalize("NFD", text))
        return re.sub(r"[\s_^~∼¯/(){}√'′⁽⁾\u0302-\u0304]", "", plain)

    for name, cls in ENCODINGS.items():
        blocks = re.findall(r"(?:^    .*\n)+", f"{inspect.getdoc(cls)}\n".partition("\nArgs:")[0], re.M)
        assert blocks or name == "none"
        for block in map(inspect.cleandoc, blocks):
            page = ElementTree.fromstring(equations.mathml(block))
            assert signs("".join(page.itertext())) == signs(block), name


# ---------------------------------------------------------------- notebooks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_notebook_has_the_code_of_its_lesson_and_needs_no_other(notebooks: ModuleType, language: str) -> None:
    assert list(notebooks.scripts()) == list(range(16))
    for number, script in notebooks.scripts().items():
        page, text = notebooks.section(number, language), notebooks.markdown(number, language)
        *code, last = re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.M | re.S)
        own = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
        assert own
        assert code[-len(own) :] == own
        assert f'show("{script}", "{language}")' in last

        tree = ast.parse("\n".join(code))
        known = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        known |= {arg.arg for arg in ast.walk(tree) if isinstance(arg, ast.arg)} | set(dir(builtins))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                known.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                known |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        assert {name.id for name in ast.walk(tree) if isinstance(name, ast.Name)} <= known, number

        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        assert re.findall(r"\]\((?!attachment:|https?://)[^)]*\)", prose) == []
        assert "<details>" not in prose
        assert "```sh\n" not in text, "jupytext makes a cell of it"


@pytest.mark.slow
def test_a_notebook_runs_and_shows_what_the_page_shows(notebooks: ModuleType, tmp_path: Path) -> None:
    for tool in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(tool, reason="`make site` installs what it needs")
    title = notebooks.write(tmp_path / "lesson.ipynb", 1, "zh")
    assert title == "1. 注意力就是加权查表"
    cells = json.loads((tmp_path / "lesson.ipynb").read_text(encoding="utf-8"))["cells"]
    printed = ["".join(out.get("text", "")) for cell in cells for out in cell.get("outputs", [])]
    page = re.findall(r"^```text\n(.*?)^```$", notebooks.section(1, "zh"), re.M | re.S)
    assert printed[: len(page)] == page
    assert "对应的体重是多少" in printed[len(page)]
    assert any("image/png" in out.get("data", {}) for out in cells[-1]["outputs"])
    (picture,) = [cell["attachments"] for cell in cells if cell.get("attachments")]
    drawn = base64.b64decode(picture["1-weighted-lookup.png"]["image/png"])
    assert drawn == (ROOT / "docs" / "zh-CN" / "lessons" / "1-weighted-lookup.png").read_bytes()


# ---------------------------------------------------------------- the build


def build(source: Path, **texts: str) -> subprocess.CompletedProcess[str]:
    """Builds a small site as `make site` does."""
    for tool in TOOLS:
        pytest.importorskip(tool, reason="`make site` installs what it needs")
    for name, text in texts.items():
        path = source / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-c", str(SITE)]
    return subprocess.run(
        [*command, str(source), str(source / "html")], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_equations_and_examples_keep_their_columns(reference: ModuleType, tmp_path: Path) -> None:
    names = ("headway.positions.T5", "headway.nn.KeyValueCache", "headway.terms.Power", "headway.models.Step")
    page = "# Start\n\n[中文](README.zh-CN.md)\n\n    loss = Σ ln p\n\n```{toctree}\nREADME.zh-CN\n```\n\n" + "\n".join(
        map(reference.entry, names)
    )
    done = build(tmp_path, index=page, **{"README.zh-CN": "# 开始\n\n[English](index.md)\n"})
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    literal = re.sub(r"<[^>]+>", "", "\n".join(re.findall(r"<pre>(.*?)</pre>", text, re.S)))
    assert "for token in tokens:" in literal
    typeset = re.findall(r'alttext="([^"]*)"', text)
    assert "loss = Σ ln p" in typeset
    assert any("bucket(δ) = f(|δ|) + (B if δ &gt; 0),  B = num_buckets/2   bidirectional\n" in one for one in typeset)
    assert "Alias for field" not in text
    chinese = (tmp_path / "html" / "README.zh-CN.html").read_text(encoding="utf-8")
    for html, language, switch in ((text, "en", "中文"), (chinese, "zh-CN", "English")):
        assert f'lang="{language}"' in html
        assert re.search(rf'language-switch">\s*<a [^>]*>{switch}</a>', html)
    # what the page of the search runs: a stemmer that exists, and a function that searchtools.js may declare again
    search = (tmp_path / "html" / "_static" / "language_data.js").read_text(encoding="utf-8")
    stemmer = re.search(r"^window\.Stemmer = (\w+);$", search, re.M)
    assert stemmer is not None
    assert f"var {stemmer[1]}=" in search
    assert "var splitQuery = " in search


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[page](missing.md)", "[place](index.md#missing)", "{py:obj}`headway.missing`"])
def test_a_broken_link_fails(link: str, tmp_path: Path) -> None:
    done = build(tmp_path, index=f"# Start\n\n{link}\n")
    assert done.returncode == 1
    assert "missing" in done.stderr
