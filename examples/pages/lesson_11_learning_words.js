// Lesson 11: pairs of a sentence, drawn words, and a skip-gram that learns in this page.

const DIM = 12;
const state = { text: data.sentence.join(" "), reach: 2, power: 0.75, negative: 5, rate: 0.1, near: 2, word: "国王" };
const vocabulary = [...new Set(data.text.flat())];
const place_of = new Map(vocabulary.map((word, i) => [word, i]));
const ids = data.text.map((sentence) => sentence.map((word) => place_of.get(word)));
const counts = vocabulary.map(() => 0);
ids.flat().forEach((id) => counts[id]++);

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/**
 * Changes both tables, a row for each word, so that the row of `word` tells `target` from drawn words, and returns the
 * loss. A target that was drawn itself is left out.
 */
function learn_pair(rows, outputs, word, target, drawn, rate) {
  const h = rows[word], up = h.map(() => 0);
  let loss = 0;
  const moves = [[target, 1], ...drawn.filter((one) => one !== target).map((one) => [one, -1])].map(([one, sign]) => {
    const score = dot(outputs[one], h);
    loss -= Math.log(sigmoid(sign * score));
    const error = sign * sigmoid(-sign * score);
    outputs[one].forEach((x, c) => (up[c] += error * x));
    return [one, error];
  });
  for (const [one, error] of moves) outputs[one] = outputs[one].map((x, c) => x + rate * error * h[c]);
  rows[word] = h.map((x, c) => x + rate * up[c]);
  return loss;
}

/** Numbers between 0 and 1 that are the same in each browser (mulberry32). */
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let x = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The shares of words by count^power. */
const shares_of = (counted, power) => {
  const parts = counted.map((count) => count ** power);
  return parts.map((part) => part / sum(parts));
};
/** The pairs of a sentence: each word with its neighbours up to `reach` away. */
const pairs_of = (words, reach) => words.map((_, i) => steps(-reach, reach).filter((k) => k && i + k >= 0 && i + k < words.length).map((k) => i + k));

let learning = null;
function begin() {
  const random = generator(1);
  learning = { random, losses: [],
    rows: vocabulary.map(() => steps(1, DIM).map(() => (2 * random() - 1) / 2)), outputs: vocabulary.map(() => Array(DIM).fill(0)) };
}
function epoch() {
  const { random, rows, outputs } = learning;
  const noise = shares_of(counts, state.power);
  let running = 0, total = 0, many = 0;
  const cumulative = noise.map((share) => (running += share));
  const drawn = () => {
    const x = random();
    return Math.max(cumulative.findIndex((edge) => x < edge), 0);
  };
  for (const sentence of ids)
    pairs_of(sentence, state.near).forEach((places, i) => places.forEach((place) => {
      const others = steps(1, state.negative).map(drawn);
      total += learn_pair(rows, outputs, sentence[i], sentence[place], others, state.rate);
      many++;
    }));
  learning.losses.push(total / many);
}
begin();

