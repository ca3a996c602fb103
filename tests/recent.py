"""Which tests run whole because of a recent change, and for which a cross-section is enough: ``pytest --recent``.

Recent is what differs between the working tree, with files that git does not track, and the newest commit of this
branch that is more than eight hours old. A test that belongs to no row of GROUPS and to no room of ROOMS always runs.
Without git, without such a commit, and in a shallow clone, every test runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.positions import PositionEncoding

ROOT = Path(__file__).parents[1]
AGE = timedelta(hours=8)

EVERYTHING = ("pyproject.toml", "constraints.txt", "CMakeLists.txt", "cmake/", "tests/conftest.py")
"""All tests depend on these. The Makefile and this file change how tests are started, and not what one of them does."""

MASKS = "src/headway/masks/"
CALL = (
    *("src/headway/*.py", MASKS, "src/headway/positions/_*.py"),
    *("src/headway/kernels/_*.py", "src/headway/kernels/lowering/", "src/headway/kernels/reference.py"),
    *("src/headway/kernels/sdpa.py", "src/headway/kernels/cpu/"),
)
"""The path of a call, with the C++ kernel."""
COMMON = "src/headway/_common/"
POSITIONS, NN, MODELS = "src/headway/positions/", "src/headway/nn/", "src/headway/models/"
CHECKPOINTS, INSPECTION, VECTORS = "src/headway/checkpoints/", "src/headway/inspection/", "src/headway/vectors/"
STUDY, TESTING, BENCH, CLI = (f"src/headway/{name}/" for name in ("study", "testing", "bench", "cli"))
PARALLEL = "src/headway/parallel/"
FLEX, TRITON = "src/headway/kernels/flex.py", "src/headway/kernels/triton/"
INTEGRATIONS, IN_TORCH, IN_TRANSFORMERS = (
    f"src/headway/integrations/{name}" for name in ("", "torch.py", "transformers/")
)


def encodings(*names: str) -> tuple[str, ...]:
    """The files of these encodings."""
    return tuple(f"src/headway/positions/**/{name.replace('-', '_')}.py" for name in names)


@dataclass(frozen=True)
class Group:
    """Tests that take long, and what they depend on.

    Attributes:
        tests: patterns of node ids: a file, or a test of a file, without its cases.
        paths: patterns of paths. The files of ``tests``, and each conftest.py above them, belong to them.
    """

    tests: tuple[str, ...]
    paths: tuple[str, ...]

    def has(self, test: str) -> bool:
        """Whether a test belongs to the group, by its node id without the case."""
        return any(_matches(pattern if "::" in pattern else f"{pattern}::**", test) for pattern in self.tests)

    def touched(self, files: Collection[str]) -> list[str]:
        """Those of the files on which its tests depend."""
        own = {test.partition("::")[0] for test in self.tests}
        above = {f"{folder}/conftest.py" for test in own for folder in PurePosixPath(test).parents}
        patterns = {*EVERYTHING, *self.paths, *own, *above}
        return sorted(file for file in files if any(_matches(pattern, file) for pattern in patterns))


@cache
def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern describes a text.

    ``*`` stands for anything within a folder, ``**`` for anything, ``**/`` for any folders or none. A folder, with
    a slash at its end, stands for all that is in it.
    """
    whole = re.escape(f"{pattern}**" if pattern.endswith("/") else pattern)
    for written, meant in ((r"\*\*/", "(?:.*/)?"), (r"\*\*", ".*"), (r"\*", "[^/]*")):
        whole = whole.replace(written, meant.replace("*", "\0"))
    return re.fullmatch(whole.replace("\0", "*"), text) is not None


LESSONS: dict[int, tuple[str, ...]] = {
    0: (NN, MODELS, INSPECTION, *encodings("sinusoidal")),
    1: (),
    2: (NN, MODELS, INSPECTION, STUDY),
    3: (NN,),
    4: (NN, MODELS, INSPECTION, POSITIONS),
    5: (NN, MODELS, CHECKPOINTS, TESTING, POSITIONS),
    6: (NN, MODELS, POSITIONS),
    7: (NN, MODELS, CHECKPOINTS, INSPECTION, STUDY, POSITIONS, "examples/heads_at_work.py"),
    8: (NN, MODELS, INSPECTION, *encodings("sinusoidal")),
    9: (NN, MODELS, INSPECTION, *encodings("sinusoidal", "rope")),
    10: (VECTORS,),
    11: (VECTORS, "examples/lesson_10_words.py"),
    12: (NN, MODELS, POSITIONS),
    13: (NN, MODELS, INSPECTION, POSITIONS),
    14: (NN, MODELS, INSPECTION, VECTORS, BENCH, POSITIONS, "examples/catalogues.py", "examples/translator.py"),
    15: (NN, MODELS, INSPECTION, STUDY, POSITIONS),
}
"""What a lesson computes with, apart from attention itself, and the scripts that it imports."""

