package dev.feedmux;

import dev.feedmux.ConnectionStates.Event;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.ProtocolException;
import io.grpc.Status.Code;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** Decides which errors a session survives. */
final class Recovery {
    /** The reaction to an error. */
    enum Step {
        /** Reopen after the last acked event. */
        REOPEN(Event.LOST),
        /** Reopen at the current stored position, and forget unacked events. */
        REOPEN_AT_STORED(Event.MOVED),
        /** Only the user can decide. */
        RAISE(Event.FAILED);

        /** What the end of the stream is to the table of states. */
        final Event ending;

        Step(Event ending) {
            this.ending = ending;
        }
    }

    /** Errors that a rule is for only under a condition. */
    private enum Only {
        ALWAYS,
        WITH_RETRY_INFO,
        /** The stream was open, and the next stream will be opened with a newly requested token. */
        WITH_NEW_TOKEN,
        /** The client found that the server broke the protocol. */
        VIOLATION
    }

    /** A step, and the errors that it is for. An empty set, or null, matches anything. */
    private record Rule(
            Step step, Set<Code> statuses, @Nullable String reason, Set<String> causes, Only only) {
        boolean matches(FeedmuxException error, boolean hasOtherCredentials) {
            return (statuses.isEmpty() || statuses.contains(error.status()))
                    && (reason == null || reason.equals(error.reason()))
                    && (causes.isEmpty() || causes.contains(error.metadata().getOrDefault("cause", "")))
                    && switch (only) {
                        case ALWAYS -> true;
                        case WITH_RETRY_INFO -> error.retryAfter() != null;
                        case WITH_NEW_TOKEN -> hasOtherCredentials;
                        case VIOLATION -> error instanceof ProtocolException;
                    };
        }
    }

    /** The first rule that matches an error decides. */
    private static final List<Rule> RULES = List.of(
            new Rule(Step.RAISE, Set.of(), null, Set.of(), Only.VIOLATION),
            new Rule(Step.REOPEN, Set.of(Code.UNAUTHENTICATED), null, Set.of(), Only.WITH_NEW_TOKEN),
            new Rule(Step.REOPEN_AT_STORED, Set.of(), "FENCED", Set.of("SEEK"), Only.ALWAYS),
            new Rule(Step.REOPEN, Set.of(), "FENCED", Set.of("UPDATE", "LEASE"), Only.ALWAYS),
            new Rule(Step.RAISE, Set.of(), "FENCED", Set.of(), Only.ALWAYS),
            new Rule(Step.REOPEN, Set.of(), "GRANTS_CHANGED", Set.of(), Only.ALWAYS),
            new Rule(Step.REOPEN, Set.of(Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED), null, Set.of(), Only.ALWAYS),
            // gRPC itself and proxies use these for a broken stream. The server always adds a reason.
            new Rule(
                    Step.REOPEN,
                    Set.of(Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED, Code.ABORTED),
                    "",
                    Set.of(),
                    Only.ALWAYS),
            new Rule(Step.REOPEN, Set.of(Code.RESOURCE_EXHAUSTED), null, Set.of(), Only.WITH_RETRY_INFO));

    private Recovery() {}

    /**
     * Returns the reaction of a session to the error that ended its stream.
     *
     * @param hasOtherCredentials the stream was open, and the next stream will be opened with a newly requested token
     */
    static Step nextStep(FeedmuxException error, boolean hasOtherCredentials) {
        return RULES.stream()
                .filter(rule -> rule.matches(error, hasOtherCredentials))
                .findFirst()
                .map(Rule::step)
                .orElse(Step.RAISE);
    }
}
