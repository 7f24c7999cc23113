package dev.feedmux.errors;

import dev.feedmux.Place;
import org.jspecify.annotations.Nullable;

/** The feed ended with an invalidate (drop, rename, dropDatabase). */
public class FeedInvalidatedException extends FailedPreconditionException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public FeedInvalidatedException(Failure failure) {
        super(failure);
    }

    /** The last place of the session: a start there, or after its resume token, goes on behind the invalidate. */
    public final @Nullable Place place() {
        return failure().place();
    }
}
