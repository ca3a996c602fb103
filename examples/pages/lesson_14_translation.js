// Lesson 14: where in the source each token of a translation comes from, and what the scores say.

const LAYERS = data.weights.length, HEADS = data.weights[0].length;
const state = { layer: LAYERS - 1, head: -1, query: 0, similar: 0 };

show(() => {
  const layer = slider("layer", t("layer", "层"), { min: 0, max: LAYERS - 1, step: 1 }, state);
  const head = slider("head", t("head", "头"),
    { min: -1, max: HEADS - 1, step: 1, shown: (i) => (i < 0 ? t("mean", "平均") : String(i)) }, state);
  const similar = choice("similar", t("similarity to the training", "与训练中消息的相似度"),
    data.classes.map(([en, zh], i) => [i, `${t(en, zh)} (${data.sizes[i]})`]), state);
  const seen = links("query", t("tokens of the translation", "译文的词元"), state), said = el("p", { "aria-live": "polite" });
  const scores = el("div", { "aria-live": "polite" });
  const best = (line) => line.indexOf(Math.max(...line));

  function fill() {
    layer.refresh();
    head.refresh();
    const heads = data.weights[state.layer];
    const rows = heads[0].map((line, i) => line.map((_, j) =>
      state.head < 0 ? sum(heads.map((one) => one[i][j])) / HEADS : heads[state.head][i][j]));
    seen.fill(data.target, data.source, rows);
    const line = rows[state.query];
    said.replaceChildren("“", data.target[state.query], t("” reads most of “", "”读得最多的是“"),
      named_in("b", "most", data.source[best(line)]), t(`”: ${percent(Math.max(...line))}.`, `”：${percent(Math.max(...line))}。`));
    const top = Math.max(...Object.values(data.bleu).flat());
    scores.replaceChildren(table(
      [t("translator", "译者"), "BLEU", "", t("BLEU of all", "全部消息的 BLEU")],
      Object.entries(data.bleu).map(([name, values]) => [
        t(...data.systems[name]), named(`bleu ${name}`, number(values[state.similar], 1)), bar(values[state.similar] / top),
        number(data.overall[name], 1),
      ]),
    ));
  }
  const sections = [
    section(
      t("From the source to the translation", "从原文到译文"),
      text(
        "A sentence of our own and the translation that the lesson's model wrote. Choose a token of the translation: the tokens of the source that cross-attention reads for it become dark. Change layer and head: not every head aligns words; the alignment is not what the model was trained for, and the weights do not prove that a word was used.",
        "我们自己的一句话，和本课模型写出的译文。选译文的一个词元，交叉注意力为它读的原文词元就变深。换换层和头：不是每个头都在对齐词语。对齐并不是训练目标，权重大也不能证明用到了那个词。",
      ),
      el("div", { class: "controls" }, layer, head), seen.root, said,
    ),
    section(
      t("How good is it?", "译得怎么样？"),
      text(
        "Messages that were held out, by their cosine with the most similar message of the training. Choose a class: where a similar message was trained on, looking it up is a strong rival; where none is, all fall. Shuffle the source's tokens and the same model falls: it reads order.",
        "留出的消息，按“与训练中最相似消息的余弦”分组。选一组看看：训练中有相似的消息时，直接查找也很强；没有时，谁都不行。把原文的词元打乱，同一个模型就差得多：它读次序。",
      ),
      el("div", { class: "controls" }, similar), scores,
    ),
    section(
      t("Sentences of our own", "我们自己的句子"),
      text("None of them is in the training. The second has the words of the first in another order.",
        "训练里都没有。第二句与第一句用词相同，次序不同。"),
      table([t("English", "英文"), t("the model's Chinese", "模型的译文")], data.ours),
    ),
  ];
  return { sections, fill };
});
