package dev.feedmux.errors;

import io.grpc.Status;
import java.util.Map;
import java.util.function.Function;

/** Maps each reason to its exception type, and each status for errors without a known reason. */
public final class Errors {
    private static final Map<String, Function<Failure, FeedmuxException>> BY_REASON = Map.ofEntries(
            Map.entry("POSITION_INVALID", PositionInvalidException::new),
            Map.entry("POSITION_FOREIGN", PositionInvalidException::new),
            Map.entry("OPTION_REFUSED", OptionRefusedException::new),
            Map.entry("UNAUTHENTICATED", UnauthenticatedException::new),
            Map.entry("NAMESPACE_DENIED", PermissionDeniedException::new),
            Map.entry("SOURCE_UNAUTHORIZED", PermissionDeniedException::new),
            Map.entry("METHOD_DENIED", PermissionDeniedException::new),
            Map.entry("SUBSCRIPTION_NOT_FOUND", SubscriptionNotFoundException::new),
            Map.entry("SUBSCRIPTION_EXISTS", SubscriptionExistsException::new),
            Map.entry("HISTORY_LOST", HistoryLostException::new),
            Map.entry("TIMELINE_FORKED", TimelineForkedException::new),
            Map.entry("FEED_INVALIDATED", FeedInvalidatedException::new),
            Map.entry("SUBSCRIPTION_BUSY", SubscriptionBusyException::new),
            Map.entry("FENCED", Errors::fenced),
            Map.entry("ENDED_BY_OPERATOR", EndedByOperatorException::new),
            Map.entry("QUOTA_EXCEEDED", QuotaExceededException::new),
            Map.entry("DRAINING", UnavailableException::new),
            Map.entry("SOURCE_UNAVAILABLE", UnavailableException::new),
            Map.entry("STATE_UNAVAILABLE", UnavailableException::new),
            Map.entry("INTERNAL", InternalErrorException::new));

    private static final Map<Status.Code, Function<Failure, FeedmuxException>> BY_STATUS = Map.ofEntries(
            Map.entry(Status.Code.INVALID_ARGUMENT, InvalidArgumentException::new),
            Map.entry(Status.Code.UNAUTHENTICATED, UnauthenticatedException::new),
            Map.entry(Status.Code.PERMISSION_DENIED, PermissionDeniedException::new),
            Map.entry(Status.Code.NOT_FOUND, NotFoundException::new),
            Map.entry(Status.Code.ALREADY_EXISTS, SubscriptionExistsException::new),
            Map.entry(Status.Code.FAILED_PRECONDITION, FailedPreconditionException::new),
            Map.entry(Status.Code.OUT_OF_RANGE, OutOfRangeException::new),
            Map.entry(Status.Code.ABORTED, AbortedException::new),
            Map.entry(Status.Code.RESOURCE_EXHAUSTED, QuotaExceededException::new),
            Map.entry(Status.Code.UNAVAILABLE, UnavailableException::new),
            Map.entry(Status.Code.DEADLINE_EXCEEDED, UnavailableException::new),
            Map.entry(Status.Code.INTERNAL, InternalErrorException::new));

    private Errors() {}

    /** Creates the exception of the type that matches the failure. For an unknown reason, the status decides. */
    public static FeedmuxException of(Failure failure) {
        Function<Failure, FeedmuxException> byStatus = BY_STATUS.getOrDefault(failure.status(), FeedmuxException::new);
        return BY_REASON.getOrDefault(failure.reason(), byStatus).apply(failure);
    }

    private static FeedmuxException fenced(Failure failure) {
        return "DELETE".equals(failure.metadata().get("cause"))
                ? new SubscriptionNotFoundException(failure)
                : new FencedException(failure);
    }
}
