// Lesson 8: a recurrence and attention read the same words; how far back each reaches, and what it costs.

const state = { order: [0, 1, 2], factor: 1, back: 20, tokens: 10, width: 8 };
const REACH = 40, FAR = data.gradients.rnn.length - 1;
const { rnn, attention } = data;

/** The states of the recurrence for the rows, h = tanh(U x + W h + b), with W times a factor. */
function recurrence(rows, factor) {
  let h = Array(rnn.b.length).fill(0);
  return rows.map((x) => (h = rnn.U.map((line, i) => Math.tanh(dot(line, x) + factor * dot(rnn.W[i], h) + rnn.b[i]))));
}

/** The outputs of attention without positions. */
function attended(rows) {
  const [q, k, v] = ["q", "k", "v"].map((name) => linear(rows, attention[name].weight, attention[name].bias));
  const taken = q.map((query) => {
    const weights = softmax(k.map((key) => dot(query, key) * query.length ** -0.5));
    return v[0].map((_, c) => sum(weights.map((weight, j) => weight * v[j][c])));
  });
  return linear(taken, attention.out.weight, attention.out.bias);
}

const size = (vector) => Math.sqrt(dot(vector, vector));
const apart = (a, b) => size(a.map((x, i) => x - b[i])) / size(b);
const total = (rows) => rows[0].map((_, c) => sum(rows.map((row) => row[c])));

/** The size of ∂h_T/∂x_(T−k) for k = 0 … REACH, over words that come again and again. */
function gradients(factor) {
  const rows = steps(0, REACH).map((i) => data.x[i % data.x.length]), states = recurrence(rows, factor);
  const times = (a, b) => a.map((line) => b[0].map((_, c) => sum(line.map((x, i) => x * b[i][c]))));
  const slope = (t) => states[t].map((h) => 1 - h * h);
  const found = [];
  let through = rnn.U.map((_, i) => rnn.U.map((__, j) => (i === j ? 1 : 0)));
  for (let t = REACH; t >= 0; t--) {
    through = through.map((line) => line.map((x, i) => x * slope(t)[i]));
    found.push(size(times(through, rnn.U).flat()));
    through = times(through, rnn.W.map((line) => line.map((x) => factor * x)));
  }
  return found;
}

/** Of one layer: products for n tokens of width d, and numbers that it keeps to continue. */
const costs = {
  rnn: { products: (n, d) => 2 * n * d * d, kept: (n, d) => d, serial: (n) => n, path: (k) => k },
  lstm: { products: (n, d) => 8 * n * d * d, kept: (n, d) => 2 * d, serial: (n) => n, path: (k) => k },
  attention: { products: (n, d) => 4 * n * d * d + 2 * n * n * d, kept: (n, d) => 2 * n * d, serial: () => 1, path: () => 1 },
};
const LOOKS = { rnn: ["other", "orange"], lstm: ["third", "green"], attention: ["line", "blue"] };
const LEAST = -40;
const power = (x) => `10${[...String(x)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("")}`;
const whole = (x) => x.toLocaleString("en");

