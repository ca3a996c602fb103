"""The code that the source documents show, 000 to 004, beside headway's own: with the same weights, the same numbers.

The documents are not in this repository. What they show is retyped here, cleaned of what cannot run; a comment at each
snippet says from which document it is and what was mended. Printed code that fails is also run as it stands, and its
error asserted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headway as hw
from headway.kernels import KERNELS

LENGTH, WIDTH, HEADS = 50, 512, 8


# ---------------------------------------------------------------- the table of positions


def table_of_000(seq_len: int, d_model: int) -> Tensor:
    """Document 000, as it stands: `2 * (i // 2)` is a whole number, the division by d_model makes it a float."""
    pos = torch.arange(seq_len).unsqueeze(1)
    i = torch.arange(d_model).unsqueeze(0)
    angle_rates = 1 / torch.pow(10000, (2 * (i // 2)) / d_model)
    pe = pos * angle_rates
    pe[:, 0::2] = torch.sin(pe[:, 0::2])
    pe[:, 1::2] = torch.cos(pe[:, 1::2])
    return pe.unsqueeze(0)


def table_of_002(seq_len: int, d_model: int) -> Tensor:
    """Document 002. Mended: `^`, which Python takes for an exclusive or, is a power; sin and cos are math's."""
    pos_encoding = np.zeros((seq_len, d_model))
    for pos in range(seq_len):
        for i in range(d_model):
            if i % 2 == 0:
                pos_encoding[pos, i] = math.sin(pos / 10000 ** (i / d_model))
            else:
                pos_encoding[pos, i] = math.cos(pos / 10000 ** ((i - 1) / d_model))
    return torch.from_numpy(pos_encoding)[None]


def table_of_003(max_len: int, d: int) -> Tensor:
    """Document 003, as it stands."""
    pe = np.zeros((max_len, d))
    position = np.arange(0, max_len).reshape(-1, 1)
    div_term = np.exp(np.arange(0, d, 2) * -(np.log(10000.0) / d))
    pe[:, 0::2] = np.sin(position * div_term)
    pe[:, 1::2] = np.cos(position * div_term)
    return torch.tensor(pe, dtype=torch.float32)[None]


def table_of_headway(dtype: torch.dtype) -> Tensor:
    return hw.encoding("sinusoidal", embed_dim=WIDTH).embed(torch.zeros(1, LENGTH, WIDTH, dtype=dtype))


# What each computes its angles in decides: 000 rounds them to float32, up to 49 · 2⁻²⁴ ≈ 3e-6 off.
@pytest.mark.parametrize(
    ("table", "dtype", "within"),
    [
        (table_of_000, torch.float32, 1e-5),
        (table_of_002, torch.float64, 1e-13),
        (table_of_003, torch.float32, 2**-24),
    ],
)
def test_position_table(table: Callable[[int, int], Tensor], dtype: torch.dtype, within: float) -> None:
    theirs = table(LENGTH, WIDTH)
    assert theirs.shape == (1, LENGTH, WIDTH)
    assert theirs.dtype == dtype
    torch.testing.assert_close(theirs.double(), table_of_headway(torch.float64), rtol=0, atol=within)
    torch.testing.assert_close(theirs, table_of_headway(dtype), rtol=0, atol=2 * within)


def indented(printed: str, depths: list[int]) -> str:
    """Code of document 002, which has lost its indentation, with it."""
    return "\n".join("    " * depth + line for depth, line in zip(depths, printed.strip().splitlines(), strict=True))


TABLE_OF_002 = """
def positional_encoding(seq_len, d_model):
pos_encoding = np.zeros((seq_len, d_model))
for pos in range(seq_len):
for i in range(d_model):
if i % 2 == 0:
pos_encoding[pos, i] = sin(pos / 10000^(i/d_model))
else:
pos_encoding[pos, i] = cos(pos / 10000^((i-1)/d_model))
return pos_encoding
"""


