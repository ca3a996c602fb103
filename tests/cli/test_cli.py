import random
from pathlib import Path

import pytest

from headway import cli
from headway.cli._app import command_of
from headway.cli._options import numbers, split_names
from headway.errors import HeadwayError
from headway.positions import ENCODINGS

SMALL = [
    "--train-length",
    "16",
    "--lengths",
    "16,32",
    "--seeds",
    "1",
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--steps",
    "3",
    "--batch",
    "2",
    "--recall-steps",
    "0",
    "--baselines",
    "none",
    "--device",
    "cpu",
]


@pytest.fixture
def text(tmp_path: Path) -> str:
    draw = random.Random(0)
    path = tmp_path / "text.txt"
    path.write_text(" ".join(draw.choice(["the", "of", "and", "to", "in"]) for _ in range(2000)))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_command_has_a_file_and_every_file_is_a_command() -> None:
    folder = Path(cli.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert files == {name.replace("-", "_") for name in cli.COMMANDS}
    for name, (module, summary) in cli.COMMANDS.items():
        assert module == f"headway.cli.{name.replace('-', '_')}"
        said = command_of(name, module).help
        assert said.startswith(summary), "the summary of a command is the first sentence of its docstring"


def test_compare_prints_rows_and_conclusions_and_writes_the_report(
    capsys: pytest.CaptureFixture[str], text: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, printed, errors = run(
        capsys, "compare", text, "--encodings", "learned,rope(base=500, layout='half')", *SMALL, "--out", str(out)
    )
    assert (code, errors) == (0, "")
    for said in ("fixed before any result", "learned", "rope(base=500, layout='half')", "—", "none is ranked"):
        assert said in printed
    *_, last = printed.splitlines()
    for name in ("report.html", "loss-by-length.{png,svg}", "tables/losses.{csv,md,tex}", "results.jsonl"):
        assert str(out / name) in last
    assert (out / "report.html").exists()


def test_a_command_that_was_interrupted_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.study.run.train", interrupted)
    code, _, errors = run(capsys, "compare", text, "--encodings", "rope", *SMALL, "--out", str(tmp_path / "out"))
    assert code == 130
    assert errors == f"headway: stopped; the same command resumes from {tmp_path / 'out'}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "missing.txt"], "missing.txt cannot be read (No such file or directory)"),
        (["compare", "--encodings", "rop"], "no encoding 'rop'"),
        (["compare", "--encodings", "rope(base="], "has a bracket or quote without its other half"),
        (["compare", "--encodings", "nowhere.py:Mine"], "nowhere.py is not a file"),
        (["compare", "--lengths", "128,x"], "lengths is '128,x'"),
        (["compare", "--steps", "many"], "'--steps'"),
        (["compare", "--steps", "5", "--minutes", "1"], "both given"),
        (["compare", "--width", "130"], "width 130 is not divisible by heads 4"),
        (["compare", "--width", "96", "--heads", "5"], "choose width = 90 or 100"),
        (["compare", "--encodings", ""], "--encodings is ''"),
        (["compare", "--baselines", ","], "--baselines is ','"),
        (["compare", "--encodings", "rope,alibi,rope"], "--encodings names rope twice"),
        (["compare", "--colour", "red"], "--colour"),
        (["compare", "--seeds", "0"], "seeds is 0"),
        (["compare", "--seeds", "5-3"], "--seeds is '5-3'"),
        (["compare", "--seeds", "many"], "--seeds is 'many'"),
        (["compare", "--settings", "none.json"], "none.json has no settings of a comparison"),
        (["compare", "--settings", "none.json", "--steps", "3"], "--settings none.json and --steps are both given"),
        (["compare", "--settings", "none.json", "--layers", "2"], "--settings none.json and --layers are both given"),
        (["encodings", "rop"], "no encoding 'rop'"),
        (["encodings", "randomized+rope"], "with blanks around +, 'randomized + rope'"),
        (["encodings", "旋转"], "`headway encodings` lists the names"),
        (["new-encoding", "3d-bias"], "beginning with a letter"),
        (["new-encoding", "mine", "--kind", "rotery"], "'--kind': 'rotery' is not one of"),
        (["inspect", ""], "the model or text is empty"),
        (["generate", "some/model", ""], "the prompt is empty"),
        (["vectors", "train", "word2vec", "a.txt", "--epochs", "20", "--out", "a"], "give --option epochs=…"),
        (["dance"], "dance"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(capsys, *arguments)
    assert code == 2
    assert said in errors
    assert errors.startswith("headway: ")
    assert errors.count("\n") == 1
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_no_text_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20000))
    code, _, errors = run(capsys, "compare", str(path), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "byte 0 is 0x89" in errors
    assert errors.count("\n") == 1


def test_encodings_lists_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "encodings")
    assert code == 0
    for name in ENCODINGS:
        assert f" {name} " in printed
    assert "q and k" in printed


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_of_encodings_is_whole_at_any_width(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, printed, _ = run(capsys, "encodings")
    assert code == 0
    assert "…" not in printed
    for name in ENCODINGS:
        assert f" {name} " in printed


def test_encodings_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, "encodings", "alibi")
    assert code == 0
    for said in ("ALiBi", "score[h,i,j]", "Properties", "each position", "@inproceedings"):
        assert said in printed


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys)
    assert code == 0
    for name in cli.COMMANDS:
        assert name in printed


def test_names_are_split_outside_of_brackets_and_quotes() -> None:
    assert split_names("rope, rope(base=5, layout='half') ,mine.py:Mine(a=[1, 2], b=')')") == [
        "rope",
        "rope(base=5, layout='half')",
        "mine.py:Mine(a=[1, 2], b=')')",
    ]
    with pytest.raises(HeadwayError, match="close it"):
        split_names("rope(base=5")


def test_numbers_are_read() -> None:
    assert numbers("128, 256,") == [128, 256]
    with pytest.raises(HeadwayError):
        numbers(",")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("compare --encoding rope", "No such option: --encoding (Possible options: --encodings, --settings): see"),
        (
            "generate --words king",
            "it is an option of headway vectors compare and headway vectors map; see headway generate",
        ),
        ("compare --no-command-has-this 3", "No such option: --no-command-has-this: see headway compare --help"),
    ],
)
def test_an_unknown_option_gets_the_nearest_or_the_command_that_has_it(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed.split()) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert said in errors
    assert errors.count("\n") == 1
