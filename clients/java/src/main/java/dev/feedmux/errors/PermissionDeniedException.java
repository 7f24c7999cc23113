package dev.feedmux.errors;

/** The credentials do not cover this namespace or method. */
public class PermissionDeniedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public PermissionDeniedException(Failure failure) {
        super(failure);
    }
}