def test_table_of_002_as_printed() -> None:
    """IndentationError; indented, NameError for sin; with sin and cos, TypeError for ^ between fractions."""
    with pytest.raises(IndentationError):
        compile(TABLE_OF_002, "002", "exec")

    names: dict[str, object] = {"np": np}
    exec(indented(TABLE_OF_002, [0, 1, 1, 2, 3, 4, 3, 4, 1]), names)
    printed: Callable[[int, int], object] = names["positional_encoding"]  # type: ignore[assignment]
    with pytest.raises(NameError, match="'sin' is not defined"):
        printed(50, 512)
    names |= {"sin": math.sin, "cos": math.cos}
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \^: 'float' and 'float'"):
        printed(50, 512)


def test_table_of_003_at_an_odd_width() -> None:
    """ValueError: one column of cosines fewer than of sines, and its frequencies are as many as the sines."""
    with pytest.raises(ValueError, match=r"could not broadcast input array from shape \(50,4\) into shape \(50,3\)"):
        table_of_003(50, 7)
    assert table_of_003(50, 8).shape == (1, 50, 8)


def test_which_table_is_the_most_exact() -> None:
    """In float32: headway's and document 003's are rounded once, at the end; document 000's angles are rounded too."""
    exact = table_of_002(LENGTH, WIDTH)
    error = {
        name: (table.double() - exact).abs().max().item()
        for name, table in (
            ("000", table_of_000(LENGTH, WIDTH)),
            ("003", table_of_003(LENGTH, WIDTH)),
            ("headway", table_of_headway(torch.float32)),
        )
    }
    assert error["headway"] <= 2**-25 * (1 + 1e-6)  # half a unit in the last place of a number below one
    assert error["003"] <= 2**-25 * (1 + 1e-6)
    assert error["000"] > 10 * error["headway"]


def test_learned_table() -> None:
    class LearnablePositionalEncoding(nn.Module):
        """Document 000, as it stands."""

        def __init__(self, max_len: int, d_model: int) -> None:
            super().__init__()
            self.encoding = nn.Embedding(max_len, d_model)

        def forward(self, x: Tensor) -> Tensor:
            pos_ids = torch.arange(x.shape[1]).unsqueeze(0).to(x.device)
            return self.encoding(pos_ids)

    theirs = LearnablePositionalEncoding(100, WIDTH)
    code = theirs(torch.zeros(1, 10).long())
    assert code.shape == (1, 10, WIDTH)

    ours = hw.encoding("learned", max_length=100, embed_dim=WIDTH)
    with torch.no_grad():
        ours.table.copy_(theirs.encoding.weight)
    added = ours.embed(torch.zeros(1, 10, WIDTH))
    torch.testing.assert_close(added, code, rtol=0, atol=0)

    grad = torch.randn_like(code)
    code.backward(grad)
    added.backward(grad)
    torch.testing.assert_close(ours.table.grad, theirs.encoding.weight.grad, rtol=0, atol=0)
    assert ours.table.grad is not None
    assert ours.table.grad[:10].abs().min() > 0
    assert ours.table.grad[10:].abs().max() == 0


def test_addition_of_002() -> None:
    """Its sum of a word and a position, by headway: a table with that row, added to that vector."""
    word_embedding, position_encoding = [0.1, 0.5, -0.2, 0.8], [0.0, 0.3, 0.1, -0.1]
    positions = hw.encoding("learned", max_length=1, embed_dim=4, initial=torch.tensor([position_encoding]))
    final_input = positions.embed(torch.tensor([[word_embedding]]))
    torch.testing.assert_close(final_input, torch.tensor([[[0.1, 0.8, -0.1, 0.7]]]))


ADDITION_OF_002 = """
word_embedding = [0.1, 0.5, -0.2, 0.8]
position_encoding = [0.0, 0.3, 0.1, -0.1]
final_input = word_embedding + position_encoding
= [0.1, 0.8, -0.1, 0.7]
"""


def test_addition_of_002_as_printed() -> None:
    """SyntaxError for the last line, which has nothing before its `=`; without it, + makes a list of eight numbers."""
    with pytest.raises(SyntaxError, match="invalid syntax") as error:
        compile(ADDITION_OF_002, "002", "exec")
    assert error.value.lineno == 5
    names: dict[str, object] = {}
    exec(ADDITION_OF_002.rpartition("= [")[0], names)
    assert names["final_input"] == [0.1, 0.5, -0.2, 0.8, 0.0, 0.3, 0.1, -0.1]


