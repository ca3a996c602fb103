// Lesson 3: scores of wide keys saturate a softmax, unless they are divided.

const state = { width: data.widths.indexOf(data.width), divisor: 0 };
const DIVISORS = 120; // steps of its slider: from 1 to 32, alike in factors

show(() => {
  const divisor_of = (step) => 2 ** ((5 * step) / DIVISORS);
  const keys = data.products[0].length;
  const width = slider("width", t("width d of queries and keys", "查询与键的维数 d"),
    { min: 0, max: data.widths.length - 1, step: 1, shown: (i) => String(data.widths[i]) }, state);
  const divisor = slider("divisor", t("scores are divided by", "分数除以"),
    { min: 0, max: DIVISORS, step: 1, shown: (i) => number(divisor_of(i), 2) }, state);
  const root = el("button", { click: () => {
    state.divisor = Math.round((DIVISORS / 5) * Math.log2(Math.sqrt(data.widths[state.width])));
    update();
  } }, t("divide by √d", "除以 √d"));
  const none = el("button", { click: () => {
    state.divisor = 0;
    update();
  } }, t("do not divide", "不除"));
  const told = el("div", { "aria-live": "polite" });
  const shares = { from: 0, to: 1, ticks: steps(0, 1, 0.25), shown: (x) => percent(x) };
  const bars = chart(
    { from: 0, to: keys, ticks: [], label: t(`${keys} keys, by their score`, `${keys} 个键，按分数排列`) },
    { ...shares, label: t("weight", "权重") }, t("The weight of each key", "每个键的权重"), { narrow: true });
  const curve = chart(
    { from: 0, to: 5, ticks: steps(0, 5), shown: (x) => String(2 ** x), label: t("scores are divided by: drag it", "分数除以多少：可以拖动") },
    { ...shares, label: t("largest weight", "最大权重") }, t("The largest weight for each divisor", "除以各个数时的最大权重"),
    { dragged: (x) => (state.divisor = Math.round((x / 5) * DIVISORS)), narrow: true });
  const slope = chart(
    { from: 0, to: 1, ticks: steps(0, 1, 0.25), shown: (x) => percent(x), label: t("weight a", "权重 a") },
    { from: 0, to: 0.25, ticks: steps(0, 0.25, 0.05), label: "∂a/∂x = a(1 − a)" }, t("The slope of a weight", "权重的斜率"), { narrow: true });

  function fill() {
    const products = data.products[state.width], d = data.widths[state.width], by = divisor_of(state.divisor);
    const largest = (divisor) => Math.max(...softmax(products.map((x) => x / divisor)));
    const weights = softmax(products.map((x) => x / by)).sort((a, b) => b - a);
    const a = weights[0];
    width.refresh();
    divisor.refresh();
    const rows = [
      ["√d", named("root", number(Math.sqrt(d), 2))],
      [t("standard deviation of the scores", "分数的标准差"), named("deviation", number(Math.sqrt(dot(products, products) / keys) / by, 3))],
      [t("largest weight a", "最大权重 a"), named("largest", number(a))],
      [t("its slope a(1 − a)", "它的斜率 a(1 − a)"), named("slope", number(a * (1 - a)))],
      [t("entropy: ln 64 = 4.16 is even", "熵（完全平均为 ln 64 = 4.16）"), named("entropy", number(-sum(weights.map((w) => (w > 0 ? w * Math.log(w) : 0))), 3))],
    ];
    told.replaceChildren(table([t("measure", "量"), t("number", "数值")], rows));
    bars.fill({ bars: weights.map((w, i) => [i + 0.1, 0.8, w]) });
    curve.fill({
      lines: [["line", steps(0, 5, 0.05).map((x) => [x, largest(2 ** x)])]],
      dots: [["now", Math.log2(by), a], ["known", Math.log2(Math.sqrt(d)), largest(Math.sqrt(d))]],
      guide: Math.log2(Math.sqrt(d)),
    });
    slope.fill({ lines: [["line", steps(0, 1, 0.01).map((x) => [x, x * (1 - x)])]], dots: [["now", a, a * (1 - a)]] });
  }
  const sections = [
    section(
      t("Why the scores are divided by √d", "为什么分数要除以 √d"),
      text(
        "One random query, 64 random keys; all their numbers have mean 0 and variance 1. A score is a sum of d products, so its standard deviation is about √d: wider keys alone make larger scores. The softmax then gives nearly all weight to one key, which is best by chance.",
        "一个随机查询、64 个随机键，每个数的均值为 0、方差为 1。分数是 d 个乘积之和，标准差约为 √d：键一宽，分数就变大。于是 softmax 把几乎全部权重给了一个碰巧最大的键。",
      ),
      el("div", { class: "controls" }, width, divisor, none, root), told,
      el("div", { class: "grid" }, el("figure", {}, bars.root), el("figure", {}, curve.root,
        el("figcaption", {}, t("Green: now. Dashed line: divided by √d.", "绿点：现在；虚线：除以 √d。")))),
      quiet(
        "Drag the divisor to 1 at d = 1024: the softmax saturates. Divided by √d the largest weight is about the same at every width.",
        "在 d = 1024 时把除数拖到 1：softmax 饱和了。除以 √d，各种维数下最大权重都差不多。",
      ),
    ),
    section(
      t("Saturated means: no slope", "饱和就是没有斜率"),
      text(
        "A weight a changes with its own score x by a(1 − a). Near 0 and near 1 this is nearly 0, so the scores hardly learn. Green is the largest weight from above.",
        "权重 a 对自己的分数 x 的导数是 a(1 − a)。接近 0 或 1 时它几乎为 0，分数也就几乎学不到东西。绿点是上面的最大权重。",
      ),
      el("figure", { style: "max-width: 440px" }, slope.root),
      quiet(
        `This is one draw. The picture of lesson 3 has medians of ${data.draws} draws, and the gradients that they lead to.`,
        `这里只抽了一次。第 3 课的图是抽 ${data.draws} 次的中位数，还有由此得到的梯度。`,
      ),
    ),
  ];
  return { sections, fill };
});