show(() => {
  const names = { rnn: "RNN", lstm: "LSTM", attention: t("attention", "注意力") };
  const label = (kind) => el("td", { class: LOOKS[kind][1] }, names[kind]);
  const swap = (i) => el("button", { id: `swap-${i}`, click: () => {
    [state.order[i], state.order[i + 1]] = [state.order[i + 1], state.order[i]];
    update();
  } }, t(`exchange words ${i} and ${i + 1}`, `交换第 ${i}、${i + 1} 个词`));
  const factor = slider("factor", t("W times", "W 乘以"), { min: 0, max: 4, step: 0.1 }, state);
  const back = slider("back", t("words back: k", "往前几个词：k"), { min: 0, max: FAR, step: 1 }, state);
  const tokens = slider("tokens", t("tokens n", "词元数 n"), { min: 4, max: 17, step: 1, shown: (x) => whole(2 ** x) }, state);
  const width = slider("width", t("width d", "维数 d"), { min: 5, max: 12, step: 1, shown: (x) => whole(2 ** x) }, state);
  const reading = el("div"), said = el("p", { "aria-live": "polite" }), there = el("div"), paid = el("div");
  const small_one = chart(
    { from: 0, to: REACH, ticks: steps(0, REACH, 10), label: t("words back: k", "往前几个词：k") },
    { from: -12, to: 3, ticks: steps(-12, 3, 3), shown: power, label: t("size of the gradient", "梯度的大小") },
    t("Gradient of the small recurrence by distance", "小循环网络的梯度随距离的变化"));
  const curves = chart(
    { from: 0, to: FAR, ticks: steps(0, FAR - 7, 20), label: t("words back: drag k", "往前几个词：可以拖动 k") },
    { from: LEAST, to: 2, ticks: steps(LEAST, 0, 10), shown: power, label: t("size of the gradient", "梯度的大小") },
    t("Gradient by distance of three layers", "三种层的梯度随距离的变化"),
    { dragged: (x) => (state.back = Math.round(x)) });
  const arithmetic = chart(
    { from: 4, to: 17, ticks: steps(4, 16, 2), shown: (x) => whole(2 ** x), label: t("tokens n: drag it", "词元数 n：可以拖动") },
    { from: 4, to: 16, ticks: steps(4, 16, 2), shown: power, label: t("products", "乘法次数") },
    t("Products of one layer by length", "一层的乘法次数随长度的变化"),
    { dragged: (x) => (state.tokens = Math.round(x)) });

  function fill() {
    for (const control of [factor, back, tokens, width]) control.refresh();
    const rows = state.order.map((i) => data.x[i]), states = recurrence(rows, state.factor), out = attended(rows);
    const list = (vector, name) => named(name, vector.map((x) => number(x, 3)).join(", "));
    reading.replaceChildren(table(
      [t("step", "步"), t("word", "词"), t("state h of the RNN", "RNN 的状态 h"), t("output of attention", "注意力的输出")],
      state.order.map((i, step) => [String(step), data.words[i], list(states[step], `state ${step}`), list(out[step], `output ${step}`)]),
      ["", t("last state · sum", "最后的状态 · 总和"), list(states.at(-1), "last"), list(total(out), "sum")],
    ));
    const first = recurrence(data.x, state.factor).at(-1);
    said.replaceChildren(
      t("Against 我吃苹果: the last state differs by ", "与“我吃苹果”相比：最后的状态相差 "),
      named_in("b", "order rnn", percent(apart(states.at(-1), first))),
      t(", the sum of attention's outputs by ", "，注意力输出之和相差 "),
      named_in("b", "order attention", percent(apart(total(out), total(attended(data.x))))), t(".", "。"));
    const own = gradients(state.factor);
    small_one.fill({ lines: [["other", own.map((x, k) => [k, Math.log10(x)]).filter(([, y]) => y >= -12)]] });
    const at = (kind) => data.gradients[kind][state.back];
    there.replaceChildren(table(
      [t("layer", "层"), t("steps between", "中间隔几步"), t("size of the gradient", "梯度的大小")],
      Object.keys(names).map((kind) => [
        label(kind), named(`path ${kind}`, whole(costs[kind].path(Math.max(state.back, 1)))), named(`gradient ${kind}`, small(at(kind), 3)),
      ]),
    ));
    curves.fill({
      lines: Object.keys(names).map((kind) => [LOOKS[kind][0], data.gradients[kind].map((x, k) => [k, Math.log10(x)]).filter(([, y]) => y >= LEAST)]),
      dots: Object.keys(names).map((kind) => ["known", state.back, Math.max(Math.log10(at(kind)), LEAST)]), guide: state.back,
    });
    const [n, d] = [2 ** state.tokens, 2 ** state.width];
    paid.replaceChildren(table(
      [t("one layer", "一层"), t("steps one after another", "必须依次做的步数"), t("products", "乘法次数"), t("numbers kept", "要留着的数")],
      Object.entries(costs).map(([kind, { products, kept, serial }]) => [
        label(kind), named(`serial ${kind}`, whole(serial(n))), named(`products ${kind}`, whole(products(n, d))), named(`kept ${kind}`, whole(kept(n, d))),
      ]),
    ));
    arithmetic.fill({
      lines: Object.entries(costs).map(([kind, { products }]) => [LOOKS[kind][0], steps(4, 17, 0.25).map((x) => [x, Math.log10(products(2 ** x, d))])]),
      dots: Object.entries(costs).map(([, { products }]) => ["known", state.tokens, Math.log10(products(n, d))]), guide: state.tokens,
    });
  }
  const sections = [
    section(
      t("Word by word, or all at once", "逐词读，还是一起读"),
      text(
        "A recurrence reads one word at a time and keeps a state: h ← tanh(U x + W h + b). Attention reads all words at once, here without positions. Both are three numbers wide and untrained. Exchange words: the last state changes with their order; attention's outputs change places and no more, so their sum stays.",
        "循环网络每次读一个词，只留一个状态：h ← tanh(U x + W h + b)。注意力一次读所有的词，这里不加位置编码。两者都只有三维，没有训练过。交换两个词：最后的状态随次序而变；注意力的输出只是跟着换了位置，总和不变。",
      ),
      el("div", { class: "controls" }, swap(0), swap(1), factor), reading, said,
      text(
        "What the first word still means to the last state passes through W once for each word between. Drag W: below about 1 the gradient dies out, above it the gradient lasts or grows until tanh saturates.",
        "第一个词对最后状态的影响，每隔一个词就要经过一次 W。拖动 W 的倍数：小于 1 左右，梯度渐渐消失；大了，梯度能维持或变大，直到 tanh 饱和。",
      ),
      el("figure", {}, small_one.root),
    ),
    section(
      t("How far back", "能看多远"),
      text(
        `The lesson's layers, 64 numbers wide, at their initial values: the size of ∂out_T/∂x_(T−k). The word k back is k steps away in a recurrence, and one in attention.`,
        `本课的三种层，64 维，刚初始化：∂out_T/∂x_(T−k) 的大小。往前第 k 个词，循环网络要隔 k 步，注意力只隔一步。`,
      ),
      el("div", { class: "controls" }, back), there, el("figure", {}, curves.root),
    ),
    section(
      t("What it costs", "代价是什么"),
      text(
        "Attention pays for the short path: its products grow with n², and it keeps a key and a value of each token. The recurrence keeps one state, but its n steps wait for one another. At n = 2d attention needs as many products as an LSTM.",
        "路径短是有代价的：注意力的乘法次数随 n² 增加，还要留下每个词元的键和值。循环网络只留一个状态，但 n 步要一步等一步。n = 2d 时，注意力的乘法次数与 LSTM 相同。",
      ),
      el("div", { class: "controls" }, tokens, width), paid, el("figure", {}, arithmetic.root),
      quiet(
        "Products of the matrices, queries with keys, and weights with values. Seconds depend on the machine: the lesson measures them.",
        "计入的乘法：各矩阵、查询乘键、权重乘值。秒数因机器而异，由本课的脚本实测。",
      ),
    ),
  ];
  return { sections, fill };
});
