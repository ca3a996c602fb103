/** What is seen, as SVG, PNG or CSV. */

import type { State } from "./state";
import { Remote } from "./remote";
import { largest } from "./weights";

const SVG = "http://www.w3.org/2000/svg";

/** The visible text, colours and pictures of an element as one SVG. */
export function svgOf(root: HTMLElement): string {
  const frame = root.getBoundingClientRect();
  const image = document.createElementNS(SVG, "svg");
  set(image, { xmlns: SVG, width: frame.width, height: frame.height, viewBox: `0 0 ${frame.width} ${frame.height}` });
  const add = (tag: string, attributes: Record<string, string | number>, text?: string) => {
    const element = document.createElementNS(SVG, tag);
    set(element, attributes);
    if (text !== undefined) element.textContent = text;
    image.append(element);
  };
  add("rect", { width: "100%", height: "100%", fill: getComputedStyle(root.closest(".headway")!).backgroundColor });
  const visit = (node: Node) => {
    if (node instanceof Text) {
      for (const { text, box } of lines(node)) {
        const style = getComputedStyle(node.parentElement!);
        const right = style.direction === "rtl";
        add(
          "text",
          {
            x: (right ? box.right : box.left) - frame.left,
            y: box.top - frame.top + box.height / 2,
            fill: style.color,
            "font-family": style.fontFamily,
            "font-size": style.fontSize,
            "font-weight": style.fontWeight,
            "dominant-baseline": "central",
            direction: style.direction,
            "xml:space": "preserve",
          },
          text,
        );
      }
      return;
    }
    if (!(node instanceof Element)) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden" || node.matches(".controls .row, label, .hint")) return;
    const box = node.getBoundingClientRect();
    const place = { x: box.left - frame.left, y: box.top - frame.top, width: box.width, height: box.height };
    if (node instanceof HTMLCanvasElement) {
      if (node.width > 1) add("image", { ...place, href: node.toDataURL("image/png") });
      if (style.outlineStyle !== "none") add("rect", { ...place, fill: "none", stroke: style.outlineColor, "stroke-width": 2 });
      return;
    }
    if (node instanceof SVGElement) {
      const copy = node.cloneNode(true) as SVGElement;
      set(copy, place);
      inline(node, copy);
      image.append(copy);
      return;
    }
    if (!/rgba\(.*, 0\)|transparent/.test(style.backgroundColor)) {
      for (const part of node.getClientRects()) {
        const at = { x: part.left - frame.left, y: part.top - frame.top, width: part.width, height: part.height };
        add("rect", { ...at, rx: 3, fill: style.backgroundColor });
      }
    }
    const line = parseFloat(style.borderBottomWidth);
    if (line > 0 && node.matches("[data-token], .token, .from")) {
      add("rect", { ...place, y: place.y + place.height - line, height: line, fill: style.borderBottomColor });
    }
    if (style.outlineStyle !== "none" && !node.matches(":focus")) {
      add("rect", { ...place, rx: 3, fill: "none", stroke: style.outlineColor, "stroke-width": 2 });
    }
    node.childNodes.forEach(visit);
  };
  visit(root);
  return new XMLSerializer().serializeToString(image);
}

function set(element: Element, attributes: Record<string, string | number>): void {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
}

/** Writes the colours that come from style sheets into a copy. */
function inline(from: Element, to: Element): void {
  const style = getComputedStyle(from);
  for (const name of ["fill", "stroke", "stroke-width", "opacity", "font-size", "font-family"]) {
    to.setAttribute(name, style.getPropertyValue(name));
  }
  Array.from(from.children).forEach((child, i) => inline(child, to.children[i]!));
}

/** The lines into which a text is broken on the screen. */
function lines(node: Text): { text: string; box: DOMRect }[] {
  const range = document.createRange();
  range.selectNodeContents(node);
  const boxes = range.getClientRects();
  if (boxes.length === 0 || !node.data.trim()) return [];
  if (boxes.length === 1) return [{ text: node.data, box: boxes[0]! }];
  const found: { text: string; box: DOMRect }[] = [];
  let start = 0;
  for (const letter of node.data) {
    range.setStart(node, start);
    range.setEnd(node, (start += letter.length));
    const box = range.getClientRects()[0];
    const last = found.at(-1);
    if (!box) continue;
    if (last && Math.abs(last.box.top - box.top) < 2) {
      last.text += letter;
      last.box = new DOMRect(last.box.left, last.box.top, box.right - last.box.left, box.height);
    } else found.push({ text: letter, box: DOMRect.fromRect(box) });
  }
  return found;
}

export async function pngOf(svg: string, scale = 2): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width * scale, image.height * scale];
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(blob!), "image/png"));
}

type Row = (string | number | null)[];

/** The numbers behind the view, as a table. */
export async function csvOf(state: State): Promise<string> {
  const rows = await tableOf(state);
  const cell = (value: string | number | null) => {
    const text = value === null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join()).join("\r\n") + "\r\n";
}

async function tableOf(state: State): Promise<Row[]> {
  const { text, report } = state;
  const known = state.known.peek();
  const head = report.heads[known?.head ?? state.head.peek()]!; // another may be loading
  const name = (token: number) => text.name(token);
  if (state.view.peek() === "roles") {
    const rows = report.heads.flatMap(({ layer, head, roles }) =>
      roles.map((r): Row => [layer, head, r.role, r.candidate, r.figure, r.low, r.high, r.baseline, r.cases]),
    );
    return [["layer", "head", "role", "candidate", "figure", "low", "high", "baseline", "cases"], ...rows];
  }
  if (state.view.peek() === "profiles") {
    const { bins, n } = report;
    const profile = known?.profile;
    const rows = Array.from({ length: profile ? bins : 0 }, (_, bin): Row => {
      const [first, past] = [Math.ceil((bin * n) / bins), Math.ceil(((bin + 1) * n) / bins)];
      return [first, past - 1, name(first), profile!.entropy[bin]!, profile!.largest[bin]!, profile!.received[bin]!];
    });
    return [["first_token", "last_token", "text", "entropy", "largest", "received"], ...rows];
  }
  const pairs: Row[] = [];
  const weights = known?.weights;
  const line = (what: "row" | "column", token: number) =>
    weights instanceof Remote ? weights.load(what, token) : weights?.[what](token);
  const add = (query: number, key: number, weight: number) =>
    pairs.push([head.layer, head.head, query, name(query), key, name(key), weight]);
  const kept = state.token.peek();
  if (weights && state.view.peek() === "explore" && kept !== null) {
    for (const [key, weight] of largest(await line("row", kept), text.length)) add(kept, key, weight);
    for (const [query, weight] of largest(await line("column", kept), text.length)) if (query !== kept) add(query, kept, weight);
  } else if (weights) {
    const { query, key, span } = state.window.peek();
    const last = (edge: number) => Math.min(text.length, Math.ceil(edge + span));
    for (let i = Math.floor(query); i < last(query); i++) {
      for (const [j, weight] of largest(await line("row", i), span > 512 ? 8 : text.length)) {
        if (j >= Math.floor(key) && j < last(key)) add(i, j, weight);
      }
    }
  }
  return [["layer", "head", "query", "query_text", "key", "key_text", "weight"], ...pairs];
}

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
