// Lesson 0: a sentence on its way through a tiny trained model, with every number.

const state = { places: [...data.sentence], row: 2, silent: false };

show(() => {
  const known = data.words.map((word) => t(...word));
  const chosen = el("div", { class: "controls" }), told = el("p", { "aria-live": "polite" }), next = el("div");
  const stages = el("div"), parameters = el("div");
  const row = choice("row", t("what comes after", "看哪个词后面"), state.places.map((id, place) => [place, known[id]]), state);
  state.places.forEach((id, place) => {
    const options = known.map((word, i) => el("option", { value: i, selected: i === id }, word));
    chosen.append(el("select", { id: `place ${place}`, "aria-label": t(`word ${place}`, `第 ${place} 个词`), change: (event) => {
      state.places[place] = Number(event.target.value);
      update();
    } }, ...options));
  });

  function fill() {
    const found = read(data.model, state.places, { causal: true, sinusoidal: true, silent: { "0.0": state.silent } });
    const read_words = state.places.map((id) => known[id]), [block] = found.blocks, at = Number(state.row);
    const dimensions = steps(0, data.model.width - 1).map(String);
    const shown = (title, matrix_of) => el("div", {}, el("p", {}, title), matrix(matrix_of, dimensions, read_words, undefined, at));
    row.querySelectorAll("label").forEach((label, place) => (label.lastChild.textContent = read_words[place]));
    const best = found.probabilities[at].map((p, id) => [p, id]).sort((a, b) => b[0] - a[0]);
    told.replaceChildren(
      t(`After “${read_words[at]}” the model expects `, `“${read_words[at]}”之后，模型预测的是 `),
      el("span", { class: "answer" }, known[best[0][1]]), ` ${number(best[0][0], 2)}`,
    );
    next.replaceChildren(table([t("next token", "下一个词元"), t("probability", "概率"), ""], found.probabilities[at].map((p, id) => [
      known[id], named(`probability ${id}`, number(p)), bar(p)])));
    stages.replaceChildren(el("div", { class: "grid" },
      shown(t("vectors, the rows of the table", "词向量：表中的行"), found.vectors),
      shown(t("+ positions", "+ 位置"), found.marks),
      shown(t("= what the block reads", "= 这一层读到的"), found.entering),
      shown(t("normed, for the three maps", "归一化，供三个映射使用"), block.inside),
      shown(t("queries Q", "查询 Q"), block.q),
      shown(t("keys K", "键 K"), block.k),
      shown(t("values V", "值 V"), block.v),
      el("div", {}, el("p", {}, t("weights softmax(QKᵀ/√4), later words hidden", "权重 softmax(QKᵀ/√4)，遮住后面的词")),
        matrix(block.weights[0], read_words, read_words, undefined, at)),
      shown(t("weights · V", "权重 · V"), block.joined),
      shown(t("vectors + attention", "向量 + 注意力"), block.after_attention),
      shown(t("+ feed-forward", "+ 前馈层"), block.after_block),
      shown(t("normed, for the output", "归一化，用于输出"), found.normed),
    ));
  }
  const width = data.model.width;
  for (const [name, values] of Object.entries(data.model.tensors)) {
    const columns = name.includes("weight") && values.length > width ? (name.includes("down_proj") ? 4 * width : width) : values.length;
    const whole = steps(0, values.length / columns - 1).map((i) => values.slice(i * columns, (i + 1) * columns));
    const down = whole.map((_, i) => (name === "embedding.weight" ? known[i] : ""));
    parameters.append(el("p", {}, el("code", {}, name)), matrix(whole, columns > 20 ? [] : steps(0, columns - 1).map(String), down, (x) => number(x, 2)));
  }
  const sections = [
    section(
      t("A sentence goes through the model", "一句话走过整个模型"),
      text(
        "The model learned three sentences: Ming ate apples, cats ate mice, rabbits ate grass. Change a word, and see what it expects next. Then silence its head: attention adds nothing, and “ate” cannot know who ate.",
        "模型学的是三句话：小明吃苹果、小猫吃老鼠、小兔吃青草。换一个词，看它预测下一个是什么。再让它的头失效：注意力什么也不加，“吃”就不知道是谁在吃。",
      ),
      chosen, el("div", { class: "controls" }, row), el("div", { class: "controls" }, check("silent", t("silence the head", "让这个头失效"), state)), told, next,
    ),
    section(
      t("Every number on the way", "途中的每一个数"),
      quiet("A row is a token, a column a dimension. ▸ marks the chosen row; a cell is the darker, the larger its number, whatever the sign.",
        "一行是一个词元，一列是一个维度。▸ 是选中的一行；数的绝对值越大，颜色越深。"),
      stages,
    ),
    section(t("Every number that it learned", "它学到的每一个数"), el("details", {}, el("summary", {}, t(
      `${sum(Object.values(data.model.tensors).map((values) => values.length))} parameters by their names; q_proj, k_proj and v_proj are Wq, Wk and Wv, transposed`,
      `${sum(Object.values(data.model.tensors).map((values) => values.length))} 个参数及其名称；q_proj、k_proj、v_proj 就是 Wq、Wk、Wv 的转置`)), parameters)),
  ];
  return { sections, fill };
});