GROUPS = {
    "Triton's programs, interpreted and compiled": Group(
        (
            "tests/kernels/test_triton.py::test_interpreted",
            "tests/kernels/test_triton.py::test_compiled",
            "tests/kernels/test_triton.py::test_a_program_is_compiled_at_most_twice_over_64_lengths",
        ),
        (
            *CALL,
            *(TRITON, TESTING, "tests/interpreter.py", "tests/triton_on.py"),
            *("tests/golden/triton.json", "tests/kernels/compiled_programs.py", "tests/kernels/descriptors.py"),
            # what test_interpreted runs
            *("tests/kernels/test_triton_programs.py", "tests/conformance/test_kernels.py"),
            *("tests/test_torch_sdpa.py", "tests/test_compile.py", "tests/inspection/test_reductions_of_kernels.py"),
            *("tests/test_attention.py", "tests/test_masks.py", "tests/test_call.py", "tests/kernels/test_sdpa.py"),
        ),
    ),
    "encodings and masks on several processes": Group(
        (
            "tests/parallel/test_methods.py::test_every_encoding_on_two_processes",
            "tests/parallel/test_methods.py::test_masks_paddings_heads_and_sinks_on_two_processes",
        ),
        (
            *(*CALL, POSITIONS, TESTING, PARALLEL, f"{INSPECTION}_run.py"),
            *("tests/parallel/cases.py", "tests/parallel/processes.py", "tests/forked.py"),
        ),
    ),
    "FlexAttention": Group(
        ("tests/kernels/test_flex.py",),
        (*CALL, FLEX, TRITON, TESTING, "tests/triton_on.py"),
    ),
    "calls in torch's compilers": Group(
        (
            "tests/test_compile.py",
            "tests/kernels/test_sdpa_backends.py::test_a_compiler_sees_one_graph_for_all_lengths",
            "tests/kernels/test_cpu_descriptor.py::test_one_operator_for_all_lengths",
        ),
        (*CALL, TRITON, TESTING, *encodings("rope"), "tests/kernels/cpu_calls.py", "tests/kernels/cpu_words.py"),
    ),
    "masks of Python functions": Group(
        ("tests/test_mask_functions.py",), (*CALL, FLEX, NN, MODELS, f"{INSPECTION}_run.py", POSITIONS, TESTING)
    ),
    "encodings in every check": Group(
        ("tests/conformance/test_encodings.py::test_encoding",), (*CALL, TESTING, *encodings("unit-index"))
    ),
    "hooks of encodings": Group(
        ("tests/positions/test_base.py",), (*CALL, COMMON, POSITIONS, TESTING, "tests/kernels/encoded_calls.py")
    ),
    "encodings of the pages in every check": Group(
        ("tests/test_own_encodings.py",),
        (*CALL, NN, TESTING, STUDY, CLI, "README.md", "CONTRIBUTING.md", "docs/*.md", "tests/test_docs_run.py"),
    ),
    "code of the pages that compiles or trains": Group(
        ("tests/test_docs_run.py::test_python_blocks_of_long_pages_run",),
        (
            *(*CALL, COMMON, NN, MODELS, CHECKPOINTS, INSPECTION, VECTORS, STUDY, CLI, POSITIONS),
            *("docs/decoding.md", "docs/lessons.md", "docs/zh-CN/lessons.md"),
        ),
    ),
    "models in torch's compilers": Group(
        (
            "tests/nn/test_decoding.py::test_one_compilation_for_prompts_and_one_for_steps",
            "tests/nn/test_attention.py::test_compiles_as_one_graph",
            "tests/nn/test_cache.py::test_a_decoding_step_is_one_graph",
            "tests/nn/test_cache.py::test_a_layer_with_a_cache_compiles_as_one_graph",
            "tests/models/test_transformer.py::*compiles*",
            "tests/integrations/test_torch.py::test_the_compiler_takes_it_whole",
            "tests/study/test_train.py::test_switches_of_the_forward_pass",
        ),
        (*CALL, COMMON, NN, MODELS, CHECKPOINTS, f"{INTEGRATIONS}*.py", STUDY, POSITIONS),
    ),
    "inspection of compiled models": Group(
        (
            "tests/inspection/test_capture.py::test_compiled_code_that_runs_a_captured_module_is_seen_right",
            "tests/inspection/test_statistics.py::test_compiled_they_are_the_same",
            "tests/inspection/test_recomputation.py",
            "tests/inspection/test_sources.py::test_flex_attention",
        ),
        (*CALL, FLEX, NN, MODELS, INSPECTION, INTEGRATIONS, TESTING, POSITIONS, "tests/kernels/encoded_calls.py"),
    ),
    "exports to ONNX": Group(
        ("tests/test_onnx.py",),
        (*CALL, FLEX, NN, MODELS, POSITIONS, TESTING, "tests/onnx_exports.py", "tests/golden/onnx.json"),
    ),
    "exports of encodings to ONNX": Group(
        ("tests/test_onnx_of_encodings.py",),
        (*CALL, FLEX, POSITIONS, TESTING, "tests/onnx_exports.py", "tests/golden/onnx.json"),
    ),
    "calls that are traced": Group(
        ("tests/test_tracing.py",),
        (*CALL, NN, IN_TORCH, f"{INTEGRATIONS}__init__.py", TESTING, *encodings("rope", "t5", "shaw", "alibi")),
    ),
    "ways of running a module": Group(
        ("tests/test_ways_of_running.py",),
        (
            *(*CALL, COMMON, NN, MODELS, INTEGRATIONS, "tests/ways.py", "tests/onnx_exports.py"),
            *("src/headway/testing/inputs.py", "src/headway/testing/__init__.py", *encodings("rope", "t5", "alibi")),
        ),
    ),
    "trainings on engines": Group(
        ("tests/study/test_engines.py", "tests/study/test_losses_of_a_suite.py"),
        (*CALL, COMMON, NN, MODELS, POSITIONS, STUDY, CLI, "docs/scaling.md", "tests/forked.py"),
    ),
    "models over several processes": Group(
        tuple(f"tests/parallel/test_{name}.py" for name in ("scaling_page", "tensor", "training")),
        (
            *(*CALL, COMMON, NN, MODELS, PARALLEL, POSITIONS, f"{INSPECTION}_*.py", "docs/scaling.md"),
            *("src/headway/testing/__init__.py", "src/headway/testing/inputs.py", "tests/forked.py"),
            *("tests/parallel/processes.py", "tests/parallel/tensor_cases.py", "tests/parallel/training_cases.py"),
        ),
    ),
    "architectures of transformers": Group(
        ("tests/test_families.py", "tests/integrations/test_transformers.py"),
        (
            *(*CALL, COMMON, IN_TRANSFORMERS, "src/headway/integrations/*.py"),
            *("src/headway/bench/__init__.py", "src/headway/bench/machine.py", "tests/families/"),
            *("tests/golden/families.jsonl", *encodings("t5")),
        ),
    ),
    "families of checkpoints": Group(
        tuple(f"tests/checkpoints/test_{name}.py" for name in ("config_keys", "families", "left_out")),
        (*CALL, COMMON, NN, MODELS, CHECKPOINTS, POSITIONS, TESTING),
    ),
    "small models that come along": Group(
        ("tests/study/planted/test_weights.py", "tests/study/planted/test_sentences.py"),
        (*CALL, COMMON, NN, MODELS, INSPECTION, STUDY, *encodings("rope")),
    ),
    "reports in a browser": Group(
        ("tests/inspection/report/test_viewer.py",),
        (
            *(*CALL, COMMON, INSPECTION, "viewer/", *encodings("rope", "alibi")),
            *(f"tests/inspection/report/{name}.py" for name in ("browser", "drawn_reports", "reports")),
        ),
    ),
    "pages of lessons in a browser": Group(
        ("tests/examples/test_pages.py",),
        (
            *(*CALL, COMMON, NN, MODELS, CHECKPOINTS, INSPECTION, VECTORS, STUDY, BENCH, POSITIONS),
            *("examples/*.py", "examples/pages/", "examples/measured/", "examples/claims/"),
            "tests/inspection/report/browser.py",
        ),
    ),
    "training, and what is killed": Group(
        (
            *("tests/study/test_comparison.py", "tests/study/test_word_vectors.py", "tests/test_long_runs.py"),
            *("tests/study/test_suite.py", "tests/study/tasks/test_sequences.py", "tests/cli/test_compare_tasks.py"),
        ),
        (
            *(*CALL, COMMON, NN, MODELS, CHECKPOINTS, INSPECTION, STUDY, VECTORS, CLI),
            *("tests/long_runs.py", "tests/kernels/encoded_calls.py", "tests/forked.py", "src/headway/testing/*.py"),
            *encodings("abacus", "rope", "t5", "alibi", "shaw", "learned", "cope", "yarn", "transformer-xl"),
            *encodings("randomized"),
        ),
    ),
    "training of word vectors": Group(
        tuple(f"tests/vectors/test_{name}.py" for name in ("conformance", "fasttext", "train_bert", "word2vec")),
        (*CALL, COMMON, NN, MODELS, CHECKPOINTS, VECTORS, TESTING, *encodings("learned")),
    ),
    "kernels verified and measured": Group(
        ("tests/tuning/test_right.py", "tests/tuning/test_tables.py"),
        (*CALL, COMMON, NN, TESTING, TRITON, "src/headway/tuning/", "tests/tuning/"),
    ),
    "damaged files": Group(
        ("tests/test_strangers_files.py",),
        (
            *("src/headway/*.py", MASKS, COMMON, CHECKPOINTS, VECTORS, STUDY, BENCH, CLI, "tests/strangers.py"),
            *(
                INSPECTION,
                "src/headway/positions/_*.py",
                f"{NN}__init__.py",
                f"{MODELS}__init__.py",
                *encodings("rope", "learned"),
            ),
        ),
    ),
    "models in the benchmarks": Group(
        tuple(f"tests/bench/test_{name}.py" for name in ("measure", "models", "run", "sides")),
        (
            *(*CALL, COMMON, FLEX, NN, MODELS, CHECKPOINTS, BENCH, CLI),
            *encodings("rope", "t5", "alibi", "shaw", "sinusoidal", "rotary-values", "cope"),
        ),
    ),
    **{
        f"lesson {number}": Group(
            (f"tests/examples/test_lesson_{number}_*.py",),
            (
                *(*CALL, *rooms, COMMON, f"examples/lesson_{number}_*.py", "examples/lesson.py"),
                *("examples/schematic.py", "examples/claims/", "tests/looks.py", "tests/forked.py"),
            ),
        )
        for number, rooms in LESSONS.items()
    },
}
"""Tests that compile, export, interpret, train or run whole lessons, and the paths on which they depend."""

