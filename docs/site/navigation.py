"""The pages of the site and their order. A page has one place, and is the file in the repository itself."""

NAVIGATION: dict[str, tuple[str, ...]] = {
    "Start": (
        "docs/install.md",
        "docs/performance.md",
        "docs/troubleshooting.md",
        "docs/glossary.md",
    ),
    "How to": (
        "docs/coming-from.md",
        "docs/layers.md",
        "docs/masks.md",
        "docs/decoding.md",
        "docs/models.md",
        "docs/how-to-choose-an-encoding.md",
        "docs/extending.md",
        "docs/comparing.md",
        "docs/inspection.md",
        "docs/attention-weights.md",
        "docs/word-vectors.md",
        "docs/extending-a-context.md",
        "docs/scaling.md",
        "docs/gpu.md",
        "docs/tuning.md",
        "docs/ways-of-running.md",
    ),
    "Lessons": (
        "docs/lessons.md",
        "reference/lesson-pages.md",
        "reference/notebooks.md",
        "docs/claims.md",
        "docs/coverage.md",
        "examples/README.md",
    ),
    "Reference": (
        "docs/encodings.md",
        "reference/index.md",
        "reference/encodings.md",
        "reference/commands.md",
        "docs/stability.md",
    ),
    "Explanation": (
        "DESIGN.md",
        "BENCHMARKS.md",
        "docs/comparison.md",
        "docs/tasks.md",
        "docs/heads.md",
    ),
    "Rooms of the source": (
        "src/headway/_common/README.md",
        "src/headway/positions/README.md",
        "src/headway/kernels/README.md",
        "src/headway/kernels/cpu/README.md",
        "src/headway/kernels/cpu/csrc/README.md",
        "src/headway/kernels/triton/README.md",
        "src/headway/nn/README.md",
        "src/headway/parallel/README.md",
        "src/headway/checkpoints/README.md",
        "src/headway/integrations/README.md",
        "src/headway/inspection/README.md",
        "src/headway/inspection/report/README.md",
        "src/headway/vectors/README.md",
        "src/headway/study/README.md",
        "src/headway/tuning/README.md",
    ),
    "Project": (
        "CHANGELOG.md",
        "docs/citing.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "tests/README.md",
        "benchmarks/README.md",
        "benchmarks/results/2026-11-22-bench.md",
        "packaging/README.md",
        "tuned/README.md",
        "viewer/README.md",
    ),
    "中文": (
        "README.zh-CN.md",
        "docs/zh-CN/install.md",
        "docs/zh-CN/troubleshooting.md",
        "docs/zh-CN/glossary.md",
        "docs/zh-CN/masks.md",
        "docs/zh-CN/how-to-choose-an-encoding.md",
        "docs/zh-CN/layers.md",
        "docs/zh-CN/comparing.md",
        "docs/zh-CN/inspection.md",
        "docs/zh-CN/tasks.md",
        "docs/zh-CN/attention-weights.md",
        "docs/zh-CN/word-vectors.md",
        "docs/zh-CN/scaling.md",
        "docs/zh-CN/lessons.md",
        "docs/zh-CN/claims.md",
        "docs/zh-CN/coverage.md",
        "docs/zh-CN/heads.md",
        "docs/zh-CN/stability.md",
        "docs/zh-CN/citing.md",
    ),
}
"""The pages under each caption. Those in reference/ are made from the package; README.md is the first page."""

WHOLE = (".html", ".png")
"""The ends of files that a browser shows as they are. A link to any other file leads to a page with its text."""


def twins() -> dict[str, str]:
    """Returns the page in the other language of each page that exists in both, by the names that Sphinx gives them."""
    names = [page.removesuffix(".md") for pages in NAVIGATION.values() for page in pages]
    chinese = {name: name.replace("zh-CN/", "") for name in names if "zh-CN/" in name} | {"README.zh-CN": "index"}
    return chinese | {english: name for name, english in chinese.items()}
