package dev.feedmux.errors;

/** The credentials do not cover this namespace or method. */
public class PermissionDeniedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public PermissionDeniedException(Failure failure) {
        super(failure);
    }
}
