"""Writes the lessons as notebooks and runs them: `make site` puts them beside the pages.

jupytext makes a notebook of a lesson's section in docs/lessons.md, or in docs/zh-CN/lessons.md. Its last cell runs the
lesson's script. A cell that fails stops the build.
"""

import base64
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {"en": ROOT / "docs" / "lessons.md", "zh": ROOT / "docs" / "zh-CN" / "lessons.md"}
"""The page of the lessons in each language, by the names that the scripts give languages."""

LONG = {5, 7, 8, 9, 10, 11, 12, 15}
"""The lessons whose scripts take more than twenty seconds. Their last cell is left to the reader."""

PRINTED = re.compile(r"^(```python\n.*?^```\n)\n```text\n.*?^```\n", re.M | re.S)
"""A block of Python with the block of what it prints, which a notebook computes."""
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://)[^)]+\)")

WORDS = {
    "en": {
        "need": "This notebook is made from a section of the page of the lessons. It needs headway with the extra "
        "`lessons`.",
        "script": "## The script of the lesson\n\nIt measures the numbers of this lesson and draws its pictures. It is "
        "a file of headway's folder `examples`: name that folder if the notebook is elsewhere.",
        "answer": "### Answer",
    },
    "zh": {
        "need": "本笔记本由课程页面的一节生成，需要 headway 及其附加组件 `lessons`。",
        "script": "## 本课的脚本\n\n脚本测出本课的数字并画图。它是 headway 的 `examples` 文件夹中的一个文件；如果笔记本"
        "不在那里，请写出该文件夹的路径。",
        "answer": "### 答案",
    },
}


def scripts() -> dict[int, str]:
    """Returns the name of each lesson's script, without its ending."""
    names = [path.stem for path in (ROOT / "examples").glob("lesson_*.py")]
    return dict(sorted((int(name.split("_")[1]), name) for name in names))


def section(number: int, language: str) -> str:
    """Returns the section of a lesson, as it stands on the page."""
    text = PAGES[language].read_text(encoding="utf-8")
    return next(part for part in re.split(r"^(?=## )", text, flags=re.M) if part.startswith(f"## {number}. "))


def markdown(number: int, language: str) -> str:
    """Returns the Markdown of which jupytext makes the notebook of a lesson."""
    words = WORDS[language]
    head, text = section(number, language).split("\n", 1)
    text = PRINTED.sub(r"\1", text).replace("```sh\n", "```shell\n")  # jupytext would make cells of the first
    text = re.sub(r"<details><summary>.*?</summary>", words["answer"], text).replace("</details>\n", "")
    text = PICTURE.sub(lambda found: f"![{found[1]}](attachment:{Path(found[2]).name})", LINK.sub(r"\1", text))
    first = "" if "import torch" in text else "```python\nimport torch\nimport headway as hw\n```"
    skipped = ' tags=["skip-execution"]' if number in LONG else ""
    last = (
        f"```python{skipped}\nimport sys\n\n"
        'sys.path += ["examples", "."]  # of a checkout\n'
        "from lesson import show\n\n"
        f'found = show("{scripts()[number]}", "{language}")\n```'
    )
    parts = [head.removeprefix("#"), words["need"], first, text.strip(), words["script"], last]
    return "\n\n".join(filter(None, parts))


def notebook(number: int, language: str) -> Any:
    """Returns the notebook of a lesson, with its pictures and without outputs."""
    import jupytext

    made = jupytext.reads(markdown(number, language), "md")
    made.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    pictures = {Path(path).name: path for _, path in PICTURE.findall(section(number, language))}
    for place, cell in enumerate(made.cells):
        cell.id = f"cell-{place}"  # jupytext draws them at random
        if shown := re.findall(r"\(attachment:([^)]+)\)", cell.source):
            files = {name: (PAGES[language].parent / pictures[name]).read_bytes() for name in shown}
            cell.attachments = {name: {"image/png": base64.b64encode(file).decode()} for name, file in files.items()}
    return made


def run(made: Any) -> None:
    """Runs the cells of a notebook, which keeps what they print and show."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    with TemporaryDirectory() as sockets, TemporaryDirectory() as folder:  # cells write files
        Path(folder, "examples").symlink_to(ROOT / "examples", target_is_directory=True)
        # files, where there are such sockets, and no ports that others could reach
        private = {"transport": "ipc", "ip": f"{sockets}/kernel"} if os.name == "posix" else {}
        options = {"resources": {"metadata": {"path": folder}}, "config": Config({"KernelManager": private})}
        NotebookClient(made, timeout=900, record_timing=False, **options).execute()


def write(file: Path, number: int, language: str) -> str:
    """Writes the notebook of a lesson, and returns its title."""
    import nbformat

    made = notebook(number, language)
    run(made)
    nbformat.validate(made)
    nbformat.write(made, file)
    return made.cells[0].source.partition("\n")[0].removeprefix("# ")


def write_all(folder: Path) -> list[list[tuple[str, str]]]:
    """Writes all notebooks, and returns the file and the title of each: a list for each lesson, of its languages."""
    folder.mkdir(parents=True)
    kept = [[f"{name}.{language}.ipynb" for language in PAGES] for name in scripts().values()]
    lessons = [(number, language) for number in scripts() for language in PAGES]
    files = [folder / file for files in kept for file in files]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        titles = pool.map(write, files, *zip(*lessons, strict=True))
    return [[(file, next(titles)) for file in files] for files in kept]
