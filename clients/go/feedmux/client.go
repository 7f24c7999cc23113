// Package feedmux is the client of feedmux, which delivers MongoDB change events through a shared, durable feed.
//
//	client, err := feedmux.NewClient("localhost:7117", &feedmux.Options{APIKey: key})
//	…
//	session, err := client.Subscription("orders-to-search").Open(ctx, nil)
//	…
//	for event, err := range session.Events(ctx) {
//		if err != nil {
//			return err
//		}
//		var change Change
//		if err := event.Decode(&change); err != nil {
//			return err
//		}
//		index(change)
//		session.Ack(event)
//	}
//
// A session reconnects automatically, resumes after the last acked event, and delivers no event twice. Distinguish
// errors with errors.Is and the Err… values.
package feedmux

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// Version is the version of this client.
const Version = "0.1.0"

// Client is a connection to feedmux. Several goroutines may use it. It connects with the first call.
type Client struct {
	transport   *transport
	feeds       feedmuxpb.ChangeFeedClient
	control     feedmuxpb.SubscriptionsClient
	source      string
	callTimeout time.Duration
	session     SessionOptions
	logger      *slog.Logger
}

// grpcTarget is host and port, or a target with a scheme. Without a port, gRPC would take that of HTTPS.
var grpcTarget = regexp.MustCompile(
	`(?i)^((\[[^\]]+\]|[^:/\s\[\]]+):\d{1,5}|(dns|ipv4|ipv6|unix|unix-abstract|xds):.+|[a-z][a-z0-9+.-]*://.+)$`,
)

// NewClient makes a client for host:port, or for a gRPC target with a scheme. Options may be nil.
func NewClient(target string, options *Options) (*Client, error) {
	if options == nil {
		options = &Options{}
	}
	if !grpcTarget.MatchString(target) || strings.HasPrefix(target, "http://") || strings.HasPrefix(target, "https://") {
		return nil, fmt.Errorf("feedmux: the target is host:port, as in localhost:7117, not %q", target)
	}
	if options.APIKey != "" && options.Token != nil {
		return nil, errors.New("feedmux: give APIKey or Token, not both")
	}
	if options.Session.Takeover {
		return nil, errors.New("feedmux: Takeover cannot be a default: set it in the options of Open")
	}
	if options.CallTimeout < 0 {
		return nil, errors.New("feedmux: CallTimeout must not be negative")
	}
	session := options.Session.over(packageDefaults)
	if err := session.check(); err != nil {
		return nil, err
	}
	transport, err := newTransport(target, options)
	if err != nil {
		return nil, err
	}
	return &Client{
		transport:   transport,
		feeds:       feedmuxpb.NewChangeFeedClient(transport),
		control:     feedmuxpb.NewSubscriptionsClient(transport),
		source:      cmp.Or(options.Source, "main"),
		callTimeout: cmp.Or(options.CallTimeout, 30*time.Second),
		session:     session,
		logger:      cmp.Or(options.Logger, slog.Default()),
	}, nil
}

// Close closes the open sessions, all at the same time and each within its CloseTimeout, and sends their acks. Then it
// closes the connections. A call that waits in one of these sessions, and every later call, returns ErrClientClosed. If
// the server did not confirm all acks, Close returns ErrAcksUnconfirmed, as Session.Close does. Closing again returns
// the same result.
func (c *Client) Close() error { return c.transport.close() }

// Subscription returns the durable subscription with this name. It sends nothing.
func (c *Client) Subscription(name string) *Subscription { return &Subscription{c, name} }

// Feed returns a feed whose position the caller stores. It sends nothing.
func (c *Client) Feed(feed Feed) *InlineFeed { return &InlineFeed{c, feed} }

// InlineFeed is a feed whose position the caller stores.
type InlineFeed struct {
	client *Client
	feed   Feed
}

// Open opens a session at a start; the zero Start is now. The context limits the time for opening; the session lives
// until it is closed. Options may be nil.
func (f *InlineFeed) Open(ctx context.Context, start Start, options *SessionOptions) (*Session, error) {
	message, err := f.feed.message(f.client.source)
	if err != nil {
		return nil, err
	}
	return open(ctx, f.client, opening{feed: message, start: start, instanceID: rand.Text()}, options)
}

// Explain reports what Open would do. A refusal is part of the result, not an error.
func (f *InlineFeed) Explain(ctx context.Context, start Start) (*Explanation, error) {
	message, err := f.feed.message(f.client.source)
	if err != nil {
		return nil, err
	}
	request := &feedmuxpb.ExplainRequest{Feed: message, Start: start.message}
	return explanationOf(call(ctx, f.client, f.client.feeds.Explain, request))
}

// ResolvedPosition is a position to store, with its time.
type ResolvedPosition struct {
	FeedPosition
	// Time is the cluster time as wall-clock time, in whole seconds; zero if it is unknown.
	Time time.Time
}

// Resolve returns the position that a start stands for in this feed.
func (f *InlineFeed) Resolve(ctx context.Context, start Start) (*ResolvedPosition, error) {
	message, err := f.feed.message(f.client.source)
	if err != nil {
		return nil, err
	}
	if start.message == nil {
		start = Latest()
	}
	answer, err := resolve(ctx, f.client, message, start.message)
	if err != nil {
		return nil, err
	}
	resolved := &ResolvedPosition{
		FeedPosition: FeedPosition{Position: answer.GetPosition(), ClusterTime: timestamp(answer.GetClusterTime())},
	}
	if answer.GetTime() != nil {
		resolved.Time = answer.GetTime().AsTime()
	}
	return resolved, nil
}

func resolve(
	ctx context.Context, client *Client, feed *feedmuxpb.Feed, start *feedmuxpb.Start,
) (*feedmuxpb.ResolvePositionResponse, error) {
	request := &feedmuxpb.ResolvePositionRequest{Feed: feed, Start: start}
	answer, err := call(ctx, client, client.feeds.ResolvePosition, request)
	if !isSnapshot(start) {
		return answer, err
	}
	// A server that does not know the field sees an empty Start.
	isUnknown := errors.Is(err, ErrInvalidArgument) && strings.Contains(err.Error(), "start is required")
	if isUnknown || err == nil && answer.GetSnapshot() == nil {
		return nil, snapshotUnsupported("would begin at the present")
	}
	return answer, err
}

// storedStart is what to send where the server stores the start. A server older than StartSnapshot would store the
// present, and a call that is repeated at a newer replica would find nothing wrong. It rejects the position of a copy.
func storedStart(
	ctx context.Context, client *Client, feed *feedmuxpb.Feed, start *feedmuxpb.Start,
) (*feedmuxpb.Start, error) {
	if !isSnapshot(start) {
		return start, nil
	}
	answer, err := resolve(ctx, client, feed, start)
	if err != nil {
		return nil, err
	}
	return AtPosition(answer.GetPosition()).message, nil
}

// call makes one unary call with the client's credentials and deadline.
func call[Request, Answer proto.Message](
	ctx context.Context,
	client *Client,
	method func(context.Context, Request, ...grpc.CallOption) (Answer, error),
	request Request,
) (Answer, error) {
	var none Answer
	if client.transport.isClosed() {
		return none, clientClosed()
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, client.callTimeout)
		defer cancel()
	}
	ctx, err := client.transport.context(ctx)
	if err != nil {
		return none, err
	}
	answer, err := method(ctx, request)
	if err != nil {
		failed := errorFromStatus(err)
		if ctx.Err() != nil {
			failed.causes = append(failed.causes, ctx.Err())
		}
		return none, failed
	}
	return answer, nil
}
