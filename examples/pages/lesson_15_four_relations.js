// Lesson 15: the article's sentences in three small models; each head of each relation, and what is lost without it.

for (const model of data.models)
  for (const [name, tensor] of Object.entries(model.tensors)) model.tensors[name] = decoded(tensor);

const state = { model: 0, sentence: 4, layer: 1, head: 1, silent: {} };
const { layers: LAYERS, heads: HEADS } = data.models[0];
const EVERY = steps(0, LAYERS - 1).flatMap((layer) => steps(0, HEADS - 1).map((head) => `${layer}.${head}`));

/** The ids of a sentence whose decided word is masked. */
function masked_ids(model, { words, decided }) {
  const ids = [model.special.CLS, ...words.map((word) => model.words.indexOf(word))];
  ids[decided] = model.special.MASK;
  return ids;
}
const known = data.models.map((model) => data.sentences.map((sentence) =>
  read(model, masked_ids(model, sentence)).blocks.flatMap((block) => block.weights.map((rows) => rows[sentence.decided][sentence.noun]))));

show(() => {
  const seeds = choice("model", t("seed of the training", "训练的种子"), data.models.map(({ seed }, i) => [i, String(seed)]), state);
  const sentences = el("div", { class: "controls", role: "group" }, ...data.sentences.map((sentence, i) => el("button", {
    id: `sentence-${i}`, click: () => {
      state.sentence = i;
      [state.layer, state.head] = sentence.heads[state.model].split(".").map(Number);
      update();
    } }, `${t(...sentence.relation)}${t(": ", "：")}${sentence.words.join("")}`)));
  const grid = el("div"), words = el("div", { class: "words" }), said = el("p"), answer = el("p", { "aria-live": "polite" });
  const silence = el("button", { id: "silence", click: () => {
    const name = `${state.layer}.${state.head}`;
    state.silent[name] = !state.silent[name];
    update();
  } });
  const restore = el("button", { id: "restore", click: () => {
    state.silent = {};
    update();
  } }, t("let all heads speak", "恢复所有的头"));
  const cells_of = data.sentences.map((sentence, i) => EVERY.map((name) => el("button", {
    class: "cell", "data-name": `weight ${i} ${name}`, "aria-label": `${t(...sentence.relation)} ${name}`, click: () => {
      [state.layer, state.head] = name.split(".").map(Number);
      state.sentence = i;
      update();
    } })));
  grid.append(el("div", { class: "wide" }, el("div", { class: "matrix", style: `grid-template-columns: repeat(${EVERY.length + 1}, auto)` },
    el("span"), ...EVERY.map((name) => el("span", { class: "name" }, name)),
    ...data.sentences.flatMap((sentence, i) => [el("span", { class: "name" }, t(...sentence.relation)), ...cells_of[i]]))));

  function fill() {
    const model = data.models[state.model], sentence = data.sentences[state.sentence], its = `${state.layer}.${state.head}`;
    [...sentences.children].forEach((button, i) => button.setAttribute("aria-pressed", i === state.sentence));
    cells_of.forEach((row, i) => row.forEach((cell, h) => {
      const weight = known[state.model][i][h];
      cell.style.setProperty("--share", weight);
      cell.textContent = percent(weight);
      cell.setAttribute("aria-pressed", i === state.sentence && EVERY[h] === its);
      cell.style.opacity = state.silent[EVERY[h]] ? 0.35 : 1;
    }));
    const { blocks, probabilities } = read(model, masked_ids(model, sentence), { silent: state.silent });
    const row = blocks[state.layer].weights[state.head][sentence.decided];
    words.replaceChildren(...["[CLS]", ...sentence.words].map((word, i) => {
      const token = el("span", { class: "token", style: `--share: ${row[i]}` },
        el("span", {}, i === sentence.decided ? "[MASK]" : word), el("small", {}, t(i ? sentence.glosses[i - 1] : "", "")),
        named_in("small", `word ${i}`, percent(row[i])));
      if (i === sentence.decided) token.style.outline = "2px solid var(--ink)";
      return token;
    }));
    said.textContent = t(
      `Head ${its}: the weights of the masked word (framed). They sum to 100%.`,
      `头 ${its}：被遮住的词（带框）给各词的权重，总和为 100%。`);
    const likely = probabilities[sentence.decided].map((p, id) => [p, model.words[id]]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    const right = sentence.words[sentence.decided - 1];
    const gone = EVERY.filter((name) => state.silent[name]);
    answer.replaceChildren(
      gone.length ? t(`Without ${gone.join(", ")}, the model says: `, `没有头 ${gone.join("、")}，模型的答案：`) : t("The model says: ", "模型的答案："),
      el("b", { class: likely[0][1] === right ? "right" : "wrong", "data-name": "said" }, `${likely[0][1]} ${percent(likely[0][0])}`),
      ` · ${likely.slice(1).map(([p, word]) => `${word} ${percent(p)}`).join(" · ")}`,
      t(`; right: ${right}`, `；正确：${right}`));
    silence.textContent = state.silent[its] ? t(`let head ${its} speak again`, `恢复头 ${its}`) : t(`silence head ${its}`, `让头 ${its} 失效`);
  }
  const sections = [
    section(
      t("One relation, one head?", "一种关系，一个头？"),
      text(
        "Five relations of the article with example sentences were planted in the sentences of a small language: one word decides another, which is masked here. Each cell is one head: the weight that the masked word gives to the word that decides it, in this one sentence. Click a cell to see its whole row; then silence the head. Often the answer stays: another head has found the word as well. Change the seed: the relation moves to another head.",
        "例句讲解里的五种关系被事先设定在一种小语言的句子里：一个词决定另一个词，这里把后者遮住。每一格是一个头：被遮住的词在这句话里给决定它的词的权重。点一格看完整的一行，再让这个头失效。答案往往不变：别的头也找到了那个词。换个种子，这种关系就换了一个头。",
      ),
      el("div", { class: "controls" }, seeds), sentences, grid, said, words,
      el("div", { class: "controls" }, silence, restore), answer,
      quiet(
        "Rows are relations, columns are layer.head, counted from 0. The models are computed in this page. They know only the words of their templates, and are no evidence of what published models do. Lesson 15 measures each head on hundreds of sentences.",
        "行是关系，列是“层.头”，都从 0 数起。模型就在页面里计算。它们只认得模板里的词，不能说明公开发布的模型怎么做。第 15 课用几百个句子测量每个头。",
      ),
    ),
  ];
  return { sections, fill };
});
