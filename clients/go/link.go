package feedmux

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that messageCodec builds upon
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/feedmux/feedmux/clients/go/feedmuxpb"
)

const (
	routeKey = "x-feedmux-route"
	// wireBytesMax is more than any message that a session may ask for.
	wireBytesMax = 72 << 20
)

// link is the way to the server: the connection, credentials, and the calls. It does not know what messages mean.
type link struct {
	conn   *grpc.ClientConn
	apiKey string
	token  func(context.Context) (string, error)
}

func newLink(target string, options *Options) (*link, error) {
	transport := insecure.NewCredentials()
	if options.TLS != nil {
		transport = credentials.NewTLS(withProtocol(options.TLS))
	}
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithUserAgent("feedmux-go/" + Version),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wireBytesMax), grpc.MaxCallSendMsgSize(wireBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second,
			},
			MinConnectTimeout: 10 * time.Second,
		}),
	}, options.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	return &link{conn, options.APIKey, options.Token}, nil
}

func withProtocol(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	return config
}

func (l *link) closed() bool { return l.conn.GetState() == connectivity.Shutdown }

// context gives what every call carries: credentials, asked for anew each time.
func (l *link) context(ctx context.Context) (context.Context, error) {
	bearer := l.apiKey
	if l.token != nil {
		token, err := l.token(ctx)
		if err != nil {
			return nil, unavailable(err, "no token: %v", err)
		}
		bearer = token
	}
	if bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+bearer)
	}
	return ctx, nil
}

var subscribeDesc = &feedmuxpb.ChangeFeed_ServiceDesc.Streams[0]

// subscribe begins a Subscribe call. RecvMsg takes a *[]byte, so that the reader sees a message's own bytes.
func (l *link) subscribe(ctx context.Context, route string) (grpc.ClientStream, error) {
	ctx, err := l.context(ctx)
	if err != nil {
		return nil, err
	}
	if route != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, routeKey, route)
	}
	call, err := l.conn.NewStream(
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
