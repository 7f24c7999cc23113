package dev.feedmux.errors;

/** A place that cannot be read; {@link #reason()} says why. */
public class OutOfRangeException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public OutOfRangeException(Failure failure) {
        super(failure);
    }
}
