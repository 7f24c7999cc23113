package feedmux

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is an error that a server, the network or a protocol violation caused. Every such error is an *Error:
//
//	if failed, ok := errors.AsType[*feedmux.Error](err); ok {
//		log.Print(failed.Reason, failed.Metadata)
//	}
//
// To find out its kind, use errors.Is with the Err… values of this package. Do not base decisions on Message.
type Error struct {
	// Code is the gRPC status.
	Code codes.Code
	// Reason is the protocol's ErrorReason without its prefix, such as HISTORY_LOST. Empty if the error has no reason.
	Reason string
	// Message is a text for people.
	Message string
	// Metadata holds the facts that the reason's documentation names.
	Metadata map[string]string
	// RetryAfter is how long the server asked the client to wait; 0 if it did not ask.
	RetryAfter time.Duration
	// Position is the last position of the session, with ErrFeedInvalidated only. Pass it to AtPosition to resume after
	// the invalidate event.
	Position []byte
	// ResumeToken is MongoDB's token for the same position, for StartAfter. Nil if no token is known.
	ResumeToken bson.Raw

	kind error
	// causes are gRPC's own error and, if the context ended the call, the context's error.
	causes []error
	// asksToWait distinguishes a RetryInfo of 0 s from none.
	asksToWait bool
}

func (e *Error) Error() string {
	name := e.Reason
	if name == "" {
		name = e.Code.String()
	}
	return "feedmux: " + name + ": " + e.Message
}

// Unwrap returns the error's kind and its causes: gRPC's own error, so that status.Code(err) works, and the error of a
// context that ended the call.
func (e *Error) Unwrap() []error {
	if e.kind == nil {
		return e.causes
	}
	return append([]error{e.kind}, e.causes...)
}

// Kinds of errors, for errors.Is. If one kind is a kind of another, errors.Is matches both.
var (
	// ErrInvalidArgument: the request itself is invalid; Error.Reason says how.
	ErrInvalidArgument = newKind("invalid argument", nil)
	// ErrPositionInvalid: a position cannot be decoded, or belongs to another tenant, source or scope. A kind of
	// ErrInvalidArgument.
	ErrPositionInvalid = newKind("position invalid", ErrInvalidArgument)
	// ErrOptionRefused: MongoDB rejected the pipeline or an option. Metadata: code, code_name, labels. A kind of
	// ErrInvalidArgument.
	ErrOptionRefused = newKind("option refused", ErrInvalidArgument)
	// ErrUnauthenticated: the call has no credentials, or the server does not know them.
	ErrUnauthenticated = newKind("unauthenticated", nil)
	// ErrPermissionDenied: the credentials do not cover this namespace or method.
	ErrPermissionDenied = newKind("permission denied", nil)
	// ErrNotFound: the requested resource does not exist.
	ErrNotFound = newKind("not found", nil)
	// ErrSubscriptionNotFound: the subscription does not exist, or it was deleted during the session. A kind of
	// ErrNotFound.
	ErrSubscriptionNotFound = newKind("subscription not found", ErrNotFound)
	// ErrSubscriptionExists: a subscription with this name and different content exists.
	ErrSubscriptionExists = newKind("subscription exists", nil)
	// ErrFailedPrecondition: the request does not fit the current state; Error.Reason says how.
	ErrFailedPrecondition = newKind("failed precondition", nil)
	// ErrSubscriptionBusy: another client has a session of the subscription. Open with Takeover to replace that
	// session. Metadata: owner. A kind of ErrFailedPrecondition.
	ErrSubscriptionBusy = newKind("subscription busy", ErrFailedPrecondition)
	// ErrFeedInvalidated: the feed ended with an invalidate event (drop, rename, dropDatabase). Error.Position is the
	// position to resume from. A kind of ErrFailedPrecondition.
	ErrFeedInvalidated = newKind("feed invalidated", ErrFailedPrecondition)
	// ErrOutOfRange: the position cannot be read; Error.Reason says why.
	ErrOutOfRange = newKind("out of range", nil)
	// ErrHistoryLost: the position is no longer in MongoDB's oplog. Metadata: oldest_time if it is known. A kind of
	// ErrOutOfRange.
	ErrHistoryLost = newKind("history lost", ErrOutOfRange)
	// ErrTimelineForked: MongoDB was restored from an older copy, or replaced, and does not have the history of the
	// position: seek to another one. Metadata: last_common_time, up to which the two histories are equal, if it is known.
	// A kind of ErrOutOfRange.
	ErrTimelineForked = newKind("timeline forked", ErrOutOfRange)
	// ErrAborted: the server ended the session.
	ErrAborted = newKind("aborted", nil)
	// ErrFenced: the session lost its subscription. Metadata: cause. A kind of ErrAborted.
	ErrFenced = newKind("fenced", ErrAborted)
	// ErrEndedByOperator: an operator ended the session. It may be opened again. A kind of ErrAborted.
	ErrEndedByOperator = newKind("ended by operator", ErrAborted)
	// ErrQuotaExceeded: a quota of the tenant or a limit of the server is reached.
	ErrQuotaExceeded = newKind("quota exceeded", nil)
	// ErrUnavailable: the server, or what it depends on, cannot be reached now.
	ErrUnavailable = newKind("unavailable", nil)
	// ErrSnapshotUnsupported: the server is older than StartSnapshot, and has begun at the present instead.
	ErrSnapshotUnsupported = newKind("snapshot unsupported", nil)
	// ErrClientClosed: the client and its sessions were closed.
	ErrClientClosed = newKind("client closed", nil)
	// ErrInternal: a defect in the server. Metadata: correlation_id.
	ErrInternal = newKind("internal", nil)
	// ErrProtocol: the server violated the protocol: a gap in the sequence, more than the credit, a message over the
	// limit, fragments out of order, lengths that do not add up, or a message that cannot be decoded.
	ErrProtocol = newKind("protocol violated", nil)
)

