// Lesson 7: a sentence of one's own, read by the small models that come with headway, computed in this page.

const state = { model: language === "en" ? "english" : "chinese", layer: 1, head: 2, token: 0, text: {}, masked: false, silent: {} };

// ---------------------------------------------------------------- the model

for (const model of Object.values(data.models))
  for (const [name, tensor] of Object.entries(model.tensors)) model.tensors[name] = decoded(tensor);

/** The words of a text, as the model's tokenizer has them. */
function cut(model, text) {
  if (model.spaced) return text.toLowerCase().match(/[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]+/gu) ?? [];
  const longest = [...model.words].sort((a, b) => b.length - a.length), found = [];
  for (let rest = text; rest; ) {
    const word = longest.find((one) => rest.startsWith(one)) ?? [...rest][0];
    if (word.trim()) found.push(word);
    rest = rest.slice(word.length);
  }
  return found;
}

/** Their ids, after that of [CLS]. */
function encoded(model, found) {
  const { CLS, UNK } = model.special;
  return [CLS, ...found.map((word) => model.words.indexOf(word)).map((id) => (id < 0 ? UNK : id))];
}

// ---------------------------------------------------------------- the page

show(() => {
  const models = [["chinese", t("Chinese", "中文")], ["english", t("English", "英文")]];
  const chosen = choice("model", t("model", "模型"), models, state);
  const input = el("input", { type: "text", id: "text", style: "flex: 1 1 320px", "aria-label": t("sentence", "句子"),
    input: () => {
      state.text[state.model] = input.value;
      update();
    } });
  const examples = el("div", { class: "controls" }), words = el("div", { class: "words", role: "group" });
  const heads = el("div", { class: "heads" }), said = el("p"), answer = el("p", { "aria-live": "polite" });
  const masked = check("masked", t("mask the chosen word and let the model guess it", "遮住选中的词，让模型来猜"), state);
  const silence = el("button", { id: "silence", click: () => {
    const name = `${state.layer}.${state.head}`;
    state.silent[name] = !state.silent[name];
    update();
  } });
  let shown = null, offered = null, buttons = [], boxes = [];

  function paint(canvas, rows) {
    const n = rows.length, paper = canvas.getContext("2d");
    canvas.width = canvas.height = n;
    const image = paper.createImageData(n, n);
    const [r, g, b] = [31, 95, 196];
    rows.flat().forEach((weight, at) => image.data.set([r, g, b, 255 * weight], 4 * at));
    paper.putImageData(image, 0, 0);
  }

  /** Words and heads are made anew only for another sentence, so that they keep the focus. */
  function make(tokens, { layers, heads: heads_of }) {
    buttons = tokens.map((token, i) => el("button", { click: () => {
      state.token = i;
      update();
    } }, el("span", {}, token), el("small", { "data-name": `weight ${i}` })));
    words.replaceChildren(...buttons);
    boxes = [];
    const parts = [el("span"), ...steps(0, heads_of - 1).map((head) => el("small", {}, t(`head ${head}`, `头 ${head}`)))];
    for (let layer = 0; layer < layers; layer++) {
      parts.push(el("small", {}, t(`layer ${layer}`, `层 ${layer}`)));
      for (let head = 0; head < heads_of; head++) {
        const choose = () => {
          [state.layer, state.head] = [layer, head];
          update();
        };
        const canvas = el("canvas", {});
        const box = el("button", { pointerenter: choose, focus: choose, click: choose, "aria-label": `${layer}.${head}` }, canvas);
        boxes.push({ box, canvas, layer, head });
        parts.push(box);
      }
    }
    heads.replaceChildren(...parts);
  }

  function fill() {
    const model = data.models[state.model];
    const written = (state.text[state.model] ??= model.examples[0]);
    if (document.activeElement !== input) input.value = written;
    if (offered !== state.model) {
      examples.replaceChildren(...model.examples.map((example) => el("button", { click: () => {
        state.text[state.model] = example;
        shown = null;
        update();
      } }, example)));
      offered = state.model;
    }
    const found = cut(model, written).slice(0, (model.bias[0].length - 1) / 2);
    const ids = encoded(model, found);
    const tokens = ["[CLS]", ...found.map((word) => (model.words.includes(word) ? word : `${word}?`))];
    const name = `${state.model} ${tokens.join(" ")}`;
    if (shown !== name) {
      const decided = model.decided.find((word) => tokens.includes(word));
      state.token = decided ? tokens.indexOf(decided) : tokens.length - 1;
      make(tokens, model);
      shown = name;
    }
    if (state.masked) ids[state.token] = model.special.MASK;
    const { blocks, probabilities } = read(model, ids, { silent: state.silent });
    const weights = blocks.map((block) => block.weights);
    const row = weights[state.layer][state.head][state.token];
    buttons.forEach((button, i) => {
      button.style.setProperty("--share", row[i]);
      button.setAttribute("aria-pressed", i === state.token);
      button.firstChild.textContent = state.masked && i === state.token ? "[MASK]" : tokens[i];
      button.lastChild.textContent = percent(row[i]);
    });
    for (const { box, canvas, layer, head } of boxes) {
      paint(canvas, weights[layer][head]);
      box.setAttribute("aria-pressed", layer === state.layer && head === state.head);
      box.style.opacity = state.silent[`${layer}.${head}`] ? 0.35 : 1;
    }
    const its = `${state.layer}.${state.head}`;
    said.textContent = t(
      `Head ${its}: the weights of “${tokens[state.token]}” on each word. They sum to 100%.`,
      `头 ${its}：“${tokens[state.token]}”给每个词的权重，总和为 100%。`,
    );
    silence.textContent = state.silent[its] ? t(`let head ${its} speak again`, `恢复头 ${its}`) : t(`silence head ${its}`, `让头 ${its} 失效`);
    const likely = probabilities[state.token].map((p, id) => [p, model.words[id]]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    answer.replaceChildren(
      ...(state.masked ? [t("The model says: ", "模型的答案："), el("b", { "data-name": "said" }, `${likely[0][1]} ${percent(likely[0][0])}`),
        ` · ${likely.slice(1).map(([p, word]) => `${word} ${percent(p)}`).join(" · ")}`] : []),
    );
  }
  const sections = [
    section(
      t("A sentence and its heads", "一句话和它的头"),
      text(
        "This page contains two small encoders, two layers of four heads each, and computes them here, without a network. Their sentences were made from templates in which one word decides another: these relations are planted, and the models know only the words of the templates (a question mark stands for a word that they do not know). They show what a head can find, and are no evidence of what published models do.",
        "本页自带两个小编码器，各两层、每层四个头，就在页面里计算，不需要网络。它们学的句子由模板生成，句中一个词决定另一个词：这些关系是事先设定的，模型也只认得模板里的词（不认得的词后面标问号）。它们说明一个头能找到什么，不能说明公开发布的模型怎么做。",
      ),
      el("div", { class: "controls" }, chosen, input), examples,
      quiet("Choose a word; move over a head, or reach it with the Tab key.", "点一个词；把指针移到某个头上，或用 Tab 键选它。"),
      words, said, heads,
      el("div", { class: "controls" }, masked, silence), answer,
      quiet(
        "In each small square rows are queries and columns are keys. Layers and heads are counted from 0. Mask 它 or “it” and silence the heads that find its noun, one after another: the answer becomes a guess.",
        "每个小方格里，行是查询，列是键；层和头都从 0 数起。遮住“它”，再把找到名词的头一个个关掉：答案就变成了瞎猜。",
      ),
    ),
  ];
  return { sections, fill };
});
