"use strict";
// What all pages share: two languages, elements, controls, tables, charts, and the softmax.

const data = JSON.parse(document.getElementById("data").textContent);
const asked = location.hash.slice(1);
let language = ["en", "zh"].includes(asked) ? asked : data.language ?? (navigator.language.startsWith("zh") ? "zh" : "en");

/** One of two texts. */
const t = (en, zh) => (language === "zh" ? zh : en);

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name in node && typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const el = (name, attributes = {}, ...children) => made(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) =>
  made(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/** Shows a page. `build` returns its sections and a function that fills them in whenever the hand changes something. */
let update = () => {};
function show(build) {
  function language_and_sections() {
    const main = el("main");
    document.documentElement.lang = t("en", "zh-CN");
    document.title = t(...data.title);
    const other = el("button", { id: "language", lang: t("zh-CN", "en"), click: change_language }, t("中文", "English"));
    const dark = el("button", { id: "theme", "aria-label": t("dark or light", "深色或浅色"), click: change_theme }, "◐");
    document.body.replaceChildren(el("header", {}, el("h1", {}, document.title), dark, other), main);
    const { sections, fill } = build();
    main.append(...sections);
    update = fill;
    update();
  }
  function change_language() {
    language = language === "zh" ? "en" : "zh";
    language_and_sections();
    document.getElementById("language").focus();
  }
  function change_theme() {
    const root = document.documentElement;
    const now = root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.style.colorScheme = now === "dark" ? "light" : "dark";
    update();
  }
  language_and_sections();
}

// ---------------------------------------------------------------- numbers

/** A number with so many digits after the point. */
function number(value, digits = 4) {
  if (value === -Infinity) return "−∞";
  const shown = value.toFixed(digits);
  return Number(shown) === 0 ? shown.replace("-", "") : shown.replace("-", "−");
}
/** The same, or a power of ten where it would be only zeros. */
function small(value, digits = 4) {
  if (value === 0 || Math.abs(value) >= 0.5 * 10 ** -digits) return number(value, digits);
  const [factor, power] = value.toExponential(1).split("e-");
  return `${factor.replace("-", "−")}·10⁻${[...power].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}
/** A number without zeros at its end. */
const short = (value, digits = 4) => String(Number(value.toFixed(digits))).replace("-", "−");
const percent = (share) => `${(100 * share).toFixed(0)}%`;

const sum = (values) => values.reduce((total, value) => total + value, 0);
const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

function softmax(scores) {
  const top = Math.max(...scores);
  const parts = scores.map((score) => Math.exp(score - top));
  const total = sum(parts);
  return parts.map((part) => part / total);
}

// ---------------------------------------------------------------- a Transformer

/** rows·Wᵀ + b; W stands row by row in one list. */
function linear(rows, weight, bias = null) {
  const inputs = rows[0].length, outputs = weight.length / inputs;
  return rows.map((row) => steps(0, outputs - 1).map((o) => {
    let total = bias ? bias[o] : 0;
    for (let i = 0; i < inputs; i++) total += weight[o * inputs + i] * row[i];
    return total;
  }));
}

function layer_norm(rows, weight, bias) {
  return rows.map((row) => {
    const mean = sum(row) / row.length;
    const variance = sum(row.map((x) => (x - mean) ** 2)) / row.length;
    return row.map((x, i) => ((x - mean) / Math.sqrt(variance + 1e-5)) * weight[i] + bias[i]);
  });
}

/** x·Φ(x), with the error function by Abramowitz and Stegun, 7.1.26: 1.5e-7 at most. */
function gelu(x) {
  const z = Math.abs(x) / Math.SQRT2, s = 1 / (1 + 0.3275911 * z);
  const tail = ((((1.061405429 * s - 1.453152027) * s + 1.421413741) * s - 0.284496736) * s + 0.254829592) * s;
  return (x * (1 + Math.sign(x) * (1 - tail * Math.exp(-z * z)))) / 2;
}

const added = (rows, others) => rows.map((row, i) => row.map((x, j) => x + others[i][j]));

/** The sinusoidal encoding of a position: sine and cosine of each frequency, by turns. */
const code = (position, dim) => steps(0, dim / 2 - 1).flatMap((c) => {
  const angle = position * 10000 ** ((-2 * c) / dim);
  return [Math.sin(angle), Math.cos(angle)];
});

/** The numbers of a tensor, which are stored with 16 bits. */
function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const halves = new DataView(bytes.buffer);
  return Float64Array.from({ length: bytes.length / 2 }, (_, i) => {
    const bits = halves.getUint16(2 * i, true);
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  });
}

/** A vector whose pairs of neighbouring numbers are rotated by the angles. */
const rotated = (vector, angles) => angles.flatMap((angle, c) => {
  const [x, y, cosine, sine] = [vector[2 * c], vector[2 * c + 1], Math.cos(angle), Math.sin(angle)];
  return [x * cosine - y * sine, x * sine + y * cosine];
});

/**
 * What a stack computes of the vectors that enter it, stage by stage; rows are tokens. A model has `layers`, `heads`,
 * `width`, its `tensors` by name, and perhaps a `bias` of each head by the distance of key and query, or `angles` by
 * which each token's queries and keys are rotated. `causal` hides later tokens; heads in `silent`, by "layer.head",
 * add nothing.
 */
function passed(model, entering, { silent = {}, causal = false } = {}) {
  const { tensors, bias, angles, width, heads } = model;
  const of_head = width / heads, zero = bias ? (bias[0].length - 1) / 2 : 0, blocks = [];
  let x = entering;
  for (let layer = 0; layer < model.layers; layer++) {
    const named = (name) => tensors[`stack.blocks.${layer}.${name}`];
    const mapped = (rows, name) => linear(rows, named(`${name}.weight`), named(`${name}.bias`));
    const normed = (rows, name) => layer_norm(rows, named(`${name}.weight`), named(`${name}.bias`));
    const inside = normed(x, "attention_norm");
    const [q, k, v] = ["q", "k", "v"].map((name) => mapped(inside, `attention.${name}_proj`));
    const joined = x.map(() => []);
    const weights = steps(0, heads - 1).map((head) => {
      const part = (row) => row.slice(head * of_head, (head + 1) * of_head);
      const turned = (row, i) => (angles ? rotated(part(row), angles[i]) : part(row));
      const [queries, keys, values] = [q.map(turned), k.map(turned), v.map(part)];
      return queries.map((query, i) => {
        const row = softmax(keys.map((key, j) =>
          causal && j > i ? -Infinity : dot(query, key) * of_head ** -0.5 + (bias ? bias[head][zero + j - i] : 0)));
        const taken = values[0].map((_, c) => sum(row.map((weight, j) => weight * values[j][c])));
        joined[i].push(...(silent[`${layer}.${head}`] ? taken.map(() => 0) : taken));
        return row;
      });
    });
    const after_attention = added(x, mapped(joined, "attention.out_proj"));
    const hidden = mapped(normed(after_attention, "feed_forward_norm"), "feed_forward.up_proj").map((row) => row.map(gelu));
    x = added(after_attention, mapped(hidden, "feed_forward.down_proj"));
    blocks.push({ inside, q, k, v, weights, joined, after_attention, after_block: x });
  }
  return { blocks, normed: layer_norm(x, tensors["stack.norm.weight"], tensors["stack.norm.bias"]) };
}

/** The same of ids, to the probabilities of words; `scale` is that of the embeddings, and `sinusoidal` adds positions. */
function read(model, ids, { sinusoidal = false, ...how } = {}) {
  const { width } = model, embedding = model.tensors["embedding.weight"];
  const vectors = ids.map((id) => [...embedding.slice(id * width, (id + 1) * width)].map((x) => x * model.scale));
  const marks = ids.map((_, i) => (sinusoidal ? code(i, width) : Array(width).fill(0)));
  const entering = added(vectors, marks), { blocks, normed } = passed(model, entering, how);
  return { vectors, marks, entering, blocks, normed, probabilities: linear(normed, embedding).map(softmax) };
}

// ---------------------------------------------------------------- controls

function slider(name, label, { min, max, step, shown = short }, state) {
  const output = el("output", { "data-name": name });
  const write = () => (output.textContent = shown(state[name]));
  const input = el("input", { type: "range", id: name, min, max, step, input: () => {
    state[name] = Number(input.value);
    update();
  } });
  input.value = state[name];
  write();
  const whole = el("div", { class: "slider" }, el("label", { for: name }, label), output, input);
  whole.refresh = () => {
    input.value = state[name];
    input.setAttribute("aria-valuetext", shown(state[name]));
    write();
  };
  return whole;
}

function choice(name, label, options, state) {
  const inputs = options.map(([value, text]) => {
    const checked = state[name] === value;
    return el("label", {}, el("input", { type: "radio", name, value, checked, change: () => {
      state[name] = value;
      update();
    } }), text);
  });
  return el("div", { class: "choice", role: "radiogroup", "aria-label": label }, el("span", {}, label), ...inputs);
}

function check(name, label, state) {
  const input = el("input", { type: "checkbox", id: name, checked: state[name], change: () => {
    state[name] = input.checked;
    update();
  } });
  return el("label", { class: "check" }, input, label);
}

// ---------------------------------------------------------------- tables

/** A cell as a text, as a bar of a share, or as it is; `named` gives it a name. */
const bar = (share) => el("td", { class: "bar" }, el("i", { style: `--share: ${share}` }));
const named_in = (tag, name, text = "") => el(tag, { "data-name": name }, text);
const named = (name, text) => named_in("td", name, text);
const cells = (row) => row.map((cell) => (cell instanceof Node ? cell : el("td", {}, cell)));

function table(head, rows, foot = null, on = () => false) {
  const body = rows.map((row, i) => el("tr", { class: on(i) ? "on" : "" }, ...cells(row)));
  const parts = [
    el("thead", {}, el("tr", {}, ...head.map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, ...body),
  ];
  if (foot) parts.push(el("tfoot", {}, el("tr", {}, ...cells(foot))));
  return el("div", { class: "wide", tabindex: "0" }, el("table", {}, ...parts));
}

/** A matrix whose cells are as dark as their share of the largest; `across` and `down` are names. */
function matrix(rows, across, down, shown = (x) => number(x, 2), on = -1) {
  const top = Math.max(...rows.flat().map(Math.abs)) || 1;
  const parts = [el("span"), ...across.map((name) => el("span", { class: "name" }, name))];
  rows.forEach((row, i) => {
    parts.push(el("span", { class: "name" }, i === on ? el("b", {}, `${down[i]} ▸`) : down[i]));
    row.forEach((x, j) => {
      const share = Math.abs(x) / top;
      parts.push(el("span", { class: "cell", style: `--share: ${share}`, "data-name": `${i},${j}` }, shown(x)));
    });
  });
  const columns = `grid-template-columns: repeat(${across.length + 1}, auto)`;
  return el("div", { class: "wide", tabindex: "0" }, el("div", { class: "matrix", style: columns }, ...parts));
}

/**
 * Queries to choose from, with pointer or keyboard, above the keys, which are as dark as their weights; `fill` has the
 * words of both and a row of weights for each query. `state[name]` is the chosen query.
 */
function links(name, says, state) {
  const queries = el("div", { class: "words", role: "group", "aria-label": says }), keys = el("div", { class: "words" });
  let shown = null;
  return {
    root: el("div", {}, quiet("Queries: choose one.", "查询：选一个。"), queries, quiet("Keys, with its weights:", "键，以及它给的权重："), keys),
    fill(asking, asked, rows) {
      const words = JSON.stringify([asking, asked]);
      if (shown !== words) {
        state[name] = Math.min(state[name], asking.length - 1);
        queries.replaceChildren(...asking.map((word, i) => {
          const choose = () => {
            if (state[name] === i) return;
            state[name] = i;
            update();
          };
          return el("button", { pointerenter: choose, focus: choose, click: choose, id: `${name}-${i}` }, word);
        }));
        keys.replaceChildren(...asked.map((word, j) => el("span", { class: "token" }, el("span", {}, word), named_in("small", `${name} ${j}`))));
        shown = words;
      }
      [...queries.children].forEach((button, i) => button.setAttribute("aria-pressed", i === state[name]));
      [...keys.children].forEach((key, j) => {
        key.style.setProperty("--share", rows[state[name]][j]);
        key.lastChild.textContent = percent(rows[state[name]][j]);
      });
    },
  };
}

// ---------------------------------------------------------------- charts

const HEIGHT = 300, LEFT = 60, RIGHT = 22, TOP = 12, BOTTOM = 46;

/** An empty chart; `x` and `y` are {from, to, ticks, label}; `dragged(x)` is called where the pointer is. */
function chart(x, y, says, { dragged = null, narrow = false } = {}) {
  const WIDTH = narrow || innerWidth < 700 ? 400 : 640; // in the unit of the letters, which must not shrink on a phone
  const along = (value) => LEFT + ((value - x.from) / (x.to - x.from)) * (WIDTH - LEFT - RIGHT);
  const up = (value) => HEIGHT - BOTTOM - ((value - y.from) / (y.to - y.from)) * (HEIGHT - TOP - BOTTOM);
  const root = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": says });
  if (dragged) {
    const move = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = root.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * WIDTH;
      const value = x.from + ((at - LEFT) / (WIDTH - LEFT - RIGHT)) * (x.to - x.from);
      dragged(Math.min(x.to, Math.max(x.from, value)));
      update();
    };
    root.classList.add("drag");
    root.addEventListener("pointermove", move);
    root.addEventListener("pointerdown", (event) => {
      root.setPointerCapture(event.pointerId);
      move(event);
    });
  }
  const axes = draw("g");
  for (const tick of x.ticks) {
    axes.append(draw("line", { class: "axis", x1: along(tick), x2: along(tick), y1: TOP, y2: HEIGHT - BOTTOM }));
    axes.append(draw("text", { x: along(tick), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, (x.shown ?? short)(tick)));
  }
  for (const tick of y.ticks) {
    axes.append(draw("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: up(tick), y2: up(tick) }));
    axes.append(draw("text", { x: LEFT - 6, y: up(tick) + 4, "text-anchor": "end" }, (y.shown ?? short)(tick)));
  }
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  axes.append(draw("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, x.label));
  axes.append(draw("text", { "text-anchor": "middle", transform: `translate(15 ${middle}) rotate(-90)` }, y.label));
  const inside = draw("g");
  root.append(axes, inside);
  return {
    root,
    /** Draws anew: lines [class, points], dots [class, x, y], bars [x, width, height] and a guide at x. */
    fill({ lines = [], dots = [], bars = [], guide = null }) {
      const parts = bars.map(([at, width, height]) => {
        const [begin, end] = [along(at), along(at + width)];
        return draw("rect", { class: "bar", x: begin, width: end - begin, y: up(height), height: up(y.from) - up(height) });
      });
      if (guide !== null)
        parts.push(draw("line", { class: "guide", x1: along(guide), x2: along(guide), y1: TOP, y2: HEIGHT - BOTTOM }));
      for (const [kind, points] of lines) {
        const path = points.map(([a, b]) => `${along(a).toFixed(1)},${up(b).toFixed(1)}`).join(" ");
        parts.push(draw("polyline", { class: kind, points: path }));
      }
      for (const [kind, a, b] of dots) parts.push(draw("circle", { class: kind, cx: along(a), cy: up(b), r: kind === "now" ? 8 : 5 }));
      inside.replaceChildren(...parts);
    },
  };
}

/** Whole steps from one number to another. */
const steps = (from, to, by = 1) => Array.from({ length: Math.round((to - from) / by) + 1 }, (_, i) => from + i * by);

const section = (title, ...parts) => el("section", {}, el("h2", {}, title), ...parts);
const text = (en, zh) => el("p", {}, t(en, zh));
const quiet = (en, zh) => el("p", { class: "quiet" }, t(en, zh));
