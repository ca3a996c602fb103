"""``headway new-encoding`` writes what docs/extending.md shows, under a name of one's own, and it works."""

import subprocess
import sys
from pathlib import Path

import pytest

import headway as hw
from headway import cli
from headway.cli.new_encoding import CLASS, Kind, example
from headway.testing import ENCODING_CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
SLOW = {"keeps_the_promise_in_every_dtype", "compiles_as_one_graph", "measures_its_properties"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", Kind)
def test_the_page_shows_what_is_written(kind: Kind) -> None:
    assert f"```python\n# {CLASS[kind].lower()}.py\n{example(kind)}```" in PAGE


@pytest.mark.parametrize("kind", Kind)
def test_it_writes_an_encoding_that_passes_the_checks(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    """The slow checks run on the examples of docs/extending.md, which are the same but for the name."""
    assert cli.main(["new-encoding", "my-Own_2", "--kind", kind.value]) == 0
    assert "pytest test_my_own_2.py" in capsys.readouterr().out
    found = hw.encoding("my_own_2.py:MyOwn2", num_heads=4, head_dim=8, embed_dim=32)
    assert found.name == "my-own-2"
    assert len(type(found).examples()) == 2
    assert CLASS[kind] not in Path("my_own_2.py").read_text()
    for name in ENCODING_CHECKS.keys() - SLOW:
        ENCODING_CHECKS[name](found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_its_test_passes(kind: Kind) -> None:
    """Without the slow checks, as above; that it has them too is said by pytest."""
    assert cli.main(["new-encoding", "mine", "--kind", kind.value, "--out", "here"]) == 0
    quick = " and ".join(f"not {name}" for name in SLOW)
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "here", "-k", quick], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert f"{2 * len(ENCODING_CHECKS.keys() - SLOW)} passed, {2 * len(SLOW)} deselected" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my bias"], "name is 'my bias': give letters, digits and hyphens"),
        (["2nd"], "name is '2nd': give letters"),
        (["alibi"], "name is 'alibi', which headway has"),
        (["torch"], "torch.py would hide the module torch"),
        (["lambda"], "lambda.py would hide the module lambda"),
        (["there"], "test_there.py exists: give another name"),
        (["mine", "--kind", "other"], "Invalid value for '--kind'"),
    ],
)
def test_what_it_refuses(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_there.py").touch()
    assert cli.main(["new-encoding", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["test_there.py"]