var (
	// ErrClosed is what a session returns after Close. It is not an *Error.
	ErrClosed = errors.New("feedmux: the session is closed")
	// ErrAcksUnconfirmed is what Close returns if the server did not confirm the last acks: the next session repeats
	// the events after the last confirmed ack. It wraps the reason.
	ErrAcksUnconfirmed = errors.New("feedmux: closed before the last acks were confirmed")
)

// kind is a node in the tree of errors: Unwrap returns its parent.
type kind struct {
	text   string
	parent error
}

func newKind(text string, parent error) error { return &kind{text, parent} }

func (k *kind) Error() string { return k.text }
func (k *kind) Unwrap() error { return k.parent }

// kindByReason maps each reason that has its own kind. An error with any other reason gets its kind from its status.
var kindByReason = map[string]error{
	"POSITION_INVALID":       ErrPositionInvalid,
	"POSITION_FOREIGN":       ErrPositionInvalid,
	"OPTION_REFUSED":         ErrOptionRefused,
	"UNAUTHENTICATED":        ErrUnauthenticated,
	"NAMESPACE_DENIED":       ErrPermissionDenied,
	"SOURCE_UNAUTHORIZED":    ErrPermissionDenied,
	"METHOD_DENIED":          ErrPermissionDenied,
	"SUBSCRIPTION_NOT_FOUND": ErrSubscriptionNotFound,
	"SUBSCRIPTION_EXISTS":    ErrSubscriptionExists,
	"HISTORY_LOST":           ErrHistoryLost,
	"TIMELINE_FORKED":        ErrTimelineForked,
	"FEED_INVALIDATED":       ErrFeedInvalidated,
	"SUBSCRIPTION_BUSY":      ErrSubscriptionBusy,
	reasonFenced:             ErrFenced,
	"ENDED_BY_OPERATOR":      ErrEndedByOperator,
	"QUOTA_EXCEEDED":         ErrQuotaExceeded,
	"DRAINING":               ErrUnavailable,
	"SOURCE_UNAVAILABLE":     ErrUnavailable,
	"STATE_UNAVAILABLE":      ErrUnavailable,
	"INTERNAL":               ErrInternal,
}

var kindByCode = map[codes.Code]error{
	codes.InvalidArgument:    ErrInvalidArgument,
	codes.Unauthenticated:    ErrUnauthenticated,
	codes.PermissionDenied:   ErrPermissionDenied,
	codes.NotFound:           ErrNotFound,
	codes.AlreadyExists:      ErrSubscriptionExists,
	codes.FailedPrecondition: ErrFailedPrecondition,
	codes.OutOfRange:         ErrOutOfRange,
	codes.Aborted:            ErrAborted,
	codes.ResourceExhausted:  ErrQuotaExceeded,
	codes.Unavailable:        ErrUnavailable,
	codes.DeadlineExceeded:   ErrUnavailable,
	codes.Internal:           ErrInternal,
}

const (
	errorDomain   = "feedmux"
	reasonPrefix  = "ERROR_REASON_"
	reasonFenced  = "FENCED"
	reasonChanged = "GRANTS_CHANGED"
)

// errorFromStatus makes the error of a failed call. It ignores details that it cannot read or that belong to another
// domain.
func errorFromStatus(err error) *Error {
	state := status.Convert(err)
	made := &Error{Code: state.Code(), Message: state.Message(), causes: []error{err}}
	for _, detail := range state.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				made.Reason = strings.TrimPrefix(detail.GetReason(), reasonPrefix)
				made.Metadata = detail.GetMetadata()
			}
		case *errdetails.RetryInfo:
			made.RetryAfter = max(0, detail.GetRetryDelay().AsDuration())
			made.asksToWait = true
		}
	}
	made.kind = kindByCode[made.Code]
	if kind, known := kindByReason[made.Reason]; known {
		made.kind = kind
	}
	if made.Reason == reasonFenced && made.Metadata["cause"] == "DELETE" {
		made.kind = ErrSubscriptionNotFound
	}
	return made
}

func protocolError(format string, values ...any) *Error {
	return &Error{Code: codes.Internal, Message: fmt.Sprintf(format, values...), kind: ErrProtocol}
}

// snapshotUnsupported is the error for a server that did not answer StartSnapshot with a copy; what says what it did.
func snapshotUnsupported(what string) *Error {
	return &Error{
		Code: codes.Unimplemented,
		Message: "the server does not know the start snapshot, and " + what +
			". Upgrade all replicas of the server first",
		kind: ErrSnapshotUnsupported,
	}
}

func clientClosed() *Error {
	return &Error{Code: codes.Canceled, Message: "the client was closed", kind: ErrClientClosed}
}

func late(what string, after time.Duration) *Error {
	message := fmt.Sprintf("%s within %v", what, after)
	return &Error{Code: codes.DeadlineExceeded, Message: message, kind: ErrUnavailable}
}

func unavailable(cause error, format string, values ...any) *Error {
	made := &Error{Code: codes.Unavailable, Message: fmt.Sprintf(format, values...), kind: ErrUnavailable}
	if cause != nil {
		made.causes = []error{cause}
	}
	return made
}
