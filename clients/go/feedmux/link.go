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
)

// link is the way to the server: the connection, credentials, and the calls. It does not know what messages mean.
//
// It is the grpc.ClientConnInterface of unary calls.
type link struct {
	dial   func() (*grpc.ClientConn, error)
	apiKey string
	token  func(context.Context) (string, error)

	mu sync.Mutex
	// current gets the new calls.
	current *connection
	// left get no new calls, and still have open ones.
	left   map[*connection]bool
	closed bool
	// running are the sessions.
	running map[*runner]bool
	ending  sync.Once
	// ended is the result of closing.
	ended error
}

// connection is a gRPC connection and the number of calls on it.
type connection struct {
	conn  *grpc.ClientConn
	calls int
}

func newLink(target string, options *Options) (*link, error) {
	transport := insecure.NewCredentials()
	if options.TLS != nil {
		transport = credentials.NewTLS(withProtocol(options.TLS))
	}
	apiKey, err := cleanToken(options.APIKey)
	if options.APIKey != "" && err != nil {
		return nil, fmt.Errorf("feedmux: the APIKey cannot be sent: %w", err)
	}
	dial := func() (*grpc.ClientConn, error) {
		return grpc.NewClient(target, append([]grpc.DialOption{
			grpc.WithTransportCredentials(transport),
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
	return &link{
		dial: dial, apiKey: apiKey, token: options.Token,
		current: &connection{conn: conn}, left: map[*connection]bool{}, running: map[*runner]bool{},
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

// begin gives the connection for a call that lasts until end.
func (l *link) begin() *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.calls++
	return l.current
}

func (l *link) end(c *connection) {
	l.mu.Lock()
	c.calls--
	unused := l.left[c] && c.calls == 0
	if unused {
		delete(l.left, c)
	}
	l.mu.Unlock()
	if unused {
		_ = c.conn.Close()
	}
}

// leave has new calls go over a new connection, because one that has begun on this one hears nothing: gRPC would use it for
// as long as its keepalive takes to give it up. Streams that are in order stay; it is closed with the last of them.
func (l *link) leave(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || c != l.current {
		return
	}
	if conn, err := l.dial(); err == nil {
		l.left[c] = true
		l.current = &connection{conn: conn}
	}
}

// join makes a session one of those that are closed with the client; false where that is closed.
func (l *link) join(r *runner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.running[r] = true
	}
	return !l.closed
}

func (l *link) quit(r *runner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, r)
}

// close closes the sessions, each within its CloseTimeout, then the connections. Closing again gives the same result.
func (l *link) close() error {
	l.ending.Do(func() { l.ended = l.closeAll() })
	return l.ended
}

func (l *link) closeAll() error {
	l.mu.Lock()
	l.closed = true
	running := slices.Collect(maps.Keys(l.running))
	l.mu.Unlock()
	failures := make([]error, len(running), len(running)+1)
	var all sync.WaitGroup
	for index, each := range running {
		all.Go(func() { failures[index] = each.closeForClient() })
	}
	all.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.left {
		_ = c.conn.Close()
	}
	return errors.Join(append(failures, l.current.conn.Close())...)
}

func (l *link) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Invoke makes a unary call.
func (l *link) Invoke(ctx context.Context, method string, request, answer any, options ...grpc.CallOption) error {
	c := l.begin()
	defer l.end(c)
	began := time.Now()
	err := c.conn.Invoke(ctx, method, request, answer, options...)
	if status.Code(err) == codes.DeadlineExceeded && time.Since(began) >= deadAfter {
		l.leave(c)
	}
	return err
}

// NewStream is for streams that other code than subscribe opens: there is none.
func (l *link) NewStream(
	context.Context, *grpc.StreamDesc, string, ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "streams are opened by subscribe")
}

// context gives what every call carries: credentials, asked for anew each time.
func (l *link) context(ctx context.Context) (context.Context, error) {
	bearer := l.apiKey
	if l.token != nil {
		token, err := l.freshToken(ctx)
		if err != nil {
			return nil, unavailable(err, "the token function failed: %v", err)
		}
		bearer = token
	}
	if bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+bearer)
	}
	return ctx, nil
}

// freshToken asks for a token, and waits no longer than the context lasts, also for a function that does not look at it.
func (l *link) freshToken(ctx context.Context) (string, error) {
	type answer struct {
		token string
		err   error
	}
	given := make(chan answer, 1)
	go func() {
		token, err := l.token(ctx)
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

// subscribe begins a Subscribe call on a connection. RecvMsg takes a *[]byte, so that the reader sees a message's own bytes.
func (l *link) subscribe(ctx context.Context, c *connection, route string) (grpc.ClientStream, error) {
	ctx, err := l.context(ctx)
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
