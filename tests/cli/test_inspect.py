"""``headway inspect`` on a small model with random weights, on the small model of planted relations, and on MiniLM."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import headway
from headway.cli import main
from headway.cli._console import console
from headway.cli.inspect import SHORT, _marked, _print_roles, _unknown_words, telling_heads, texts_of
from headway.errors import HeadwayError
from headway.inspection import Finding
from headway.inspection.texts import encode, python_manual

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers whose words are those of Python's manual."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    path = tmp_path_factory.mktemp("bert")
    words = sorted({text.word(i).lower() for text in python_manual(200) for i in range(len(text))})
    ids = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(ids), max_position_embeddings=48, **sizes)).save_pretrained(path)
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_roles_are_printed_and_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, folder, "--statistics", "entropy", "--csv", tmp_path / "a.csv")
    assert "200 sentences of Python's manual, of which every other one is held out" in said
    grid = [line.split() for line in said.splitlines() if line.split()[1:2] == ["broad"]]
    assert grid[:2] == [["0", *["broad"] * 4], ["1", *["broad"] * 4]]
    few = tmp_path / "few.txt"
    few.write_text("\n".join(one.text for one in python_manual(30)), encoding="utf-8")
    rows = json.loads(printed(capsys, folder, few, "--roles", "broad", "--statistics", "entropy", "--json"))["rows"]
    with (tmp_path / "a.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(rows) == len(lines) == 8
    assert {row["role"] for row in rows} == {"broad"}
    assert all(0.8 < row["figure"] <= 1 and row["low"] <= row["figure"] <= row["high"] for row in rows)
    assert all(float(line["entropy"]) > 2 for line in lines)
    assert "entropy, mean over the texts" in said


def test_own_texts_and_chosen_roles(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.txt"
    file.write_text("\n".join(one.text for one in python_manual(30)), encoding="utf-8")
    said = printed(capsys, folder, file, "--roles", "broad,positional")
    assert "30 texts, of which every other one is held out" in said
    assert "induction" not in said
    assert "strongest links" not in said


def test_pictures_of_a_text(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, folder, "the value of a class", "--out", tmp_path / "pictures", "--roles", "broad")
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"roles.png", "heads.png"} < names
    assert any(name.endswith("-broad.png") for name in names)
    assert "strongest links" in said


def test_texts_of_standard_input_and_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("小猫 a\n\nb".encode(encoding))))
        assert [one.text for one in texts_of("-")] == ["小猫 a", "b"]
    assert [one.text for one in texts_of("x" * 5000)] == ["x" * 5000]
    tree = tmp_path / "a.conllu"
    tree.write_text("1\tCats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsleep\tsleep\tVERB\t_\t_\t0\troot\t_\t_\n\n")
    assert texts_of(str(tree))[0].relations == ("nsubj", "root")
    assert texts_of(str(tree.rename(tmp_path / "a.CONLLU")))[0].relations == ("nsubj", "root")
    with pytest.raises(HeadwayError, match=r"there is no file none\.TSV: give a text, or a file that exists"):
        texts_of("none.TSV")


def test_roles_that_the_texts_do_not_allow_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, tree = tmp_path / "own.txt", tmp_path / "a.conllu"
    file.write_text("\n".join(one.text for one in python_manual(30)), encoding="utf-8")
    tree.write_text("1\tthe\tthe\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tvalue\tvalue\tVERB\t_\t_\t0\troot\t_\t_\n\n")
    needs = "no role can be measured: syntactic needs dependency relations: read a CoNLL-U file"
    for texts, more in (([file], ""), ([tree], ", and 20 texts or more, of which there are 1"), ([], "")):
        given = [folder, *texts, "--roles", "syntactic", "--out", tmp_path / "pictures"]
        assert main(["inspect", *map(str, given)]) == 2
        out, errors = capsys.readouterr()
        assert (out, errors) == ("", f"headway: {needs}{more}; give such texts, or other --roles\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}", "--roles", "positonal"], "there is no role 'positonal': did you mean 'positional'?"),
        (["{folder}", "--statistics", "entrpy"], "there is no statistic 'entrpy': did you mean 'entropy'?"),
        (["{folder}", "none.conllu"], "there is no file none.conllu: give a text, or a file that exists"),
        (["{folder}", " "], "the text has no words"),
        (["{folder}", "a " * 60], "has 62 tokens and the model reads 48: shorten it, or give --too-long 'leave out'"),
        (["{folder}", "a " * 60, "--too-long", "leave out"], "each text has more tokens than the 48 that the model"),
        (["{folder}", "a", "--too-long", "cut"], "no --too-long 'cut'"),
        (["{folder}", "--csv", "{folder}/none/a.csv"], "cannot be written: give a file in a folder that exists"),
        (
            ["{folder}", "a", "--report", "{folder}/none/a.html"],
            "cannot be written: give a file in a folder that exists",
        ),
        (["{folder}", "--report", "{folder}/a.html"], "--report shows what heads attend to in a text: give one"),
        (
            ["{folder}", "a", "--csv", "{folder}/a.html", "--report", "{folder}/a.html"],
            "/a.html: give two files",
        ),
        (["{folder}", "--out", "{folder}/config.json"], "config.json is a file: give another folder"),
        (["{folder}", "--out", "{folder}/config.json/a"], "config.json is a file: give another folder"),
        (["{folder}", "--statistics", "classes"], "'classes' needs the class of each key"),
        (["{folder}/none", "a text"], "none"),
        (["{folder}/none"], "none: give a model's folder"),
        (["--language", "latin"], "latin"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = set(folder.iterdir())
    assert main(["inspect", *(one.replace("{folder}", str(folder)) for one in arguments)]) == 2
    out, said = capsys.readouterr()
    assert message in said
    assert said.count("\n") == 1
    assert not out
    assert set(folder.iterdir()) == files


def test_tokens_that_the_model_does_not_know_are_marked() -> None:
    """In tables and pictures, whose links to and from them mean nothing."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (text,) = encode(tokenizer, ["the cat purrs"])
    assert _marked(tokenizer, text).tokens == ("the", "cat", "purrs (?)")
    assert "(purrs), marked (?)" in _unknown_words(tokenizer, [text])