HELPERS = (
    *(f"tests/kernels/{name}.py" for name in ("*_calls", "cpu_words", "compiled_programs", "descriptors", "replay")),
    *("tests/kernels/replay.cpp", "tests/interpreter.py", "tests/triton_on.py", "tests/looks.py", "tests/forked.py"),
    "tests/golden/",
    *("tests/inspection/roles/annotated.py", "tests/checkpoints/small_llama.py", "tests/checkpoints/chat_templates.py"),
)
CORE = (*CALL, COMMON, POSITIONS, TESTING, *HELPERS)
ABOVE = (*CORE, NN, MODELS)
"""The core, and the layers and models above it."""
ROOMS: dict[str, tuple[str, ...]] = {
    "tests/kernels/": (*CORE, FLEX, TRITON),
    **{f"tests/kernels/test_{name}.py": (NN,) for name in ("cpu_tokens", "user_parts")},
    **{
        f"tests/kernels/test_cpu_{name}.py": ("tests/kernels/agreement.py",)
        for name in ("contextual", "gated_path", "head_network", "stick_weights")
    },
    "tests/conformance/": (*CORE, FLEX, TRITON),
    "tests/conformance/test_whose_coordinates.py": (NN, MODELS),
    **{f"tests/test_{name}.py": CORE for name in ("attention", "fuzz", "masks", "memory", "plans", "torch_sdpa")},
    "tests/test_plans.py": (*CORE, NN),
    "tests/positions/": ABOVE,
    "tests/nn/": ABOVE,
    "tests/nn/test_latent.py": (INSPECTION,),
    "tests/nn/test_linear.py": (IN_TORCH, "src/headway/integrations/*.py"),
    "tests/nn/test_prepacked.py": (CHECKPOINTS,),
    "tests/nn/test_step.py": (INSPECTION,),
    "tests/models/": (*ABOVE, CHECKPOINTS),
    "tests/integrations/": (*ABOVE, INTEGRATIONS),
    "tests/checkpoints/": (*ABOVE, CHECKPOINTS, "docs/models.md"),
    "tests/parallel/": (
        *(*ABOVE, PARALLEL, INSPECTION, INTEGRATIONS),
        *(f"tests/parallel/{name}.py" for name in ("processes", "cases", "*_cases")),
    ),
    "tests/parallel/test_plan.py": (CLI,),
    "tests/inspection/": (
        *(*ABOVE, CHECKPOINTS, INTEGRATIONS, INSPECTION),
        *(f"tests/inspection/report/{name}.py" for name in ("browser", "decoded", "reports")),
    ),
    "tests/vectors/": (*ABOVE, CHECKPOINTS, VECTORS),
    "tests/study/": (*ABOVE, CHECKPOINTS, INSPECTION, VECTORS, STUDY),
    "tests/study/test_suite.py": (CLI, *encodings("randomized")),
    "tests/test_pictures.py": (*ABOVE, INSPECTION, VECTORS, STUDY, BENCH),
    "tests/bench/": (*ABOVE, CHECKPOINTS, INTEGRATIONS, INSPECTION, VECTORS, STUDY, BENCH, CLI),
    "tests/bench/test_sequence.py": (PARALLEL,),
    "tests/bench/test_sides.py": tuple(encodings("cope")),
    "tests/tuning/": (*ABOVE, BENCH, CLI, TRITON, "src/headway/tuning/"),
    "tests/cli/test_new_encoding.py": (*ABOVE, CLI),
}
"""What the other tests of a folder, or of a file, depend on: a room imports those below it alone."""


