"""Sphinx's configuration for the site. `make site` writes the folder that it reads (reference.py)."""

import inspect
import logging
import posixpath
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import equations
import jieba
from docutils import nodes
from docutils.parsers.rst import Directive
from navigation import NAVIGATION, WHOLE, twins
from sphinx import addnodes
from sphinx.search.zh import SearchChinese

import headway

jieba.setLogLevel(logging.WARNING)  # it says when it reads its dictionary

project = "headway"
author = "The headway developers"
copyright = author
version = release = headway.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
include_patterns = ["index.md", *(page for pages in NAVIGATION.values() for page in pages), "reference/**"]
default_role = "literal"
nitpicky = True
nitpick_ignore_regex = [("py:(class|exc)", ".*")]  # annotations name private classes and those of other libraries

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
napoleon_custom_sections = [("Shape", "params_style")]
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"headway {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_theme_options = {"top_of_page_buttons": ["view"]}
html_show_sourcelink = False
html_copy_source = False
html_search_language = "zh"  # words of Chinese, and of English
copybutton_exclude = ".linenos, .gp, .go"


# ---------------------------------------------------------------- search


class Search(SearchChinese):
    """Search in Chinese and English."""

    language_name = "English"  # of the stemmer: Sphinx 9 names one that does not exist, and no search ends
    js_splitter_code = """
const segmenter = new Intl.Segmenter("zh", { granularity: "word" });
const words = (text) => Array.from(segmenter.segment(text), (part) => part.segment);
const split = (text) => (/\\p{Script=Han}/u.test(text) ? words(text) : text);
var splitQuery = (query) => query.split(/[^\\p{Letter}\\p{Number}_]+/u).filter(Boolean).flatMap(split);
"""


# ---------------------------------------------------------------- docstrings


def mark_literals(app, what, name, thing, options, lines):
    """Makes literal blocks of examples, and equations of what else docstrings indent."""
    # napoleon takes words before a colon in the first line of an attribute's docstring for its type
    found, last, literal = [""] * (what == "attribute"), "", False
    for line in lines:
        indent = ""
        if not line.startswith(" "):
            last, literal = line or last, literal and not line
        elif last == "Example:":
            found += ["    ::", ""] * (not literal)
            literal, indent = True, "    "
        elif found and not found[-1] and not literal:
            literal = last.endswith("::") or not SECTION.match(last)
            found += [".. equation::", ""] * (literal and not last.endswith("::"))
        found.append(indent + line if literal else VERBATIM.sub(lambda part: part[1] or r"\|", line))
    lines[:] = found


SECTION = re.compile(r"(- |\w+:$)")
"""The beginning of a list, and of a section, whose text is indented too."""
VERBATIM = re.compile(r"(``.*?``)|\|")
"""Code, and bars outside of it, which are those of absolute values here."""


def skip_fields(app, what, name, thing, skip, options):
    """Leaves out the fields of named tuples, which the docstring of the class describes."""
    return True if inspect.isdatadescriptor(thing) and (thing.__doc__ or "").startswith("Alias for field") else None


# ---------------------------------------------------------------- equations


class Equation(Directive):
    """Typesets lines of a docstring."""

    has_content = True

    def run(self):
        return [nodes.raw("", equations.mathml("\n".join(self.content)), format="html")]


def typeset(app, doctree):
    """Typesets the equations of the repository's pages: blocks of no language with sums or products of vectors."""
    for node in list(doctree.findall(nodes.literal_block)):
        if node.get("language") in (None, "none", "default", "text") and re.search("[Σ⟨]", node.astext()):
            node.replace_self(nodes.raw("", equations.mathml(node.astext()), format="html"))


# ---------------------------------------------------------------- links into the sources


def link_sources(app, doctree):
    """Leads links to files of the repository to pages that show them."""
    docname = app.env.docname
    for node in list(doctree.findall(addnodes.download_reference)):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(docname), node["reftarget"]))
        shown = path
        if path.endswith(WHOLE):
            whole_files(app).add(path)
        else:
            sources(app).add(path)
            shown = f"source/{path}.html"
        uri = posixpath.relpath(shown, posixpath.dirname(docname) or ".")
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def whole_files(app):
    """The files that pages link to and that a browser shows, such as reports."""
    if not hasattr(app.env, "headway_files"):
        app.env.headway_files = set()
    return app.env.headway_files


def copy_whole_files(app, exception):
    """Copies them beside the pages of the site."""
    for path in () if exception else sorted(whole_files(app)):
        copy = Path(app.outdir, path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(app.srcdir, path), copy)


def sources(app):
    """The files that pages link to."""
    if not hasattr(app.env, "headway_sources"):
        app.env.headway_sources = set()
    return app.env.headway_sources


LEXERS = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".toml": "toml", ".yml": "yaml", ".cff": "yaml", ".ts": "ts"}


def source_pages(app):
    """Yields a page for each of them."""
    for path in sorted(sources(app)):
        text = Path(app.srcdir, path).read_text(encoding="utf-8")
        language = LEXERS.get(Path(path).suffix, "text")
        shown = app.builder.highlighter.highlight_block(text, language, force=True)
        yield f"source/{path}", {"title": path, "body": f"<h1>{path}</h1>{shown}"}, "page.html"


# ---------------------------------------------------------------- two languages


def name_languages(app, pagename, templatename, context, doctree):
    """Gives a page its language, and the page in the other one."""
    chinese = "zh-CN" in pagename
    context["language"] = "zh-CN" if chinese else "en"
    context["twin"] = twins().get(pagename)
    context["twin_language"] = "English" if chinese else "中文"


# ---------------------------------------------------------------- pages beside the site


def add_extra(app, config):
    """Copies the pages that are whole already, such as those of lessons, into the site."""
    if (extra := Path(app.srcdir) / "extra").is_dir():
        config.html_extra_path = [*config.html_extra_path, str(extra)]


def setup(app):
    app.add_search_language(Search)
    app.add_directive("equation", Equation)
    app.connect("config-inited", add_extra)
    app.connect("autodoc-process-docstring", mark_literals, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("doctree-read", typeset)
    app.connect("doctree-read", link_sources, priority=400)
    app.connect("build-finished", copy_whole_files)
    app.connect("html-collect-pages", source_pages)
    app.connect("html-page-context", name_languages)
