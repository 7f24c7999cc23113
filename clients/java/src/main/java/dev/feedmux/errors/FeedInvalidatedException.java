package dev.feedmux.errors;

import dev.feedmux.FeedPosition;
import org.jspecify.annotations.Nullable;

/** The feed ended with an invalidate event (drop, rename, dropDatabase). */
public class FeedInvalidatedException extends FailedPreconditionException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public FeedInvalidatedException(Failure failure) {
        super(failure);
    }

    /**
     * Returns the last position of the session. A session that starts after it, or after its resume token, continues
     * after the invalidate event.
     */
    public final @Nullable FeedPosition feedPosition() {
        return failure().feedPosition();
    }
}
