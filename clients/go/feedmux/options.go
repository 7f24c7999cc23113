package feedmux

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Options configure a Client. The zero value is a connection in plain text without credentials.
type Options struct {
	// APIKey is sent as a bearer token with every call, without white space around it. A JWT that does not change is
	// given here too.
	APIKey string
	// Token, in place of APIKey, is asked before every call, so that a token may expire; several goroutines may ask at
	// a time. Its failure counts as one of the network: sessions try again.
	Token func(context.Context) (string, error)
	// TLS secures the connection; &tls.Config{} trusts the system's roots. Nil is plain text.
	TLS *tls.Config
	// Source names the MongoDB deployment in the server's configuration, for feeds that name none. By default "main".
	Source string
	// CallTimeout bounds a unary call whose context has no deadline. By default 30 s.
	CallTimeout time.Duration
	// Session holds defaults for the sessions of this client; not Takeover, which is for one Open.
	Session SessionOptions
	// Logger hears of reconnects, and of notices for which there is no OnNotice. By default slog.Default().
	Logger *slog.Logger
	// DialOptions come after the client's own.
	DialOptions []grpc.DialOption
}

// SessionOptions say how a session behaves. A zero field is the client's default, and then the package's. A negative
// duration is the explicit none where its field says so.
//
// The window bounds what waits in the client, in events and bytes: larger smooths, smaller saves memory. It is refilled
// when a quarter of it has been taken.
type SessionOptions struct {
	// Takeover ends another client's session of the same subscription instead of failing with ErrSubscriptionBusy.
	Takeover bool
	// OnNotice is told what the session has to say, between the events around it, in the goroutine that takes them.
	// Without it notices are logged.
	OnNotice func(Notice)
	// WindowEvents is 1 to 2^31-1, by default 16,384.
	WindowEvents int64
	// WindowBytes is 1 to 2^40, by default 8 MiB.
	WindowBytes int64
	// MessageBytesMax is the size of the largest message: 64 KiB to 64 MiB, by default 1 MiB. Larger events come as
	// fragments and are joined here.
	MessageBytesMax int
	// Heartbeat is how often an idle server says something: 1 s to 60 s, by default 10 s. After three silent intervals
	// the client reconnects.
	Heartbeat time.Duration
	// AckInterval is how late acks are sent at most, by default 100 ms; negative: immediately. Longer means fewer
	// messages, and more repeats after a crash.
	AckInterval time.Duration
	// OpenTimeout is how long Open keeps trying until the server has opened the session, by default 30 s; negative: as
	// long as its context lasts.
	OpenTimeout time.Duration
	// ReconnectTimeout is how long a session that was open keeps trying to reconnect. By default, and where it is
	// negative, as long as it takes.
	ReconnectTimeout time.Duration
	// CloseTimeout is how long Close waits until the acks are confirmed, by default 5 s; negative: not at all, and what
	// has not been sent by then is not.
	CloseTimeout time.Duration
	// BackoffFirst and BackoffMost, by default 200 ms and 10 s: delays between attempts are random between 0 and a bound
	// that doubles from the first to the second.
	BackoffFirst, BackoffMost time.Duration
	// Format is how events are written on the wire, by default FormatBSON.
	Format Format
}

// Format is how events are written on the wire.
type Format int

const (
	// FormatBSON is the bytes that MongoDB sent: the fast path.
	FormatBSON Format = iota + 1
	// FormatExtendedJSONRelaxed is MongoDB's relaxed extended JSON.
	FormatExtendedJSONRelaxed
	// FormatExtendedJSONCanonical is MongoDB's canonical extended JSON.
	FormatExtendedJSONCanonical
)

var formats = map[Format]feedmuxpb.Format{
	FormatBSON:                  feedmuxpb.Format_FORMAT_BSON,
	FormatExtendedJSONRelaxed:   feedmuxpb.Format_FORMAT_EXTENDED_JSON_RELAXED,
	FormatExtendedJSONCanonical: feedmuxpb.Format_FORMAT_EXTENDED_JSON_CANONICAL,
}

var packageDefaults = SessionOptions{
	WindowEvents:    16_384,
	WindowBytes:     8 << 20,
	MessageBytesMax: 1 << 20,
	Heartbeat:       10 * time.Second,
	AckInterval:     100 * time.Millisecond,
	OpenTimeout:     30 * time.Second,
	CloseTimeout:    5 * time.Second,
	BackoffFirst:    200 * time.Millisecond,
	BackoffMost:     10 * time.Second,
	Format:          FormatBSON,
}

// over fills the zero fields of o from other options.
func (o SessionOptions) over(other SessionOptions) SessionOptions {
	if o.OnNotice == nil {
		o.OnNotice = other.OnNotice
	}
	o.WindowEvents = cmp.Or(o.WindowEvents, other.WindowEvents)
	o.WindowBytes = cmp.Or(o.WindowBytes, other.WindowBytes)
	o.MessageBytesMax = cmp.Or(o.MessageBytesMax, other.MessageBytesMax)
	o.Heartbeat = cmp.Or(o.Heartbeat, other.Heartbeat)
	o.AckInterval = cmp.Or(o.AckInterval, other.AckInterval)
	o.OpenTimeout = cmp.Or(o.OpenTimeout, other.OpenTimeout)
	o.ReconnectTimeout = cmp.Or(o.ReconnectTimeout, other.ReconnectTimeout)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, other.CloseTimeout)
	o.BackoffFirst = cmp.Or(o.BackoffFirst, other.BackoffFirst)
	o.BackoffMost = cmp.Or(o.BackoffMost, other.BackoffMost)
	o.Format = cmp.Or(o.Format, other.Format)
	return o
}

func (o SessionOptions) check() error {
	_, known := formats[o.Format]
	switch {
	case o.WindowEvents < 1 || o.WindowEvents > 1<<31-1 || o.WindowBytes < 1 || o.WindowBytes > 1<<40:
		return errors.New("feedmux: the window is 1 to 2^31-1 events and 1 to 2^40 bytes")
	case o.MessageBytesMax < 64<<10 || o.MessageBytesMax > 64<<20:
		return errors.New("feedmux: MessageBytesMax is 64 KiB to 64 MiB")
	case o.Heartbeat < time.Second || o.Heartbeat > time.Minute:
		return errors.New("feedmux: Heartbeat is 1 s to 60 s")
	case o.BackoffFirst < 0 || o.BackoffMost < 0:
		return errors.New("feedmux: BackoffFirst and BackoffMost cannot be negative")
	case !known:
		return errors.New("feedmux: Format is one of the Format… constants")
	}
	return nil
}
