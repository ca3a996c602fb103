"""What a report holds, read back from the page by a decoder of its own, against the weights of the capture."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from decoded import Decoded, reports_of, scripts_of
from reports import FORMS, Calls, seen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import Seen, capture
from headway.inspection.report import _plan

COMPARED = 2000
"""The weights of a form that are compared, drawn by chance."""
ERRORS = {"dense": 0.0004, "list": 0.0015, "exact": 0.004}
"""What the stated errors may be at most: those of the codes, which are measured while writing."""
FITTING = "15 MB"


def written(captured: Seen, path: Path, budget: Any = FITTING, **arguments: Any) -> Decoded:
    """The report of a capture, which keeps its budget, read back."""
    page = captured.report(path / "report.html", budget, **arguments).read_text(encoding="utf-8")
    report = reports_of(page)[0]
    if report.json["exactness"]["budget"] is not None:
        assert len(page.encode("utf-8")) <= report.json["exactness"]["budget"]
    return report


def true_weights(captured: Seen, report: Decoded, head: int) -> Tensor:
    own = report.json["heads"][head]
    return captured.weights(own["layer"], own["head"])[0].double()


def agree(captured: Seen, report: Decoded) -> set[str]:
    """Compares each form of each head, and returns the forms."""
    stated, n = report.json["exactness"], report.n
    draws = torch.Generator().manual_seed(1)
    assert all((stated[form] or 0) <= error for form, error in ERRORS.items())
    each = -(-COMPARED // len(report.json["heads"]))
    for number, head in enumerate(report.json["heads"]):
        true = true_weights(captured, report, number)
        at = torch.randint(n, (2, each), generator=draws)
        read = {"dense": report.dense, "exact": report.exact}.get(head["form"])
        if read is not None:
            found = read(number)
            assert (found - true)[at[0], at[1]].abs().max() <= stated[head["form"]]
            assert (found - true).abs().max() <= stated[head["form"]]
        if head["form"] == "dense":
            assert ((found > 0) == report.seen(head["layer"])).all()  # underflow is not hidden, and hidden is 0
            continue
        if stated["tau"] is not None:
            lists = report.listed(number)
            assert ((lists > 0) | (true < stated["tau"] * (1 + 1e-6))).all()
            assert ((lists == 0) | (true >= stated["tau"] * (1 - 1e-6))).all()
            assert (lists - true)[lists > 0].abs().max() <= stated["list"]
        agree_maps(report, number, true)
    return {head["form"] for head in report.json["heads"]}


def agree_maps(report: Decoded, number: int, true: Tensor) -> None:
    n, c = report.n, report.json["cells"]
    at = torch.arange(n) * c // n
    mass = torch.zeros(c, c, dtype=torch.float64)
    largest, sight = mass.clone(), torch.zeros(c, c, dtype=torch.bool)
    rows, columns = at[:, None].expand(n, n), at[None].expand(n, n)
    mass.index_put_((rows, columns), true, accumulate=True)
    mass /= torch.bincount(at)[:, None]
    largest.view(-1).scatter_reduce_(0, (rows * c + columns).flatten(), true.flatten(), "amax")
    sight[rows[report.seen(report.json["heads"][number]["layer"])], columns[report.seen(0)]] = True
    for found, cells in zip(report.map(number), (mass, largest), strict=True):
        some = cells > 1e-7
        assert ((found - cells).abs() / cells)[some].max() <= report.json["exactness"]["map"] + 1e-6
        assert ((found > 0) == sight).all()


@pytest.mark.parametrize("form", FORMS)
def test_short_texts_are_exact(form: str, tmp_path: Path) -> None:
    captured = seen(41, **FORMS[form])
    assert agree(captured, written(captured, tmp_path)) == {"dense"}


@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_fit_is_computed_from_codes(form: str, tmp_path: Path) -> None:
    captured = seen(150, **FORMS[form])
    report = written(captured, tmp_path, budget_without_dense(captured, tmp_path), exact=[(0, 1), (1, 3)])
    assert agree(captured, report) == {"exact", "list"}
    exact = [(head["layer"], head["head"]) for head in report.json["heads"] if head["form"] == "exact"]
    assert exact[0] == (0, 1)
    assert [*exact, *map(tuple, report.json["exactness"]["dropped"])] == [(0, 1), (1, 3)]


def budget_without_dense(captured: Seen, path: Path) -> int:
    """A budget that is too small for all weights and leaves room for maps, lists and two exact heads."""
    report = written(captured, path, None)
    dense = sum(len(report.scripts[one["id"]]) for one in report.json["chunks"] if one["kind"] == "dense")
    rest = (path / "report.html").stat().st_size - dense
    return int(rest + dense * 0.97) if dense < 150_000 else int(rest + 140_000)


def test_all_heads_from_codes_where_all_weights_do_not_fit(tmp_path: Path) -> None:
    captured = seen(300, mask=hw.masks.Causal())
    report = written(captured, tmp_path, 430_000)
    assert agree(captured, report) == {"exact"}
    assert report.json["exactness"]["heads"] == {"dense": 0, "exact": 8, "list": 0}


def broad(n: int) -> Seen:
    """What a capture of a head saw whose queries give many keys as much weight."""
    model = Calls(n, layers=1, heads=2, kv_heads=2)
    model.sides = [(0.3 * q, k, v) for q, k, v in model.sides]
    model.arguments = {"mask": hw.masks.Window(30, 30)}
    with torch.no_grad(), capture(model, keep="qk") as found:
        model()
    return found


def test_lists_are_complete_however_many_weights_a_query_has(tmp_path: Path) -> None:
    captured = broad(600)
    report = written(captured, tmp_path, exact=[])
    assert report.json["exactness"]["tau"] == 0.01
    assert agree(captured, report) == {"list"}
    assert all((report.listed(number) > 0).sum(1).max() > 32 for number in range(2))


def test_lists_are_complete_where_weights_sum_to_more_than_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plan, "SHORT", 149)
    sigmoid = hw.terms.Normalizer(lambda scores, allowed: torch.sigmoid(scores - 4).masked_fill(~allowed, 0))
    captured = seen(150, layers=1, terms=(sigmoid,))
    report = written(captured, tmp_path, exact=[])
    assert report.json["exactness"]["tau"] == 0.01
    assert agree(captured, report) == {"list"}
    assert max(int((report.listed(number) > 0).sum(1).max()) for number in range(4)) > 101


def test_the_error_of_a_model_in_bfloat16_is_that_of_the_codes(tmp_path: Path) -> None:
    """It is against weights in float32: those of ``seen.weights`` are rounded to bfloat16, which is worse."""
    half, whole = Calls(150), Calls(150)
    half.sides = [tuple(x.bfloat16() for x in sides) for sides in half.sides]  # type: ignore[misc]
    whole.sides = [tuple(x.float() for x in sides) for sides in half.sides]  # type: ignore[misc]
    found = []
    for model in (half, whole):
        model.arguments = {"mask": hw.masks.Causal()}
        with torch.no_grad(), capture(model, keep="qk") as captured:
            model()
        found.append(captured)
    report = written(found[0], tmp_path, budget_without_dense(found[0], tmp_path), exact=[(0, 1)])
    stated = report.json["exactness"]["exact"]
    number = next(i for i, head in enumerate(report.json["heads"]) if head["form"] == "exact")
    assert (report.exact(number) - true_weights(found[1], report, number)).abs().max() <= stated <= 0.001
    assert (report.exact(number) - true_weights(found[0], report, number)).abs().max() > stated


TERMS = {
    "sink": {"sink": torch.tensor([0.5, 1.0, -1.0, 2.0]), "mask": hw.masks.Causal()},
    "query scale": {"terms": (hw.terms.QueryScale(torch.linspace(0.5, 2, 150)[None, None]),)},
    "token bias": {
        "terms": (hw.terms.TokenBias(torch.linspace(-1, 1, 150)[None, None], torch.linspace(2, 0, 150)[None, None]),),
        "soft_cap": 3.0,
    },
    "table": {"encoding": hw.encoding("t5", num_heads=4), "mask": hw.masks.Causal(), "scale": 0.25},
    "documents": {"mask": hw.masks.Documents.lengths([30, 70, 50])},
    "bias in documents": {"mask": hw.masks.Documents.lengths([30, 70, 50]), "encoding": "alibi"},
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_of_exact_heads(name: str, tmp_path: Path) -> None:
    captured = seen(150, **TERMS[name])
    report = written(captured, tmp_path, budget_without_dense(captured, tmp_path), exact=[(1, 0)])
    assert report.json["heads"][0]["reason"] is None
    assert "exact" in agree(captured, report)


REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "relative keys": ({"encoding": hw.encoding("shaw", head_dim=16, max_distance=8)}, "relative keys"),
    "dense bias": ({"terms": (hw.terms.DenseBias(torch.zeros(150, 150)),)}, "bias of each pair"),
    "decay": (
        {"terms": (hw.terms.ChannelDecay(-torch.ones(1, 4, 150, 16)),), "mask": hw.masks.Causal()},
        "channels decay between two tokens",
    ),
    "no range": ({"mask": hw.masks.Dilated(3)}, "not a range of keys"),
    "wide": ({"width": 520}, "more than 512 components"),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_head_that_cannot_be_exact_says_why(name: str, tmp_path: Path) -> None:
    arguments, reason = REASONS[name]
    captured = seen(150, **arguments)
    report = written(captured, tmp_path, budget_without_dense(captured, tmp_path), exact=[(0, 0)])
    assert {head["form"] for head in report.json["heads"]} == {"list"}
    assert reason in report.json["heads"][0]["reason"]
    assert report.json["exactness"]["dropped"] == [[0, 0]]


def test_nan_in_a_head(tmp_path: Path) -> None:
    for n, budget, form in ((30, FITTING, "dense"), (150, 330_000, "exact")):
        model = Calls(n)
        model.arguments = {"mask": hw.masks.Causal()}
        model.sides[0][0][0, 2, 7] = torch.nan
        with torch.no_grad(), capture(model, keep="qk") as captured:
            model()
        report = written(captured, tmp_path, budget, exact=None if form == "dense" else [(0, 2)])
        assert [head["nan"] for head in report.json["heads"]] == [number == 2 for number in range(8)]
        assert report.json["heads"][2]["form"] == form
        found, true = getattr(report, form)(2), true_weights(captured, report, 2)
        visible = report.seen(0)
        assert torch.equal(found.isnan(), true.isnan() & visible)
        assert (found - true)[visible & ~true.isnan()].abs().max() < 0.005


def test_figures_of_heads(tmp_path: Path) -> None:
    captured = seen(41, mask=hw.masks.Causal())
    report = written(captured, tmp_path)
    rows = captured.table(["entropy", "largest", "first", "distance"])
    for head, row in zip(report.json["heads"], rows, strict=True):
        for name in ("entropy", "largest", "first", "distance"):
            assert head["statistics"][name] == pytest.approx(row[name], rel=1e-4)
        assert sum(head["distances"]) == pytest.approx(1, rel=1e-4)
    for number in range(8):
        true = true_weights(captured, report, number)
        true[:, 0] = 0
        best = true.fill_diagonal_(0).flatten().topk(20)
        links = report.json["heads"][number]["links"]
        assert [query * 41 + key for query, key, _ in links] == best.indices.tolist()
        torch.testing.assert_close(torch.tensor([w for *_, w in links]).double(), best.values, rtol=1e-4, atol=1e-6)


def test_profiles(tmp_path: Path) -> None:
    captured = seen(600, layers=1)
    report = written(captured, tmp_path, 400_000)
    at = torch.arange(600) * 512 // 600
    counts = torch.bincount(at)

    def binned(x: Tensor) -> Tensor:
        return torch.zeros(512, dtype=torch.float64).index_add_(0, at, x.double()) / counts

    for number in range(4):
        true = true_weights(captured, report, number)
        entropy, largest, received = report.profile(number)
        torch.testing.assert_close(entropy, binned(torch.special.entr(true).sum(-1)), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(largest, binned(true.amax(-1)), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(received, binned(true.sum(0)), rtol=2e-3, atol=1e-3)


# ---------------------------------------------------------------- the page


def test_the_page_asks_for_nothing_and_allows_its_own_script_alone(tmp_path: Path) -> None:
    captured = seen(20)
    page = captured.report(tmp_path / "a.html").read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    script = scripts_of(page)["module"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}' 'wasm-unsafe-eval'" in policy[1]
    assert policy[1].startswith("default-src 'none'; ")
    assert not re.search(r"<(?:link|img|script[^>]* src)", page)


@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "a\u2028b\ud800", "\x00&amp;\\u003c"])
def test_text_that_ends_a_script(text: str, tmp_path: Path) -> None:
    words = [*text.ljust(12, "x")]
    captured = seen(len(words))
    report = written(captured, tmp_path, text="".join(words), offsets=[(i, i + 1) for i in range(len(words))])
    assert report.json["text"] == "".join(words)
    assert report.tokens() == words


def test_long_text_without_a_space(tmp_path: Path) -> None:
    spans = [(5000 * i, 5000 * i + 5000) for i in range(20)]
    report = written(seen(20), tmp_path, text="x" * 100_000, offsets=spans)
    assert report.json["words"] == [20]
    assert report.tokens() == ["x" * 5000] * 20


def test_numbers_stand_for_tokens_without_a_text(tmp_path: Path) -> None:
    report = written(seen(12), tmp_path)
    assert report.tokens() == [*map(str, range(12))]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "a lot"}, "budget is 'a lot': give bytes, or a size such as '15 MB' or '800 kB'"),
        ({"budget": 0}, "budget is 0"),
        ({"budget": "20 kB"}, r"a report of 40 tokens takes .* above its budget of 20 kB: give budget='\d+ kB'"),
        ({"exact": [(0, 4)]}, r"exact holds \(0, 4\) and there is no such head: the last is \(1, 3\)"),
        ({"exact": ["x"]}, "exact holds 'x': give pairs of layer and head"),
        ({"language": "de"}, "language is 'de': give 'en', 'zh', or None"),
        ({"tokens": ["a"]}, "tokens has 1 of them and the model read 40: give one for each token"),
        ({"text": "a"}, "text is a string: give offsets= too"),
        ({"text": "a", "offsets": [(0, 2)] * 40}, r"offsets have \(0, 2\): give spans in the 1 characters"),
        ({"offsets": [(0, 0)] * 40}, "offsets are given without a text"),
        ({"roles": []}, "roles is list: give the result of head_roles"),
        ({"example": 1}, "there is no example 1: the nearest is 0"),
        ({"path": "there/is/none.html"}, "cannot be written: give a file in a folder that exists"),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / arguments.pop("path", "a.html")
    with pytest.raises(HeadwayError, match=message) as error:
        seen(40).report(path, **arguments)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_budget_too_small_for_the_maps_says_what_fits(tmp_path: Path) -> None:
    captured = seen(600)
    with pytest.raises(HeadwayError, match=r"the maps of 8 heads on 600 tokens do not fit into .*: give budget=") as no:
        captured.report(tmp_path / "a.html", 140_000)
    fits = re.search(r"give budget='([^']*)'", str(no.value))
    assert fits is not None
    assert written(captured, tmp_path, fits[1]).json["exactness"]["heads"]["list"] == 8


@pytest.mark.parametrize("asked", [False, True])
def test_reasons_and_heads_that_were_dropped_count_in_the_budget(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_plan, "said", str)
    captured = seen(100, layers=1, heads=32, kv_heads=32, encoding=hw.encoding("shaw", head_dim=16, max_distance=8))
    exact = [(0, head) for head in range(32)] if asked else None
    with pytest.raises(HeadwayError, match="the maps of 32 heads on 100 tokens do not fit") as no:
        captured.report(tmp_path / "a.html", 160_000, exact=exact)
    fits = re.search(r"give budget='(\d+)'", str(no.value))
    assert fits is not None
    report = written(captured, tmp_path, int(fits[1]), exact=exact)
    assert all("relative keys" in head["reason"] for head in report.json["heads"])


def test_a_capture_that_kept_too_little(tmp_path: Path) -> None:
    model = Calls(9)
    with torch.no_grad(), capture(model, statistics="entropy") as captured:
        model()
    with pytest.raises(HeadwayError, match="keep='statistics' keeps too little for a report: capture with keep='qk'"):
        captured.report(tmp_path / "a.html")
    assert captured._repr_html_() is None


# ---------------------------------------------------------------- memory, notebooks


class Largest(TorchDispatchMode):
    """Keeps the bytes of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(one, Tensor) and one.device.type == "cpu":
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return made


def test_memory_grows_with_the_tokens(tmp_path: Path) -> None:
    """No tensor has n × n numbers, or grows faster than the tokens, above 8 MiB that a block may take."""
    largest = []
    for n in (1100, 2200):
        captured = seen(n, layers=1, heads=2)
        with Largest() as most:
            captured.report(tmp_path / "a.html", "500 kB")
        largest.append(max(most.bytes, 8 << 20))
    assert largest[1] < 2200**2 * 4
    assert largest[1] <= 2.1 * largest[0]


def test_a_notebook_shows_it(tmp_path: Path) -> None:
    html = seen(20)._repr_html_()
    assert html is not None
    assert html.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert len(html) < 4.2e6
