// Lesson 10: words near a word, and what words are to others, in vectors that came from two texts.

for (const one of [...Object.values(data.manual), ...Object.values(data.planted)])
  one.rows = decoded(one.vectors);

const state = { method: Object.keys(data.manual)[0], word: "exception", other: "error", text: "planted", a: "男人", b: "国王", c: "女人", without: true };

const row_of = (vectors, word) => {
  const at = vectors.words.indexOf(word);
  return at < 0 ? null : vectors.rows.slice(at * vectors.dim, (at + 1) * vectors.dim);
};
const unit = (vector) => {
  const size = Math.sqrt(dot([...vector], vector)) || 1;
  return [...vector].map((x) => x / size);
};

/** The words whose vectors have the largest cosine with one, those left out omitted. */
function nearest(vectors, vector, many, left_out = []) {
  const asked_for = unit(vector);
  return vectors.words
    .map((word) => [word, dot(asked_for, unit(row_of(vectors, word)))])
    .filter(([word]) => !left_out.includes(word))
    .sort((a, b) => b[1] - a[1]).slice(0, many);
}
/** b − a + c, of vectors of length one. */
const difference = (vectors, a, b, c) => {
  const [x, y, z] = [a, b, c].map((word) => unit(row_of(vectors, word)));
  return y.map((value, i) => value - x[i] + z[i]);
};

show(() => {
  const method = choice("method", t("method", "方法"), Object.keys(data.manual).map((name) => [name, name]), state);
  const word_in = (name, label) => {
    const input = el("input", { type: "text", id: name, list: "words", autocomplete: "off", input: () => {
      state[name] = input.value.trim().toLowerCase();
      update();
    } });
    input.value = state[name];
    return el("label", {}, `${label} `, input);
  };
  const word = word_in("word", t("word", "词")), other = word_in("other", t("compared with", "比较"));
  const list = el("datalist", { id: "words" }, ...Object.values(data.manual)[0].words.map((one) => el("option", { value: one })));
  const found = el("div", { "aria-live": "polite" }), together = el("p");
  const texts = choice("text", t("text", "文本"), [["planted", t("with the relation planted", "事先设定了关系")],
    ["at random", t("the same, he and she drawn at random", "同样的句子，他和她随机")]], state);
  const person = (name) => {
    const input = el("select", { id: name, "aria-label": name, change: () => {
      state[name] = input.value;
      update();
    } }, ...data.people.map((one) => el("option", { value: one }, one)));
    input.value = state[name];
    return input;
  };
  const without = check("without", t("leave out the question's own words, as is usual", "去掉问题里的三个词（通常的做法）"), state);
  const answers = el("div", { "aria-live": "polite" }), warned = el("p");

  function fill() {
    const vectors = data.manual[state.method], vector = row_of(vectors, state.word);
    if (vector === null) {
      found.replaceChildren(el("p", { class: "wrong", "data-name": "unknown" }, t(
        `“${state.word}” has no vector here: it is none of the ${vectors.words.length} most frequent words of Python's manual.`,
        `“${state.word}”在这里没有向量：不在 Python 手册最常用的 ${vectors.words.length} 个词里。`)));
      together.textContent = "";
    } else {
      found.replaceChildren(table([t("nearest words", "最近的词"), t("cosine", "余弦"), ""],
        nearest(vectors, vector, 8, [state.word]).map(([near, cosine], i) => [named(`near ${i}`, near), named(`cosine ${i}`, number(cosine)), bar(Math.max(cosine, 0))])));
      const second = row_of(vectors, state.other);
      together.replaceChildren(...(second ? [`${state.word} · ${state.other}: `, named_in("b", "together", number(dot(unit(vector), unit(second))))] : []));
    }
    const people = data.planted[state.text], [a, b, c] = ["a", "b", "c"].map((name) => state[name]);
    const asked_words = [a, b, c];
    const best = nearest(people, difference(people, a, b, c), 5, state.without ? asked_words : []);
    answers.replaceChildren(table([`${b} − ${a} + ${c}`, t("cosine", "余弦"), ""],
      best.map(([near, cosine], i) => [
        el("td", { "data-name": `answer ${i}`, class: asked_words.includes(near) ? "wrong" : "" }, near),
        named(`answer cosine ${i}`, number(cosine)), bar(Math.max(cosine, 0))])));
    warned.textContent = !state.without && asked_words.includes(best[0][0])
      ? t(`The nearest word is ${best[0][0]}, one of the question's own. Leaving it out makes the answer look better than the vectors are.`,
        `最近的词是${best[0][0]}，问题里本来就有。把它去掉，答案看上去就比向量本身好。`) : "";
  }
  const sections = [
    section(
      t("Words near a word", "离一个词最近的词"),
      text(
        "Type a word. The vectors were fitted to the manual that comes with every Python, whose 600 most frequent words are in this page. word2vec puts words near that have the same neighbours; TF-IDF, words that stand in the same chapters. A word has one vector, whatever its sentence.",
        "输入一个英文词。向量由 Python 自带的手册算出，本页收了其中最常用的 600 个词。word2vec 让邻词相似的词靠近，TF-IDF 让出现在同一章里的词靠近。一个词无论在哪句话里，向量都只有一个。",
      ),
      el("div", { class: "controls" }, method, word, other, list), found, together,
    ),
    section(
      t("b − a + c", "b − a + c"),
      text(
        "What is to 女人 (woman) as 国王 (king) is to 男人 (man)? The text was written for this lesson: each person stands in sentences of a role and in sentences of a sex. Change the words; take the relation away by drawing he and she at random; and let the question's own words take part.",
        "国王之于男人，相当于什么之于女人？这段文本是为本课写的：每个人物既出现在身份的句子里，也出现在性别的句子里。换换词；让他和她随机，去掉这种关系；再让问题里的词也参加。",
      ),
      el("div", { class: "controls" }, el("span", {}, person("b"), " − ", person("a"), " + ", person("c")), texts, without),
      answers, warned,
      quiet("Vectors are those of the lesson's first seed, stored with 16 bits.", "向量取自本课的第一个种子，以 16 位存储。"),
    ),
  ];
  return { sections, fill };
});
