/**
 * SHA-256 of a file, read piece by piece. `crypto.subtle` wants the whole file in memory, and is absent from pages that come by plain HTTP
 * from another host. Source: FIPS 180-4, section 6.2.
 */

const primes = firstPrimes(64);
const K = Int32Array.from(primes, (p) => fraction(Math.cbrt(p)));
const INITIAL = Uint32Array.from(primes.slice(0, 8), (p) => fraction(Math.sqrt(p)));

/** The bytes that are read from a file at a time. */
const PIECE = 4 << 20;

function firstPrimes(count: number): number[] {
  const found: number[] = [];
  for (let n = 2; found.length < count; n++) if (found.every((p) => n % p !== 0)) found.push(n);
  return found;
}

function fraction(x: number): number {
  return Math.floor((x - Math.floor(x)) * 2 ** 32);
}

const words = new Int32Array(64);

/** Mixes a block of 64 bytes into the state. */
function compress(state: Uint32Array, bytes: Uint8Array, at: number): void {
  const w = words;
  for (let i = 0; i < 16; i++, at += 4) {
    w[i] = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
  }
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15]!;
    const y = w[i - 2]!;
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
  }
  let a = state[0]! | 0, b = state[1]! | 0, c = state[2]! | 0, d = state[3]! | 0;
  let e = state[4]! | 0, f = state[5]! | 0, g = state[6]! | 0, h = state[7]! | 0;
  for (let i = 0; i < 64; i++) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i]! + w[i]!) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  state[0]! += a;
  state[1]! += b;
  state[2]! += c;
  state[3]! += d;
  state[4]! += e;
  state[5]! += f;
  state[6]! += g;
  state[7]! += h;
}

export class Sha256 {
  readonly #state = INITIAL.slice();
  readonly #pending = new Uint8Array(64);
  #pendingLength = 0;
  #length = 0;

  update(bytes: Uint8Array): this {
    this.#length += bytes.length;
    let at = 0;
    if (this.#pendingLength > 0) {
      at = Math.min(64 - this.#pendingLength, bytes.length);
      this.#pending.set(bytes.subarray(0, at), this.#pendingLength);
      this.#pendingLength += at;
      if (this.#pendingLength < 64) return this;
      compress(this.#state, this.#pending, 0);
      this.#pendingLength = 0;
    }
    for (; at + 64 <= bytes.length; at += 64) compress(this.#state, bytes, at);
    this.#pending.set(bytes.subarray(at));
    this.#pendingLength = bytes.length - at;
    return this;
  }

  /** Returns the digest in hexadecimal digits. The object is used up. */
  hex(): string {
    const bits = this.#length * 8;
    // One bit, zeros, and the length in the last eight bytes of a block.
    const rest = (this.#length + 9) % 64;
    const padding = new Uint8Array(9 + (rest === 0 ? 0 : 64 - rest));
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    return Array.from(this.#state, (word) => word.toString(16).padStart(8, "0")).join("");
  }
}

/** Returns the digest of a file as the API writes it, with its progress from 0 to 1. */
export async function digestOf(file: Blob, progress: (done: number) => void): Promise<string> {
  const hash = new Sha256();
  for (let at = 0; at < file.size; at += PIECE) {
    hash.update(new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer()));
    progress(Math.min(1, (at + PIECE) / file.size));
  }
  return `sha256:${hash.hex()}`;
}
