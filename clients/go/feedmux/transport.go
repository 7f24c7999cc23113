package feedmux

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that messageCodec builds upon
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

const (
	routeKey = "x-feedmux-route"
	// A unary call that times out after at least this long treats its connection as dead.
	deadAfter = 5 * time.Second
	// wireBytesMax is more than any message that a session may ask for.
	wireBytesMax = 72 << 20
	// tokenCallsMax is how many calls of the token function may run at the same time.
	tokenCallsMax = 16
)

// transport is the way to the server: the channel, credentials, and the calls. It does not know what messages mean.
//
// It is the grpc.ClientConnInterface of unary calls.
type transport struct {
	dial   func() (*grpc.ClientConn, error)
	apiKey string
	token  func(context.Context) (string, error)
	// asking bounds the calls of token that run: one that hangs and ignores its context would otherwise leave a goroutine
	// with each attempt.
	asking chan struct{}

	mu sync.Mutex
	// current gets the new calls.
	current *channel
	// left get no new calls, and still have open ones.
	left   map[*channel]bool
	closed bool
	// running are the sessions.
	running map[*connection]bool
	ending  sync.Once
	// ended is the result of closing.
	ended error
}

// channel is a gRPC connection and the number of calls on it.
type channel struct {
	conn  *grpc.ClientConn
	calls int
}

func newTransport(target string, options *Options) (*transport, error) {
	security := insecure.NewCredentials()
	if options.TLS != nil {
		security = credentials.NewTLS(withProtocol(options.TLS))
	}
	apiKey, err := cleanToken(options.APIKey)
	if options.APIKey != "" && err != nil {
		return nil, fmt.Errorf("feedmux: the APIKey cannot be sent: %w", err)
	}
	dial := func() (*grpc.ClientConn, error) {
		return grpc.NewClient(target, append([]grpc.DialOption{
			grpc.WithTransportCredentials(security),
			grpc.WithUserAgent("feedmux-go/" + Version),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wireBytesMax), grpc.MaxCallSendMsgSize(wireBytesMax)),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: grpcbackoff.Config{
					BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second,
				},
				MinConnectTimeout: 10 * time.Second,
			}),
		}, options.DialOptions...)...)
	}
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	return &transport{
		dial: dial, apiKey: apiKey, token: options.Token, asking: make(chan struct{}, tokenCallsMax),
		current: &channel{conn: conn}, left: map[*channel]bool{}, running: map[*connection]bool{},
	}, nil
}

// cleanToken is an API key or token as it is sent: without the white space around it, as a key read from a file ends with a
// newline. The error does not quote it.
func cleanToken(text string) (string, error) {
	token := strings.Trim(text, " \t\r\n")
	if token == "" {
		return "", errors.New("it is empty")
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", errors.New("it has characters other than visible ASCII")
	}
	return token, nil
}

func withProtocol(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	return config
}

// begin gives the channel for a call that lasts until end.
func (t *transport) begin() *channel {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.calls++
	return t.current
}

func (t *transport) end(c *channel) {
	t.mu.Lock()
	c.calls--
	unused := t.left[c] && c.calls == 0
	if unused {
		delete(t.left, c)
	}
	t.mu.Unlock()
	if unused {
		_ = c.conn.Close()
	}
}

// leave has new calls go over a new connection, because one that has begun on this one hears nothing: gRPC would use it for
// as long as its keepalive takes to give it up. Streams that are in order stay; it is closed with the last of them.
func (t *transport) leave(c *channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || c != t.current {
		return
	}
	if conn, err := t.dial(); err == nil {
		t.left[c] = true
		t.current = &channel{conn: conn}
	}
}

// join makes a session one of those that are closed with the client; false where that is closed.
func (t *transport) join(r *connection) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.running[r] = true
	}
	return !t.closed
}

func (t *transport) quit(r *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, r)
}

// close closes the sessions, each within its CloseTimeout, then the connections. Closing again gives the same result.
func (t *transport) close() error {
	t.ending.Do(func() { t.ended = t.closeAll() })
	return t.ended
}

func (t *transport) closeAll() error {
	t.mu.Lock()
	t.closed = true
	running := slices.Collect(maps.Keys(t.running))
	t.mu.Unlock()
	failures := make([]error, len(running), len(running)+1)
	var all sync.WaitGroup
	for index, each := range running {
		all.Go(func() { failures[index] = each.closeForClient() })
	}
	all.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.left {
		_ = c.conn.Close()
	}
	return errors.Join(append(failures, t.current.conn.Close())...)
}

func (t *transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// Invoke makes a unary call.
func (t *transport) Invoke(ctx context.Context, method string, request, answer any, options ...grpc.CallOption) error {
	c := t.begin()
	defer t.end(c)
	began := time.Now()
	err := c.conn.Invoke(ctx, method, request, answer, options...)
	if status.Code(err) == codes.DeadlineExceeded && time.Since(began) >= deadAfter {
		t.leave(c)
	}
	return err
}

// NewStream is for streams that other code than subscribe opens: there is none.
func (t *transport) NewStream(
	context.Context, *grpc.StreamDesc, string, ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "streams are opened by subscribe")
}

// tokenBytesMax leaves room for other metadata in the 16 KiB that gRPC lets the server receive.
const tokenBytesMax = 15 << 10

// context gives what every call carries: credentials, asked for again each time.
func (t *transport) context(ctx context.Context) (context.Context, error) {
	bearer := t.apiKey
	if t.token != nil {
		token, err := t.freshToken(ctx)
		if err != nil {
			return nil, unavailable(err, "the token function failed: %v", err)
		}
		bearer = token
	}
	if len(bearer) > tokenBytesMax {
		// gRPC would send none of it, and call that INTERNAL, which is tried again.
		message := fmt.Sprintf("the token has %d bytes; the server reads at most 12 KiB of metadata", len(bearer))
		return nil, &Error{Code: codes.ResourceExhausted, Message: message, kind: ErrQuotaExceeded}
	}
	if bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+bearer)
	}
	return ctx, nil
}

// freshToken asks for a token, and waits no longer than the context lasts, also for a function that does not look at it.
func (t *transport) freshToken(ctx context.Context) (string, error) {
	type answer struct {
		token string
		err   error
	}
	select {
	case t.asking <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	given := make(chan answer, 1)
	go func() {
		defer func() { <-t.asking }()
		token, err := t.token(ctx)
		if err == nil {
			token, err = cleanToken(token)
		}
		given <- answer{token, err}
	}()
	select {
	case got := <-given:
		return got.token, got.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

var subscribeDesc = &feedmuxpb.ChangeFeed_ServiceDesc.Streams[0]

// subscribe begins a Subscribe call on a channel. RecvMsg takes a *[]byte, so that the reader sees a message's own
// bytes.
func (t *transport) subscribe(ctx context.Context, c *channel, route string) (grpc.ClientStream, error) {
	ctx, err := t.context(ctx)
	if err != nil {
		return nil, err
	}
	if route != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, routeKey, route)
	}
	call, err := c.conn.NewStream(
		ctx, subscribeDesc, feedmuxpb.ChangeFeed_Subscribe_FullMethodName, grpc.ForceCodecV2(bytesCodec{}),
	)
	if err != nil {
		return nil, errorFromStatus(err)
	}
	return call, nil
}

// bytesCodec writes protobuf and reads bytes: a message that cannot be decoded is the server's violation, and not to be
// taken for gRPC's own INTERNAL, which stands for a broken connection.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(message any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(message)
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, into any) error {
	*into.(*[]byte) = data.Materialize()
	return nil
}
