// Lesson 2: Q, K and V of a sentence, by the row of one word.

const state = { word: data.word, mask: true, scale: true, Q: data.w_q, K: data.w_k, V: data.w_v };

const product = (rows, other) => rows.map((row) => other[0].map((_, j) => dot(row, other.map((its) => its[j]))));

/** The five steps for all words. */
function five_steps() {
  const [q, k, v] = ["Q", "K", "V"].map((name) => product(data.inputs, state[name]));
  const products = q.map((query) => k.map((key) => dot(query, key)));
  const scaled = products.map((row) => row.map((x) => x * (state.scale ? k[0].length ** -0.5 : 1)));
  const masked = scaled.map((row, i) => row.map((x, j) => (state.mask && j > i ? -Infinity : x)));
  const weights = masked.map(softmax);
  return { q, k, v, products, scaled, masked, weights, output: product(weights, v) };
}

show(() => {
  const words = data.words.map((word) => t(...word));
  const kinds = data.kinds.map((kind) => t(...kind));
  const listed = (vector, digits = 2) => `(${vector.map((x) => short(x, digits)).join(", ")})`;
  const chosen = choice("word", t("whose row", "看哪个词的一行"), words.map((word, i) => [i, word]), state);
  const row = el("div", { "aria-live": "polite" }), vectors = el("p"), whole = el("div"), output = el("p");

  function editable(name) {
    const rows = state[name].map((its, i) => its.map((value, j) => {
      const label = `W${name} ${i},${j}`;
      const input = el("input", { type: "number", step: "0.5", "aria-label": label, input: () => {
        state[name] = state[name].map((old, a) => old.map((x, b) => (a === i && b === j ? Number(input.value) : x)));
        update();
      } });
      input.value = value;
      return input;
    }));
    const columns = `grid-template-columns: repeat(${state[name][0].length}, auto)`;
    return el("div", {}, el("p", { class: "quiet" }, `W${name.toLowerCase()}`), el("div", { class: "matrix", style: columns }, ...rows.flat()));
  }

  function fill() {
    const { q, k, v, products, scaled, masked, weights, output: made } = five_steps();
    const i = Number(state.word);
    vectors.textContent = t(
      `“${words[i]}” is the row ${listed(data.inputs[i])} of I. Times Wq it is the query q = ${listed(q[i])}: what the word looks for.`,
      `“${words[i]}”是 I 的一行 ${listed(data.inputs[i])}；乘以 Wq 得到查询 q = ${listed(q[i])}：这个词在找什么。`,
    );
    const factor = (x) => (x < 0 ? `(${short(x)})` : short(x));
    const sums = (key) => q[i].map((x, c) => `${factor(x)}·${factor(key[c])}`).join(" + ");
    const rows = words.map((word, j) => [
      word, listed(k[j]), `${sums(k[j])} = ${short(products[i][j])}`, number(scaled[i][j], 2),
      number(masked[i][j], 2), named(`weight ${j}`, number(weights[i][j])), bar(weights[i][j]), listed(v[j]),
    ]);
    row.replaceChildren(table(
      [t("word", "词"), t("key k", "键 k"), t("1. product q·k", "1. 点积 q·k"), state.scale ? "2. ÷√4" : t("2. not scaled", "2. 不缩放"),
        t("3. mask", "3. 掩码"), t("4. weight", "4. 权重"), "", t("value v", "值 v")],
      rows, null, (j) => j === i,
    ));
    output.replaceChildren(
      t("5. Output, the sum of weight × value: ", "5. 输出，即 权重 × 值 的总和："),
      el("b", { "data-name": "output" }, made[i].map((x, c) => `${kinds[c]} ${number(x, 4)}`).join(t(", ", "，"))),
    );
    whole.replaceChildren(matrix(weights, words, words, (x) => number(x, 2), i));
  }
  const sections = [
    section(
      t("The row of one word", "一个词的一行"),
      text(
        "Lesson 1 had one query and three people. Here each word of the sentence asks, and each word answers: a word has a query (what it looks for), a key (how others find it) and a value (what it gives). Choose a word and follow its row from left to right.",
        "第 1 课里是一个查询、三个人。这里句中每个词都来问，每个词也都来答：每个词有一个查询（它在找什么）、一个键（别人怎样找到它）、一个值（它给出什么）。选一个词，从左到右看它的这一行。",
      ),
      el("div", { class: "controls" }, chosen,
        check("scale", t("divide by √d", "除以 √d"), state), check("mask", t("hide later words", "遮住后面的词"), state)),
      vectors, row, output,
    ),
    section(
      t("All rows at once: softmax(QKᵀ/√d)", "所有行一起算：softmax(QKᵀ/√d)"),
      text(
        "Each word's row of weights, one below the other, is the matrix of weights. Nothing else is new in the formula with capital letters.",
        "把每个词的权重一行一行叠起来，就是权重矩阵。大写字母的公式里没有别的新东西。",
      ),
      whole,
    ),
    section(
      t("Change the three matrices", "改一改三个矩阵"),
      text(
        "A network learns these numbers; here they were chosen by hand. The rows of Wq and Wk stand for thing, quality, action and pronoun. Set the 2 in the last row of Wq to 0: “it” no longer looks for things, only for qualities, and gives most weight to “cute”.",
        "这些数在网络里是学出来的，这里是手工定的。Wq、Wk 的四行依次是：事物、性质、动作、代词。把 Wq 最后一行的 2 改成 0：“它”不再找事物，只找性质，权重最大的就成了“可爱”。",
      ),
      el("div", { class: "controls" }, ...["Q", "K", "V"].map(editable)),
    ),
  ];
  return { sections, fill };
});
