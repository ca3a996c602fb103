"""Constructed heads have the roles that they were constructed for and no others; figures are those of literal loops."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway as hw
from headway.errors import HeadwayError
from headway.inspection import ROLES, Statistics, head_roles
from headway.inspection.roles import Batch, Evidence, HeadRoles, Role, longest_text
from headway.inspection.roles._judge import FEWEST, judge
from headway.inspection.roles._results import Measured
from headway.inspection.roles._run import batches
from headway.inspection.roles.broad import Broad
from headway.inspection.roles.positional import Positional
from headway.inspection.roles.sink import Sink
from headway.inspection.texts import AnnotatedText, EncodedText
from headway.models import Decoder, Encoder, TransformerConfig

CLS, SEP, COMMA, PERIOD = range(4)
VOCABULARY = 120


def texts(count: int = 60, seed: int = 0) -> list[EncodedText]:
    """Random words without repetition: [CLS] and three sentences w … w , w … w . and [SEP]."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        drawn = iter((4 + torch.randperm(VOCABULARY - 4, generator=chance)).tolist())
        ids: list[int] = []
        sentences: list[int] = []
        for sentence in range(3):
            n = 7 + (number + sentence) % 3
            words = [next(drawn) for _ in range(n)]
            ids += [*words[:4], COMMA, *words[4:], PERIOD]
            sentences += [sentence] * (n + 2)
        written = [{COMMA: ",", PERIOD: "."}.get(one, f"w{one}") for one in ids]
        starts = [sum(len(word) + 1 for word in written[:i]) for i in range(len(ids))]
        spans = tuple((start, start + len(word)) for start, word in zip(starts, written, strict=True))
        text = AnnotatedText(" ".join(written), spans, tuple(sentences))
        tokens = ("[CLS]", *written, "[SEP]")
        found.append(EncodedText((CLS, *ids, SEP), tokens, (-1, *range(len(ids)), -1), text))
    return found


class Constructed(nn.Module):
    """A layer whose heads have the weights that functions of the ids say, [batch, n, n], normalised by row."""

    def __init__(self, *heads: Callable[[Tensor], Tensor], causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, ids: Tensor) -> Tensor:
        batch, n = ids.shape
        shares = torch.stack([head(ids).expand(batch, n, n).float() for head in self.heads], 1)
        bias = (shares + 1e-9).log()
        if self.causal:
            bias = bias.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        q = torch.zeros(batch, len(self.heads), n, 4)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=bias)


def distance(ids: Tensor) -> Tensor:
    at = torch.arange(ids.shape[1])
    return (at[None, :] - at[:, None])[None]


def at(offset: int) -> Callable[[Tensor], Tensor]:
    return lambda ids: distance(ids) == offset


def on(token: int) -> Callable[[Tensor], Tensor]:
    return lambda ids: (ids == token)[:, None].expand(-1, ids.shape[1], -1)


def copies(ids: Tensor) -> Tensor:
    return (ids[:, :, None] == ids[:, None, :]) & (distance(ids) < 0)


def after_copies(ids: Tensor) -> Tensor:
    return F.pad(copies(ids), (1, 0))[..., :-1] & (distance(ids) <= 0)


def spread(ids: Tensor) -> Tensor:
    """Weights of chance: on few tokens, neither near nor at one offset."""
    chance = torch.Generator().manual_seed(int(ids.sum()))
    return torch.randn(*ids.shape, ids.shape[1], generator=chance).mul(4).exp()


def near(ids: Tensor) -> Tensor:
    return spread(ids) * (distance(ids).abs() <= 2)


def own_sentence(ids: Tensor) -> Tensor:
    ended = F.pad((ids == PERIOD).long().cumsum(1), (1, 0))[:, :-1]
    return (ended[:, :, None] == ended[:, None, :]) & (ids != CLS)[:, None] & (ids != SEP)[:, None]


