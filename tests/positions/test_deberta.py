"""DeBERTa's two products, its buckets, and the index that paper and code have differently."""

import pytest
import torch
from torch import Tensor, nn

from headway.coordinates import Coordinates
from headway.errors import HeadwayError
from headway.positions._encodings.deberta import DeBERTa
from headway.properties import Pairs


def waves(*shape: int, at: float) -> Tensor:
    """Numbers that anybody can write down again."""
    return torch.sin(0.7 * torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + at).view(shape)


def weights(encoding: DeBERTa, q: Tensor, k: Tensor, positions: Tensor | None = None) -> Tensor:
    at = Coordinates.span(q.shape[1]) if positions is None else Coordinates.of(positions, len(positions))
    return Pairs(encoding, q, k, at, at).scores().softmax(-1).detach()


LOG = [
    [9.077e-05, 1.82e-05, 0.00010876, 0.018412, 0.00665432, 0.01228029, 0.32991444],
    [1e-08, 9.9e-07, 9.23e-06, 1e-08, 0.0002125, 0.00380751, 0.05214379],
    [5.617e-05, 1e-06, 1.631e-05, 0.01050303, 0.01086368, 0.01114368, 0.3106468],
    [0.0, 2e-07, 3.96e-06, 0.0, 2.004e-05, 0.00083078, 0.06688773],
]
CLIP = [
    [0.00047848, 0.0004153, 0.03586932, 0.06030106, 0.00043262, 0.02432741, 0.08278447],
    [0.00010108, 0.02931205, 0.01143228, 9.387e-05, 0.02009224, 0.01743452, 0.0015221],
    [0.00017406, 0.00082702, 0.04793725, 0.05849914, 0.00084007, 0.03433582, 0.07832079],
    [8.296e-05, 0.01560535, 0.01140879, 8.094e-05, 0.01057458, 0.01673618, 0.00147188],
]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (DeBERTa(8, 2, 4, max_distance=16, num_buckets=8), LOG),
        (DeBERTa(8, 2, 4, max_distance=3, buckets="clip", norm=False), CLIP),
    ],
    ids=["log", "clip"],
)
def test_the_authors_weights(encoding: DeBERTa, expected: list[list[float]]) -> None:
    """DisentangledSelfAttention of microsoft/DeBERTa, DeBERTa/deberta/disentangled_attention.py at 4d7fe0b.

    20 tokens, 2 heads of 4; queries 0 and 19, each third key. Their projection of keys has a bias that changes nothing.
    """
    encoding = encoding.double()
    encoding.table.data = waves(*encoding.table.shape, at=0.3)
    encoding.key.weight.data = waves(8, 8, at=6.5)
    encoding.query.weight.data, encoding.query.bias.data = waves(8, 8, at=8.5), waves(8, at=9.5)
    x = 0.3 * waves(20, 8, at=0.1)
    q, k = ((x @ waves(8, 8, at=at).T + waves(8, at=at + 1)).view(20, 2, 4).transpose(0, 1) for at in (0.5, 2.5))
    found = weights(encoding, q, k)[:, [0, 19], ::3].flatten(0, 1)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=0)


def test_the_authors_buckets() -> None:
    """build_relative_position(41, 41, 8, 16) of microsoft/DeBERTa, da_utils.py at 4d7fe0b: ceilings, not floors."""
    expected = [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    encoding = DeBERTa(8, 1, 8, max_distance=16, num_buckets=8)
    assert [encoding._bucket(delta) for delta in range(21)] == expected
    assert [encoding._bucket(-delta) for delta in range(21)] == [-bucket for bucket in expected]


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(256, 512), (48, 300), (4, 4), (10, 30), (16, 512)])
def test_the_steps_are_the_buckets(num_buckets: int, max_distance: int) -> None:
    """The row that the term gives to each distance, from the formula; the row of bucket −S is never met."""
    encoding = DeBERTa(2, 1, 2, max_distance=max_distance, num_buckets=num_buckets, norm=False).double()
    encoding.table.data[:, 0] = torch.arange(2 * num_buckets, dtype=torch.float64)
    encoding.key.weight.data = torch.eye(2, dtype=torch.float64)
    delta = torch.arange(-max_distance - 5, max_distance + 6)
    q, k = Coordinates.of(torch.zeros(1, dtype=torch.long), 1), Coordinates.of(-delta, len(delta))
    keys, _ = encoding.terms(q, k)
    rows = keys.rows.table[0, keys.rows.map.rows(q, k)[0, 0], 0].tolist()
    assert rows == [encoding._bucket(d) + num_buckets for d in delta.tolist()]
    assert min(rows) == 1


