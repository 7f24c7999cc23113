package dev.feedmux.errors;

/** An operator ended the session. It may be opened again. */
public class EndedByOperatorException extends AbortedException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public EndedByOperatorException(Failure failure) {
        super(failure);
    }
}