def where_found(head: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A head that does something where it can, and else attends by chance."""
    return lambda ids: head(ids) * 1e9 + spread(ids)


HEADS: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "by chance": (spread, set()),
    "previous": (at(-1), {"positional", "local"}),
    "next": (at(1), {"positional", "local"}),
    "itself": (at(0), {"positional", "local"}),
    "four back": (where_found(at(-4)), {"positional"}),
    "[CLS]": (on(CLS), {"sink", "delimiter"}),
    "[SEP]": (on(SEP), {"delimiter"}),
    "commas": (where_found(on(COMMA)), {"delimiter"}),
    "everything": (lambda ids: torch.ones(1, 1, 1), {"broad"}),
    "the neighbourhood": (near, {"local"}),
    "its sentence": (own_sentence, {"block"}),
    "copies": (where_found(copies), {"duplicate_token"}),
    "after copies": (where_found(after_copies), {"induction"}),
}
"""Heads, and exactly the roles that each of them has."""


def measured(*heads: str, roles: object = None, **arguments: object) -> HeadRoles:
    model = Constructed(*(HEADS[name][0] for name in heads), **arguments)
    return head_roles(model, texts(), roles)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> HeadRoles:
    return measured(*HEADS)


@pytest.mark.parametrize("head", HEADS)
def test_a_constructed_head_has_its_roles_and_no_others(found: HeadRoles, head: str) -> None:
    assert {one.role for one in found.of(0, list(HEADS).index(head))} == HEADS[head][1]


def test_every_role_has_a_head_that_was_constructed_for_it() -> None:
    assert {role for _, roles in HEADS.values() for role in roles} >= set(ROLES) - ANNOTATED


ANNOTATED: set[str] = {"syntactic", "coreferential", "rare_word"}
"""Roles of annotated texts, whose heads are constructed in the tests of their own."""


def test_the_primary_role_is_the_first_of_the_table(found: HeadRoles) -> None:
    row = found.table()[list(HEADS).index("[CLS]")]
    assert (row["role"], row["candidate"]) == ("sink", "first")
    assert row["all"] == "sink (first), delimiter (special)"
    assert row["figure"] == pytest.approx(1)
    assert row["cases"] > 500


def test_causal_heads() -> None:
    names = ("by chance", "previous", "itself", "[CLS]", "everything", "copies", "after copies")
    causal = measured(*names, causal=True)
    for number, name in enumerate(names):
        assert {one.role for one in causal.of(0, number)} == HEADS[name][1], name


# ---------------------------------------------------------------- figures by literal loops


def pairs_of_copies(text: EncodedText, back: int) -> list[tuple[int, set[int]]]:
    """Queries, and the keys in sight whose token ``back`` places before is an earlier copy of the query's."""
    ids, word = text.ids, text.word_of
    return [
        (
            i,
            {
                j
                for j in range(i + 1)
                if j - back >= 0 and j - back < i and word[j - back] >= 0 and ids[j - back] == ids[i]
            },
        )
        for i in range(len(ids))
        if word[i] >= 0
    ]


def oracle(role: str, text: EncodedText, a: list[list[float]]) -> dict[str, tuple[float, float]]:
    """Hits and cases of a role for each candidate in one text, of the weights of a head."""
    n = len(text.ids)
    words = [i for i in range(n) if text.word_of[i] >= 0]
    comma = [text.tokens[i] in ",." for i in range(n)]
    if role == "positional":
        top = [max(range(n), key=lambda j: (a[i][j], -j)) for i in range(n)]
        cases = {d: [i for i in words if 0 <= i + d < n] for d in range(-5, 6)}
        return {f"{d:+d}" if d else "0": (sum(top[i] == i + d for i in of), len(of)) for d, of in cases.items()}
    if role == "sink":
        return {"first": (sum(a[i][0] for i in words), len(words))}
    if role == "delimiter":
        queries = [i for i in words if not comma[i]]
        special = sum(a[i][0] + a[i][n - 1] for i in queries)
        marks = sum(a[i][j] for i in queries for j in words if comma[j])
        return {"special": (special, len(queries)), "punctuation": (marks, len(queries))}
    if role == "local":
        return {"±2 tokens": (sum(a[i][j] for i in words for j in range(n) if abs(i - j) <= 2), len(words))}
    if role == "broad":
        entropy = [-sum(x * math.log(x) for x in a[i] if x > 0) for i in range(n)]
        return {"entropy": (sum(entropy[i] for i in words) / math.log(n), len(words))}
    if role == "block":
        of = [text.text.sentences[w] if w >= 0 else -1 for w in text.word_of]
        far = [(i, j) for i in words for j in words if abs(i - j) > 2]
        return {"sentence": (sum(a[i][j] for i, j in far if of[i] == of[j]), sum(a[i][j] for i, j in far))}
    found = pairs_of_copies(text, 0 if role == "duplicate_token" else 1)
    if role == "duplicate_token":
        found = [(i, keys - {i}) for i, keys in found]
    asked = [(i, keys) for i, keys in found if keys]
    return {"repeats": (sum(a[i][j] for i, keys in asked for j in keys), len(asked))}


@pytest.mark.parametrize("name", [name for name in ROLES if name not in ANNOTATED])
def test_figures_are_those_of_loops_over_the_weights_of_the_odd_texts(name: str) -> None:
    given, role = texts(20), ROLES[name]()
    probes = list(role.probes(given, None, torch.Generator().manual_seed(0)))
    heads = (spread, near, where_found(copies), where_found(after_copies))
    findings = head_roles(Constructed(*heads), given, name).role(name)
    for number, head in enumerate(heads):
        totals: dict[str, list[float]] = {}
        for which in batches(probes):  # weights of chance are drawn for a batch
            shares = head(torch.tensor([probes[i].ids for i in which])).double() + 1e-9
            for row, i in enumerate(which):
                a = (shares[row] / shares[row].sum(-1, keepdim=True)).tolist()
                for candidate, (hits, cases) in oracle(name, probes[i], a).items() if i % 2 else ():
                    sums = totals.setdefault(candidate, [0.0, 0.0])
                    sums[0], sums[1] = sums[0] + hits, sums[1] + cases
        for candidate, (hits, cases) in totals.items():
            if cases < 1:  # a weight of rounding errors
                continue
            (one,) = [one for one in findings if (one.head, one.candidate) == (number, candidate)]
            assert one.figure == pytest.approx(hits / cases, abs=2e-5), (number, candidate)
            assert name == "block" or one.cases == cases


# ---------------------------------------------------------------- judging


def judged(hits: Tensor, cases: Tensor, guesses: Tensor, threshold: float = 0.3, margin: float = 0.1):  # type: ignore[no-untyped-def]
    return judge(hits, cases, guesses, threshold, margin, seed=0)


def test_a_head_that_does_something_on_one_half_alone_has_no_role() -> None:
    hits = torch.zeros(100, 3, 1)
    hits[0::2, 0] = hits[1::2, 1] = hits[:, 2] = 5
    found = judged(hits, torch.full((100, 1, 1), 5.0), torch.zeros(100, 1, 1, 1))
    assert found.holds[:, 0].tolist() == [False, False, True]
    assert found.figure[:, 0].tolist() == [0, 1, 1]
    assert found.chosen_by[:, 0].tolist() == [1, 0, 1]


def test_the_best_of_many_heads_of_chance_is_reported_as_chance() -> None:
    """Chosen on the even texts it looks good; on the odd ones it is what it is."""
    chance = torch.Generator().manual_seed(0)
    hits = torch.randint(2, (200, 500, 4), generator=chance).float()
    found = judged(hits, torch.ones(200, 1, 4), torch.full((200, 1, 1, 4), 0.5), threshold=0, margin=0.1)
    best = found.chosen_by.argmax(0)
    assert (found.chosen_by.amax(0) > 0.1).all()
    assert (found.figure[best, range(4)] - 0.5).abs().max() < 0.1
    assert not found.holds.any()


def test_the_first_of_many_candidates_is_not_chosen_by_its_reported_figure() -> None:
    """All candidates are as good; the largest figure of 50 would be 0.06 too large."""
    chance = torch.Generator().manual_seed(0)
    hits = torch.randint(2, (800, 40, 50), generator=chance).float()
    every = judged(hits, torch.ones(800, 1, 50), torch.zeros(800, 1, 1, 50))
    names = tuple(map(str, range(50)))
    found = HeadRoles([("layer", head) for head in range(40)], {"sink": Measured(Sink(), names, every, True)}, {})
    rows = found.table()
    assert sum(row["figure"] for row in rows) / 40 == pytest.approx(0.5, abs=0.01)
    assert rows[3]["candidate"] == str(int(every.chosen_by[3].argmax()))
    best = found.best("sink")
    heads, candidates = [one.head for one in best], [int(one.candidate) for one in best]
    chosen_by = every.chosen_by[heads, candidates].tolist()
    assert chosen_by == sorted(every.chosen_by.amax(0).tolist(), reverse=True)


def test_intervals_are_those_of_proportions() -> None:
    """Of independent cases the interval is p ± 1.96·√(p(1 − p)/n); of texts that agree with themselves it is wider."""
    chance = torch.Generator().manual_seed(0)
    single = (torch.rand(2000, 1, 1, generator=chance) < 0.3).float()
    found = judged(single, torch.ones(2000, 1, 1), torch.zeros(2000, 1, 1, 1))
    half = 1.96 * (0.3 * 0.7 / 1000) ** 0.5
    assert found.high.item() - found.low.item() == pytest.approx(2 * half, rel=0.1)
    assert found.low < found.figure < found.high
    clumped = single[:200] * 10
    wide = judged(clumped, torch.full((200, 1, 1), 10.0), torch.zeros(200, 1, 1, 1))
    narrow = (torch.rand(200, 10, 1, generator=chance) < 0.3).float().sum(1, keepdim=True)
    tight = judged(narrow, torch.full((200, 1, 1), 10.0), torch.zeros(200, 1, 1, 1))
    assert wide.high.item() - wide.low.item() > 2 * (tight.high.item() - tight.low.item())


def test_the_guess_is_chosen_on_the_even_texts_and_measured_on_the_odd_ones() -> None:
    guesses = torch.zeros(100, 1, 2, 1)
    guesses[0::2, :, 0], guesses[1::2, :, 0] = 0.9, 0.2
    guesses[:, :, 1] = 0.5
    found = judged(torch.full((100, 1, 1), 0.95), torch.ones(100, 1, 1), guesses)
    assert (found.guess.item(), found.baseline.item()) == (0, pytest.approx(0.2))
    assert not found.holds.any()  # 0.05 above the guess on the half on which it was chosen


def test_few_cases_give_no_role() -> None:
    for texts_in_all, holds in ((2 * FEWEST - 2, False), (2 * FEWEST, True)):
        every = torch.ones(texts_in_all, 1, 1)
        assert judged(every, every, torch.zeros(texts_in_all, 1, 1, 1)).holds.item() is holds
    few = torch.zeros(200, 1, 1)
    few[:18] = 10  # 90 cases in each half, of nine texts
    assert not judged(few, few, torch.zeros(200, 1, 1, 1)).holds.item()
    few[:20] = 10
    assert judged(few, few, torch.zeros(200, 1, 1, 1)).holds.item()


# ---------------------------------------------------------------- own roles, models, wrong input


def test_a_role_of_the_users_own() -> None:
    @dataclass(frozen=True, eq=False)
    class Confident(Role):
        """A head whose largest weight is large."""

        name = "confident"
        threshold: float = 0.5
        margin: float = 0.1

        def candidates(self, texts: Sequence[EncodedText]) -> tuple[str, ...]:
            return ("largest weight",)

        def statistics(self, batch: Batch) -> tuple[str, ...]:
            return ("largest",)

        def evidence(self, batch: Batch, found: Statistics) -> Evidence:
            weight = found["largest"].weight * batch.words[:, None]
            return Evidence(weight.sum(-1, keepdim=True), batch.words.sum(-1)[:, None, None])

    own = measured("previous", "everything", roles=[Confident(), "broad"])
    assert own.roles == ("confident", "broad")
    assert [one.role for one in own.of(0, 0)] == ["confident"]
    assert own.of(0, 0)[0].figure == pytest.approx(1)
    assert [one.role for one in own.of(0, 1)] == ["broad"]
    assert own.role("confident")[1].baseline == pytest.approx(1 / 30, rel=0.1)


def test_variants() -> None:
    by_weight = measured("previous", "everything", roles=Positional(by="weight"))
    assert [one.candidate for one in by_weight.of(0, 0)] == ["-1"]
    assert not by_weight.of(0, 1)
    nats = measured("everything", roles=Broad(by="nats"))
    assert nats.role("broad")[0].figure == pytest.approx(math.log(30), rel=0.05)
    assert not nats.of(0, 0)


def test_models_of_headway_and_of_transformers_and_in_training() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertModel(BertConfig(vocab_size=VOCABULARY, attention_probs_dropout_prob=0.5, **sizes))
    config = TransformerConfig(vocab_size=VOCABULARY, embed_dim=16, num_heads=2, num_layers=2)
    decoder = Decoder(config, hw.encoding("rope", head_dim=8))
    for model, layers in ((bert, 1), (decoder, 2)):
        model.train()
        model.get_submodule(next(iter(dict(model.named_children())))).eval()
        modes = [module.training for module in model.modules()]
        twice = [head_roles(model, texts(8)).table() for _ in range(2)]
        assert [module.training for module in model.modules()] == modes
        assert str(twice[0]) == str(twice[1])
        assert len(twice[0]) == 2 * layers


def test_a_head_that_attends_to_what_is_near_is_no_block_head_though_sentences_are_long() -> None:
    chance = torch.Generator().manual_seed(0)
    long = []
    for _ in range(40):
        ids = (4 + torch.randint(VOCABULARY - 4, (4, 50), generator=chance)).tolist()
        flat = [CLS, *(number for sentence in ids for number in (*sentence[:-1], PERIOD)), SEP]
        spans = tuple((2 * i, 2 * i + 1) for i in range(200))
        text = AnnotatedText("w " * 200, spans, tuple(10**7 + i // 50 for i in range(200)))
        long.append(EncodedText(tuple(flat), tuple(map(str, flat)), (-1, *range(200), -1), text))
    heads = [lambda ids, rate=rate: (distance(ids).abs() * -rate).exp() for rate in (1.0, 0.5, 0.3)]
    for causal in (False, True):
        found = head_roles(Constructed(*heads, own_sentence, causal=causal), long, "block")
        figures = found.role("block")
        assert all(one.figure > 0.9 for one in figures)
        assert [one.holds for one in figures] == [False, False, False, True]
        assert all(one.figure - one.baseline < 0.05 for one in figures[:3])


def test_random_models_follow_no_tokens() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=VOCABULARY, embed_dim=32, num_heads=8, num_layers=4)
    found = head_roles(Encoder(config, hw.encoding("rope", head_dim=4)), texts())
    assert {one.role for layer in found.layers for head in range(8) for one in found.of(layer, head)} <= {"broad"}


def test_texts_that_do_not_serve_a_role_are_named() -> None:
    few = [dataclasses.replace(text, text=dataclasses.replace(text.text, sentences=())) for text in texts(2)]
    short = [cut(text, 9) for text in few]
    found = head_roles(Constructed(at(-1)), short)
    assert found.not_measured["induction"] == "25 different tokens to repeat, where the texts have 16"
    with pytest.raises(HeadwayError, match=r"'induction' was not measured: it needs 25 different tokens"):
        found.best("induction")
    with pytest.raises(HeadwayError, match="'inductoin' was not measured: give one of positional"):
        found.best("inductoin")
    with pytest.raises(HeadwayError, match="no role was measured: induction needs 25 different tokens"):
        head_roles(Constructed(at(-1)), short, "induction").plot()


def cut(text: EncodedText, words: int) -> EncodedText:
    return EncodedText(
        (*text.ids[: words + 1], SEP),
        (*text.tokens[: words + 1], "[SEP]"),
        (*text.word_of[: words + 1], -1),
        AnnotatedText(text.text.text, text.text.words[:words]),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((texts(1),), "texts are 1 of them: give two or more"),
        ((["a", "b"],), "texts are something else: give two or more from headway.inspection.texts.encode"),
        ((texts(2), "positonal"), "there is no role 'positonal': did you mean 'positional'?"),
        ((texts(2), [3]), "roles holds 3: give names such as 'positional'"),
        ((texts(2), ["sink", "sink"]), "roles holds 'sink' twice"),
        ((texts(2), []), "roles is empty"),
    ],
)
def test_wrong_input_is_named(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(HeadwayError, match=re.escape(message)):
        head_roles(Constructed(at(-1)), *arguments)  # type: ignore[arg-type]


def test_layers_of_other_lengths_are_refused() -> None:
    class Pooled(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            q = torch.zeros(len(ids), 2, 3, 4)
            return F.scaled_dot_product_attention(q, q, q)

    with pytest.raises(HeadwayError, match=r"has 2 × 3 queries for 2 × \d+ tokens: give layers="):
        head_roles(Pooled(), texts(2), "broad")
    with pytest.raises(HeadwayError, match=re.escape("by is 'most': give 'largest' or 'weight'")):
        Positional(by="most")


def test_weights_that_are_nan_are_refused() -> None:
    class Damaged(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            chance = torch.Generator().manual_seed(0)
            q = torch.randn(len(ids), 3, ids.shape[1], 4, generator=chance)
            k = q.clone()
            k[-1, 1, 2] = torch.nan  # a key of one text
            return F.scaled_dot_product_attention(q, k, q)

    for role in ("sink", "local", "positional", "block"):
        with pytest.raises(HeadwayError, match="weights of head 1 are NaN: roles need queries and keys"):
            head_roles(Damaged(), texts(6), role)


def test_decoders_that_shift_the_tokens_are_refused() -> None:
    from transformers import BartConfig, BartModel

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    bart = BartModel(BartConfig(vocab_size=VOCABULARY, **sizes, **heads))
    with pytest.raises(HeadwayError, match="is cross-attention, so the decoder may read other tokens than the texts'"):
        head_roles(bart, texts(4), "sink")
    assert head_roles(bart, texts(4), "sink", layers="encoder.layers.0.self_attn").layers == [
        "encoder.layers.0.self_attn"
    ]


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    head_roles(
        Constructed(at(-1)), texts(6), ["broad", "induction"], watch=lambda done, every: told.append((done, every))
    )
    assert told[-1] == (46, 46)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(("weight", "cases"), [(0.0, 0), (0.1, 2)])
def test_a_layer_without_learned_sinks_has_no_cases_of_them(weight: float, cases: int) -> None:
    batch: Any = SimpleNamespace(words=torch.ones(1, 3).bool(), device=torch.device("cpu"))
    found: Any = {"first": torch.full((1, 4, 3), 0.5), "sink": torch.full((1, 4, 3), weight)}
    assert Sink().evidence(batch, found).cases.tolist() == [[[2, cases]]]


def test_texts_that_roles_make_fit_the_model() -> None:
    config = TransformerConfig(vocab_size=VOCABULARY, embed_dim=16, num_heads=2, num_layers=1)
    given = [cut(text, 9) for text in texts(60)]
    for longest, missing in ((60, set()), (40, COPIED), (12, {*COPIED, "block"})):
        model = Encoder(config, hw.encoding("learned", embed_dim=16, max_length=longest))
        assert longest_text(model) == longest
        assert head_roles(model, given).not_measured.keys() - ANNOTATED == missing
    assert head_roles(model, given).not_measured["induction"] == "a model that reads 52 tokens, not 12"


COPIED = {"induction", "duplicate_token"}
