// Lesson 9: three dates, read by an encoder and a decoder; each character looks back at the words.

const state = { model: Object.keys(data.names)[0], date: 0, use: "cross", head: -1, query: 0 };

show(() => {
  const models = Object.entries(data.names).map(([name, [en, zh]]) => [name, t(en, zh)]);
  const uses = [
    ["cross", t("cross-attention: from the target to the source", "交叉注意力：从译文看原文")],
    ["decoder", t("decoder: from the target to what is written already", "解码器：从译文看已写出的字")],
    ["encoder", t("encoder: from the source to the source", "编码器：从原文看原文")],
  ];
  const chosen = choice("model", t("positions added", "位置编码加在"), models, state);
  const used = choice("use", t("attention", "注意力"), uses, state);
  const HEADS = data.rows[0].weights.cross.length;
  const head = slider("head", t("head", "头"),
    { min: -1, max: HEADS - 1, step: 1, shown: (i) => (i < 0 ? t("mean", "平均") : String(i)) }, state);
  const dates = el("div", { class: "controls", role: "group", "aria-label": t("date", "日期") });
  const of_model = () => data.rows.filter((row) => row.positions === state.model);
  dates.append(...of_model().map((row, i) => el("button", { id: `date-${i}`, click: () => {
    state.date = i;
    update();
  } }, row.source.join(" ").replaceAll(" ,", ","))));
  const written = el("p", { class: "answer", "aria-live": "polite" });
  const seen = links("query", t("queries", "查询"), state), all = el("div");

  function fill() {
    const row = of_model()[state.date];
    head.refresh();
    [...dates.children].forEach((button, i) => button.setAttribute("aria-pressed", i === state.date));
    written.replaceChildren(named_in("span", "translation", row.target.slice(0, -1).join("")));
    const heads = row.weights[state.use];
    const rows = heads[0].map((line, i) => line.map((_, j) =>
      state.head < 0 ? sum(heads.map((one) => one[i][j])) / heads.length : heads[state.head][i][j]));
    const read_so_far = ["<start>", ...row.target.slice(0, -1)];
    const [asking, asked] = {
      cross: [row.target, row.source], decoder: [read_so_far, read_so_far], encoder: [row.source, row.source],
    }[state.use];
    seen.fill(asking, asked, rows);
    all.replaceChildren(matrix(rows, asked, asking, (x) => (x < 0.005 ? "" : percent(x)), state.query));
  }
  const sections = [
    section(
      t("Which word does a character come from?", "每个字来自哪个词？"),
      text(
        "The lesson's translator reads a date word by word and writes it in Chinese, character by character. For each character that it writes, cross-attention looks up where in the source it comes from. Choose a character: the words that it reads become dark.",
        "本课的翻译模型读一个英文日期，逐字写成中文。写每个字时，交叉注意力都到原文里去找它从哪里来。选一个字，它读的词就变深。",
      ),
      dates, el("div", { class: "controls" }, chosen, used, head), written, seen.root, all,
      quiet(
        "Self-attention of the decoder hides what is not written yet: the upper right is empty. Weights are those of the last layer, from a training whose rows are stored with the lesson.",
        "解码器的自注意力看不到还没写出的字：右上角是空的。权重取自最后一层，来自随本课保存的一次训练。",
      ),
      text(
        "March 12, 2021 and march 21, 2012 consist of the same words. Take the positions away from the encoder: it cannot tell the two apart, and both get the same translation.",
        "march 12, 2021 与 march 21, 2012 用的是同样的词。去掉编码器的位置编码，模型就分不清两者，译文也就一样了。",
      ),
    ),
  ];
  return { sections, fill };
});
