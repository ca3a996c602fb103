// Lesson 6: a number for each distance, and a rotation by the position.

const state = { query: 8, key: 3, pair: 1, head: 0 };
const LAST = 15;

const turned = ([x, y], angle) => [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)];

show(() => {
  const query = slider("query", t("position i of the query", "查询的位置 i"), { min: 0, max: 60, step: 1 }, state);
  const key = slider("key", t("position j of the key", "键的位置 j"), { min: 0, max: 60, step: 1 }, state);
  const pair = slider("pair", t("pair of dimensions", "第几对维度"), { min: 0, max: data.frequencies.length - 1, step: 1 }, state);
  const both = el("button", { click: () => {
    const by = Math.min(5, 60 - Math.max(state.query, state.key));
    state.query += by;
    state.key += by;
    update();
  } }, t("move both by 5", "两个都移动 5"));
  const hands = draw("svg", { viewBox: "-60 -60 120 120", style: "width: 220px", role: "img", "aria-label": t("query and key, rotated", "旋转后的查询和键") });
  const told = el("div", { "aria-live": "polite" }), weights = el("div");
  const head = slider("head", t("head", "头"), { min: 0, max: data.slopes.length - 1, step: 1 }, state);
  const lines = chart(
    { from: -60, to: 60, ticks: steps(-60, 60, 20), label: t("distance j − i", "距离 j − i") },
    { from: -1.5, to: 1.5, ticks: steps(-1.5, 1.5, 0.5), label: t("product of this pair", "这一对的点积") },
    t("The product by distance", "点积随距离的变化"), { dragged: (x) => (state.key = Math.min(60, Math.max(0, state.query + Math.round(x)))) });

  function fill() {
    const frequency = data.frequencies[state.pair];
    const product = (i, j) => dot(turned(data.query, i * frequency), turned(data.key, j * frequency));
    const [q, k] = [turned(data.query, state.query * frequency), turned(data.key, state.key * frequency)];
    for (const control of [query, key, pair, head]) control.refresh();
    const arrow = (kind, [x, y]) => draw("line", { class: kind, x1: 0, y1: 0, x2: 48 * x, y2: -48 * y });
    hands.replaceChildren(draw("circle", { r: 50, class: "line", style: "stroke: var(--line)" }), arrow("line", q), arrow("other", k));
    const listed = (vector) => `(${vector.map((x) => number(x, 3)).join(", ")})`;
    told.replaceChildren(table([t("what", "量"), t("number", "数值")], [
      [t("rotated query R(i)q", "旋转后的查询 R(i)q"), named("q", listed(q))],
      [t("rotated key R(j)k", "旋转后的键 R(j)k"), named("k", listed(k))],
      [t("distance j − i", "距离 j − i"), named("distance", number(state.key - state.query, 0))],
      [t("R(i)q·R(j)k, from both positions", "R(i)q·R(j)k，用两个位置算"), named("product", number(dot(q, k)))],
      [t("q·R(j − i)k, from the distance alone", "q·R(j − i)k，只用距离算"), named("relative", number(dot(data.query, turned(data.key, (state.key - state.query) * frequency))))],
    ]));
    lines.fill({
      lines: [["line", steps(-60, 60, 0.5).map((distance) => [distance, product(0, distance)])]],
      dots: [["now", state.key - state.query, dot(q, k)]], guide: state.key - state.query,
    });
    const at = Math.min(state.query, LAST), bias = steps(0, LAST).map((j) => -data.slopes[state.head] * Math.abs(j - at));
    const shares = softmax(bias);
    weights.replaceChildren(table(
      [t("key position", "键的位置"), t("bias −m·|j − i|", "偏置 −m·|j − i|"), t("weight", "权重"), ""],
      shares.map((share, j) => [String(j), number(bias[j], 3), named(`weight ${j}`, number(share)), bar(share / Math.max(...shares))]), null, (j) => j === at));
  }
  const sections = [
    section(
      t("RoPE: a rotation by the position", "RoPE：按位置旋转"),
      text(
        "Each pair of dimensions of a query and of a key is rotated, like the hand of a clock, by its position times a frequency. Move both tokens: the hands turn, and the product stays. Move one: the product changes. It depends on the distance alone.",
        "查询和键的每一对维度都像钟的指针一样转，转角是位置乘以频率。两个词元一起移动：指针转了，点积不变。只移动一个：点积变了。它只取决于距离。",
      ),
      el("div", { class: "controls" }, query, key, pair, both),
      el("div", { class: "controls" }, hands, told), quiet("Blue: the query. Orange, dashed: the key.", "蓝：查询。橙色虚线：键。"),
      el("figure", {}, lines.root),
    ),
    section(
      t("ALiBi: a number for each distance", "ALiBi：每个距离一个数"),
      text(
        `Nothing is rotated: −m·|j − i| is added to the score. If all contents are alike, these are the weights of the query at position i, at most ${LAST} here. Each head has its own m; a head with a large m sees only its neighbours.`,
        `什么也不转，只在分数上加 −m·|j − i|。如果内容都一样，位置 i（这里最多 ${LAST}）的查询给各个键的权重就是下表。每个头有自己的 m，m 大的头只看邻近的词。`,
      ),
      el("div", { class: "controls" }, head), weights,
    ),
  ];
  return { sections, fill };
});
