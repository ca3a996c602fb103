/** A report in a notebook, whose kernel answers what the page would hold (anywidget). */

import { inflate } from "./codes";
import type { Question, Report, Source } from "./format";

/** What anywidget gives of the model of a widget. */
export interface Model {
  get(name: "report" | "height"): string;
  send(message: unknown): void;
  on(event: "msg:custom", listener: (message: Reply, buffers: DataView[]) => void): void;
  off(event: "msg:custom", listener: (message: Reply, buffers: DataView[]) => void): void;
}

interface Reply {
  reply: number;
  error?: string;
}

/** The report of a model as a source, and what ends its listening. */
export function sourceOf(model: Model): { source: Source; close: () => void } {
  const report = JSON.parse(model.get("report")) as Report;
  const waiting = new Map<number, { resolve: (bytes: Uint8Array) => void; reject: (error: Error) => void }>();
  // All views of a widget hear all replies, those in other windows and before a page was loaded again too. Each has to
  // know its own questions, so that their numbers begin at random.
  let questions = Math.floor(Math.random() * 2 ** 52);
  const listener = ({ reply, error }: Reply, [buffer]: DataView[]) => {
    const question = waiting.get(reply);
    waiting.delete(reply);
    if (error !== undefined || !buffer) question?.reject(new Error(error));
    else question?.resolve(new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength));
  };
  model.on("msg:custom", listener);
  const ask = (question: Question | { what: "chunk"; id: string }) =>
    new Promise<Uint8Array>((resolve, reject) => {
      const ask = ++questions;
      waiting.set(ask, { resolve, reject });
      model.send({ ...question, ask });
    });
  return {
    source: {
      report,
      chunk: async (id) => inflate(await ask({ what: "chunk", id })),
      ask: async (question) => new Float32Array((await ask(question)).slice().buffer),
    },
    close: () => model.off("msg:custom", listener),
  };
}
