package dev.feedmux.errors;

/** A position cannot be decoded, or belongs to another tenant, source or scope. */
public class PositionInvalidException extends InvalidArgumentException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public PositionInvalidException(Failure failure) {
        super(failure);
    }
}