def test_shift_of_004() -> None:
    """Its two equations: PE(pos + k) from PE(pos) and PE(k), by the angle addition that it derives."""
    table = table_of_headway(torch.float64)[0]
    sin, cos = table[:, 0::2], table[:, 1::2]
    assert range(sin.shape[1])[-1] == range(cos.shape[1])[-1] == 255  # its last i
    for k in (1, 7, 20):
        here = slice(0, LENGTH - k)
        torch.testing.assert_close(sin[k:], sin[here] * cos[k] + cos[here] * sin[k])
        torch.testing.assert_close(cos[k:], cos[here] * cos[k] - sin[here] * sin[k])


# ---------------------------------------------------------------- many heads


class MultiHeadAttention(nn.Module):
    """Document 000. Mended: `import math`, which this block of its code lacks; nothing else."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        assert d_model % num_heads == 0
        self.d_k = d_model // num_heads
        self.num_heads = num_heads

        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_out = nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch_size = query.size(0)

        Q = self.w_q(query).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        K = self.w_k(key).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        V = self.w_v(value).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)

        attention_scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.d_k)
        attention_weights = torch.nn.functional.softmax(attention_scores, dim=-1)

        output = torch.matmul(attention_weights, V)
        output = output.transpose(1, 2).contiguous().view(batch_size, -1, self.num_heads * self.d_k)

        return self.w_out(output)


THEIRS_AND_OURS = {"w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj", "w_out": "out_proj"}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keys", [10, 7])
def test_multi_head_attention_of_000(keys: int, kernel: str) -> None:
    """Outputs and all gradients, for ten tokens that look at themselves and for ten that look at seven others."""
    theirs = MultiHeadAttention(WIDTH, HEADS)
    ours = hw.nn.MultiHeadAttention(WIDTH, HEADS, kernel=kernel)
    for name, other in THEIRS_AND_OURS.items():
        ours.get_submodule(other).load_state_dict(theirs.get_submodule(name).state_dict())
    x = torch.rand(1, 10, WIDTH)
    context = x if keys == 10 else torch.rand(1, keys, WIDTH)
    heads = [torch.rand(1, HEADS, n, WIDTH // HEADS, requires_grad=True) for n in (10, keys, keys)]
    refusal = hw.explain(*heads).reasons[kernel]
    if refusal:
        pytest.skip(refusal[0])

    results = []
    for module in (theirs, ours):
        given = [each.clone().requires_grad_() for each in ((x,) if context is x else (x, context))]
        out = module(given[0], given[-1], given[-1])
        assert out.shape == (1, 10, WIDTH)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        results.append((out, [each.grad for each in given]))
    torch.testing.assert_close(results[1], results[0])
    for name, other in THEIRS_AND_OURS.items():
        there, here = theirs.get_submodule(name), ours.get_submodule(other)
        for parameter in ("weight", "bias"):
            expected = there.get_parameter(parameter).grad
            assert expected is not None
            # The scores do not feel a bias of the keys, whose gradient is rounding alone.
            size = expected.abs().max().clamp(min=1).item()
            torch.testing.assert_close(here.get_parameter(parameter).grad, expected, rtol=1e-4, atol=1e-5 * size)


def test_module_of_000_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """NameError: its block of code imports only torch. It is the module above in a namespace without `math`."""
    monkeypatch.delattr(sys.modules[__name__], "math")
    x = torch.rand(1, 10, WIDTH)
    with pytest.raises(NameError, match="'math' is not defined"):
        MultiHeadAttention(WIDTH, HEADS)(x, x, x)


def attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """The formula that all five documents give."""
    return torch.softmax(Q @ K.T / math.sqrt(K.shape[-1]), dim=-1) @ V


def packed(layer: hw.nn.MultiHeadAttention, heads: dict[str, list[Tensor]], Wo: Tensor) -> None:
    """Matrices of each head, which stand to the right of X, as the weights of nn.Linear, which stand transposed."""
    with torch.no_grad():
        for name, matrices in heads.items():
            layer.get_submodule(name).weight.copy_(torch.cat(matrices, dim=1).T)
        layer.out_proj.weight.copy_(Wo.T)


def test_loop_over_heads_of_002() -> None:
    """Document 002. Mended: `d_k = d_model` is followed by `// num_heads`; the indentation; attention and concat,
    which it calls and does not show; Wo, which it uses and does not make."""
    made: dict[str, list[Tensor]] = {"q_proj": [], "k_proj": [], "v_proj": []}

    def create_weight_matrix(name: str, rows: int, columns: int) -> Tensor:
        made[name].append(torch.randn(rows, columns) * rows**-0.5)
        return made[name][-1]

    def multi_head_attention(X: Tensor, Wo: Tensor, num_heads: int = 8) -> Tensor:
        d_model = X.shape[-1]
        d_k = d_model // num_heads
        heads = []
        for _ in range(num_heads):
            Wq_i = create_weight_matrix("q_proj", d_model, d_k)
            Wk_i = create_weight_matrix("k_proj", d_model, d_k)
            Wv_i = create_weight_matrix("v_proj", d_model, d_k)
            Q_i = X @ Wq_i
            K_i = X @ Wk_i
            V_i = X @ Wv_i
            head_i = attention(Q_i, K_i, V_i)
            heads.append(head_i)
        multi_head_output = torch.cat(heads, dim=-1)
        assert multi_head_output.shape == (X.shape[0], d_model)
        return multi_head_output @ Wo

    X, Wo = torch.randn(12, 64), torch.randn(64, 64) / 8
    output = multi_head_attention(X, Wo)
    layer = hw.nn.MultiHeadAttention(64, 8, bias=False)
    packed(layer, made, Wo)
    torch.testing.assert_close(layer(X[None])[0], output)


LOOP_OF_002 = """
def multi_head_attention(X, num_heads=8):
d_model = X.shape[-1]
d_k = d_model
heads = []
for i in range(
num_heads):
Wq_i = create_weight_matrix(d_model, d_k)
Wk_i = create_weight_matrix(d_model, d_k)
Wv_i = create_weight_matrix(d_model, d_k)
Q_i = X @ Wq_i
K_i = X @ Wk_i
V_i = X @ Wv_i
head_i = attention(Q_i, K_i, V_i)
heads.append(head_i)
multi_head_output = concat(heads) # shape: (seq_len, d_model)
output = multi_head_output @ Wo
return output
"""


def test_loop_over_heads_of_002_as_printed() -> None:
    """IndentationError; indented, NameError for each name that it lacks; with these, eight times the width."""
    with pytest.raises(IndentationError):
        compile(LOOP_OF_002, "002", "exec")

    joined = []

    def concat(heads: list[Tensor]) -> Tensor:
        joined.append(torch.cat(heads, dim=-1))
        return joined[-1]

    names: dict[str, object] = {}
    exec(indented(LOOP_OF_002, [0, 1, 1, 1, 1, *[2] * 9, 1, 1, 1]), names)
    printed: Callable[[Tensor], Tensor] = names["multi_head_attention"]  # type: ignore[assignment]
    Wo = torch.randn(8 * 64, 64)
    lacking = {"create_weight_matrix": torch.randn, "attention": attention, "concat": concat, "Wo": Wo}
    for name, meant in lacking.items():
        with pytest.raises(NameError, match=f"'{name}' is not defined"):
            printed(torch.randn(12, 64))
        names[name] = meant
    printed(torch.randn(12, 64))
    assert joined[-1].shape == (12, 8 * 64)  # its comment says (seq_len, d_model), which is (12, 64)


def test_formulas_of_001_and_003() -> None:
    """Concat(head_1, …, head_h)·W^O with head_i = Attention(Q·W_i^Q, K·W_i^K, V·W_i^V); 001 has X for all three.

    Mended: 003 says 1 < i < h, which leaves out the first head and the last.
    """
    h, d_model, d_k = 4, 32, 8
    W = {name: [torch.randn(d_model, d_k) * d_model**-0.5 for _ in range(h)] for name in ("q_proj", "k_proj", "v_proj")}
    Wo = torch.randn(h * d_k, d_model) / 6
    layer = hw.nn.MultiHeadAttention(d_model, h, bias=False)
    packed(layer, W, Wo)
    X, Y, Z = torch.randn(5, d_model), torch.randn(7, d_model), torch.randn(7, d_model)
    for Q, K, V in ((X, X, X), (X, Y, Z)):
        head = [attention(Q @ W["q_proj"][i], K @ W["k_proj"][i], V @ W["v_proj"][i]) for i in range(h)]
        torch.testing.assert_close(layer(Q[None], K[None], V[None])[0], torch.cat(head, dim=-1) @ Wo)


def test_five_steps_of_003() -> None:
    """MatMul, Scale, Mask, Softmax, MatMul: its A, A′ and B. Its mask is a large negative number, headway's is −∞."""
    n, d_k = 6, 16
    inputs, Wq, Wk, Wv = torch.randn(n, 24), *(torch.randn(24, d_k) / 5 for _ in range(3))
    Q, K, V = inputs @ Wq, inputs @ Wk, inputs @ Wv
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    products = Q @ K.T
    scaled = products / math.sqrt(d_k)
    masked = scaled.masked_fill(later, -1e9)
    weights = masked.exp() / masked.exp().sum(-1, keepdim=True)  # its Softmax(x_i) = e^x_i / Σ_j e^x_j
    output = weights @ V

    steps = hw.attention_steps(Q[None, None], K[None, None], V[None, None], mask=hw.masks.Causal())
    ours = [step[0, 0] for step in steps]
    torch.testing.assert_close(ours[0], products)
    torch.testing.assert_close(ours[1], scaled)
    torch.testing.assert_close(ours[2], scaled.masked_fill(later, -math.inf))
    torch.testing.assert_close(ours[3], weights)
    torch.testing.assert_close(ours[4], output)
    assert not ours[3][later].any()


