package dev.feedmux.errors;

/** The session lost its subscription. Metadata: {@code cause}. */
public class FencedException extends AbortedException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public FencedException(Failure failure) {
        super(failure);
    }
}
