package dev.feedmux.errors;

/** MongoDB refused the pipeline or an option. Metadata: {@code code}, {@code code_name}, {@code labels}. */
public class OptionRefusedException extends InvalidArgumentException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public OptionRefusedException(Failure failure) {
        super(failure);
    }
}
