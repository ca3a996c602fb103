/** Codes of the file, and what they stand for. */

/** A weight of 16 bits: 0 is exactly 0, any other code c is 2^((c - 65535) / 2048). */
export const WEIGHTS = Float32Array.from({ length: 65536 }, (_, code) => (code === 0 ? 0 : 2 ** ((code - 65535) / 2048)));

/** A cell of a map in 8 bits: 0 is hidden by the mask, any other code c is 2^((c - 255) / 10). */
export const CELLS = Float32Array.from({ length: 256 }, (_, code) => (code === 0 ? 0 : 2 ** ((code - 255) / 10)));

/** Two codes of 12 bits in three bytes, as integers from -2048 to 2047. */
export function unpack12(bytes: Uint8Array, count: number): Int16Array {
  const codes = new Int16Array(count);
  for (let i = 0, at = 0; i < count; i += 2, at += 3) {
    codes[i] = (bytes[at]! | ((bytes[at + 1]! & 15) << 8)) - 2048;
    if (i + 1 < count) codes[i + 1] = ((bytes[at + 1]! >> 4) | (bytes[at + 2]! << 4)) - 2048;
  }
  return codes;
}

/** The bytes of a chunk: base64 of zlib. */
export async function inflate(base64: string): Promise<Uint8Array> {
  const letters = atob(base64.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