@cache
def groups_of(test: str) -> list[Group]:
    """The groups of a test, by its node id without the case; if it has none, its file with the paths of its rooms."""
    file = test.partition("::")[0]
    rooms = (Group((file,), paths) for pattern, paths in ROOMS.items() if _matches(pattern, file))
    return [group for group in GROUPS.values() if group.has(test)] or list(rooms)


def _git(root: Path, *words: str) -> list[str] | None:
    """The parts, between zeros or lines, of what git prints; None if it fails or is missing."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return re.split(r"[\0\n]", done.stdout)[:-1] if done.returncode == 0 else None


def changed(root: Path = ROOT, now: datetime | None = None) -> list[str] | None:
    """The files that changed recently; None where that cannot be told, and everything counts as changed."""
    top = _git(root, "rev-parse", "--show-toplevel", "--is-shallow-repository")
    if top is None or Path(top[0]).resolve() != root.resolve() or top[1] == "true":
        return None
    before = (now or datetime.now(timezone.utc)) - AGE
    base = _git(root, "rev-list", "--first-parent", "-1", f"--before={before.isoformat()}", "HEAD")
    if not base:
        return None
    differ = _git(root, "diff", "--name-only", "--no-renames", "-z", base[0])
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return None if differ is None or untracked is None else sorted({*differ, *untracked})


def of_the_encoding(encoding: PositionEncoding) -> Iterator[str]:
    """The files, relative to ROOT, of the package's positions that an encoding, its parts and their imports are in."""
    ahead = {type(part).__module__ for part in encoding.modules()}
    seen: set[str] = set()
    while ahead:
        if (name := ahead.pop()) in seen or not name.startswith("headway.positions."):
            continue
        seen.add(name)
        module = sys.modules[name]
        yield Path(str(module.__file__)).relative_to(ROOT).as_posix()
        ahead |= {str(getattr(value, "__module__", "")) for value in vars(module).values()}