def test_short_names_of_roles_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    class Found:
        """A head for each role that has a short name, but the last, and one for a role that has none."""

        layers, roles, not_measured = ("x",), (*list(SHORT)[:-1], "broad"), dict[str, str]()

        def heads(self, layer: str) -> int:
            return len(self.roles)

        def of(self, layer: str, head: int) -> list[Finding]:
            return [Finding(self.roles[head], "b", layer, head, 0.9, 0.8, 1.0, 0.1, 50, True)]

        def best(self, role: str) -> list[Finding]:
            return self.of("x", self.roles.index(role))

    _print_roles(console(), Found())  # type: ignore[arg-type]
    grid, _, rest = capsys.readouterr().out.partition("figure (95 %)")
    for role, short in SHORT.items():
        used = role in Found.roles
        assert len(re.findall(rf"\b{short}\b", grid)) == 2 * used
        assert (f"{short} = {role}" in grid) == used
        assert bool(re.search(rf"\b{role}\b", rest)) == used
    assert re.search(r"\bbroad\b", grid)


def test_a_model_of_two_texts_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import T5Config, T5Model

    T5Model(T5Config(vocab_size=900, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert main(["inspect", str(tmp_path)]) == 2
    assert "reads two texts, with an encoder and a decoder: give a model that reads one" in capsys.readouterr().err


def test_a_broken_treebank_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "a.conllu"
    tree.write_text("1\tCats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsleep\n\n")
    assert main(["inspect", str(folder), str(tree)]) == 2
    assert "a.conllu, line 2" in capsys.readouterr().err


def test_texts_that_are_too_long_are_left_out_and_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.txt"
    file.write_text("a b c d e\n\n" * 21 + "a " * 60)
    said = "1 of 22 texts have more than 48 tokens and are left out"
    given = (folder, file, "--too-long", "leave out", "--roles", "positional")
    assert said in printed(capsys, *given)
    assert said in json.loads(printed(capsys, *given, "--json"))["notes"]


def test_models_that_generate_are_inspected_too(
    gpt2_of_bytes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(headway.load(gpt2_of_bytes), headway.models.Decoder)
    file = tmp_path / "own.txt"
    file.write_text("\n".join(one.text[:20] for one in python_manual(24)), encoding="utf-8")
    assert "24 texts" in printed(capsys, gpt2_of_bytes, file)


@pytest.mark.parametrize(
    ("sentence", "word", "noun"),
    [
        ("小猫吃苹果因为它很甜", "它", "苹果"),
        ("小猫吃苹果因为它很饿", "它", "小猫"),
        ("the cat ate the apple because it seemed sweet", "it", "apple"),
        ("the cat ate the apple because it seemed hungry", "it", "cat"),
    ],
)
def test_the_small_model_names_the_noun(
    sentence: str, word: str, noun: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with headway: nothing is trained or measured, and no other noun is named for the pronoun."""
    from headway import inspection
    from headway.study import planted

    for module, name in ((planted, "trained"), (inspection, "head_roles")):
        monkeypatch.setattr(module, name, None)
    said = printed(capsys, sentence)
    assert "400 planted sentences in" in said
    assert "training" not in said
    links = dict[str, float]()
    for to, weight in re.findall(rf"(?<!\w){word} → (\S+) ([\d.]+)", said):
        links[to] = max(links.get(to, 0.0), float(weight))
    assert links[noun] >= 0.8
    assert all(links.get(other, 0.0) < 0.5 for other in {"苹果", "小猫", "apple", "cat"} - {noun})


def test_stored_roles_are_shown_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "--roles", "broad,sink", "--csv", tmp_path / "a.csv", "--statistics", "entropy")
    assert "small chinese model" in said
    assert "syntactic" not in said
    assert "entropy, mean over the texts" in said
    with (tmp_path / "a.csv").open(newline="") as file:
        assert {row["role"] for row in csv.DictReader(file)} <= {"broad", "sink", ""}
    assert "small english model" in printed(capsys, "--language", "english", "--roles", "broad")


def test_another_seed_measures_the_roles_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway import inspection

    seeds = []

    def measured(*given: object, seed: int, **more: object) -> inspection.HeadRoles:
        seeds.append(seed)
        return pretrained("chinese").roles

    from headway.study.planted import pretrained

    monkeypatch.setattr(inspection, "head_roles", measured)
    printed(capsys, "--seed", "3")
    printed(capsys, "--seed", "0")
    assert seeds == [3]


def test_the_small_model_is_trained_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headway.study import planted
    from headway.study.planted import _criteria, _training
    from headway.study.planted.weights import _make
    from headway.study.protocol import Training

    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    monkeypatch.setitem(planted.TRAININGS, "quick", Training(steps=3, batch=4, length=64, learning_rate=1e-3))
    monkeypatch.setattr(_make, "CRITERIA", planted.Criteria(0, 0, 0, 0, 1, 0))
    for module, name, less in ((_training, "SENTENCES", 200), (_make, "TEXTS", 40), (_criteria, "SENTENCES", 20)):
        monkeypatch.setattr(module, name, less)
    first = printed(capsys, "小猫很饿，因为它跑了", "--roles", "broad", "--train")
    assert "training a small chinese model, seed 0" in first
    assert "training" not in printed(capsys, "--roles", "broad", "--train")
    assert main(["inspect", "a/b", "--train"]) == 2
    assert "--train" in capsys.readouterr().err


def test_a_text_of_one_word_has_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert "→" in printed(capsys, "小猫 苹果", "--roles", "broad")
    said = printed(capsys, "小猫", "--roles", "broad")
    assert "→" not in said
    assert "strongest links" not in said


def test_heads_with_the_largest_figures_are_told_first() -> None:
    class Found:
        roles = ("syntactic", "sink")

        def role(self, name: str) -> list[Finding]:
            figures = {("a", 0): 0.3, ("a", 1): 0.5, ("b", 2): 0.9, ("c", 1): 0.4}
            return [Finding(name, to, "x", head, one, one, one, 0.1, 50, True) for (to, head), one in figures.items()]

    told = [("syntactic (b)", "x", 2), ("syntactic (a)", "x", 1)]
    assert telling_heads(Found()) == told  # type: ignore[arg-type]
    assert telling_heads(Found(), most=1) == told[:1]  # type: ignore[arg-type]


def test_published_weights(weights: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "The cat that was sleeping on the mat woke up"
    said = printed(capsys, weights("minilm"), sentence, "--roles", "positional")
    assert "0.2" in said
    assert "up → woke 1.00" in said


def test_a_report_of_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.html"
    said = printed(capsys, "The cat that the dogs saw was asleep .", "--report", path)
    assert f"all heads: {path}" in said
    page = path.read_text(encoding="utf-8")
    found = re.search(r'<script id="headway-report" type="application/json">(.*?)</script>', page)
    assert found is not None
    report = json.loads(found[1])
    assert report["model"]["name"] == "small english model"
    assert report["text"] == "The cat that the dogs saw was asleep ."
    assert report["labels"] == {"0": "[CLS]"}
    opened = report["heads"][report["open"]["head"]]
    assert opened["roles"]