@pytest.mark.parametrize("parts", [("c2p", "p2c"), ("c2p",)])
def test_weights_are_those_of_transformers(parts: tuple[str, ...]) -> None:
    """Equal up to max_distance; a key further ahead gets another row there, which shorter texts never train."""
    package = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    config = package.DebertaV2Config(
        hidden_size=16,
        num_attention_heads=2,
        relative_attention=True,
        pos_att_type=list(parts),
        position_buckets=6,
        max_relative_positions=12,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    theirs = package.DisentangledSelfAttention(config).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = DeBERTa(16, 2, 8, max_distance=12, num_buckets=6, parts=parts).double()
    nn.init.normal_(ours.table)
    ours.key.weight.data = theirs.pos_key_proj.weight.data
    if "p2c" in parts:
        ours.query.load_state_dict(theirs.pos_query_proj.state_dict())
    rel = ours.table_norm(ours.table)

    def both(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(1, n, 16, dtype=torch.float64)
        q, k = (part(x)[0].view(n, 2, 8).transpose(0, 1) for part in (theirs.query_proj, theirs.key_proj))
        mask = torch.ones(1, 1, n, n)
        return weights(ours, q, k), theirs(x, mask, output_attentions=True, rel_embeddings=rel)[1][0]

    torch.testing.assert_close(*both(12))
    found, expected = both(14)
    torch.testing.assert_close(found[:, 2:], expected[:, 2:])
    assert (found - expected).abs().amax((0, 2))[:2].min() > 1e-6


def test_the_papers_index_turns_p2c_around() -> None:
    """row(−δ) instead of row(δ): the released code's p2c with its table turned around, but for the clipped end."""
    code, paper = (
        DeBERTa(8, 2, 4, max_distance=9, buckets="clip", index=index).double() for index in ("code", "paper")
    )
    paper.load_state_dict(code.state_dict())
    nn.init.normal_(code.table)
    q, k = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    paper.table.data = code.table.data
    assert not torch.allclose(weights(code, q, k), weights(paper, q, k))
    only_code, only_paper = (
        DeBERTa(8, 2, 4, 9, buckets="clip", parts=("p2c",), index=i).double() for i in ("code", "paper")
    )
    for encoding in (only_code, only_paper):
        encoding.load_state_dict(
            {name: value for name, value in code.state_dict().items() if not name.startswith("key")}
        )
    at, turned = torch.arange(6), -torch.arange(6)
    torch.testing.assert_close(weights(only_code, q, k, turned), weights(only_paper, q, k, at))


def test_the_scale_counts_the_parts() -> None:
    assert DeBERTa(8, 2, 4).default_scale(64) == (3 * 64) ** -0.5
    assert DeBERTa(8, 2, 4, parts=("p2c",)).default_scale(64) == (2 * 64) ** -0.5


def test_a_layers_projections_can_be_shared() -> None:
    """As v2 and v3 share them: with biases, and with one gradient for both uses."""
    encoding, query, key = DeBERTa(8, 2, 4, max_distance=16, num_buckets=8), nn.Linear(8, 8), nn.Linear(8, 8)
    encoding.key, encoding.query = key, query
    keys, queries = encoding.terms(Coordinates.span(3), Coordinates.span(3))
    (keys.rows.table.sum() + queries.rows.table.square().sum()).backward()
    assert all(parameter.grad.any() for parameter in (*query.parameters(), *key.parameters()))
    assert {id(parameter) for parameter in encoding.parameters()} >= {id(query.weight), id(key.weight)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_heads": 0}, "num_heads is 0"),
        ({"max_distance": 0}, "max_distance is 0"),
        ({"num_buckets": 9}, "num_buckets is 9 .* give an even number from 4 to 1020"),
        ({"num_buckets": 2}, "num_buckets is 2 .* from 4"),
        ({"num_buckets": 100, "max_distance": 50}, "num_buckets is 100 for a max_distance of 50: .* to 96"),
        ({"parts": ("p2p",)}, r"parts are \('p2p',\): give"),
        ({"parts": ()}, r"parts are \(\): give"),
        ({"parts": ("c2p", "c2p")}, "parts are"),
        ({"buckets": "t5"}, "buckets is 't5': give 'log' or 'clip'"),
        ({"index": "v1"}, "index is 'v1': give 'code' or 'paper'"),
    ],
)
def test_wrong_arguments_raise(arguments: dict, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        DeBERTa(**({"embed_dim": 8, "num_heads": 2, "head_dim": 4} | arguments))
