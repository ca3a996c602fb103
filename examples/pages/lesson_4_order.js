// Lesson 4: words change places, and without positions no word notices.

const state = { order: {}, first: null, sinusoidal: false, causal: false, layers: 2 };

function exchanged(order, one, other) {
  [order[one], order[other]] = [order[other], order[one]];
  return order;
}

show(() => {
  const sentence = data.sentences[language];
  const order = (state.order[language] ??= exchanged(sentence.map((_, i) => i), ...data.exchanged[language]));
  const words = el("div", { class: "words", role: "group" }), told = el("div", { "aria-live": "polite" }), verdict = el("p");
  const ids = sentence.map((word) => data.words.indexOf(word));
  const layers = choice("layers", t("layers", "层数"), [[1, "1"], [2, "2"]], state);
  const buttons = sentence.map((_, place) => el("button", { click: () => {
    if (state.first === null) state.first = place;
    else {
      exchanged(order, place, state.first);
      state.first = null;
    }
    update();
  } }));
  words.append(...buttons);
  const reset = el("button", { click: () => {
    order.sort((a, b) => a - b);
    state.first = null;
    update();
  } }, t("the first order again", "恢复原来的顺序"));

  function fill() {
    const model = { ...data.model, layers: Number(state.layers) };
    const [before, after] = [ids, order.map((from) => ids[from])].map((its) => read(model, its, state).normed);
    buttons.forEach((button, place) => {
      button.textContent = sentence[order[place]];
      button.setAttribute("aria-pressed", place === state.first);
    });
    const changes = order.map((from, place) => Math.max(...after[place].map((x, c) => Math.abs(x - before[from][c]))));
    const mean = before[0].map((_, c) => sum(before.map((row) => row[c])) - sum(after.map((row) => row[c])));
    told.replaceChildren(table(
      [t("word", "词"), t("stood at", "原来的位置"), t("stands at", "现在的位置"), t("its vector changed by", "它的向量变了"), ""],
      order.map((from, place) => [sentence[from], String(from), String(place), named(`change ${place}`, small(changes[place])), bar(Math.min(1, changes[place] / 4))]),
      [t("sum over all words", "所有词之和"), "", "", named("sum", small(Math.max(...mean.map(Math.abs)))), ""],
    ));
    verdict.textContent = Math.max(...changes) < 1e-9
      ? t("No word notices: only rounding differs.", "没有一个词察觉到变化：只差舍入误差。")
      : t("Words notice the order.", "有的词察觉到了词序。");
  }
  const sections = [
    section(
      t("Exchange two words", "交换两个词"),
      text(
        "Click a word, then another one: they exchange their places. Each word's vector after the model is compared with that of the same word in the first order. The model is not trained; it does not matter here, since a sum has no order whatever the weights are.",
        "先点一个词，再点另一个，两个词就交换位置。表中把每个词经过模型之后的向量，与同一个词在原来顺序里的向量相比。模型没有训练过；这里无所谓，因为不论权重是多少，求和都没有先后。",
      ),
      words,
      el("div", { class: "controls" }, reset, layers, check("sinusoidal", t("add sinusoidal positions", "加上正弦位置"), state),
        check("causal", t("causal mask", "因果掩码"), state)),
      told, verdict,
      quiet(
        "Without positions and mask each vector moves with its word (equivariance), and the sum stays (invariance). A causal mask also contains an order: a word sees only the words before it. The last word sees all of them: with one layer it notices nothing if the others change places, with two it does.",
        "没有位置也没有掩码时，向量跟着自己的词走（等变），总和不变（不变性）。因果掩码也含有词序：一个词只看得到它前面的词。最后一个词看得到所有的词：前面的词交换位置，一层时它察觉不到，两层时就察觉得到。",
      ),
    ),
  ];
  return { sections, fill };
});
