/** Products of a coded vector with many others: with the processor's vectors of integers where the page may use them. */

/** Writes the products of vector `index` of one side with vectors `from` to `to` of the other; valid until the next call. */
export interface Products {
  ofQuery(index: number, from: number, to: number): Int32Array;
  ofKey(index: number, from: number, to: number): Int32Array;
}

/** Codes have 12 bits, so that 32 bits hold the sum for any width up to 512. Both ways give the same integers. */
export function products(queries: Int16Array, keys: Int16Array, width: number): Products {
  return (width % 8 === 0 && vectorized(queries, keys, width)) || plain(queries, keys, width);
}

function plain(queries: Int16Array, keys: Int16Array, width: number): Products {
  const results = new Int32Array(Math.max(queries.length, keys.length) / width);
  const multiply = (vectors: Int16Array, index: number, others: Int16Array, from: number, to: number) => {
    for (let other = from; other < to; other++) {
      let [even, odd] = [0, 0];
      for (let i = index * width, j = other * width, end = i + width; i < end; i += 2, j += 2) {
        even = (even + Math.imul(vectors[i]!, others[j]!)) | 0;
        odd = (odd + Math.imul(vectors[i + 1]!, others[j + 1]!)) | 0;
      }
      results[other - from] = even + odd;
    }
    return results.subarray(0, to - from);
  };
  return {
    ofQuery: (index, from, to) => multiply(queries, index, keys, from, to),
    ofKey: (index, from, to) => multiply(keys, index, queries, from, to),
  };
}

type Dots = (vector: number, matrix: number, bytes: number, count: number, results: number) => void;

function vectorized(queries: Int16Array, keys: Int16Array, width: number): Products | null {
  let exports: { memory: WebAssembly.Memory; dots: Dots };
  try {
    exports = new WebAssembly.Instance(new WebAssembly.Module(DOTS)).exports as typeof exports;
  } catch {
    return null; // no WebAssembly, no vectors in it, or a policy of the page against it
  }
  const { memory, dots } = exports;
  const place = { keys: queries.byteLength, results: queries.byteLength + keys.byteLength };
  const most = Math.max(queries.length, keys.length) / width;
  memory.grow(Math.ceil((place.results + 4 * most) / 65536));
  new Int16Array(memory.buffer, 0, queries.length).set(queries);
  new Int16Array(memory.buffer, place.keys, keys.length).set(keys);
  const bytes = 2 * width;
  const multiply = (vector: number, matrix: number, count: number) => {
    if (count > 0) dots(vector, matrix, bytes, count, place.results);
    return new Int32Array(memory.buffer, place.results, Math.max(count, 0));
  };
  return {
    ofQuery: (index, from, to) => multiply(index * bytes, place.keys + from * bytes, to - from),
    ofKey: (index, from, to) => multiply(place.keys + index * bytes, from * bytes, to - from),
  };
}

/**
 * dots(vector, matrix, bytes, count, results): each result is the product of the vector with one row of the matrix.
 * A row has `bytes` bytes, a multiple of 16; `count` is at least one.
 */
const DOTS = new Uint8Array([
  ...[0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00],
  ...[0x01, 0x09, 0x01, 0x60, 0x05, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x00], // one type: five integers, no result
  ...[0x03, 0x02, 0x01, 0x00], // one function of it
  ...[0x05, 0x03, 0x01, 0x00, 0x01], // a memory of one page, which grows
  ...[0x07, 0x11, 0x02, 0x06, 0x6d, 0x65, 0x6d, 0x6f, 0x72, 0x79, 0x02, 0x00], // export "memory"
  ...[0x04, 0x64, 0x6f, 0x74, 0x73, 0x00, 0x00], // and "dots"
  ...[0x0a, 0x73, 0x01, 0x71], // one body
  ...[0x02, 0x01, 0x7f, 0x01, 0x7b], // locals: 5 at, an integer; 6 sum, four integers
  ...[0x03, 0x40], // loop over rows
  ...[0x41, 0x00, 0xfd, 0x11, 0x21, 0x06], //   sum = (0, 0, 0, 0)
  ...[0x41, 0x00, 0x21, 0x05], //   at = 0
  ...[0x03, 0x40], //   loop over eight codes at a time
  ...[0x20, 0x06], //     sum
  ...[0x20, 0x00, 0x20, 0x05, 0x6a, 0xfd, 0x00, 0x00, 0x00], //     load vector + at
  ...[0x20, 0x01, 0x20, 0x05, 0x6a, 0xfd, 0x00, 0x00, 0x00], //     load matrix + at
  ...[0xfd, 0xba, 0x01, 0xfd, 0xae, 0x01, 0x21, 0x06], //     sum += i32x4.dot_i16x8_s
  ...[0x20, 0x05, 0x41, 0x10, 0x6a, 0x22, 0x05], //     at += 16
  ...[0x20, 0x02, 0x49, 0x0d, 0x00, 0x0b], //     again while at < bytes
  ...[0x20, 0x04], //   results
  ...[0x20, 0x06, 0xfd, 0x1b, 0x00, 0x20, 0x06, 0xfd, 0x1b, 0x01, 0x6a], //   the four parts of sum
  ...[0x20, 0x06, 0xfd, 0x1b, 0x02, 0x6a, 0x20, 0x06, 0xfd, 0x1b, 0x03, 0x6a],
  ...[0x36, 0x02, 0x00], //   store
  ...[0x20, 0x04, 0x41, 0x04, 0x6a, 0x21, 0x04], //   results += 4
  ...[0x20, 0x01, 0x20, 0x02, 0x6a, 0x21, 0x01], //   matrix += bytes
  ...[0x20, 0x03, 0x41, 0x01, 0x6b, 0x22, 0x03, 0x0d, 0x00, 0x0b], //   again while --count
  ...[0x0b],
]);
