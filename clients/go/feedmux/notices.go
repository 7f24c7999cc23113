package feedmux

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Notice is what a session has to say besides events: one of Draining, Rewound, Skipped, HistoryAtRisk, Gap, Degraded and
// Disconnected, or of kinds to come.
type Notice interface {
	fmt.Stringer
	notice()
}

// Draining says that the server goes away. The session reconnects by itself.
type Draining struct {
	// Deadline is how long the server waits before it ends the stream.
	Deadline time.Duration
	// Position is the place up to which the session has been sent everything.
	Position []byte
}

// Rewound says that the session begins behind events that were delivered before; they come again.
type Rewound struct {
	BeginsAt, HadReached bson.Timestamp
}

// Skipped says that another session, or a seek, moved the stored position on while this session was away: what lies between
// is not handed out here.
type Skipped struct {
	HadReached, BeginsAt bson.Timestamp
	// HadReachedPosition and BeginsAtPosition are the same places as positions.
	HadReachedPosition, BeginsAtPosition []byte
}

// HistoryAtRisk says how long the position stays in MongoDB's oplog at its present rate.
type HistoryAtRisk struct {
	Remaining time.Duration
}

// Gap says that events between two cluster times are lost. It comes only under HistoryLostEarliest.
type Gap struct {
	After, Before bson.Timestamp
	Reason        string
}

// Degraded says that something the server depends on is away, or back. The server keeps trying.
type Degraded struct {
	// Dependency is "source" (MongoDB) or "state" (Redis).
	Dependency string
	Away       bool
}

// Disconnected is the client's own: it lost the server for Err and tries again in RetryIn.
type Disconnected struct {
	Err     *Error
	RetryIn time.Duration
}

func (Draining) notice()      {}
func (Rewound) notice()       {}
func (Skipped) notice()       {}
func (HistoryAtRisk) notice() {}
func (Gap) notice()           {}
func (Degraded) notice()      {}
func (Disconnected) notice()  {}

func (n Draining) String() string {
	return fmt.Sprintf("the server goes away within %v", n.Deadline)
}

func (n Rewound) String() string {
	return fmt.Sprintf("the session begins at %s, behind %s, which it had reached",
		timeText(n.BeginsAt), timeText(n.HadReached))
}

func (n Skipped) String() string {
	return fmt.Sprintf("another session or a seek moved the stored position from %s to %s: what lies between is not handed "+
		"out here", timeText(n.HadReached), timeText(n.BeginsAt))
}

func (n HistoryAtRisk) String() string {
	return fmt.Sprintf("the position leaves MongoDB's oplog in about %v", n.Remaining)
}

func (n Gap) String() string {
	return fmt.Sprintf("events between %s and %s are lost: %s", timeText(n.After), timeText(n.Before), n.Reason)
}

func (n Degraded) String() string {
	if n.Away {
		return n.Dependency + " is away"
	}
	return n.Dependency + " is back"
}

func (n Disconnected) String() string {
	return fmt.Sprintf("disconnected, trying again in %v: %v", n.RetryIn.Round(time.Millisecond), n.Err)
}

func timeText(at bson.Timestamp) string { return fmt.Sprintf("%d.%d", at.T, at.I) }

// noticeOf is nil for a kind that is not known.
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
		return Degraded{kind.Degraded.GetDependency(), kind.Degraded.GetAway()}
	}
	return nil
}

func timestamp(message *feedmuxpb.ClusterTime) bson.Timestamp {
	return bson.Timestamp{T: message.GetSeconds(), I: message.GetIncrement()}
}
