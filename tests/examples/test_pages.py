"""Pages of lessons: moved by hand in Chromium, without a network, they show the numbers that headway computes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import claims._guess
import headway as hw
import lesson
import pages
from claims import Verdict
from claims.__main__ import main as claims_command
from headway.study import planted

from ..inspection.report.browser import browser
from .conftest import EXAMPLES

LESSONS = sorted(path.stem for path in EXAMPLES.glob("pages/lesson_*.js"))
Open = Callable[..., Any]
"""Opens the page of a lesson, in a language."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """After the test each page is closed, and must not have complained or asked for anything."""
    contexts, complaints, requests = [], [], []

    def open_page(name: str, language: str = "en", width: int = 1000) -> Any:
        path = tmp_path / f"{name}.html"
        module = importlib.import_module("claims._guess" if name == "claims" else name)
        pages.write(path, name, module.page_data())
        contexts.append(chromium.new_context(offline=True, viewport={"width": width, "height": 800}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{path.as_uri()}#{language}")
        page.wait_for_selector("main section")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith("file:")] == []


def shown(page: Any, name: str) -> str:
    """What a cell shows, with the minus sign of Python."""
    return str(page.locator(f'[data-name="{name}"]').inner_text()).replace("−", "-")


def plain(number: str) -> str:
    """A power of ten as computers write it: 1.4·10⁻¹⁵ is 1.4e-15."""
    factor, _, power = number.partition("·10⁻")
    return f"{factor}e-{power.translate(str.maketrans('⁰¹²³⁴⁵⁶⁷⁸⁹', '0123456789'))}" if power else factor


def move(page: Any, slider: str, value: float) -> None:
    page.locator(f"#{slider}").fill(str(value))


def test_scripts_and_lessons_with_pages_are_the_same() -> None:
    with_pages = [path.stem for path in EXAMPLES.glob("lesson_*.py") if "def page_data" in path.read_text("utf-8")]
    assert sorted(with_pages) == LESSONS


@pytest.mark.parametrize("name", LESSONS)
def test_a_page_is_in_both_languages_and_fits_a_phone(opened: Open, name: str) -> None:
    page = opened(name, "zh", width=400)
    english, chinese = importlib.import_module(name).page_data()["title"]
    assert page.locator("h1").inner_text() == chinese
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#language").press("Enter")
    assert page.locator("h1").inner_text() == english
    assert page.evaluate("document.documentElement.lang") == "en"
    names = page.locator(".matrix .name").all()
    assert [name.inner_text() for name in names if name.evaluate("one => one.scrollWidth > one.clientWidth")] == []
    page.locator("#theme").press("Enter")
    assert page.evaluate("document.documentElement.style.colorScheme") == "dark"


@pytest.mark.slow
def test_lesson_0_follows_a_sentence(opened: Open) -> None:
    import lesson_0_whole_flow as lesson_0

    page, model = opened("lesson_0_whole_flow"), lesson_0.trained()
    for subject, silent in ((1, False), (3, False), (3, True)):
        page.get_by_label("word 1").select_option(str(subject))
        page.locator("#silent").set_checked(silent)
        with torch.no_grad(), hw.ablate(model, {(0, 0): "zero"}) if silent else nullcontext():
            probabilities = model(torch.tensor([[0, subject, 4, 5]])).softmax(-1)[0, 2]
        shares = [float(shown(page, f"probability {number}")) for number in range(len(lesson_0.WORDS))]
        assert shares == pytest.approx(probabilities.tolist(), abs=6e-5)
        assert (probabilities.argmax() == subject + 4) != silent


def test_what_the_keyboard_chooses_keeps_the_focus(opened: Open) -> None:
    page = opened("lesson_0_whole_flow")
    page.locator('[name="row"]').nth(2).focus()
    for row in "10":
        page.keyboard.press("ArrowLeft")
        assert page.locator("[name='row']:checked:focus").get_attribute("value") == row
    page = opened("lesson_7_many_heads")
    example = page.locator("section > .controls button").nth(1)
    example.press("Enter")
    assert page.locator("#text").input_value() == example.inner_text() == page.locator("button:focus").inner_text()


def test_lesson_1_looks_up_a_waist(opened: Open) -> None:
    import lesson_1_weighted_lookup as lesson_1

    page = opened("lesson_1_weighted_lookup")
    found = lesson_1.measure()
    assert shown(page, "answer") == f"{found.product_answer:.4f}"
    assert [float(shown(page, f"score {j}")) for j in range(3)] == found.scores
    page.get_by_label("distance").check()
    assert shown(page, "answer") == f"{found.distance_answer:.4f}"
    assert [shown(page, f"weight {j}") for j in (1, 2)] == [f"{weight:.4f}" for weight in found.distance_weights[1:]]
    answers = [f"({', '.join(f'{x:g}' for x in answer)})" for answer in found.two_distance_answers]
    assert [shown(page, f"f {i}") for i in range(2)] == answers

    keys, values = (torch.tensor(row).double()[None, None, :, None] for row in (lesson_1.WAISTS, lesson_1.WEIGHTS))
    move(page, "waist", 52.3)
    move(page, "kernel", 4)  # w = 8
    query = torch.tensor([[[[52.3]]]]).double()
    bias = hw.terms.TokenBias(keys=-keys.square().sum(-1) / 2 / 64)
    assert shown(page, "answer") == f"{hw.attention(query, keys, values, terms=[bias], scale=1 / 64).item():.4f}"
    page.locator("#waist").press("ArrowRight")
    query += 0.1
    assert shown(page, "answer") == f"{hw.attention(query, keys, values, terms=[bias], scale=1 / 64).item():.4f}"


@pytest.mark.slow
def test_lesson_2_shows_the_row_of_a_word(opened: Open) -> None:
    import lesson_2_five_steps as lesson_2

    page = opened("lesson_2_five_steps")
    inputs, *matrices = (
        torch.tensor(rows).double() for rows in (lesson_2.INPUTS, lesson_2.W_Q, lesson_2.W_K, lesson_2.W_V)
    )
    q, k, v = ((inputs @ matrix)[None, None] for matrix in matrices)
    for mask in (hw.masks.Causal(), None):
        steps = hw.attention_steps(q, k, v, mask=mask)
        weights, output = steps.weights[0, 0, 3].tolist(), steps.output[0, 0, 3].tolist()
        assert [shown(page, f"weight {j}") for j in range(5)] == [f"{weight:.4f}" for weight in weights]
        assert shown(page, "output") == ", ".join(
            f"{kind} {x:.4f}" for (kind, _), x in zip(lesson_2.KINDS, output, strict=True)
        )
        page.locator("#mask").uncheck()
    page.get_by_label("WQ 3,0").fill("0")  # “it” looks for qualities alone
    matrices[0][3, 0] = 0
    changed = hw.attention_weights((inputs @ matrices[0])[None, None], k, v)[0, 0, 3]
    assert [shown(page, f"weight {j}") for j in range(5)] == [f"{weight:.4f}" for weight in changed.tolist()]
    assert changed.argmax() == 2


@pytest.mark.slow
def test_lesson_3_saturates_a_softmax(opened: Open) -> None:
    import lesson_3_scaling as lesson_3

    page, data = opened("lesson_3_scaling"), lesson_3.page_data()
    for width, products in enumerate(data["products"]):
        move(page, "width", width)
        for button, by in (("do not divide", 1.0), ("divide by √d", 2 ** (5 / 120 * round(24 * width / 2)))):
            page.get_by_role("button", name=button).click()
            weights = (torch.tensor(products).double() / by).softmax(-1)
            largest = weights.max().item()
            assert shown(page, "largest") == f"{largest:.4f}"
            assert float(shown(page, "slope")) == pytest.approx(largest * (1 - largest), abs=6e-5)
            assert float(shown(page, "entropy")) == pytest.approx(torch.special.entr(weights).sum().item(), abs=6e-4)
    assert by == math.sqrt(1024)


@pytest.mark.slow
def test_lesson_4_exchanges_words(opened: Open) -> None:
    import lesson_4_order as lesson_4

    page = opened("lesson_4_order")
    order, exchanged = [*range(6)], [0, 4, 2, 3, 1, 5]  # the page opens with cat and mouse exchanged

    def changes() -> list[float]:
        return [float(plain(shown(page, f"change {i}"))) for i in range(6)]

    assert max(changes()) < 1e-9
    page.locator("#causal").check()
    assert changes()[0] == 0
    assert changes()[5] > 0.01
    page.get_by_label("1", exact=True).check()
    assert changes()[5] < 1e-9
    page.locator("#sinusoidal").check()
    assert changes()[5] > 0.01

    page.locator("#causal").uncheck()
    model = lesson_4.page_data()["model"]
    config = hw.models.TransformerConfig(len(lesson_4.WORDS), 16, num_layers=1, num_heads=2)
    encoder = hw.models.Encoder(config, hw.encoding("sinusoidal", embed_dim=16)).double()
    state = encoder.state_dict()
    encoder.load_state_dict({name: torch.tensor(model["tensors"][name]).view_as(state[name]) for name in state})
    words = torch.tensor([lesson_4.WORDS.index(word) for word in lesson_4.SENTENCES["en"][0]])
    with torch.no_grad():
        before, after = (encoder.hidden(words[None, places])[0] for places in (order, exchanged))
    assert changes() == pytest.approx((after - before[exchanged]).abs().amax(-1).tolist(), abs=6e-5)


@pytest.mark.slow
def test_lesson_5_moves_two_tokens(opened: Open) -> None:
    import lesson_5_marking_positions as lesson_5

    page = opened("lesson_5_marking_positions")
    for here, distance, dim in ((20, 7, 64), (80, 7, 64), (80, -33, 8), (0, 60, 512), (99, 0, 2)):
        move(page, "here", here)
        move(page, "distance", distance)
        move(page, "dim", lesson_5.DIMS.index(dim))
        one, other = lesson_5.codes(torch.tensor([here, here + distance]), dim)
        product = f"{(one @ other).item():.4f}"
        assert shown(page, "product") == product
        assert shown(page, "waves") == product
        assert float(shown(page, "apart")) == pytest.approx((one - other).square().sum().item(), abs=6e-5)
    move(page, "place", 31)
    total = torch.tensor(lesson_5.page_data()["word"]).double() + lesson_5.codes(torch.tensor([31]), 4)[0]
    assert [float(shown(page, f"sum {i}")) for i in range(4)] == pytest.approx(total.tolist(), abs=6e-5)


@pytest.mark.slow
def test_lesson_6_rotates_a_query_and_a_key(opened: Open) -> None:
    import lesson_6_relative_and_rotary as lesson_6

    page, data = opened("lesson_6_relative_and_rotary"), lesson_6.page_data()
    rope = hw.encoding("rope", head_dim=lesson_6.HEAD_DIM)
    for query_at, key_at, pair in ((8, 3, 1), (13, 8, 1), (0, 60, 0), (33, 33, 5)):
        move(page, "query", query_at)
        move(page, "key", key_at)
        move(page, "pair", pair)
        q, k = torch.zeros(2, 1, 1, lesson_6.HEAD_DIM)
        places = [2 * pair, 2 * pair + 1]
        q[0, 0, places], k[0, 0, places] = torch.tensor(data["query"]), torch.tensor(data["key"])
        score = lesson_6.scores(rope, q, k, torch.tensor([query_at]), torch.tensor([key_at])).item()
        product = score * math.sqrt(lesson_6.HEAD_DIM)
        assert float(shown(page, "product")) == pytest.approx(product, abs=6e-5)
        assert shown(page, "relative") == shown(page, "product")

    alibi = hw.encoding("alibi", num_heads=lesson_6.HEADS)
    nothing = torch.zeros(1, lesson_6.HEADS, 16, 1)
    move(page, "query", 6)
    for head, weights in enumerate(hw.attention_weights(nothing, nothing, nothing, encoding=alibi)[0, :, 6]):
        move(page, "head", head)
        assert [shown(page, f"weight {j}") for j in range(16)] == [f"{weight:.4f}" for weight in weights.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("language", planted.LANGUAGES)
def test_lesson_7_computes_the_small_model(opened: Open, language: str) -> None:
    page = opened("lesson_7_many_heads", {"chinese": "zh", "english": "en"}[language])
    small = planted.pretrained(language)
    tokenizer = planted.tokenizer(small.language)
    between = " " if small.language.spaced else ""
    examples = [between.join(sentence.words) for sentence in small.language.examples]
    strange = {"chinese": "小猫 xyz 吃，the苹果", "english": "The CAT ate xyz-it's, 3 apples_too"}[language]
    for text in (*examples, strange):
        ids = tokenizer.encode(text).ids
        script = f"""text => {{
            const model = data.models["{language}"], ids = encoded(model, cut(model, text));
            return {{ ids, ...read(model, ids) }};
        }}"""
        computed = page.evaluate(script, text)
        assert computed["ids"] == ids
        with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
            probabilities = small.model(torch.tensor([ids])).softmax(-1)[0]
        weights = torch.stack([seen.weights(layer)[0] for layer in range(2)])
        torch.testing.assert_close(
            torch.tensor([block["weights"] for block in computed["blocks"]]), weights, atol=2e-5, rtol=0
        )
        torch.testing.assert_close(torch.tensor(computed["probabilities"]), probabilities, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_lesson_7_hovers_masks_and_silences(opened: Open) -> None:
    page = opened("lesson_7_many_heads", "zh")
    page.get_by_role("button", name="小猫吃苹果因为它很甜。").click()
    small = planted.pretrained("chinese")
    read = planted.tokenizer(small.language).encode("小猫吃苹果因为它很甜。")
    at, noun = read.tokens.index("它"), read.tokens.index("苹果")
    with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
        small.model(torch.tensor([read.ids]))
    for layer, head in ((1, 2), (1, 0), (0, 3)):
        page.get_by_label(f"{layer}.{head}", exact=True).hover()
        weight = seen.weights(layer, head)[0, at, noun].item()
        assert shown(page, f"weight {noun}") == f"{weight * 100:.0f}%"

    ids = list(read.ids)
    ids[at] = planted.tokenizer(small.language).token_to_id("[MASK]")
    page.locator("#masked").check()
    silent: dict[tuple[int, int], str] = {}
    for layer, head in ((None, None), (1, 2), (1, 1)):
        if layer is not None and head is not None:
            page.get_by_label(f"{layer}.{head}", exact=True).focus()
            page.locator("#silence").click()
            silent[layer, head] = "zero"
        with torch.no_grad(), hw.ablate(small.model, silent) if silent else nullcontext():
            likely = small.model(torch.tensor([ids])).softmax(-1)[0, at].max(-1)
        word = planted.tokenizer(small.language).id_to_token(int(likely.indices))
        assert shown(page, "said") == f"{word} {likely.values.item() * 100:.0f}%"


def test_the_command_writes_a_page_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lesson_1_weighted_lookup

    monkeypatch.setattr(lesson_1_weighted_lookup, "measure", lambda: pytest.fail("it measured"))
    monkeypatch.chdir(tmp_path)
    lesson.run("lesson_1_weighted_lookup", ["--page", "one.html", "--language", "zh"])
    assert [path.name for path in tmp_path.iterdir()] == ["one.html"]
    assert '<html lang="zh">' in (tmp_path / "one.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match=r"--page one\.txt: give a name that ends with \.html"):
        lesson.run("lesson_1_weighted_lookup", ["--page", "one.txt"])


@pytest.mark.slow
@pytest.mark.parametrize("language", lesson.LANGUAGES)
def test_claims_are_guessed_before_the_measurement_is_shown(opened: Open, language: str) -> None:
    """What is shown of a claim is what its row of docs/claims.md says."""
    page, data = opened("claims", language), claims._guess.page_data()
    rows, t = data["claims"][language], lesson.SPEAK[language]
    assert [row["verdict"] for row in rows] == [
        claim.verdict.text(t) for _, group in claims.SUBJECTS for claim in group
    ]
    assert [row["says"] for row in rows] == [t(*claim.says) for _, group in claims.SUBJECTS for claim in group]
    parts = page.locator("section.claim")
    assert parts.count() == len(rows)
    assert rows[0]["measured"] not in page.locator("main").inner_text()
    for i, guess in enumerate(Verdict):
        parts.nth(i).get_by_role("button", name=guess.text(t), exact=True).press("Enter")
        mark = "✓" if rows[i]["verdict"] == guess.text(t) else "✗"
        assert f"{mark} {rows[i]['verdict']}" in parts.nth(i).inner_text()
        assert rows[i]["measured"] in parts.nth(i).inner_text()
        assert parts.nth(i).get_by_role("button").first.is_disabled()

    page.emulate_media(media="print")
    assert parts.nth(0).locator(".measured").is_hidden()
    answers = page.locator("section.answers").inner_text()
    assert all(row["measured"] in answers for row in rows)


def test_the_command_of_claims_writes_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims_command(["--page", str(tmp_path / "claims.html")])
    assert [path.name for path in tmp_path.iterdir()] == ["claims.html"]
    with pytest.raises(SystemExit, match="give a file in a folder that exists"):
        claims_command(["--page", str(tmp_path / "nowhere" / "claims.html")])


@pytest.mark.slow
def test_lesson_8_reads_words_in_another_order_and_counts_costs(opened: Open) -> None:
    import lesson_8_recurrence as lesson_8

    page, data = opened("lesson_8_recurrence"), lesson_8.page_data()
    rnn = {name: torch.tensor(part) for name, part in data["rnn"].items()}
    page.locator("#swap-1").press("Enter")  # 我苹果吃
    states, _ = lesson_8.recurrence(torch.tensor(data["x"])[[0, 2, 1]], **rnn, V=torch.eye(3))
    for step, state in enumerate(states.tolist()):
        assert shown(page, f"state {step}") == ", ".join(f"{x:.3f}" for x in state)
    assert shown(page, "order rnn") != "0%"
    assert shown(page, "order attention") == "0%"

    attention = hw.nn.MultiHeadAttention(3, 1)
    for name, part in data["attention"].items():
        getattr(attention, f"{name}_proj").load_state_dict(
            {"weight": torch.tensor(part["weight"]).view(3, 3), "bias": torch.tensor(part["bias"])}
        )
    with torch.no_grad():
        out = attention(torch.tensor(data["x"])[None, [0, 2, 1]])[0]
    assert shown(page, "output 0") == ", ".join(f"{x:.3f}" for x in out[0].tolist())

    torch.manual_seed(0)
    lesson_8.order()  # the gradients are those that `measure` finds
    for kind in lesson_8.KINDS:
        sizes = lesson_8.gradient_sizes(kind, lesson_8.BACK).flip(0)
        move(page, "back", 64)
        assert float(plain(shown(page, f"gradient {kind}"))) == pytest.approx(sizes[64].item(), rel=0.05, abs=6e-4)

    x = torch.tensor([data["x"][i % 3] for i in range(41)], requires_grad=True)
    move(page, "factor", 2)
    states, _ = lesson_8.recurrence(x, rnn["U"], 2 * rnn["W"], torch.eye(3), rnn["b"])
    wanted = torch.stack([torch.autograd.grad(h, x, retain_graph=True)[0] for h in states[-1]]).norm(dim=(0, 2)).flip(0)
    torch.testing.assert_close(torch.tensor(page.evaluate("gradients(2)")), wanted, atol=1e-9, rtol=1e-3)

    for place, n in enumerate(lesson_8.LENGTHS):
        move(page, "tokens", math.log2(n))
        for kind, kept in lesson_8.kept().items():
            assert shown(page, f"kept {kind}") == f"{kept[place]:,}"


@pytest.mark.slow
def test_lesson_9_follows_a_character_to_its_word(opened: Open) -> None:
    import lesson_9_encoder_decoder as lesson_9

    page, rows = opened("lesson_9_encoder_decoder"), lesson.measured(lesson_9.__file__)
    assert shown(page, "translation") == "".join(rows[0]["target"][:-1])
    assert shown(page, "translation") == dict(lesson_9.forms(lesson_9.date(2012, 3, 21)))[lesson_9.SHOWN]
    page.locator("#query-5").hover()  # 三, of march
    weights = torch.tensor(rows[0]["weights"]["cross"])
    of_all = weights[:, 5].mean(0)
    assert [shown(page, f"query {j}") for j in range(len(of_all))] == [f"{w * 100:.0f}%" for w in of_all.tolist()]
    assert rows[0]["source"][int(of_all.argmax())] == "march"
    move(page, "head", 1)
    assert shown(page, "query 5") == f"{weights[1, 5, 5].item() * 100:.0f}%"
    page.get_by_label("decoder: from the target").check()
    assert shown(page, "query 14") == "0%"
    page.get_by_label("decoder alone", exact=True).check()
    translations = []
    for i in (1, 2):
        page.locator(f"#date-{i}").press("Enter")
        translations.append(shown(page, "translation"))
    assert translations[0] == translations[1]


@pytest.mark.slow
def test_lesson_10_finds_neighbours_and_analogies(opened: Open) -> None:
    import lesson_10_words as lesson_10

    page = opened("lesson_10_words", "zh")
    vectors = lesson_10.METHODS["tf-idf"].fit(list(lesson_10.topics.values()))
    page.get_by_label("tf-idf").check()
    page.locator("#word").fill("tuple")
    page.locator("#other").fill("list")
    cosine = torch.nn.functional.cosine_similarity(vectors.vector("tuple"), vectors.vector("list"), dim=0).item()
    assert float(shown(page, "together")) == pytest.approx(cosine, abs=2e-3)
    page.locator("#word").fill("qwertz")
    assert "没有向量" in shown(page, "unknown")

    for text in ("planted", "at random"):
        vectors = lesson_10.planted_vectors(0, text == "planted")
        page.locator(f"[name='text'][value='{text}']").check()
        page.locator("#without").check()
        answer, cosine = vectors.analogy(*lesson_10.QUESTION, 1)[0]
        assert shown(page, "answer 0") == answer
        page.locator("#without").uncheck()
        answer, cosine = vectors.most_similar(lesson_10.difference(vectors, *lesson_10.QUESTION), 1)[0]
        assert shown(page, "answer 0") == answer
        assert float(shown(page, "answer cosine 0")) == pytest.approx(cosine, abs=2e-3)


@pytest.mark.slow
def test_lesson_11_learns_as_the_lesson_does(opened: Open) -> None:
    import lesson_11_learning_words as lesson_11

    page = opened("lesson_11_learning_words")
    rows, outputs = torch.randn(4, 3), torch.randn(4, 3)
    rows[0] = 0
    script = """([rows, outputs]) => {
        const loss = learn_pair(rows, outputs, 1, 2, [3, 2, 3], 0.1);
        return { loss, rows, outputs };
    }"""
    found = page.evaluate(script, [rows.tolist(), outputs.tolist()])
    drawn = torch.tensor([[[3, 2, 3] + [2] * (lesson_11.NEGATIVE - 3)]])  # a target that was drawn is left out
    loss = lesson_11.step(rows, outputs, torch.tensor([[1]]), torch.tensor([[2]]), drawn, 0.1)
    assert found["loss"] == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(torch.tensor(found["rows"]), rows, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(found["outputs"]), outputs, atol=1e-5, rtol=0)

    counts = torch.tensor([count for _, count in lesson_11.page_data()["frequent"]]).double()
    shares = counts**0.75 / (counts**0.75).sum()
    assert shown(page, "drawn 0") == f"{shares[0].item():.2%}"
    page.locator("#text").fill("the cat sat")
    assert shown(page, "pairs") == "6"
    page.locator("#ten").press("Enter")
    assert shown(page, "epochs") == "10"
    assert float(shown(page, "loss")) < 2.2  # 6 ln 2 = 4.16 before training
    page.locator("#again").press("Enter")
    assert shown(page, "epochs") == "0"


@pytest.mark.slow
def test_lesson_12_reaches_as_far_as_gradients_do(opened: Open) -> None:
    import lesson_12_span_depth_dimension as lesson_12

    page = opened("lesson_12_span_depth_dimension")
    for window, layers, heads in lesson_12.SPANS.values():
        reach = min(lesson_12.reach(window, layers, heads), max(lesson_12.DISTANCES))
        move(page, "window", window or max(lesson_12.DISTANCES) + 1)
        move(page, "layers", layers)
        assert shown(page, "reach") == str(reach)
        move(page, "distance", reach)
        assert shown(page, "seen") == "within reach"
        if reach < max(lesson_12.DISTANCES):
            move(page, "distance", reach + 1)
            assert shown(page, "seen") == "out of reach"
    at = hw.Coordinates.of(torch.arange(64), 64)
    allowed = (hw.masks.Causal() & hw.masks.Window(8)).allowed(at, at)
    move(page, "window", 8)
    move(page, "long", 6)
    assert int(shown(page, "pairs").replace(",", "")) == allowed.sum()

    page.locator("#shuffle").press("Enter")
    move(page, "hops", 4)
    order = torch.tensor(page.evaluate("state.order"))
    ids = torch.empty_like(order).scatter_(0, order, order.roll(-1))
    token = 0
    for _ in range(4):
        token = int(ids[token])
    assert shown(page, "end") == str(token)
    rows = lesson_12.stored(3, lesson_12.DIM)
    assert shown(page, "right 3") == f"{sorted(row[3] for row in rows)[1]:.0%}"


@pytest.mark.slow
def test_lesson_13_reads_what_is_drawn(opened: Open) -> None:
    import lesson_13_images as lesson_13

    page, model = opened("lesson_13_images"), lesson_13.drawn_model()[0]
    page.locator("#image-5").press("Enter")
    page.get_by_label("row 2, column 3", exact=True).press("Enter")
    page.locator("#right").press("Enter")
    image = torch.tensor(page.evaluate("state.image"))
    with torch.no_grad(), hw.capture(model, "weights") as seen:
        shares = model(lesson_13.patches_of(image[None])).softmax(-1)[0]
    for places in ("row by row", "in another order, each with its place"):
        page.get_by_label(places, exact=True).check()
        assert [float(shown(page, f"share {i}")) for i in range(10)] == pytest.approx(shares.tolist(), abs=2e-3)
        assert shown(page, "digit") == str(int(shares.argmax()))
    for layer, head in ((0, 1), (1, 0)):
        move(page, "layer", layer)
        move(page, "head", head)
        of_all = 16 * seen.weights(layer, head)[0].mean(0).unflatten(0, (4, 4))
        assert float(shown(page, "3,2")) == pytest.approx(of_all[3, 2].item(), abs=0.01)
    page.get_by_label("moved to other places", exact=True).check()
    assert [float(shown(page, f"share {i}")) for i in range(10)] != pytest.approx(shares.tolist(), abs=2e-3)


@pytest.mark.slow
def test_lesson_14_aligns_and_scores(opened: Open) -> None:
    import lesson_14_translation as lesson_14

    page, data = opened("lesson_14_translation"), lesson_14.page_data()
    weights = torch.tensor(data["weights"])
    page.locator("#query-1").hover()
    move(page, "layer", 1)
    of_all = weights[1].mean(0)[1]
    assert [shown(page, f"query {j}") for j in range(len(of_all))] == [f"{w * 100:.0f}%" for w in of_all.tolist()]
    assert shown(page, "most").strip("␣") == data["source"][int(of_all.argmax())].strip("␣")
    page.locator("[name='similar']").nth(2).check()
    assert [float(shown(page, f"bleu {name}")) for name in data["bleu"]] == [
        round(values[2], 1) for values in data["bleu"].values()
    ]


@pytest.mark.slow
def test_lesson_15_silences_a_head(opened: Open) -> None:
    page = opened("lesson_15_four_relations", "zh")
    words = planted.tokenizer(planted.ARTICLE)
    for number, of in ((0, 4), (2, 1)):
        small, sentence = planted.pretrained(planted.ARTICLE, number), planted.ARTICLE.examples[of]
        (link,), (text,) = sentence.links, planted.masked(planted.ARTICLE, [sentence])
        layer, head = small.head(link.relation)
        page.locator("[name='model']").nth(number).check()
        page.locator(f"#sentence-{of}").press("Enter")
        page.locator("#restore").press("Enter")
        for silent in ({}, {(layer, head): "zero"}):
            with torch.no_grad(), hw.ablate(small.model, silent) if silent else nullcontext():
                likely = small.model(torch.tensor([text.ids])).softmax(-1)[0, link.word + 1].max(-1)
            said = f"{words.id_to_token(int(likely.indices))} {likely.values.item() * 100:.0f}%"
            assert shown(page, "said") == said
            page.locator("#silence").press("Enter")
        with torch.no_grad(), hw.capture(small.model, keep="weights") as seen:
            small.model(torch.tensor([text.ids]))
        for which in (0, 1):
            weight = seen.weights(which, 2)[0, link.word + 1, link.noun + 1].item()
            assert shown(page, f"weight {of} {which}.2") == f"{weight * 100:.0f}%"
