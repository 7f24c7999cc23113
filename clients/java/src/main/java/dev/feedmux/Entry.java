package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import org.jspecify.annotations.Nullable;

/** What the runner hands over to the user's side, in order. */
sealed interface Entry {
    /** Events. */
    record Events(Batch batch) implements Entry {}

    /** A notice at its place among the batches. */
    record Said(Notice notice) implements Entry {}

    /** Nothing comes any more. {@code error} is null after a close. */
    record Ended(@Nullable FeedmuxException error) implements Entry {}
}