def test_waist_table_of_004() -> None:
    """Its f(q) = Σ α(q, kᵢ)·vᵢ with the softmax of q·k: 48, and not the 45.5 that it expects."""
    waists, weights = torch.tensor([51.0, 56.0, 58.0]), torch.tensor([40.0, 43.0, 48.0])
    q = torch.tensor(57.0)
    by_hand = (torch.softmax(q * waists, 0) * weights).sum()
    ours = hw.attention(q.view(1, 1, 1, 1), waists.view(1, 1, 3, 1), weights.view(1, 1, 3, 1))
    assert by_hand.item() == ours.item() == 48.0


def test_mean_of_two_of_004() -> None:
    """Its (43 + 48) / 2, which it says to ignore all keys and values: the weights of two of the three are ½ each."""
    waists, weights = torch.tensor([51.0, 56.0, 58.0]), torch.tensor([40.0, 43.0, 48.0], requires_grad=True)
    nearest = (waists - 57).abs().topk(2, largest=False).indices
    mean = weights[nearest].mean()
    mean.backward()
    assert mean.item() == 45.5
    assert weights.grad is not None
    assert weights.grad.tolist() == [0, 0.5, 0.5]


def test_two_columns_of_004() -> None:
    """Its softmax(QKᵀ/√d_k)·V with matrices of two columns; the same largest key answers both queries."""
    Q = torch.tensor([[57.0, 83.0], [76.0, 55.0]])
    K = torch.tensor([[51.0, 70.0], [58.0, 88.0], [56.0, 82.0]])
    V = torch.tensor([[40.0, 55.0], [43.0, 59.0], [48.0, 65.0]])
    ours = hw.attention(Q[None, None], K[None, None], V[None, None])[0, 0]
    torch.testing.assert_close(ours, attention(Q, K, V))
    assert ours.tolist() == [[43.0, 59.0], [43.0, 59.0]]


def test_rnn_of_003() -> None:
    """Its h_t from x_t and h_{t−1} by U and W, its y_t by V, beside torch's own; it does not name f, which is tanh."""
    rnn, V = nn.RNN(6, 5, bias=False, batch_first=True), torch.randn(3, 5)
    U, W = rnn.weight_ih_l0, rnn.weight_hh_l0
    x, h, y = torch.randn(9, 6), torch.zeros(5), []
    for x_t in x:
        h = torch.tanh(U @ x_t + W @ h)
        y.append(V @ h)
    states, last = rnn(x[None])
    torch.testing.assert_close(torch.stack(y), states[0] @ V.T)
    torch.testing.assert_close(h, last[0, 0])
