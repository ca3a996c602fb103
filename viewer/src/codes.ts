/** Codes of the file, and what they stand for. */

/** What codes stand for where 0 is nothing, 1 is no number, and any other code c is 2^((c - zero) / steps). */
function powers(count: number, zero: number, steps: number): Float32Array {
  const numbers = new Float32Array(count);
  for (let code = 2; code < count; code++) numbers[code] = 2 ** ((code - zero) / steps);
  numbers[1] = NaN;
  return numbers;
}

/** A weight of 16 bits: 0 is hidden by the mask, 2 is too small to be told from 0. */
export const WEIGHTS = powers(65536, 65535, 2048);
WEIGHTS[2] = 0;

/** A cell of a map, of 8 bits: 0 is hidden by the mask. */
export const CELLS = powers(256, 255, 10);

/** What the keys of a bin receive, of 16 bits. */
export const RECEIVED = powers(65536, 32768, 1024);

/** Bytes that are read one array after the other. */
export class Reader {
  private at = 0;

  constructor(private readonly bytes: Uint8Array) {}

  skip(count: number): void {
    this.at += count;
  }

  uint8(count: number): Uint8Array {
    return this.bytes.subarray(this.at, (this.at += count));
  }

  uint16(count: number): Uint16Array {
    return new Uint16Array(this.copy(2 * count));
  }

  int32(count: number): Int32Array {
    return new Int32Array(this.copy(4 * count));
  }

  float32(count: number): Float32Array {
    return new Float32Array(this.copy(4 * count));
  }

  /** Whole numbers, of which all low bytes come first. */
  planes(count: number, width = 2): Uint32Array {
    const bytes = this.uint8(count * width);
    const numbers = new Uint32Array(count);
    for (let plane = 0; plane < width; plane++) {
      const [from, shift] = [plane * count, 8 * plane];
      for (let i = 0; i < count; i++) numbers[i]! |= bytes[from + i]! << shift;
    }
    return numbers;
  }

  /** Two codes of 12 bits in three bytes, as integers from -2047 to 2047. */
  codes12(count: number): Int16Array {
    const bytes = this.uint8((count * 3) / 2);
    const codes = new Int16Array(count);
    for (let i = 0, at = 0; i < count; i += 2, at += 3) {
      codes[i] = (bytes[at]! | ((bytes[at + 1]! & 15) << 8)) - 2048;
      codes[i + 1] = ((bytes[at + 1]! >> 4) | (bytes[at + 2]! << 4)) - 2048;
    }
    return codes;
  }

  /** Typed arrays need their bytes aligned. */
  private copy(count: number): ArrayBuffer {
    return this.uint8(count).slice().buffer;
  }
}

/** The bytes that base64 stands for. */
export function decoded(base64: string): Uint8Array<ArrayBuffer> {
  const letters = atob(base64.trim());
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** The bytes of a chunk, which are compressed by zlib. */
export async function inflate(packed: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([packed as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
