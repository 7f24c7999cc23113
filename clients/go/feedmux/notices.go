package feedmux

import (
	"fmt"
	"reflect"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Notice is what a session reports besides events: Draining, Rewound, Skipped, HistoryAtRisk, Gap, Degraded,
// Unacknowledged, SnapshotProgress, SnapshotComplete or Disconnected. Later versions may add kinds.
type Notice interface {
	fmt.Stringer
	notice()
}

// Draining says that the server is about to end the stream. The session reconnects automatically.
type Draining struct {
	// Deadline is how long the server waits before it ends the stream.
	Deadline time.Duration
	// Position is the position up to which the server has sent everything to the session.
	Position []byte
}

// Rewound says that the session begins before events that were delivered earlier; these events come again.
type Rewound struct {
	BeginsAt, HadReached bson.Timestamp
}

// Skipped says that another session, or a seek, moved the stored position forward: this session does not deliver the
// events in between.
type Skipped struct {
	HadReached, BeginsAt bson.Timestamp
	// HadReachedPosition and BeginsAtPosition are the positions at these two times. The first is nil if the session was
	// open when a seek moved it, and the last acked event was in the middle of a batch.
	HadReachedPosition, BeginsAtPosition []byte
}

// HistoryAtRisk says how long the position stays in MongoDB's oplog at the oplog's current rate.
type HistoryAtRisk struct {
	Remaining time.Duration
}

// Gap says that events between two cluster times are lost. After a restore of MongoDB (TIMELINE_FORKED), the second is
// earlier. All available events follow with HistoryLostEarliest, and the existing documents with HistoryLostSnapshot.
type Gap struct {
	After, Before bson.Timestamp
	Reason        string
}

// Degraded says that a dependency of the server is unavailable, or available again. The server keeps trying.
type Degraded struct {
	// Dependency is "source" (MongoDB) or "state" (Redis).
	Dependency  string
	Unavailable bool
}

// Unacknowledged says that the server sends nothing more until some of these events are acked.
type Unacknowledged struct {
	Events int64
}

// SnapshotProgress says that documents of a copy are still to come (StartSnapshot), and how far it is.
type SnapshotProgress struct{ SnapshotStatus }

// SnapshotStatus is how far a copy of existing documents is. A value that the server does not know is zero.
type SnapshotStatus struct {
	// Documents is the number of documents copied so far, and Bytes their size. After an interruption, some may count
	// twice.
	Documents, Bytes int64
	// DocumentsEstimated is MongoDB's estimate of the number of documents in what is copied.
	DocumentsEstimated int64
	// Remaining is the time left at the present rate.
	Remaining time.Duration
	// ReadTime is the cluster time as of which the documents were read.
	ReadTime bson.Timestamp
	// Namespace is the collection that is being copied; of several, before the first one and after the last one the
	// database, or "*" for the deployment.
	Namespace string
	// Generation is the number of the copy: see SnapshotComplete.
	Generation int64
}

// SnapshotComplete says that the copy of existing documents is complete: every event after this is a change. A program
// that keeps what it has deletes now what it has applied with a lower Generation. After an interruption the notice may
// come again, until an event after it is acked.
type SnapshotComplete struct {
	// Documents is the number of documents of the copy, and Bytes their size. After an interruption, some may count
	// twice.
	Documents, Bytes int64
	// ReadTime is the cluster time as of which the last documents were read.
	ReadTime bson.Timestamp
	// Generation is the number of the copy.
	Generation int64
}

// Disconnected comes from the client: it lost the connection because of Err and tries again in RetryIn.
type Disconnected struct {
	Err     *Error
	RetryIn time.Duration
}

func (Draining) notice()         {}
func (Rewound) notice()          {}
func (Skipped) notice()          {}
func (HistoryAtRisk) notice()    {}
func (Gap) notice()              {}
func (Degraded) notice()         {}
func (Unacknowledged) notice()   {}
func (SnapshotProgress) notice() {}
func (SnapshotComplete) notice() {}
func (Disconnected) notice()     {}

func (n Draining) String() string {
	return fmt.Sprintf("the server ends the stream within %v, and the session reconnects", n.Deadline)
}

func (n Rewound) String() string {
	return fmt.Sprintf("the session begins at %s, before %s, which it had reached: the events in between come again",
		timeText(n.BeginsAt), timeText(n.HadReached))
}

func (n Skipped) String() string {
	return fmt.Sprintf("another session or a seek moved the stored position from %s to %s: this session does not "+
		"deliver the events in between", timeText(n.HadReached), timeText(n.BeginsAt))
}

func (n HistoryAtRisk) String() string {
	return fmt.Sprintf("the position leaves MongoDB's oplog in about %v: read faster, or enlarge the oplog", n.Remaining)
}

func (n Gap) String() string {
	return fmt.Sprintf("events between %s and %s are lost: %s", timeText(n.After), timeText(n.Before), n.Reason)
}

func (n Degraded) String() string {
	if n.Unavailable {
		return n.Dependency + " is unavailable"
	}
	return n.Dependency + " is available again"
}

func (n Unacknowledged) String() string {
	return fmt.Sprintf("%d events are not acked: the server sends no more until some are", n.Events)
}

func (n SnapshotProgress) String() string {
	if n.DocumentsEstimated > 0 {
		return fmt.Sprintf("documents copied so far: %d of about %d", n.Documents, n.DocumentsEstimated)
	}
	return fmt.Sprintf("documents copied so far: %d", n.Documents)
}

func (n SnapshotComplete) String() string {
	return fmt.Sprintf("the existing documents are copied: %d. Changes follow", n.Documents)
}

func (n Disconnected) String() string {
	return fmt.Sprintf("disconnected, trying again in %v: %v", n.RetryIn.Round(time.Millisecond), n.Err)
}

func timeText(at bson.Timestamp) string { return fmt.Sprintf("%d.%d", at.T, at.I) }

// noticeOf converts a notice; nil for an unknown kind.
func noticeOf(message *feedmuxpb.Notice) Notice {
	switch kind := message.GetKind().(type) {
	case *feedmuxpb.Notice_Draining_:
		return Draining{kind.Draining.GetDeadline().AsDuration(), kind.Draining.GetPosition()}
	case *feedmuxpb.Notice_Rewound_:
		return Rewound{timestamp(kind.Rewound.GetFrom()), timestamp(kind.Rewound.GetTo())}
	case *feedmuxpb.Notice_Skipped_:
		skipped := kind.Skipped
		return Skipped{
			timestamp(skipped.GetFrom()), timestamp(skipped.GetTo()), skipped.GetFromPosition(), skipped.GetToPosition(),
		}
	case *feedmuxpb.Notice_HistoryAtRisk_:
		return HistoryAtRisk{kind.HistoryAtRisk.GetRemaining().AsDuration()}
	case *feedmuxpb.Notice_Gap_:
		return Gap{timestamp(kind.Gap.GetFrom()), timestamp(kind.Gap.GetTo()), kind.Gap.GetReason()}
	case *feedmuxpb.Notice_Degraded_:
		return Degraded{kind.Degraded.GetDependency(), kind.Degraded.GetUnavailable()}
	case *feedmuxpb.Notice_Unacknowledged_:
		return Unacknowledged{kind.Unacknowledged.GetEvents()}
	case *feedmuxpb.Notice_Snapshot:
		return snapshotNotice(kind.Snapshot)
	}
	return nil
}

// snapshotNotice converts how far a copy is; nil for an unknown state.
func snapshotNotice(status *feedmuxpb.SnapshotStatus) Notice {
	switch status.GetState() {
	case feedmuxpb.SnapshotStatus_STATE_RUNNING:
		return SnapshotProgress{*snapshotStatus(status)}
	case feedmuxpb.SnapshotStatus_STATE_DONE:
		return SnapshotComplete{
			status.GetDocuments(), status.GetBytes(), timestamp(status.GetReadTime()), status.GetGeneration(),
		}
	}
	return nil
}

func snapshotStatus(status *feedmuxpb.SnapshotStatus) *SnapshotStatus {
	return &SnapshotStatus{
		Documents:          status.GetDocuments(),
		Bytes:              status.GetBytes(),
		DocumentsEstimated: status.GetDocumentsEstimated(),
		Remaining:          status.GetRemaining().AsDuration(),
		ReadTime:           timestamp(status.GetReadTime()),
		Namespace:          status.GetNamespace(),
		Generation:         status.GetGeneration(),
	}
}

func timestamp(message *feedmuxpb.ClusterTime) bson.Timestamp {
	return bson.Timestamp{T: message.GetSeconds(), I: message.GetIncrement()}
}

// topic is equal for notices of which a newer one replaces an unread one, with no event in between: a session that nobody
// reads would collect them for as long as an outage lasts. It is nil where each of them counts.
func topic(told Notice) any {
	switch told := told.(type) {
	case Disconnected, Draining, HistoryAtRisk, Unacknowledged:
		return reflect.TypeOf(told)
	case Degraded:
		return told
	}
	return nil
}
