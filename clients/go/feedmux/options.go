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

// Options configures a Client. The zero value means a plain-text connection without credentials.
type Options struct {
	// APIKey is sent as a bearer token with every call, without surrounding white space. Set a JWT that does not change
	// here too.
	APIKey string
	// Token, instead of APIKey, returns a JWT or an API key. It is called before every call, so that what it returns may
	// expire; up to 16 goroutines may call it at the same time. If it fails, sessions try again, as after a network
	// error.
	Token func(context.Context) (string, error)
	// TLS secures the connection; &tls.Config{} trusts the system's roots. Nil means plain text.
	TLS *tls.Config
	// Source names the MongoDB deployment in the server's configuration, for feeds that name none. By default "main".
	Source string
	// CallTimeout limits a unary call whose context has no deadline. By default 30 s.
	CallTimeout time.Duration
	// Session holds the defaults for this client's sessions. It cannot hold Takeover, which is an option of one Open.
	Session SessionOptions
	// Logger logs failed attempts to open a session, and notices if there is no OnNotice. By default slog.Default().
	Logger *slog.Logger
	// DialOptions apply after the client's own.
	DialOptions []grpc.DialOption
}

// SessionOptions says how a session behaves. A zero field takes the client's default, or else the package's. A negative
// duration disables a wait or a limit where its field says so.
//
// The window limits the events that wait in the client, by number and bytes: a larger window smooths the flow, a
// smaller one saves memory. The client refills it when the program has taken a quarter of it.
type SessionOptions struct {
	// Takeover ends another client's session of the same subscription instead of failing with ErrSubscriptionBusy.
	Takeover bool
	// OnNotice is called with each notice, in order with the events, in the goroutine that takes the events. Without
	// it, notices are logged.
	OnNotice func(Notice)
	// WindowEvents is 1 to 2^31-1, by default 16,384.
	WindowEvents int64
	// WindowBytes is 1 to 2^40, by default 8 MiB.
	WindowBytes int64
	// MessageBytesMax is the size of the largest message: 64 KiB to 64 MiB, by default 1 MiB. Larger events arrive in
	// fragments, and the client joins them.
	MessageBytesMax int
	// Heartbeat is how often an idle server sends a message: 1 s to 60 s, by default 10 s. After three silent
	// intervals, the client reconnects.
	Heartbeat time.Duration
	// AckInterval is how long an ack waits at most until it is sent, by default 100 ms; negative: not at all. A longer
	// interval means fewer messages, and more repeats after a crash.
	AckInterval time.Duration
	// OpenTimeout is how long Open keeps trying until the server has opened the session, by default 30 s; negative: as
	// long as its context lasts.
	OpenTimeout time.Duration
	// ReconnectTimeout is how long a session that was open keeps trying to reconnect. By default, and if it is
	// negative, there is no limit.
	ReconnectTimeout time.Duration
	// CloseTimeout is how long Close waits until the acks are confirmed, by default 5 s; negative: not at all, and acks
	// that have not been sent by then are never sent.
	CloseTimeout time.Duration
	// BackoffFirst and BackoffMost are by default 200 ms and 10 s. The delay between attempts is random between 0 and a
	// bound that doubles from BackoffFirst up to BackoffMost.
	BackoffFirst, BackoffMost time.Duration
	// Format is how events are encoded on the wire, by default FormatBSON.
	Format Format
}

// Format is how events are encoded on the wire.
type Format int

const (
	// FormatBSON is the bytes that MongoDB sent; it is the fastest format.
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

// over returns o with its zero fields filled from other options.
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
		return errors.New("feedmux: the window must be 1 to 2^31-1 events and 1 to 2^40 bytes")
	case o.MessageBytesMax < 64<<10 || o.MessageBytesMax > 64<<20:
		return errors.New("feedmux: MessageBytesMax must be 64 KiB to 64 MiB")
	case o.Heartbeat < time.Second || o.Heartbeat > time.Minute:
		return errors.New("feedmux: Heartbeat must be 1 s to 60 s")
	case o.BackoffFirst < 0 || o.BackoffMost < 0:
		return errors.New("feedmux: BackoffFirst and BackoffMost must not be negative")
	case !known:
		return errors.New("feedmux: Format must be one of the Format… constants")
	}
	return nil
}
