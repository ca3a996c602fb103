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

let views = 0;

/** The report of a model as a source, and what ends its listening. */
export function sourceOf(model: Model): { source: Source; close: () => void } {
  const report = JSON.parse(model.get("report")) as Report;
  const view = ++views;
  const waiting = new Map<number, { resolve: (bytes: Uint8Array) => void; reject: (error: Error) => void }>();
  let questions = 0;
  // Several views of one widget hear all replies: each knows its own questions.
  const number = () => view * 2 ** 32 + ++questions;
  const listener = ({ reply, error }: Reply, [buffer]: DataView[]) => {
    const question = waiting.get(reply);
    waiting.delete(reply);
    if (error !== undefined || !buffer) question?.reject(new Error(error));
    else question?.resolve(new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength));
  };
  model.on("msg:custom", listener);
  const ask = (question: Question | { what: "chunk"; id: string }) =>
    new Promise<Uint8Array>((resolve, reject) => {
      const ask = number();
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
