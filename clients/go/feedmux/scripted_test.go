package feedmux

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// script plays one Subscribe call; what it returns is the call's status.
type script func(*scriptedCall) error

// scripted is a server that plays scripts: what a real one cannot be made to do. Each Subscribe call takes the next
// script; when they run out the last one is played again.
type scripted struct {
	pb.UnimplementedChangeFeedServer
	address string
	scripts []script
	control *unaries

	mu    sync.Mutex
	calls []*scriptedCall
	began wakeup
}

// scriptedCall is one Subscribe call: what came up, and what goes down.
type scriptedCall struct {
	stream   grpc.BidiStreamingServer[pb.SubscribeRequest, pb.SubscribeResponse]
	open     *pb.Open
	metadata metadata.MD

	mu       sync.Mutex
	received []*pb.SubscribeRequest
	arrived  wakeup
}

func serve(t *testing.T, options []grpc.ServerOption, scripts ...script) *scripted {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, listener, options, scripts...)
}

func serveOn(t *testing.T, listener net.Listener, options []grpc.ServerOption, scripts ...script) *scripted {
	t.Helper()
	server := grpc.NewServer(append(options, grpc.ForceServerCodecV2(anyCodec{}), grpc.MaxSendMsgSize(wireBytesMax))...)
	made := &scripted{address: listener.Addr().String(), scripts: scripts, control: &unaries{}}
	pb.RegisterChangeFeedServer(server, made)
	pb.RegisterSubscriptionsServer(server, made.control)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return made
}

// anyCodec also sends []byte as it is.
type anyCodec struct{}

func (anyCodec) Name() string { return "proto" }

func (anyCodec) Marshal(message any) (mem.BufferSlice, error) {
	if raw, ok := message.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(message)
}

func (anyCodec) Unmarshal(data mem.BufferSlice, into any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, into)
}

func (s *scripted) Subscribe(stream grpc.BidiStreamingServer[pb.SubscribeRequest, pb.SubscribeResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	call := &scriptedCall{stream: stream, open: first.GetOpen()}
	call.metadata, _ = metadata.FromIncomingContext(stream.Context())
	s.mu.Lock()
	s.calls = append(s.calls, call)
	play := s.scripts[min(len(s.calls), len(s.scripts))-1]
	s.began.notify()
	s.mu.Unlock()
	go call.listen()
	return play(call)
}

// call waits for the call of a number, from 0.
func (s *scripted) call(t *testing.T, number int) *scriptedCall {
	t.Helper()
	for {
		s.mu.Lock()
		if len(s.calls) > number {
			defer s.mu.Unlock()
			return s.calls[number]
		}
		began := s.began.wait()
		s.mu.Unlock()
		select {
		case <-began:
		case <-t.Context().Done():
			t.Fatal("no such call")
		}
	}
}

func (c *scriptedCall) listen() {
	for {
		request, err := c.stream.Recv()
		if err != nil {
			return
		}
		c.mu.Lock()
		c.received = append(c.received, request)
		c.arrived.notify()
		c.mu.Unlock()
	}
}

func (c *scriptedCall) send(messages ...any) error {
	for _, message := range messages {
		if err := c.stream.SendMsg(message); err != nil {
			return err
		}
	}
	return nil
}

// until waits for what has been received to satisfy wanted.
func (c *scriptedCall) until(wanted func() bool) error {
	for {
		c.mu.Lock()
		arrived := c.arrived.wait()
		c.mu.Unlock()
		if wanted() {
			return nil
		}
		select {
		case <-arrived:
		case <-c.stream.Context().Done():
			return c.stream.Context().Err()
		}
	}
}

func (c *scriptedCall) untilAcked(sequence int64) error {
	return c.until(func() bool { return c.acked() >= sequence })
}

func (c *scriptedCall) untilClosed() error { return c.until(c.closed) }

func (c *scriptedCall) each(look func(*pb.SubscribeRequest)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, request := range c.received {
		look(request)
	}
}

func (c *scriptedCall) acked() (highest int64) {
	c.each(func(r *pb.SubscribeRequest) { highest = max(highest, r.GetAck().GetDeliverySequence()) })
	return highest
}

func (c *scriptedCall) closed() (found bool) {
	c.each(func(r *pb.SubscribeRequest) { found = found || r.GetClose() != nil })
	return found
}

func (c *scriptedCall) granted() (events int64) {
	c.each(func(r *pb.SubscribeRequest) { events += r.GetCredit().GetEvents() })
	return events + c.open.GetCredit().GetEvents()
}

// play sends messages, waits for Close and ends with OK.
func play(messages ...any) script {
	return func(c *scriptedCall) error {
		if err := c.send(messages...); err != nil {
			return err
		}
		return c.untilClosed()
	}
}

// fail sends messages and ends with a status.
func fail(err error, messages ...any) script {
	return func(c *scriptedCall) error {
		if sent := c.send(messages...); sent != nil {
			return sent
		}
		return err
	}
}

// failure is a status as the real server gives it. A negative retryAfter leaves RetryInfo out.
func failure(code codes.Code, reason string, metadata map[string]string, retryAfter time.Duration) error {
	state := status.New(code, "scripted")
	var details []protoadapt.MessageV1
	if reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: reason, Domain: "feedmux", Metadata: metadata})
	}
	if retryAfter >= 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	if len(details) > 0 {
		state, _ = state.WithDetails(details...)
	}
	return state.Err()
}

