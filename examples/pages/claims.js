// The claims of the tutorials: guess first, then see what was measured.

const state = { guesses: {} };

show(() => {
  const claims = data.claims[language], verdicts = data.verdicts[language];
  const score = el("p", { "aria-live": "polite" });
  const parts = claims.map((claim, i) => {
    const measured = el("div", { class: "measured", "aria-live": "polite" });
    const buttons = verdicts.map((verdict) => el("button", { click: () => {
      state.guesses[i] ??= verdicts.indexOf(verdict);
      update();
    } }, verdict));
    const heading = i && claims[i - 1].subject === claim.subject ? [] : [el("h2", {}, claim.subject)];
    const whole = el("section", { class: "claim" }, ...heading,
      el("p", {}, `${i + 1}. `, el("b", {}, claim.says), el("span", { class: "quiet" }, ` · ${claim.documents}`)),
      el("div", { class: "guess", role: "group", "aria-label": t(`your guess for claim ${i + 1}`, `第 ${i + 1} 条你怎么猜`) }, ...buttons), measured);
    return { whole, buttons, measured, claim };
  });
  const answers = el("section", { class: "answers printed" }, el("h2", {}, t("What was measured", "实测结果")),
    ...claims.map((claim, i) => el("p", {}, `${i + 1}. `, el("b", {}, claim.verdict), ` ${claim.measured}`)));
  const again = el("button", { click: () => {
    state.guesses = {};
    update();
  } }, t("begin again", "重新开始"));

  function fill() {
    const guessed = Object.entries(state.guesses);
    const right = guessed.filter(([i, guess]) => verdicts[guess] === claims[i].verdict).length;
    score.textContent = t(`${guessed.length} of ${claims.length} guessed, ${right} right.`, `共 ${claims.length} 条，已猜 ${guessed.length} 条，猜对 ${right} 条。`);
    parts.forEach(({ buttons, measured, claim }, i) => {
      const guess = state.guesses[i];
      const hit = verdicts[guess] === claim.verdict;
      buttons.forEach((button, at) => {
        button.setAttribute("aria-pressed", at === guess);
        button.disabled = guess !== undefined;
      });
      measured.replaceChildren(...(guess === undefined ? [] : [
        el("p", {}, el("b", { class: hit ? "right" : "wrong" }, `${hit ? "✓" : "✗"} ${claim.verdict}`), ` · ${claim.lesson}`),
        el("p", {}, claim.measured)]));
    });
  }
  const sections = [
    section(
      t("Guess first", "先猜一猜"),
      text(
        "Each of these sentences stands in a tutorial about attention. Does it hold? Choose, then read what was measured. Printed, the page has boxes to tick, and the answers begin on a sheet of their own.",
        "下面每句话都出自讲注意力的教程。它成立吗？先选，再看实测结果。打印出来，每条都有可以打勾的方框，答案另起一页。",
      ),
      score, el("div", { class: "controls" }, again),
    ),
    ...parts.map(({ whole }) => whole), answers,
  ];
  return { sections, fill };
});
