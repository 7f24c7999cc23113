package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.FencedException;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.errors.UnauthenticatedException;
import io.grpc.Status.Code;
import java.util.EnumSet;
import java.util.Set;

/** Decides which errors a session survives. */
final class Recovery {
    /** The reaction to an error. */
    enum Step {
        /** Reopen after the last acked event. */
        REOPEN,
        /** Reopen at the current stored position, and forget unacked events. */
        REOPEN_AT_STORED,
        /** Only the user can decide. */
        RAISE
    }

    private static final Set<Code> TRANSPORT = EnumSet.of(Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED);
    /** The statuses of a broken stream from gRPC itself and from proxies. The server always adds a reason. */
    private static final Set<Code> TRANSPORT_WITHOUT_REASON =
            EnumSet.of(Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.ABORTED);

    private Recovery() {}

    /**
     * Returns the reaction of a session to the error that ended its stream.
     *
     * @param hasOtherCredentials the stream was open, and the next stream will be opened with a newly requested token
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
