package dev.feedmux.errors;

/** The session lost its subscription. Metadata: {@code cause}. */
public class FencedException extends AbortedException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public FencedException(Failure failure) {
        super(failure);
    }
}
