package dev.feedmux.errors;

/** MongoDB rejected the pipeline or an option. Metadata: {@code code}, {@code code_name}, {@code labels}. */
public class OptionRefusedException extends InvalidArgumentException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public OptionRefusedException(Failure failure) {
        super(failure);
    }
}
