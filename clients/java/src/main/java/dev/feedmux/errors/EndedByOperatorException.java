package dev.feedmux.errors;

/** An operator ended the session. It may be opened again. */
public class EndedByOperatorException extends AbortedException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public EndedByOperatorException(Failure failure) {
        super(failure);
    }
}