// --- messages, with events whose `_id` is a plausible resume token ---------------------------------------------------

// token is the resume token of an event: its cluster time is (1000 + number, 1).
func token(number int) bson.Raw {
	return marshal(bson.D{{Key: "_data", Value: fmt.Sprintf("82%08X0000000129295A1004", 1000+number)}})
}

func marshal(document any) bson.Raw {
	raw, err := bson.Marshal(document)
	if err != nil {
		panic(err)
	}
	return raw
}

func position(number int) []byte { return fmt.Appendf(nil, "P%d", number) }

func clusterTime(number int) *pb.ClusterTime {
	return &pb.ClusterTime{Seconds: uint32(1000 + number), Increment: 1}
}

func at(number int) FeedPosition {
	return FeedPosition{position(number), token(number), timestamp(clusterTime(number))}
}

func documentOf(number, pad int) bson.Raw {
	return marshal(bson.D{
		{Key: "_id", Value: token(number)},
		{Key: "operationType", Value: "insert"},
		{Key: "n", Value: number},
		{Key: "pad", Value: string(make([]byte, pad))},
	})
}

func documents(pad int, numbers ...int) (all []byte) {
	for _, number := range numbers {
		all = append(all, documentOf(number, pad)...)
	}
	return all
}

func openedAt(number int, limits *pb.Limits) *pb.SubscribeResponse {
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Opened{Opened: &pb.Opened{
		Epoch: 1, Position: position(number), ResumeToken: token(number), ClusterTime: clusterTime(number),
		Limits: limits, HeartbeatInterval: durationpb.New(10 * time.Second), RoutingKey: "route-1",
	}}}
}

func batchOf(sequence int64, numbers ...int) *pb.SubscribeResponse {
	last := numbers[len(numbers)-1]
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Batch{Batch: &pb.Batch{
		FirstDeliverySequence: sequence, EventCount: int32(len(numbers)), Bson: documents(0, numbers...),
		Position: position(last), ResumeToken: token(last), ClusterTime: clusterTime(last),
	}}}
}

func progressAt(number int) *pb.SubscribeResponse {
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Progress{Progress: &pb.Progress{
		Position: position(number), ResumeToken: token(number), ClusterTime: clusterTime(number),
	}}}
}

func committedTo(sequence int64, number int) *pb.SubscribeResponse {
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Committed{
		Committed: &pb.Committed{DeliverySequence: sequence, Position: position(number)},
	}}
}

func noticed(notice *pb.Notice) *pb.SubscribeResponse {
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Notice{Notice: notice}}
}

func fragment(sequence int64, index, count, number int, data []byte) *pb.SubscribeResponse {
	part := &pb.EventFragment{DeliverySequence: sequence, Index: int32(index), Count: int32(count), Data: data}
	if index+1 == count {
		part.Position, part.ResumeToken, part.ClusterTime = position(number), token(number), clusterTime(number)
	}
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_EventFragment{EventFragment: part}}
}

func span(first, last int) (numbers []int) {
	for number := first; number <= last; number++ {
		numbers = append(numbers, number)
	}
	return numbers
}

// --- the client's side -----------------------------------------------------------------------------------------------

var quick = SessionOptions{
	BackoffFirst: time.Millisecond, BackoffMost: 5 * time.Millisecond, AckInterval: 5 * time.Millisecond,
}

func connect(t *testing.T, server *scripted, options *Options) *Client {
	t.Helper()
	if options == nil {
		options = &Options{}
	}
	options.Session = options.Session.over(quick)
	client, err := NewClient(server.address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func subscribe(t *testing.T, server *scripted, options *SessionOptions) *Session {
	t.Helper()
	session, err := connect(t, server, nil).Subscription("s").Open(limited(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { abandon(session) })
	return session
}

func abandon(session *Session) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = session.CloseContext(ctx)
}

// limited is a context that ends a test that hangs.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func number(t *testing.T, event Event) int {
	t.Helper()
	var decoded struct {
		N int `bson:"n"`
	}
	if err := event.Decode(&decoded); err != nil {
		t.Fatal(err)
	}
	return decoded.N
}

// take gives the numbers of the next events.
func take(t *testing.T, session *Session, count int) (numbers []int) {
	t.Helper()
	for range count {
		event, err := session.Next(limited(t))
		if err != nil {
			t.Fatalf("after %v: %v", numbers, err)
		}
		numbers = append(numbers, number(t, event))
	}
	return numbers
}
