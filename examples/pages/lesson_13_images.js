// Lesson 13: a digit of 8×8 pixels as sixteen patches, read by a small model that is computed in this page.

const SIDE = 4, PATCH = 2, PIXELS = SIDE * PATCH, PLACES = steps(0, SIDE * SIDE - 1);
const state = { image: null, layer: data.head[0], head: data.head[1], query: -1, order: "whole", patch: 5 };
const model = data.model;

/** The patches of an image, row by row, each with its four pixels row by row. */
const patches_of = (image) => PLACES.map((place) => {
  const [row, column] = [Math.floor(place / SIDE) * PATCH, (place % SIDE) * PATCH];
  return [image[row][column], image[row][column + 1], image[row + 1][column], image[row + 1][column + 1]];
});

/** What the model makes of patches that stand at places: the shares of the ten digits, and all weights. */
function classified(patches, places = PLACES) {
  const { tensors } = model;
  const entering = linear(patches, tensors["embedding.weight"], tensors["embedding.bias"]);
  const { blocks, normed } = passed({ ...model, angles: places.map((place) => model.angles[place]) }, entering);
  const mean = normed[0].map((_, c) => sum(normed.map((row) => row[c])) / normed.length);
  return { logits: linear([mean], tensors["answer.weight"], tensors["answer.bias"])[0], weights: blocks.map((block) => block.weights) };
}
const middle = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) / 2];
/** One order of the patches, the same each time. */
const SHUFFLED = [...PLACES].sort((a, b) => Math.sin(7 * a + 1) - Math.sin(7 * b + 1));

