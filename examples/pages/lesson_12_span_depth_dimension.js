// Lesson 12: how far windows and layers reach, and how many hops layers follow.

const TOKENS = data.tokens, CIRCLE = data.circle;
const state = { window: 4, layers: 2, distance: 8, long: 12, hops: 3, start: 0, by: "depth", size: 2, order: steps(0, CIRCLE - 1) };
const ALL = TOKENS; // a window as long as the text is none

/** The tokens on which the last output depends, layer by layer, from the last layer's output down to the input. */
function sight(window, layers) {
  return steps(0, layers).map((below) => Math.min(TOKENS - 1, window >= ALL ? (below ? TOKENS - 1 : 0) : below * window));
}
/** The numbers that a layer keeps of n tokens, and the pairs that it computes, with a window of w tokens back. */
const pairs = (n, w) => (w >= n ? (n * (n + 1)) / 2 : n * (w + 1) - (w * (w + 1)) / 2);
const whole = (x) => x.toLocaleString("en");
const middle = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) / 2];

show(() => {
  const window_of = slider("window", t("window: tokens back", "窗口：往前几个词元"),
    { min: 1, max: ALL, step: 1, shown: (w) => (w >= ALL ? t("none", "不设") : String(w)) }, state);
  const layers = slider("layers", t("layers", "层数"), { min: 1, max: 6, step: 1 }, state);
  const distance = slider("distance", t("the symbol stands so many tokens back", "符号在往前第几个词元"), { min: 0, max: TOKENS - 1, step: 1 }, state);
  const long = slider("long", t("tokens n of a text", "文本的词元数 n"), { min: 6, max: 17, step: 1, shown: (x) => whole(2 ** x) }, state);
  const picture = el("figure"), told = el("p", { "aria-live": "polite" }), costs = el("div");

  const hops = slider("hops", t("hops k", "跳几步：k"), { min: 1, max: data.hops, step: 1 }, state);
  const start = slider("start", t("from token", "从哪个词元起"), { min: 0, max: CIRCLE - 1, step: 1 }, state);
  const by = choice("by", t("models by", "模型按"), [["depth", t("layers", "层数")], ["dim", t("dimension", "维数")]], state);
  const shuffle = el("button", { id: "shuffle", click: () => {
    const next = state.order.map((token, i) => [Math.sin((i + 1) * 999 * (sum(state.order.map((x, j) => x * (j + 1))) + 1)), token]);
    state.order = next.sort((a, b) => a[0] - b[0]).map(([, token]) => token);
    update();
  } }, t("another circle", "换一个圈"));
  const ring = el("figure", { style: "max-width: 360px" }), followed = el("p", { "aria-live": "polite" }), right = el("div");

  function draw_sight(reached) {
    const cell = 19, root = draw("svg", { viewBox: `-70 0 ${TOKENS * cell + 80} ${(state.layers + 1) * 30 + 24}`, role: "img",
      "aria-label": t("What the last output depends on", "最后一个输出依赖于哪些词元") });
    reached.forEach((back, below) => {
      const y = 30 * below + 4;
      const name = below === state.layers ? t("input", "输入") : t(`layer ${state.layers - 1 - below}`, `层 ${state.layers - 1 - below}`);
      root.append(draw("text", { x: -8, y: y + 15, "text-anchor": "end" }, name));
      for (let i = 0; i < TOKENS; i++) {
        const lit = TOKENS - 1 - i <= back, symbol = below === state.layers && TOKENS - 1 - i === state.distance;
        root.append(draw("rect", { x: i * cell, y, width: cell - 3, height: 18, rx: 2,
          style: `fill: var(--${symbol ? "orange" : lit ? "blue" : "line"}); opacity: ${lit || symbol ? 1 : 0.6}` }));
      }
    });
    root.append(draw("text", { x: (TOKENS - 1 - state.distance) * cell + 8, y: (state.layers + 1) * 30 + 14, "text-anchor": "middle" }, "Δ"));
    picture.replaceChildren(root);
  }

  function draw_ring(path) {
    const root = draw("svg", { viewBox: "-120 -120 240 240", role: "img", "aria-label": t("The circle and the hops", "圈与跳法") });
    const place = (token) => {
      const angle = (2 * Math.PI * token) / CIRCLE;
      return [100 * Math.sin(angle), -100 * Math.cos(angle)];
    };
    for (let i = 0; i + 1 < path.length; i++) {
      const [[x1, y1], [x2, y2]] = [place(path[i]), place(path[i + 1])];
      root.append(draw("line", { class: "line", x1, y1, x2, y2 }));
    }
    steps(0, CIRCLE - 1).forEach((token) => {
      const [x, y] = place(token), at = path.indexOf(token);
      const colour = token === path.at(-1) ? "orange" : at === 0 ? "green" : at > 0 ? "blue" : "line";
      root.append(draw("circle", { cx: x, cy: y, r: 14, style: `fill: var(--panel); stroke: var(--${colour}); stroke-width: 3` }));
      root.append(draw("text", { x, y: y + 5, "text-anchor": "middle" }, String(token)));
    });
    ring.replaceChildren(root);
  }

  function fill() {
    for (const control of [window_of, layers, distance, long, hops, start]) control.refresh();
    const reached = sight(state.window, state.layers), farthest = reached.at(-1), seen = state.distance <= farthest;
    draw_sight(reached);
    told.replaceChildren(
      t("The last output depends on tokens up to ", "最后一个输出最远依赖于往前第 "), named_in("b", "reach", String(farthest)),
      t(` back. The symbol, ${state.distance} back, is `, ` 个词元。符号在往前第 ${state.distance} 个：`),
      el("b", { class: seen ? "right" : "wrong", "data-name": "seen" }, seen ? t("within reach", "看得到") : t("out of reach", "看不到")),
      t(".", "。"));
    const n = 2 ** state.long, w = state.window >= ALL ? n : state.window;
    costs.replaceChildren(table(
      [t("one layer, n tokens", "一层，n 个词元"), t("this window", "这个窗口"), t("no window", "不设窗口")],
      [
        [t("pairs of tokens", "词元对"), named("pairs", whole(pairs(n, w))), named("all pairs", whole(pairs(n, n)))],
        [t(`numbers kept (dimension ${data.wide})`, `要留着的数（${data.wide} 维）`),
          named("kept", whole(2 * data.wide * Math.min(n, w))), named("all kept", whole(2 * data.wide * n))],
      ],
    ));
    const next = Object.fromEntries(state.order.map((token, i) => [token, state.order[(i + 1) % CIRCLE]]));
    const path = [state.start];
    for (let i = 0; i < state.hops; i++) path.push(next[path.at(-1)]);
    draw_ring(path);
    followed.replaceChildren(t("Answer: ", "答案："), named_in("b", "end", String(path.at(-1))), ` (${path.join(" → ")})`);
    const rows = Object.entries(data.right[state.by]);
    right.replaceChildren(table(
      [state.by === "depth" ? t(`layers (dimension ${data.dim})`, `层数（${data.dim} 维）`) : t(`dimension (${data.depth} layers)`, `维数（${data.depth} 层）`),
        t(`right after ${state.hops} hops`, `跳 ${state.hops} 步的正确率`), t("the three seeds", "三个种子"),
        state.by === "depth" ? t("2^layers hops", "2^层数 步") : ""],
      rows.map(([size, seeds]) => {
        const values = seeds.map((shares) => shares[state.hops - 1]);
        return [size, named(`right ${size}`, percent(middle(values))), values.map(percent).join(" · "),
          state.by === "depth" ? String(2 ** Number(size)) : ""];
      }),
    ));
  }
  const sections = [
    section(
      t("How far a stack of layers sees", "几层叠起来能看多远"),
      text(
        "With a window of w tokens, a layer sees w tokens back; the next layer sees w further, since each of its keys has already looked back. L layers reach L·w. Drag window and layers until the symbol, orange, is within reach.",
        "窗口为 w 时，一层能往前看 w 个词元；上一层的每个键自己也往前看过，所以又远了 w。L 层共能看到 L·w。拖动窗口和层数，直到看得到橙色的符号。",
      ),
      el("div", { class: "controls" }, window_of, layers, distance), picture, told,
      el("div", { class: "controls" }, long), costs,
      quiet("What is within reach can be learned, but need not be: the lesson trains such models and counts.",
        "看得到，才有可能学会，但不一定学得会：本课训练了这些模型并计数。"),
    ),
    section(
      t("How many hops layers follow", "几层能跳几步"),
      text(
        "Each token names its successor on one circle. Where does one end after k hops? One layer can follow one link; each further layer can join two paths that the layer below has found, so L layers could follow 2^L hops. What models learned in 800 steps is below: three seeds each, measured on 500 new circles. Guessing finds one in eleven.",
        "所有词元排成一个圈，每个词元说出自己的下一个。跳 k 步到哪里？一层能跟一步；再加一层，可以把下面一层找到的两段路接起来，所以 L 层最多能跳 2^L 步。下面是模型训练 800 步学到的：每种三个种子，在 500 个新圈上测量。随机猜，十一次对一次。",
      ),
      el("div", { class: "controls" }, start, hops, shuffle), el("div", { class: "grid" }, ring, el("div", {}, followed, el("div", { class: "controls" }, by), right)),
    ),
  ];
  return { sections, fill };
});
