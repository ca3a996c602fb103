// Lesson 1: one row of attention.

const WIDTHS_OF_KERNEL = [0.5, 1, 2, 4, 8, 16, 32, 64, 100];
const state = { waist: data.asked, score: "product", kernel: 1 };

/** The row of one query: a score, a weight and a part of the answer for each key. */
function row(query, keys, values, by_distance, scale) {
  const scores = keys.map((key) => {
    const apart = key.map((k, i) => query[i] - k);
    return (by_distance ? -dot(apart, apart) / 2 : dot(query, key)) * scale;
  });
  const weights = softmax(scores);
  const answer = values[0].map((_, i) => dot(weights, values.map((value) => value[i])));
  return { scores, weights, answer };
}

/** That of a waist, as the controls say. */
function look_up(waist) {
  const by_distance = state.score === "distance";
  const scale = by_distance ? WIDTHS_OF_KERNEL[state.kernel] ** -2 : 1;
  const columns = [data.waists, data.weights].map((values) => values.map((value) => [value]));
  return row([waist], ...columns, by_distance, scale);
}

show(() => {
  const waist = slider("waist", t("query: the waist asked for", "查询：问的腰围"), { min: 45, max: 64, step: 0.1 }, state);
  const kernel = slider(
    "kernel",
    t("width w of the comparison: score/w²", "比较的宽度 w：分数 ÷ w²"),
    { min: 0, max: WIDTHS_OF_KERNEL.length - 1, step: 1, shown: (i) => short(WIDTHS_OF_KERNEL[i]) },
    state,
  );
  const kinds = [
    ["product", t("dot product q·k", "点积 q·k")],
    ["distance", t("distance −(q − k)²/2", "距离 −(q − k)²/2")],
  ];
  const kind = choice("score", t("score", "打分"), kinds, state);
  const one = el("div", { "aria-live": "polite" }), two = el("div"), answer = el("p");
  const drawn = chart(
    { from: 45, to: 64, ticks: steps(45, 63, 3), label: t("waist asked for: drag it", "问的腰围：可以拖动") },
    { from: 38, to: 50, ticks: steps(38, 50, 2), label: t("weight predicted", "预测的体重") },
    t("The predicted weight for each waist", "各个腰围的预测体重"),
    { dragged: (x) => (state.waist = Number(x.toFixed(1))) },
  );

  function fill() {
    const { scores, weights, answer: found } = look_up(state.waist);
    const top = Math.max(...scores);
    kernel.hidden = state.score !== "distance";
    waist.refresh();
    kernel.refresh();
    const rows = data.waists.map((key, j) => [
      short(key), short(data.weights[j]), named(`score ${j}`, short(scores[j])), small(Math.exp(scores[j] - top)),
      named(`weight ${j}`, small(weights[j])), bar(weights[j]), small(weights[j] * data.weights[j]),
    ]);
    one.replaceChildren(table(
      [t("key: waist", "键：腰围"), t("value: weight", "值：体重"), t("score", "分数"), t("e^(score − largest)", "e^(分数 − 最大)"),
        t("share", "权重"), "", t("share × value", "权重 × 值")],
      rows,
      [t("sum", "总和"), "", "", number(sum(scores.map((score) => Math.exp(score - top)))), "1", "", named("answer", number(found[0]))],
    ));
    answer.replaceChildren(
      t(`For a waist of ${short(state.waist)} attention answers `, `腰围 ${short(state.waist)}，注意力的回答是 `),
      el("span", { class: "answer" }, number(found[0], 2)),
    );
    const waists = steps(45, 64, 0.1);
    drawn.fill({
      lines: [["line", waists.map((x) => [x, look_up(x).answer[0]])]],
      dots: [...data.waists.map((x, j) => ["known", x, data.weights[j]]), ["now", state.waist, found[0]]],
      guide: state.waist,
    });

    const by_distance = state.score === "distance";
    const listed = (vector, digits = 2) => `(${vector.map((x) => short(x, digits)).join(", ")})`;
    two.replaceChildren(table(
      [t("query", "查询"), ...data.keys.map((key) => t(`share of ${listed(key)}`, `${listed(key)} 的权重`)), t("answer", "回答")],
      data.queries.map((query, i) => {
        const its = row(query, data.keys, data.values, by_distance, by_distance ? 1 : data.keys[0].length ** -0.5);
        return [listed(query), ...its.weights.map((w, j) => named(`two ${i} ${j}`, small(w))), named(`f ${i}`, listed(its.answer))];
      }),
    ));
  }
  const sections = [
    section(
      t("One row of attention", "一行注意力"),
      text(
        "Three people are known by waist (the key) and weight (the value). A query asks for another waist. It is compared with every key: that is the score. A softmax turns the scores into shares that sum to 1. The answer is the sum of the values, each times its share. This is all of attention; everything later is many such rows at once.",
        "已知三个人的腰围（键）和体重（值），查询是另一个腰围。查询与每个键比较，得到分数；softmax 把分数变成和为 1 的权重；每个值乘以自己的权重，加起来就是回答。注意力就是这些，后面的内容只是同时算很多行。",
      ),
      el("div", { class: "controls" }, waist, kind, kernel), answer, one,
      el("figure", {}, drawn.root, el("figcaption", {}, t("Small dots: the three people. Green: your query.", "小点：已知的三个人；绿点：你的查询。"))),
      quiet(
        "With the dot product the largest key wins, wherever you drag: the curve is flat, so its slope is 0 and nothing can be learned from it. With the distance the nearest wins. A wide comparison (large w) gives the mean of all three.",
        "用点积时，拖到哪里都是最大的键获胜：曲线是平的，斜率为 0，什么也学不到。用距离时，最近的键获胜。比较得越宽（w 越大），回答越接近三个值的平均。",
      ),
    ),
    section(
      t("Q, K and V: the same with two columns", "Q、K、V：同样的事，两列"),
      text(
        "Two queries, three keys and three values of two numbers each are the rows of Q, K and V. Each query is a row as above; f(Q) = softmax(QKᵀ/√2)V writes both at once. The order of the rows of K and V is that of the notes: 51, 58, 56.",
        "两个查询、三个键、三个值，每个两个数，依次是 Q、K、V 的各行。每个查询还是上面那样的一行；f(Q) = softmax(QKᵀ/√2)V 只是把两行写在一起。K 和 V 的行序与笔记相同：51、58、56。",
      ),
      two,
    ),
  ];
  return { sections, fill };
});
