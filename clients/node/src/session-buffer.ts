/**
 * What waits between the network's side of a session and the user's. The credit window is its bound, and of notices that
 * say the same, only the newest waits.
 */

import type { Batch } from "./batches.js";
import { type Notice, topic } from "./notices.js";

export type Item = { readonly batch: Batch } | { readonly notice: Notice };

/** Whether it is the end of a copy. */
function isCompletion(item: Item): boolean {
  return "notice" in item && item.notice.kind === "snapshotComplete";
}

/** A queue with an end. */
export class SessionBuffer {
  #items: Item[] = [];
  #ended: { readonly error: Error | undefined } | undefined;
  /** The end of a copy was dropped before it was taken, and another one is to come. */
  #isCompletionDue = false;
  readonly #waiting = new Set<() => void>();

  /** Set when nothing comes any more; `error` is undefined after a close. The first end counts. */
  get ended(): { readonly error: Error | undefined } | undefined {
    return this.#ended;
  }

  get isEmpty(): boolean {
    return this.#items.length === 0;
  }

  put(item: Item): void {
    const told = "notice" in item ? topic(item.notice) : undefined;
    if (told !== undefined) {
      const lastBatch = this.#items.findLastIndex((each) => "batch" in each);
      this.#items = this.#items.filter(
        (each, index) => index < lastBatch || !("notice" in each) || topic(each.notice) !== told,
      );
    }
    this.#items.push(item);
    this.#wake();
  }

  end(error: Error | undefined): void {
    this.#ended ??= { error };
    this.#wake();
  }

  get(): Item | undefined {
    const item = this.#items.shift();
    if (item !== undefined && isCompletion(item)) {
      this.#isCompletionDue = false;
    }
    return item;
  }

  /** Whether the end of a copy waits. */
  get hasCompletion(): boolean {
    return this.#items.some(isCompletion);
  }

  /** Whether the end of a copy has come that nobody has taken. */
  get owesCompletion(): boolean {
    return this.#isCompletionDue || this.hasCompletion;
  }

  /**
   * Drops what former streams said of how far a copy is. A new stream says it again, if it is within a copy, and the
   * documents come again before another end. Outside, a notice before documents stays, because it tells of which copy
   * they are.
   */
  beginStream(withinCopy: boolean): void {
    this.#isCompletionDue = withinCopy && this.owesCompletion;
    if (withinCopy) {
      this.#dropCompletion();
    }
    const lastDocuments = withinCopy ? -1 : this.#items.findLastIndex((item) => "batch" in item && item.batch.snapshot);
    this.#items = this.#items.filter(
      (item, index) => index < lastDocuments || !("notice" in item && item.notice.kind === "snapshotProgress"),
    );
  }

  /** Takes back the batches that nobody has taken; notices stay, but for the end of a copy. */
  withdraw(): Batch[] {
    this.#dropCompletion();
    this.#isCompletionDue = false;
    const batches = this.#items.flatMap((item) => ("batch" in item ? [item.batch] : []));
    this.#items = this.#items.filter((item) => "notice" in item);
    return batches;
  }

  /** Resolves when something has come or the end. Rejects with the signal's reason; nothing is lost then. */
  async arrival(signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        this.#waiting.delete(wake);
        signal?.removeEventListener("abort", abort);
      };
      const wake = (): void => {
        leave();
        resolve();
      };
      const abort = (): void => {
        leave();
        reject(signal?.reason as Error);
      };
      this.#waiting.add(wake);
      signal?.addEventListener("abort", abort);
    });
  }

  #dropCompletion(): void {
    this.#items = this.#items.filter((item) => !isCompletion(item));
  }

  #wake(): void {
    for (const wake of [...this.#waiting]) {
      wake();
    }
  }
}
