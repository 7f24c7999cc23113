package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import org.jspecify.annotations.Nullable;

/** An entry that the connection passes to the user's side, in order. */
sealed interface Entry {
    /** Events. */
    record Events(Batch batch) implements Entry {}

    /** A notice, in order among the batches. */
    record QueuedNotice(Notice notice) implements Entry {}

    /** The end: no entry follows. {@code error} is null after a close. */
    record Ended(@Nullable FeedmuxException error) implements Entry {}
}
