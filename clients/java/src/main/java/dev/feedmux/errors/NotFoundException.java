package dev.feedmux.errors;

/** There is no such thing. */
public class NotFoundException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public NotFoundException(Failure failure) {
        super(failure);
    }
}
