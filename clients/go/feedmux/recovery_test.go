package feedmux

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

func TestWhichKindAnErrorIsAndWhatASessionDoesAboutIt(t *testing.T) {
	const never = time.Duration(-1)
	cases := []struct {
		code       codes.Code
		reason     string
		cause      string
		retryAfter time.Duration
		kind       error
		step       step
	}{
		{codes.Unavailable, "", "", never, ErrUnavailable, reopen},
		{codes.Unavailable, "DRAINING", "", time.Second, ErrUnavailable, reopen},
		{codes.DeadlineExceeded, "", "", never, ErrUnavailable, reopen},
		{codes.Internal, "", "", never, ErrInternal, reopen},
		{codes.Internal, "INTERNAL", "", never, ErrInternal, giveUp},
		{codes.Unknown, "", "", never, nil, reopen},
		{codes.Canceled, "", "", never, nil, reopen},
		{codes.Unimplemented, "", "", never, nil, giveUp},
		{codes.ResourceExhausted, "QUOTA_EXCEEDED", "", 2 * time.Second, ErrQuotaExceeded, reopen},
		{codes.ResourceExhausted, "QUOTA_EXCEEDED", "", 0, ErrQuotaExceeded, reopen},
		{codes.ResourceExhausted, "QUOTA_EXCEEDED", "", never, ErrQuotaExceeded, giveUp},
		{codes.Aborted, "FENCED", "SEEK", never, ErrFenced, reopenAtStored},
		{codes.Aborted, "FENCED", "UPDATE", never, ErrFenced, reopen},
		{codes.Aborted, "FENCED", "LEASE", never, ErrFenced, reopen},
		{codes.Aborted, "FENCED", "TAKEOVER", never, ErrFenced, giveUp},
		{codes.Aborted, "FENCED", "DELETE", never, ErrSubscriptionNotFound, giveUp},
		{codes.Aborted, "FENCED", "", never, ErrAborted, giveUp},
		{codes.Aborted, "GRANTS_CHANGED", "", never, ErrAborted, reopen},
		{codes.Aborted, "ENDED_BY_OPERATOR", "", never, ErrEndedByOperator, giveUp},
		{codes.OutOfRange, "HISTORY_LOST", "", never, ErrHistoryLost, giveUp},
		{codes.OutOfRange, "TIMELINE_FORKED", "", never, ErrTimelineForked, giveUp},
		{codes.OutOfRange, "EVENT_TOO_LARGE", "", never, ErrOutOfRange, giveUp},
		{codes.FailedPrecondition, "FEED_INVALIDATED", "", never, ErrFeedInvalidated, giveUp},
		{codes.FailedPrecondition, "SUBSCRIPTION_BUSY", "", never, ErrFailedPrecondition, giveUp},
		{codes.NotFound, "SUBSCRIPTION_NOT_FOUND", "", never, ErrNotFound, giveUp},
		{codes.NotFound, "SOURCE_NOT_FOUND", "", never, ErrNotFound, giveUp},
		{codes.AlreadyExists, "SUBSCRIPTION_EXISTS", "", never, ErrSubscriptionExists, giveUp},
		{codes.InvalidArgument, "POSITION_FOREIGN", "", never, ErrPositionInvalid, giveUp},
		{codes.InvalidArgument, "OPTION_REFUSED", "", never, ErrOptionRefused, giveUp},
		{codes.InvalidArgument, "A_REASON_OF_THE_FUTURE", "", never, ErrInvalidArgument, giveUp},
		{codes.Unauthenticated, "UNAUTHENTICATED", "", never, ErrUnauthenticated, giveUp},
		{codes.PermissionDenied, "NAMESPACE_DENIED", "", never, ErrPermissionDenied, giveUp},
	}
	for _, each := range cases {
		t.Run(each.code.String()+" "+each.reason+" "+each.cause, func(t *testing.T) {
			made := errorFromStatus(failure(each.code, each.reason, map[string]string{"cause": each.cause}, each.retryAfter))
			if each.kind != nil && !errors.Is(made, each.kind) {
				t.Errorf("%v is no %v", made, each.kind)
			}
			same(t, nextStep(made, false), each.step)
			same(t, made.Reason, each.reason)
			same(t, made.RetryAfter, max(0, each.retryAfter))
		})
	}
}

func TestAKindIsUnderAllItsParents(t *testing.T) {
	made := errorFromStatus(failure(codes.NotFound, "SUBSCRIPTION_NOT_FOUND", nil, -1))
	if !errors.Is(made, ErrNotFound) || !errors.Is(made, ErrSubscriptionNotFound) || errors.Is(made, ErrFenced) {
		t.Fatal(made)
	}
}

func TestEveryReasonWithAKindIsOneOfTheProtocol(t *testing.T) {
	for reason := range kindByReason {
		if _, known := pb.ErrorReason_value[reasonPrefix+reason]; !known {
			t.Error(reason)
		}
	}
}

func TestARenewedTokenIsTriedAfterARefusal(t *testing.T) {
	refused := errorFromStatus(failure(codes.Unauthenticated, "UNAUTHENTICATED", nil, -1))
	same(t, nextStep(refused, true), reopen)
	denied := errorFromStatus(failure(codes.PermissionDenied, "NAMESPACE_DENIED", nil, -1))
	same(t, nextStep(denied, true), giveUp)
}

func TestAViolatedProtocolIsNotTriedAgain(t *testing.T) {
	same(t, nextStep(protocolError("a gap"), false), giveUp)
}

func TestBackoffDoublesUpToABoundAndAddsWhatTheServerAsks(t *testing.T) {
	b := newBackoff(time.Second, 5*time.Second, func() float64 { return 0.5 })
	for _, wanted := range []float64{0.5, 1, 2, 2.5, 2.5} {
		same(t, b.next(0).Seconds(), wanted)
	}
	same(t, b.next(10*time.Second).Seconds(), 12.5)
	same(t, newBackoff(math.MaxInt64, math.MaxInt64, func() float64 { return 1 }).next(math.MaxInt64) > 0, true)
	b.reset()
	same(t, b.next(0).Seconds(), 0.5)
	b.lived(5 * time.Second)
	same(t, b.next(0).Seconds(), 1)
	b.lived(6 * time.Second)
	same(t, b.next(0).Seconds(), 0.5)
}
