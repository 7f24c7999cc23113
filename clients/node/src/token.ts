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

/** Throws UnavailableError where the function fails: a token that cannot be had now may be had later. */
export async function freshToken(token: () => string | Promise<string>): Promise<string> {
  try {
    return cleanToken(await token());
  } catch (error) {
    const words = error instanceof Error ? error.message : "it threw a value that is not an Error";
    throw new UnavailableError(`the token function failed: ${words}`, { cause: error });
  }
}