show(() => {
  state.image ??= data.image.map((row) => row.map((x) => x / 16));
  const samples = el("div", { class: "controls", role: "group", "aria-label": t("digits", "数字") },
    ...data.images.map((image, i) => el("button", { id: `image-${i}`, click: () => {
      state.image = image.map((row) => row.map((x) => x / 16));
      update();
    } }, String(i))),
    ...[[t("empty", "清空"), "empty", () => state.image.map((row) => row.map(() => 0))],
      [t("one pixel right", "右移一格"), "right", () => state.image.map((row) => [0, ...row.slice(0, -1)])],
      [t("one pixel down", "下移一格"), "down", () => [state.image[0].map(() => 0), ...state.image.slice(0, -1)]],
    ].map(([label, id, changed]) => el("button", { id, click: () => {
      state.image = changed();
      update();
    } }, label)));
  let painting = null;
  const paint = (row, column, ink) => {
    state.image[row][column] = ink;
    update();
  };
  const pixels = steps(0, PIXELS - 1).map((row) => steps(0, PIXELS - 1).map((column) => el("button", {
    "aria-label": t(`row ${row}, column ${column}`, `第 ${row} 行第 ${column} 列`),
    pointerdown: (event) => {
      event.target.releasePointerCapture(event.pointerId);
      painting = state.image[row][column] > 0.5 ? 0 : 1;
      paint(row, column, painting);
    },
    pointerenter: (event) => event.buttons && painting !== null && paint(row, column, painting),
    keydown: (event) => ["Enter", " "].includes(event.key) && paint(row, column, state.image[row][column] > 0.5 ? 0 : 1),
  })));
  const paper = el("div", { class: "pixels", style: "touch-action: none" }, ...pixels.flat());
  const layer = slider("layer", t("layer", "层"), { min: 0, max: model.layers - 1, step: 1 }, state);
  const head = slider("head", t("head", "头"), { min: 0, max: model.heads - 1, step: 1 }, state);
  const query = slider("query", t("query: patch", "查询：图块"),
    { min: -1, max: PLACES.length - 1, step: 1, shown: (i) => (i < 0 ? t("mean of all", "全部的平均") : String(i)) }, state);
  const order = choice("order", t("patches listed", "图块的排列"), [
    ["whole", t("row by row", "逐行")], ["listed", t("in another order, each with its place", "换个次序，各带原来的位置")],
    ["moved", t("moved to other places", "搬到别的位置")]], state);
  const answer = el("p", { class: "answer", "aria-live": "polite" }), shares = el("div"), map = el("div");
  const right = el("div");
  right.append(table(
    [t("encoding", "编码"), ...Object.values(data.orders).map(([en, zh]) => t(en, zh))],
    Object.entries(data.right).map(([name, by]) => [t(...data.names[name]), ...Object.keys(data.orders).map((kind) =>
      named(`right ${name} ${kind}`, `${number(100 * middle(by[kind]), 1)}%`))])));

  function fill() {
    for (const control of [layer, head, query]) control.refresh();
    pixels.forEach((row, i) => row.forEach((pixel, j) => {
      pixel.style.setProperty("--share", state.image[i][j]);
      pixel.setAttribute("aria-pressed", state.image[i][j] > 0.5);
    }));
    const patches = patches_of(state.image);
    const [listed, places] = {
      whole: [patches, PLACES], listed: [SHUFFLED.map((place) => patches[place]), SHUFFLED], moved: [SHUFFLED.map((place) => patches[place]), PLACES],
    }[state.order];
    const { logits, weights } = classified(listed, places), probabilities = softmax(logits);
    const best = probabilities.indexOf(Math.max(...probabilities));
    answer.replaceChildren(named_in("span", "digit", String(best)), ` ${percent(probabilities[best])}`);
    shares.replaceChildren(table([t("digit", "数字"), t("share", "概率"), ""],
      probabilities.map((share, i) => [String(i), named(`share ${i}`, number(share)), bar(share)]), null, (i) => i === best));
    const rows = weights[state.layer][state.head], at = (i) => places.indexOf(i);
    const seen = PLACES.map((key) => state.query < 0
      ? sum(rows.map((row) => row[at(key)])) / rows.length : rows[at(state.query)][at(key)]);
    map.replaceChildren(matrix(
      steps(0, SIDE - 1).map((row) => seen.slice(row * SIDE, (row + 1) * SIDE)).map((row) => row.map((x) => x * PLACES.length)),
      steps(0, SIDE - 1).map(String), steps(0, SIDE - 1).map(String)));
  }
  const sections = [
    section(
      t("Draw a digit", "画一个数字"),
      text(
        `An image is cut into sixteen patches of four pixels; each becomes a vector, and its row and column rotate queries and keys (axial-rope). Click or drag to draw; the model, two layers of two heads, is computed here. It was trained on digits of scikit-learn in 300 steps and is right in ${number(100 * data.accuracy, 1)}% of held-out images, so expect errors. Move the digit by a pixel: half a patch is enough to change the answer.`,
        `一张图切成十六块，每块四个像素，变成一个向量；它的行和列旋转查询与键（axial-rope）。点一点或拖一拖就能画；模型有两层，每层两个头，就在页面里计算。它用 scikit-learn 的数字训练了 300 步，留出图像的正确率是 ${number(100 * data.accuracy, 1)}%，所以会出错。把数字移动一格：半块的距离就可能改变答案。`,
      ),
      samples,
      el("div", { class: "grid" }, el("div", {}, paper, answer), shares),
      el("div", { class: "controls" }, order),
      quiet(
        "In another order with their places, the patches give the same answer: a set has no order. Moved to other places, the same patches are another image.",
        "换个次序、各带原来的位置，答案不变：集合没有次序。搬到别的位置，同样的图块就是另一张图了。",
      ),
    ),
    section(
      t("What each patch gets", "每块得到多少权重"),
      text("The weights that patches get from one of them, or from all on average; an equal share is 1. Patches are counted row by row from 0.",
        "某一块给各块的权重，或全部图块给的平均；平均分配时为 1。图块从 0 起逐行编号。"),
      el("div", { class: "controls" }, layer, head, query), map,
    ),
    section(
      t("One axis or two", "一个轴还是两个轴"),
      text(
        "The lesson trains with each encoding: on images as they are, with the patches in one shuffled order that all images share, and with another order for each image. Median accuracy of three seeds. Where each image has an order of its own, position says nothing, and all fall.",
        "本课用每种编码训练：原样的图像、所有图像统一打乱、逐张打乱。下面是三个种子正确率的中位数。逐张打乱时位置不再有意义，大家都变差。",
      ),
      right,
    ),
  ];
  return { sections, fill };
});
