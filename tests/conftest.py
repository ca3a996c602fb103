"""What every test stands on: one seed, one thread where tests run side by side, no compiled code kept."""

import gc
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

# No deadline: a test never fails for being slow. The same examples in every run, so that a failure repeats.
hypothesis.settings.register_profile("headway", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("headway")

os.environ["HEADWAY_TUNED"] = "off"  # whatever was measured on this machine

sys.path.append(str(Path(__file__).parent))  # for `import weights`

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cross-section",
        action="store_true",
        help="leave out tests marked slow, and of a test marked one_in(k) run every k-th case alone",
    )
    parser.addoption(
        "--recent",
        action="store_true",
        help="run a cross-section of the groups of tests/recent.py that depend on nothing that changed recently",
    )
    parser.addoption(
        "--triton-on", metavar="DEVICE", help="run the tests of the Triton kernel, on this device, and those of a GPU"
    )


CHANGED = pytest.StashKey[list[str] | None]()
"""What changed recently; None if it is not known. The processes of xdist are told: they must choose the same tests."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("recent"):
        import recent

        told = getattr(config, "workerinput", None)
        config.stash[CHANGED] = recent.changed() if told is None else told["changed"]
    from headway.kernels.triton import _installed

    if _installed.interprets() and _installed.missing() is None:
        import interpreter
        from headway.testing import kernels

        interpreter.install()
        kernels.DRAWS = 6  # programs are slow so
    if device := config.getoption("triton_on"):
        import triton_on

        triton_on.install(device)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["changed"] = node.config.stash.get(CHANGED, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("recent"):
        import recent

        terminalreporter.section("chosen by what changed recently (tests/recent.py)")
        for line in recent.told(config.stash[CHANGED]):
            terminalreporter.line(line)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without the garbage collector: nearly all that comes into being stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> None:
    """Sets aside what is in memory before a module's tests, most of it for good.

    A full collection goes through everything else, and what measures memory asks for one at each turn.
    """
    gc.collect()
    gc.freeze()


# torch.manual_seed keeps the stack of each call for every kind of device, until one is there
seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    seed(0)
    yield
    assert torch.get_default_dtype() == torch.float32, "the test left another default dtype behind"
    # What one test compiled must not count towards the recompilations of the next.
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture(scope="session")
def weights() -> Callable[[str], Path]:
    """weights("minilm") is the folder of these published weights, or a skip that says how to get them."""
    from weights import folder, why_not

    def found(name: str) -> Path:
        if missing := why_not(name):
            pytest.skip(missing)
        return folder(name)

    return found


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """hub_cache("owner/name", files) puts files into a cache of huggingface_hub, which has no network.

    The layout is the package's own: files lie in blobs, a snapshot of a commit is a folder of links to them, and a
    branch is a file with the commit. Returned is the folder of the snapshot.
    """
    constants = pytest.importorskip("huggingface_hub.constants")
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def put(repository: str, files: Path | dict[str, bytes], branch: str = "main", commit: str = "a" * 40) -> Path:
        if isinstance(files, Path):
            files = {file.name: file.read_bytes() for file in files.iterdir()}
        folder = cache / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / commit
        for name, content in files.items():
            blob, link = folder / "blobs" / hashlib.sha256(content).hexdigest(), snapshot / name
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        reference = folder / "refs" / branch
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)
        return snapshot

    return put


MANY, SOME = 6, pytest.mark.one_in(11).mark


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _cross_section(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that are not slow; of a test marked one_in(k), or of the cases that carry the mark, every k-th.

    Of a test of many cases without such a mark, every eleventh.
    """
    cases = Counter(map(_test_of, items))
    seen: Counter[tuple[str, int]] = Counter()

    def kept(item: pytest.Item) -> bool:
        test, turns = _test_of(item), []
        marks = [*item.iter_markers("one_in")] or ([SOME] if cases[test] > MANY else [])
        for mark in marks:
            case = (test, id(mark))  # the same mark on several cases is one object
            turns.append(seen[case] % mark.args[0] == 0)
            seen[case] += 1
        return all(turns) and item.get_closest_marker("slow") is None

    return [item for item in items if kept(item)]


def _parameters(item: pytest.Item) -> dict[str, object]:
    call = getattr(item, "callspec", None)
    return {} if call is None else call.params


def _is_of_triton(item: pytest.Item) -> bool:
    """Whether a test is one of the Triton kernel, or of a GPU."""
    if _parameters(item).get("kernel") == "triton" or item.path.name == "test_triton_programs.py":
        return True
    return item.get_closest_marker("gpu") is not None


def _deselect(config: pytest.Config, items: list[pytest.Item], leaves_out: Callable[[pytest.Item], bool]) -> None:
    left_out = [item for item in items if leaves_out(item)]
    config.hook.pytest_deselected(items=left_out)
    if left_out:
        others = set(left_out)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A call that the Triton kernel refuses is skipped with its reasons."""
    from headway.errors import HeadwayError

    try:
        return (yield)
    except HeadwayError as error:
        if _parameters(item).get("kernel") == "triton" and str(error).startswith("kernel 'triton' cannot run"):
            pytest.skip(str(error))
        raise


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --cross-section or --recent, fewer tests; those on what is not here are skipped.

    That is a GPU or the CPU kernel's library. Tests that ask for weights are marked so.
    """
    from headway.kernels.cpu import _library
    from headway.kernels.triton import _installed

    if config.getoption("triton_on"):
        _deselect(config, items, lambda item: not _is_of_triton(item))
    elif not _installed.interprets():  # tests are of tensors on a CPU: tests/kernels/test_triton.py runs these
        _deselect(config, items, lambda item: _parameters(item).get("kernel") == "triton")
    _deselect(
        config, items, lambda item: _parameters(item).get("kernel") == "flex"
    )  # tests/kernels/test_flex.py has it
    if config.getoption("cross_section"):
        chosen = set(_cross_section(items))
        _deselect(config, items, lambda item: item not in chosen)
    if (changed := config.stash.get(CHANGED, None)) is not None:
        import recent

        enough = recent.chooser(changed)
        few = [item for item in items if enough(_test_of(item), _parameters(item))]
        left_out = set(few) - set(_cross_section(few))
        _deselect(config, items, lambda item: item in left_out)
    missing = _library.why_not()
    for item in items:
        if "weights" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.weights)
        if missing and _parameters(item).get("kernel") == "cpu":
            item.add_marker(pytest.mark.skip(reason=missing))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
