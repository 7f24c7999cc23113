package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.FencedException;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.errors.UnauthenticatedException;
import io.grpc.Status.Code;
import java.util.EnumSet;
import java.util.Set;

/** Which errors a session survives. */
final class Recovery {
    /** What to do about an error. */
    enum Step {
        /** Open again behind the last acked event. */
        REOPEN,
        /** Open again where the stored position now stands; forget what is unacked. */
        REOPEN_AT_STORED,
        /** Only the user can decide. */
        RAISE
    }

    private static final Set<Code> TRANSPORT = EnumSet.of(Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED);
    /** What gRPC itself and proxies give for a broken stream. The server always adds a reason. */
    private static final Set<Code> TRANSPORT_WITHOUT_REASON =
            EnumSet.of(Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.ABORTED);

    private Recovery() {}

    /**
     * What a session does about the error that ended its stream.
     *
     * @param hasOtherCredentials the stream was open, and the next one will be opened with a token asked for anew
     */
    static Step nextStep(FeedmuxException error, boolean hasOtherCredentials) {
        if (error instanceof ProtocolException) {
            return Step.RAISE;
        }
        if (error instanceof FencedException) {
            return switch (error.metadata().getOrDefault("cause", "")) {
                case "SEEK" -> Step.REOPEN_AT_STORED;
                case "UPDATE", "LEASE" -> Step.REOPEN;
                default -> Step.RAISE;
            };
        }
        boolean reopen = (error instanceof UnauthenticatedException && hasOtherCredentials)
                || TRANSPORT.contains(error.status())
                || error.reason().equals("GRANTS_CHANGED")
                || (error.reason().isEmpty() && TRANSPORT_WITHOUT_REASON.contains(error.status()))
                || (error.status() == Code.RESOURCE_EXHAUSTED && error.retryAfter() != null);
        return reopen ? Step.REOPEN : Step.RAISE;
    }
}
