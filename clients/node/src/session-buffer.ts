/** What waits between the network's side of a session and the user's. It has no bound of its own: the credit window is it. */

import type { Batch } from "./batches.js";
import type { Notice } from "./notices.js";

export type Item = { readonly batch: Batch } | { readonly notice: Notice };

/** A queue with an end. */
export class SessionBuffer {
  #items: Item[] = [];
  #ended: { readonly error: Error | undefined } | undefined;
  readonly #waiting = new Set<() => void>();

  /** Set when nothing comes any more; `error` is undefined after a close. The first end counts. */
  get ended(): { readonly error: Error | undefined } | undefined {
    return this.#ended;
  }

  get isEmpty(): boolean {
    return this.#items.length === 0;
  }

  put(item: Item): void {
    this.#items.push(item);
    this.#wake();
  }

  end(error: Error | undefined): void {
    this.#ended ??= { error };
    this.#wake();
  }

  get(): Item | undefined {
    return this.#items.shift();
  }

  /** Whether a notice of this kind waits. */
  has(kind: Notice["kind"]): boolean {
    return this.#items.some((item) => "notice" in item && item.notice.kind === kind);
  }

  /** Drops the end of a copy that nobody has taken: its documents are forgotten, or come again before another end. */
  dropCompletion(): void {
    this.#items = this.#items.filter((item) => !("notice" in item && item.notice.kind === "snapshotComplete"));
  }

  /**
   * Drops what former streams said of how far a copy is. A new stream says it anew, if it is within a copy. Outside, a
   * notice before documents stays, because it tells of which copy they are.
   */
  dropProgress(withinCopy: boolean): void {
    const lastDocuments = withinCopy ? -1 : this.#items.findLastIndex((item) => "batch" in item && item.batch.snapshot);
    this.#items = this.#items.filter(
      (item, index) => index < lastDocuments || !("notice" in item && item.notice.kind === "snapshotProgress"),
    );
  }

  /** Takes back the batches that nobody has taken; notices stay, but for the end of a copy. */
  withdraw(): Batch[] {
    this.dropCompletion();
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

  #wake(): void {
    for (const wake of [...this.#waiting]) {
      wake();
    }
  }
}
