// Lesson 5: a token moves, and so does what marks its position.

const state = { here: 20, distance: 7, dim: data.dims.indexOf(data.dim), place: 2 };
const LAST = 99, REACH = 60;

show(() => {
  const here = slider("here", t("position p of the first token", "第一个词元的位置 p"), { min: 0, max: LAST, step: 1 }, state);
  const distance = slider("distance", t("the second stands k further on: k", "第二个在它之后 k 个位置：k"),
    { min: -REACH, max: REACH, step: 1 }, state);
  const dim = slider("dim", t("dimensions d", "维数 d"),
    { min: 0, max: data.dims.length - 1, step: 1, shown: (i) => String(data.dims[i]) }, state);
  const place = slider("place", t("position of the word", "词的位置"), { min: 0, max: LAST, step: 1 }, state);
  const clocks = el("div", { class: "controls" }), told = el("div", { "aria-live": "polite" }), added = el("div");
  const listed = (vector) => `[${vector.map((x) => number(x, 1)).join(", ")}]`;
  const products = chart(
    { from: -REACH, to: REACH, ticks: steps(-REACH, REACH, 20), label: t("distance k: drag it", "距离 k：可以拖动") },
    { from: -1, to: 1, ticks: steps(-1, 1, 0.5), label: "PE(p)·PE(p + k) ÷ (d/2)" },
    t("The dot product of two codes by their distance", "两个位置编码的点积随距离的变化"),
    { dragged: (x) => (state.distance = Math.round(x)) });

  /** One pair of dimensions as the hand of a clock, for both tokens. */
  function clock(c, size) {
    const face = draw("svg", { viewBox: "-55 -55 110 128", style: "width: 120px", role: "img",
      "aria-label": t(`pair ${c}`, `第 ${c} 对`) });
    face.append(draw("circle", { r: 50, class: "other", style: "stroke: var(--line); stroke-dasharray: none" }));
    [[state.here, "line"], [state.here + state.distance, "other"]].forEach(([position, kind]) => {
      const angle = position * 10000 ** ((-2 * c) / size);
      face.append(draw("line", { class: kind, x1: 0, y1: 0, x2: 46 * Math.sin(angle), y2: -46 * Math.cos(angle) }));
    });
    const period = (2 * Math.PI * 10000 ** ((2 * c) / size));
    face.append(draw("text", { y: 68, "text-anchor": "middle" }, t(`${number(period, period < 10 ? 1 : 0)} tokens`, `${number(period, period < 10 ? 1 : 0)} 个词元`)));
    return face;
  }

  function fill() {
    const size = data.dims[state.dim], p = state.here, q = p + state.distance;
    const [one, other] = [code(p, size), code(q, size)];
    for (const control of [here, distance, dim, place]) control.refresh();
    const pairs = [...new Set([0, 1, 2, 3].map((i) => Math.round((i * (size / 2 - 1)) / 3)))];
    clocks.replaceChildren(...pairs.map((c) => clock(c, size)));
    const first = (vector) => `(${vector.slice(0, 6).map((x) => number(x, 3)).join(", ")}${size > 6 ? ", …" : ""})`;
    told.replaceChildren(table(
      [t("what", "量"), t("number", "数值")],
      [
        [`PE(${p})`, named("one", first(one))],
        [`PE(${q})`.replace("-", "−"), named("other", first(other))],
        [t("PE(p)·PE(p + k), from the codes", "PE(p)·PE(p + k)，由编码算"), named("product", number(dot(one, other)))],
        [t("Σ cos(kω), from the distance alone", "Σ cos(kω)，只用距离算"),
          named("waves", number(sum(steps(0, size / 2 - 1).map((c) => Math.cos(state.distance * 10000 ** ((-2 * c) / size))))))],
        [t("sum of squares of PE(p + k) − PE(p)", "PE(p + k) − PE(p) 的平方和"), named("apart", number(sum(one.map((x, i) => (x - other[i]) ** 2))))],
      ],
    ));
    const by_distance = (k) => sum(steps(0, size / 2 - 1).map((c) => Math.cos(k * 10000 ** ((-2 * c) / size)))) / (size / 2);
    products.fill({
      lines: [["line", steps(-REACH, REACH, 0.25).map((k) => [k, by_distance(k)])]],
      dots: [["now", state.distance, by_distance(state.distance)]],
      guide: state.distance,
    });
    const marks = code(state.place, data.word.length);
    const line = (name, values, title) => [title, ...values.map((x, i) => named(`${name} ${i}`, number(x, 4)))];
    added.replaceChildren(table(
      [t("vector", "向量"), ...data.word.map((_, i) => t(`dimension ${i}`, `第 ${i} 维`))],
      [line("word", data.word, t("the word's own", "词向量")), line("mark", marks, t(`position ${state.place}`, `位置 ${state.place}`))],
      line("sum", data.word.map((x, i) => x + marks[i]), t("what the model reads", "模型读到的")),
    ));
  }
  const sections = [
    section(
      t("Two tokens and their positions", "两个词元和它们的位置"),
      text(
        "The sinusoidal encoding marks position p by the hands of d/2 clocks: the first goes round in 6.28 tokens, the last in tens of thousands. Move the first token: all hands turn, and yet the product of the two codes stays the same. Move the second one: the product changes, since it depends on the distance k alone.",
        "正弦编码用 d/2 个钟的指针标记位置 p：第一个钟 6.28 个词元转一圈，最后一个要几万个词元。移动第一个词元，所有指针都转了，两个编码的点积却不变；改变距离 k，点积才变：它只取决于距离。",
      ),
      el("div", { class: "controls" }, here, distance, dim), clocks,
      quiet("Blue: the first token; orange, dashed: the second. Below each clock: its time for one round.",
        "蓝：第一个词元；橙色虚线：第二个。钟下面是转一圈要多少个词元。"),
      told, el("figure", {}, products.root),
      quiet(
        "The curve is symmetric: the product does not tell ahead from behind. And it rises again after falling: a smaller product does not always mean further away.",
        "曲线左右对称：点积分不出前后。它降下去还会再升：点积小不一定就离得远。",
      ),
    ),
    section(
      t("Word plus position", "词向量加位置"),
      text(
        `The position is added to the vector of the word. The article with example sentences adds ${listed(data.word)} + ${listed(data.mark)} = ${listed(data.sum)}. Its second vector is made up: no position has this sinusoidal code. Below are the same word and the codes of real positions. The same word at another position is another vector, and a layer reads only the sum.`,
        `位置编码加到词向量上。例句讲解写的是 ${listed(data.word)} + ${listed(data.mark)} = ${listed(data.sum)}。其中第二个向量是随手写的：没有哪个位置的正弦编码是它。下面是同一个词加上真实位置的编码。同一个词换了位置就是另一个向量，而模型读到的只有这个和。`,
      ),
      el("div", { class: "controls" }, place), added,
    ),
  ];
  return { sections, fill };
});