show(() => {
  const input = el("input", { type: "text", id: "text", style: "flex: 1 1 320px", "aria-label": t("sentence", "句子"), input: () => {
    state.text = input.value;
    update();
  } });
  input.value = state.text;
  const reach = slider("reach", t("window", "窗口"), { min: 1, max: 5, step: 1 }, state);
  const power = slider("power", t("count to the power of", "次数的幂"), { min: 0, max: 1, step: 0.05 }, state);
  const pairs = el("div"), noise = el("div");
  const negative = slider("negative", t("drawn words for each pair", "每对抽几个词"), { min: 1, max: 10, step: 1 }, state);
  const rate = slider("rate", t("learning rate", "学习率"), { min: 0.01, max: 0.5, step: 0.01 }, state);
  const near = slider("near", t("window", "窗口"), { min: 1, max: 4, step: 1 }, state);
  const press = (id, en, zh, done) => el("button", { id, click: () => {
    done();
    update();
  } }, t(en, zh));
  const word = el("select", { id: "word", "aria-label": t("word", "词"), change: () => {
    state.word = word.value;
    update();
  } }, ...data.people.map((one) => el("option", { value: one }, one)));
  word.value = state.word;
  const said = el("p", { "aria-live": "polite" }), close = el("div");
  const course = chart(
    { from: 0, to: 30, ticks: steps(0, 30, 5), label: t("epoch", "轮次") },
    { from: 0, to: 5, ticks: steps(0, 5), label: t("loss of a pair", "每对的损失") },
    t("Loss by epoch", "损失随轮次的变化"), { narrow: true });

  function fill() {
    for (const control of [reach, power, negative, rate, near]) control.refresh();
    const words = state.text.split(/\s+/u).filter(Boolean).slice(0, 40);
    const its = pairs_of(words, state.reach);
    pairs.replaceChildren(
      table([t("word", "词"), t("its neighbours", "它的邻词")], words.map((one, i) => [one, its[i].map((j) => words[j]).join(" · ")])),
      el("p", {}, t("pairs: ", "词对："), named_in("b", "pairs", String(its.flat().length))));
    const [before, after] = [shares_of(data.frequent.map(([, count]) => count), 1), shares_of(data.frequent.map(([, count]) => count), state.power)];
    noise.replaceChildren(table(
      [t("word of Python's manual", "Python 手册里的词"), t("occurs", "出现次数"), t("share", "占比"), t("chance to be drawn", "被抽中的机会"), ""],
      data.frequent.map(([one, count], i) => [one, String(count), `${number(100 * before[i], 2)}%`, named(`drawn ${i}`, `${number(100 * after[i], 2)}%`), bar(after[i])])));
    const { losses, rows } = learning;
    said.replaceChildren(t("Epochs: ", "轮次："), named_in("b", "epochs", String(losses.length)),
      ...(losses.length ? [t("; loss of a pair: ", "；每对的损失："), named_in("b", "loss", number(losses.at(-1)))] : []));
    course.fill({ lines: [["line", losses.map((loss, i) => [i + 1, Math.min(loss, 5)]).slice(0, 30)]] });
    const size = (x) => Math.sqrt(dot(x, x)), own = rows[place_of.get(state.word)];
    close.replaceChildren(table([t(`nearest to ${state.word}`, `离“${state.word}”最近`), t("cosine", "余弦"), ""],
      data.people.filter((one) => one !== state.word).map((one) => {
        const row = rows[place_of.get(one)];
        return [one, dot(own, row) / size(own) / size(row)];
      }).sort((a, b) => b[1] - a[1]).slice(0, 6).map(([one, cosine], i) => [named(`near ${i}`, one), number(cosine, 2), bar(Math.max(cosine, 0))])));
  }
  const sections = [
    section(
      t("What is learned from: pairs", "从什么学：词对"),
      text("Skip-gram asks a word for each of its neighbours; CBOW asks the mean of the neighbours for the word. Both read the same pairs. Type a sentence and drag the window.",
        "skip-gram 由一个词猜它的每个邻词，CBOW 由邻词的平均猜这个词，读的是同样的词对。输入一句话（词之间加空格），拖动窗口。"),
      el("div", { class: "controls" }, input, reach), pairs,
    ),
    section(
      t("What it is told from: drawn words", "和什么区分：抽出来的词"),
      text("Each pair is told from words that are drawn at random, by their count to the power of ¾: rare words more often than they occur, frequent ones less. Drag the power: at 1 the text's own shares, at 0 all alike.",
        "每一对要和随机抽出的词区分开。抽中的机会按出现次数的 ¾ 次幂：少见的词抽得比出现得多，常见的词少。拖动幂次：1 就是文本中的占比，0 则一律平等。"),
      el("div", { class: "controls" }, power), noise,
    ),
    section(
      t("Learn, here and now", "现在就学"),
      text(
        `Skip-gram with drawn words on ${data.text.length} sentences of lesson 10, in this page; ${DIM} numbers for each of ${vocabulary.length} words. For each pair, the row of the word moves towards that of its neighbour and away from those drawn. Press a few times and watch who comes near.`,
        `在本页里，用第 10 课的 ${data.text.length} 个句子训练 skip-gram：${vocabulary.length} 个词，每个 ${DIM} 维。对每一对，词的向量向邻词靠近，离抽出的词远些。多按几次，看谁靠了过来。`,
      ),
      el("div", { class: "controls" }, negative, rate, near),
      el("div", { class: "controls" },
        press("once", "1 epoch", "学 1 轮", epoch), press("ten", "10 epochs", "学 10 轮", () => steps(1, 10).forEach(epoch)),
        press("again", "begin again", "重新开始", begin), word),
      said, el("div", { class: "grid" }, close, el("figure", {}, course.root)),
    ),
  ];
  return { sections, fill };
});
