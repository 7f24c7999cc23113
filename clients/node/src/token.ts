/** API keys and tokens as they are sent, and functions that give them. */

import { UnavailableError } from "./errors.js";

/** A token, or a function that returns a fresh one and is called before every call. */
export type Token = string | (() => string | Promise<string>);

/**
 * Without the white space around it: a key read from a file ends with a newline. Throws TypeError, which does not quote it.
 */
export function cleanToken(text: unknown): string {
  if (typeof text !== "string") {
    throw new TypeError("the API key or token is not a string");
  }
  const token = text.replace(/^[ \t\r\n]+|[ \t\r\n]+$/g, "");
  if (!/^[!-~]+$/.test(token)) {
    throw new TypeError(
      `the API key or token ${token === "" ? "is empty" : "has characters other than visible ASCII"}`,
    );
  }
  return token;
}

/** How many calls of a token function may run at the same time: those that never return would pile up. */
const CALLS_MAX = 16;
/** How long another call may wait for one of these. */
const WAIT_MS = 30_000;

/** The calls of a function that gives tokens. */
export class TokenCalls {
  readonly #token: () => string | Promise<string>;
  #running = 0;
  readonly #waiting = new Set<() => void>();

  constructor(token: () => string | Promise<string>) {
    this.#token = token;
  }

  /** A new token. Throws UnavailableError where the function fails: a token that cannot be had now may be had later. */
  async fresh(): Promise<string> {
    if (this.#running >= CALLS_MAX) {
      await this.#turn();
    } else {
      this.#running++;
    }
    try {
      return cleanToken(await this.#token());
    } catch (error) {
      const words = error instanceof Error ? error.message : "it threw a value that is not an Error";
      throw new UnavailableError(`the token function failed: ${words}`, { cause: error });
    } finally {
      const [next] = this.#waiting;
      if (next === undefined) {
        this.#running--;
      } else {
        next();
      }
    }
  }

  /** Waits until another call has returned, and takes its place. */
  async #turn(): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(begin);
        const text = `${String(CALLS_MAX)} calls of the token function have not returned`;
        reject(new UnavailableError(text, { status: "DEADLINE_EXCEEDED" }));
      }, WAIT_MS);
      const begin = (): void => {
        this.#waiting.delete(begin);
        clearTimeout(timer);
        resolve();
      };
      this.#waiting.add(begin);
    });
  }
}