def chooser(files: Collection[str]) -> Callable[[str, Mapping[str, object]], bool]:
    """Returns a function that says for which tests a cross-section is enough: those whose groups no file touches.

    It takes the node id without the case, and the parameters of the case. A case runs if its encoding changed.

    Args:
        files: what changed.
    """

    from headway.positions import PositionEncoding  # without it this file is a command that needs no environment

    @cache
    def touched(group: Group) -> bool:
        return bool(group.touched(files))

    @cache
    def untouched(test: str) -> bool:
        return bool(groups_of(test)) and not any(map(touched, groups_of(test)))

    def enough(test: str, parameters: Mapping[str, object]) -> bool:
        encoding = parameters.get("encoding")
        changed = isinstance(encoding, PositionEncoding) and not set(files).isdisjoint(of_the_encoding(encoding))
        return untouched(test) and not changed

    return enough


def told(files: Collection[str] | None) -> Iterator[str]:
    """A line for each group and room: whether it ran whole, and why."""
    if files is None:
        yield "everything: no commit is known that is older than eight hours"
        return
    rooms = {f"other tests of {pattern}": Group((), paths) for pattern, paths in ROOMS.items()}
    for name, group in (GROUPS | rooms).items():
        if touching := group.touched(files):
            more = f" and {len(touching) - 1} more" if len(touching) > 1 else ""
            yield f"whole: {name}, since {touching[0]}{more} changed"
        else:
            yield f"cross-section: {name}, since nothing changed on which it depends"


if __name__ == "__main__":  # python tests/recent.py viewer/ prints what changed of these paths
    files = changed()
    asked = [file for file in files or () if any(_matches(path, file) for path in sys.argv[1:])]
    print(*(["everything"] if files is None else asked), sep="\n")
