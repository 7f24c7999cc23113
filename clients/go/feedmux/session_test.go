package feedmux

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

var away = status.Error(codes.Unavailable, "away")

func TestIteratesAcksAndCloses(t *testing.T) {
	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, 1, 2), batchOf(3, 3)))
	session := subscribe(t, server, nil)
	var seen []int
	for event, err := range session.Events(limited(t)) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, number(t, event))
		session.Ack(event)
		if event.Sequence() == 3 {
			break
		}
	}
	same(t, seen, []int{1, 2, 3})
	if _, ok, err := session.TryNext(); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, server.calls[0].acked(), 3)
	same(t, server.calls[0].closed(), true)
	if _, err := session.Next(limited(t)); err != ErrClosed {
		t.Fatal(err)
	}
	for range session.Events(limited(t)) {
		t.Fatal("an event after Close")
	}
}

func TestConsumeAcksWhatWasHandledAndStopsAtTheFirstError(t *testing.T) {
	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, 1, 2), batchOf(3, 3)))
	session := subscribe(t, server, nil)
	ctx, cancel := context.WithCancel(limited(t))
	var seen []int
	failed := errors.New("event 2 fails")
	err := session.Consume(ctx, func(_ context.Context, event Event) error {
		seen = append(seen, number(t, event))
		if event.Sequence() == 2 {
			return failed
		}
		return nil
	})
	same(t, err, failed)
	same(t, session.buffer.acked, 1)
	err = session.Consume(ctx, func(_ context.Context, event Event) error {
		seen = append(seen, number(t, event))
		cancel()
		return nil
	})
	same(t, err, context.Canceled)
	same(t, seen, []int{1, 2, 3})
	same(t, session.Close(), nil)
	same(t, server.calls[0].acked(), 3)
	same(t, session.Consume(limited(t), func(context.Context, Event) error { return failed }), nil)
}

func TestALoopLeftAndEnteredAgainGoesOn(t *testing.T) {
	session := subscribe(t, serve(t, nil, play(openedAt(0, nil), batchOf(1, span(1, 5)...))), nil)
	var seen []int
	for range 2 {
		for event := range session.Events(limited(t)) {
			seen = append(seen, number(t, event))
			break
		}
	}
	seen = append(seen, take(t, session, 1)...)
	same(t, session.ResumeToken(), token(3))
	for batch, err := range session.Batches(limited(t)) {
		same(t, err, nil)
		same(t, batch.FirstSequence(), 4)
		seen = append(seen, number(t, batch.Event(0)), number(t, batch.Event(1)))
		break
	}
	same(t, seen, span(1, 5))
	same(t, session.ResumeToken(), token(5))
	same(t, session.Progress(), at(5))
}

func TestASlowLoopSlowsTheServer(t *testing.T) {
	server := serve(t, nil, func(c *scriptedCall) error {
		if err := c.send(openedAt(0, &pb.Limits{UnackedEventsMax: 20})); err != nil {
			return err
		}
		for first := 1; first < 200; first += 10 {
			enough := func() bool { return c.granted() >= int64(first)+9 && c.acked() >= int64(first)-21 }
			if err := c.until(enough); err != nil {
				return err
			}
			// Nothing is granted for what has not been taken.
			if most := int64(first) + 19; c.granted() > most {
				t.Errorf("%d granted, more than %d", c.granted(), most)
			}
			if err := c.send(batchOf(int64(first), span(first, first+9)...)); err != nil {
				return err
			}
		}
		return c.untilClosed()
	})
	session := subscribe(t, server, &SessionOptions{WindowEvents: 20, AckInterval: time.Hour})
	for event, err := range session.Events(limited(t)) {
		if err != nil {
			t.Fatal(err)
		}
		session.Ack(event)
		if event.Sequence() == 200 {
			break
		}
	}
	same(t, session.Close(), nil)
	same(t, server.calls[0].acked(), 200)
}

func TestReconnectsBehindTheLastAckAndRepeatsNothing(t *testing.T) {
	server := serve(t, nil,
		func(c *scriptedCall) error {
			if err := c.send(openedAt(0, nil), batchOf(1, 1, 2, 3)); err != nil {
				return err
			}
			if err := c.untilAcked(1); err != nil {
				return err
			}
			return away
		},
		play(openedAt(1, nil), batchOf(1, 2, 3, 4)),
	)
	var notices []Notice
	session := subscribe(t, server, &SessionOptions{Takeover: true, OnNotice: func(n Notice) { notices = append(notices, n) }})
	event, err := session.Next(limited(t))
	same(t, err, nil)
	session.Ack(event)
	same(t, take(t, session, 3), []int{2, 3, 4})
	session.AckAll()
	second := server.call(t, 1)
	same(t, second.untilAcked(3), nil)
	same(t, session.Close(), nil)
	first := server.call(t, 0)
	same(t, second.open.GetLastAcked().GetResumeToken(), []byte(token(1)))
	same(t, second.open.GetLastAcked().GetEpoch(), 1)
	same(t, []bool{first.open.GetTakeover(), second.open.GetTakeover()}, []bool{true, false})
	same(t, first.open.GetInstanceId() == second.open.GetInstanceId(), true)
	same(t, second.metadata.Get(routeKey), []string{"route-1"})
	if lost, ok := notices[0].(Disconnected); len(notices) != 1 || !ok || !errors.Is(lost.Err, ErrUnavailable) {
		t.Fatal(notices)
	}
}

func TestAnInlineFeedGoesOnBehindTheLastEventReceived(t *testing.T) {
	server := serve(t, nil,
		fail(away, openedAt(0, nil), batchOf(1, 1, 2), progressAt(5)),
		play(openedAt(5, nil), batchOf(1, 6)),
	)
	feed := Feed{Database: "shop", Pipeline: []bson.D{{{Key: "$match", Value: bson.D{}}}}}
	session, err := connect(t, server, nil).Feed(feed).Open(limited(t), Earliest(), nil)
	same(t, err, nil)
	defer abandon(session)
	same(t, take(t, session, 3), []int{1, 2, 6})
	session.AckAll()
	same(t, session.Close(), nil)
	first, second := server.call(t, 0), server.call(t, 1)
	same(t, first.open.GetFeed().GetSource(), "main")
	same(t, first.open.GetStart().GetEarliest() != nil, true)
	same(t, second.open.GetStart().GetPosition(), position(5))
	same(t, second.acked(), 0)
}

func TestASilentServerIsLeft(t *testing.T) {
	mute := openedAt(0, nil)
	mute.GetOpened().HeartbeatInterval = durationpb.New(10 * time.Millisecond)
	server := serve(t, nil,
		func(c *scriptedCall) error {
			_ = c.send(mute)
			<-c.stream.Context().Done()
			return nil
		},
		play(openedAt(0, nil), batchOf(1, 1)),
	)
	same(t, take(t, subscribe(t, server, nil), 1), []int{1})
}

func TestAMovedPositionMakesWhatIsUnackedCountForNothing(t *testing.T) {
	moved := failure(codes.Aborted, "FENCED", map[string]string{"cause": "SEEK"}, -1)
	server := serve(t, nil,
		func(c *scriptedCall) error {
			if err := c.send(openedAt(0, nil), batchOf(1, 1), batchOf(2, 2, 3)); err != nil {
				return err
			}
			_ = c.untilAcked(1)
			return moved
		},
		play(openedAt(0, nil), batchOf(1, 1, 2)),
	)
	heard := make(chan Notice, 2)
	session := subscribe(t, server, &SessionOptions{OnNotice: func(n Notice) { heard <- n }})
	same(t, take(t, session, 1), []int{1})
	session.AckAll()
	server.call(t, 1)
	same(t, take(t, session, 2), []int{1, 2})
	_, disconnected := (<-heard).(Disconnected)
	_, rewound := (<-heard).(Rewound)
	same(t, []bool{disconnected, rewound}, []bool{true, true})
	same(t, server.calls[1].open.GetLastAcked() == nil, true)
}

func TestFragmentsAreJoined(t *testing.T) {
	whole := documentOf(1, 1000)
	server := serve(t, nil, play(openedAt(0, nil),
		fragment(1, 0, 3, 1, whole[:300]), fragment(1, 1, 3, 1, whole[300:600]), fragment(1, 2, 3, 1, whole[600:]),
		batchOf(2, 2)))
	session := subscribe(t, server, nil)
	event, err := session.Next(limited(t))
	same(t, err, nil)
	same(t, event.Raw(), whole)
	same(t, session.Progress(), at(1))
	same(t, take(t, session, 1), []int{2})
}

func TestATokenThatTheServerOmitsIsThatOfTheEvent(t *testing.T) {
	batch := batchOf(1, 1, 2)
	batch.GetBatch().ResumeToken = nil
	session := subscribe(t, serve(t, nil, play(openedAt(0, nil), batch)), nil)
	same(t, take(t, session, 2), []int{1, 2})
	same(t, session.ResumeToken(), token(2))
	same(t, session.Progress().Position, position(2))
}

func TestAFragmentOfABrokenStreamIsForgotten(t *testing.T) {
	whole := documentOf(1, 1000)
	server := serve(t, nil,
		fail(away, openedAt(0, nil), fragment(1, 0, 2, 1, whole[:300])),
		play(openedAt(0, nil), batchOf(1, 1)),
	)
	same(t, take(t, subscribe(t, server, nil), 1), []int{1})
}

func TestAServerThatBreaksTheProtocolEndsTheSession(t *testing.T) {
	cut := batchOf(1, 1, 2)
	cut.GetBatch().Bson = cut.GetBatch().Bson[:50]
	wrongCount := batchOf(1, 1, 2)
	wrongCount.GetBatch().EventCount = 3
	for name, messages := range map[string][]any{
		"a gap in the sequence":         {openedAt(0, nil), batchOf(2, 1)},
		"more events than the credit":   {openedAt(0, nil), batchOf(1, span(1, 11)...)},
		"more bytes than the credit":    {openedAt(0, nil), batchOf(1, span(1, 10)...), batchOf(11, 11)},
		"a batch over the limit":        {openedAt(0, &pb.Limits{MessageBytesMax: 64}), batchOf(1, 1)},
		"a message between fragments":   {openedAt(0, nil), fragment(1, 0, 2, 1, []byte("x")), progressAt(0)},
		"a fragment out of order":       {openedAt(0, nil), fragment(1, 1, 2, 1, []byte("x"))},
		"a fragment of another event":   {openedAt(0, nil), fragment(1, 0, 2, 1, []byte("x")), fragment(2, 1, 2, 2, nil)},
		"a message of no message":       {openedAt(0, nil), []byte{0x12, 0xff}},
		"lengths that do not add up":    {openedAt(0, nil), cut},
		"a wrong number of events":      {openedAt(0, nil), wrongCount},
		"a batch without events":        {openedAt(0, nil), &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Batch{Batch: &pb.Batch{FirstDeliverySequence: 1}}}},
		"events before Opened":          {batchOf(1, 1)},
		"Opened a second time":          {openedAt(0, nil), openedAt(0, nil)},
		"a document of a huge length":   {openedAt(0, nil), raw("\xff\xff\xff\x7f\x00")},
		"a document of negative length": {openedAt(0, nil), raw("\xff\xff\xff\xff\x00")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, nil, play(messages...))
			session, err := connect(t, server, nil).Subscription("s").Open(limited(t), &SessionOptions{WindowEvents: 10, WindowBytes: 500})
			if err == nil {
				defer abandon(session)
				for err == nil {
					_, err = session.Next(limited(t))
				}
			}
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
		})
	}
}

func raw(document string) *pb.SubscribeResponse {
	return &pb.SubscribeResponse{Message: &pb.SubscribeResponse_Batch{Batch: &pb.Batch{
		FirstDeliverySequence: 1, EventCount: 1, Bson: []byte(document),
	}}}
}

func TestWhatANewerServerAddsIsIgnored(t *testing.T) {
	withField := batchOf(1, 1)
	withField.GetBatch().ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 0x01})
	newKind := []byte{0xfa, 0x3e, 0x02, 0x08, 0x01}
	newNotice, whole := noticed(&pb.Notice{}), documentOf(2, 100)
	server := serve(t, nil, play(newKind, openedAt(0, nil), newKind, newNotice, withField,
		fragment(2, 0, 2, 2, whole[:50]), newKind, newNotice, fragment(2, 1, 2, 2, whole[50:])))
	session := subscribe(t, server, &SessionOptions{OnNotice: func(n Notice) { t.Error(n) }})
	same(t, take(t, session, 2), []int{1, 2})
}

func TestNoticesComeBetweenTheirEvents(t *testing.T) {
	gap := noticed(&pb.Notice{Kind: &pb.Notice_Gap_{Gap: &pb.Notice_Gap{From: clusterTime(1), To: clusterTime(9), Reason: "policy"}}})
	var heard []Notice
	session := subscribe(t, serve(t, nil, play(openedAt(0, nil), batchOf(1, 1), gap, batchOf(2, 2))),
		&SessionOptions{OnNotice: func(n Notice) { heard = append(heard, n) }})
	same(t, take(t, session, 1), []int{1})
	same(t, len(heard), 0)
	same(t, take(t, session, 1), []int{2})
	same(t, heard, []Notice{Gap{at(1).ClusterTime, at(9).ClusterTime, "policy"}})
}

func TestANoticeSaysHowFarACopyIs(t *testing.T) {
	running := noticed(&pb.Notice{Kind: &pb.Notice_Snapshot{Snapshot: &pb.SnapshotStatus{
		State: pb.SnapshotStatus_STATE_RUNNING, Documents: 3, Bytes: 300, DocumentsEstimated: 10,
		Remaining: durationpb.New(1500 * time.Millisecond), ReadTime: clusterTime(1), Namespace: "shop.orders", Generation: 7,
	}}})
	complete := noticed(&pb.Notice{Kind: &pb.Notice_Snapshot{Snapshot: &pb.SnapshotStatus{
		State: pb.SnapshotStatus_STATE_DONE, Documents: 3, Generation: 7,
	}}})
	again := noticed(&pb.Notice{Kind: &pb.Notice_Snapshot{Snapshot: &pb.SnapshotStatus{
		State: pb.SnapshotStatus_STATE_RUNNING, Generation: 8,
	}}})
	within := openedAt(0, nil)
	within.GetOpened().Snapshot = &pb.SnapshotStatus{State: pb.SnapshotStatus_STATE_RUNNING, Documents: 2, Generation: 7}
	var heard []Notice
	session := subscribe(t, serve(t, nil, play(within, running, batchOf(1, 1), complete, batchOf(2, 2), again, batchOf(3, 3))),
		&SessionOptions{OnNotice: func(n Notice) { heard = append(heard, n) }})
	same(t, session.Copying().Documents, int64(2))
	same(t, take(t, session, 1), []int{1})
	same(t, session.Copying().Documents, int64(3))
	same(t, take(t, session, 1), []int{2})
	same(t, session.Copying(), nil)
	same(t, take(t, session, 1), []int{3})
	same(t, session.Copying().Generation, int64(8))
	same(t, heard, []Notice{
		SnapshotProgress{SnapshotStatus{3, 300, 10, 1500 * time.Millisecond, at(1).ClusterTime, "shop.orders", 7}},
		SnapshotComplete{Documents: 3, Generation: 7},
		SnapshotProgress{SnapshotStatus{Generation: 8}},
	})
	same(t, heard[0].String(), "documents copied so far: 3 of about 10")
}

func TestTheErrorThatEndsASessionStays(t *testing.T) {
	invalidated := failure(codes.FailedPrecondition, "FEED_INVALIDATED", nil, -1)
	session := subscribe(t, serve(t, nil, fail(invalidated, openedAt(0, nil), batchOf(1, 1))), nil)
	same(t, take(t, session, 1), []int{1})
	for range 2 {
		_, err := session.Next(limited(t))
		failed, ok := errors.AsType[*Error](err)
		if !ok || !errors.Is(err, ErrFeedInvalidated) || status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
		same(t, failed.Position, position(1))
		same(t, failed.ResumeToken, token(1))
	}
}

func TestADeadlineOfNextLeavesTheSession(t *testing.T) {
	release := make(chan struct{})
	session := subscribe(t, serve(t, nil, func(c *scriptedCall) error {
		_ = c.send(openedAt(0, nil))
		<-release
		return play(batchOf(1, 1))(c)
	}), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := session.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	close(release)
	same(t, take(t, session, 1), []int{1})
}

func TestCloseFlushesAlsoWhenTheLoopWasCancelled(t *testing.T) {
	server := serve(t, nil, func(c *scriptedCall) error {
		if err := c.send(openedAt(0, nil), batchOf(1, 1, 2)); err != nil {
			return err
		}
		if err := c.untilClosed(); err != nil {
			return err
		}
		return c.send(committedTo(c.acked(), 2))
	})
	session := subscribe(t, server, &SessionOptions{AckInterval: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for event, err := range session.Events(ctx) {
		if err != nil {
			same(t, err, context.Canceled)
			break
		}
		session.Ack(event)
		if event.Sequence() == 2 {
			cancel()
		}
	}
	same(t, session.Close(), nil)
	same(t, server.calls[0].acked(), 2)
	same(t, session.Committed(), position(2))
}

func TestCloseSaysThatAcksWereNotConfirmed(t *testing.T) {
	server := serve(t, nil, func(c *scriptedCall) error {
		_ = c.send(openedAt(0, nil), batchOf(1, 1))
		<-c.stream.Context().Done()
		return nil
	})
	session := subscribe(t, server, nil)
	take(t, session, 1)
	session.AckAll()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := session.CloseContext(ctx); !errors.Is(err, ErrAcksUnconfirmed) {
		t.Fatal(err)
	}
}

func TestCloseWakesWhoWaits(t *testing.T) {
	session := subscribe(t, serve(t, nil, play(openedAt(0, nil))), nil)
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if _, err := session.Next(limited(t)); err != ErrClosed {
				t.Error(err)
			}
		})
	}
	same(t, session.Close(), nil)
	waiting.Wait()
}

func TestCloseWhileReconnectingDoesNotWait(t *testing.T) {
	session := subscribe(t, serve(t, nil, fail(away, openedAt(0, nil)), fail(failure(codes.Unavailable, "", nil, time.Hour))), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := session.Next(ctx)
	same(t, err, context.DeadlineExceeded)
	same(t, session.CloseContext(limited(t)), nil)
}

func TestAcksInTheOpenOfAClosingSessionAreConfirmed(t *testing.T) {
	again := play(&pb.SubscribeResponse{Message: &pb.SubscribeResponse_Opened{Opened: &pb.Opened{
		Epoch: 2, Position: position(2), ResumeToken: token(2), ClusterTime: clusterTime(2), AtLastAcked: true,
	}}})
	lost := failure(codes.Unavailable, "", nil, time.Hour)
	server := serve(t, nil, fail(lost, openedAt(0, nil), batchOf(1, 1, 2, 3)), again)
	disconnected, away := context.WithCancel(limited(t))
	session := subscribe(t, server, &SessionOptions{OnNotice: func(Notice) { away() }})
	take(t, session, 1)
	second, err := session.Next(limited(t))
	same(t, err, nil)
	take(t, session, 1)
	_, err = session.Next(disconnected)
	same(t, err, context.Canceled)
	session.Ack(second)
	same(t, session.CloseContext(limited(t)), nil)
	same(t, server.call(t, 1).open.GetLastAcked().GetResumeToken(), []byte(token(2)))
}

func TestOpenTellsWhyItWaitedInVain(t *testing.T) {
	server := serve(t, nil, fail(away))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		server.call(t, 2)
		cancel()
	}()
	_, err := connect(t, server, nil).Subscription("s").Open(ctx, nil)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	_, err = connect(t, server, nil).Subscription("s").Open(limited(t), &SessionOptions{OpenTimeout: time.Millisecond})
	if errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
}

func TestAClosedClientEndsItsSessions(t *testing.T) {
	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, 1, 2)))
	client := connect(t, server, nil)
	session, err := client.Subscription("s").Open(limited(t), nil)
	same(t, err, nil)
	same(t, take(t, session, 1), []int{1})
	session.AckAll()
	waited := make(chan error)
	go func() {
		_, _ = session.NextBatch(limited(t))
		for _, err := range session.Events(limited(t)) {
			waited <- err
		}
	}()
	if err := client.Close(); !errors.Is(err, ErrAcksUnconfirmed) && err != nil {
		t.Fatal(err)
	}
	var failed *Error
	if err := <-waited; !errors.As(err, &failed) || failed.Code != codes.Canceled || !errors.Is(err, ErrClientClosed) {
		t.Fatal(err)
	}
	same(t, server.calls[0].acked(), 1)
	same(t, server.calls[0].closed(), true)
	same(t, session.Closed(), true)
	_ = session.Close()
	if _, err := session.Next(limited(t)); err != ErrClosed {
		t.Fatal(err)
	}
	if _, err := client.Subscription("s").Open(limited(t), nil); !errors.Is(err, ErrClientClosed) {
		t.Fatal(err)
	}
	if _, err := client.Subscription("s").Get(limited(t)); !errors.Is(err, ErrClientClosed) {
		t.Fatal(err)
	}
}

func TestAClosedClientEndsWhatIsBeingOpened(t *testing.T) {
	server := serve(t, nil, func(c *scriptedCall) error { return c.untilClosed() })
	client := connect(t, server, nil)
	opened := make(chan error)
	go func() {
		_, err := client.Subscription("s").Open(limited(t), nil)
		opened <- err
	}()
	server.call(t, 0)
	same(t, client.Close(), nil)
	if err := <-opened; !errors.Is(err, ErrClientClosed) {
		t.Fatal(err)
	}
}

func TestTheTimeoutOfOpenEndsAnAttemptUnderWay(t *testing.T) {
	server := serve(t, nil, func(c *scriptedCall) error { return c.untilClosed() })
	options := &SessionOptions{OpenTimeout: 50 * time.Millisecond, Heartbeat: time.Minute}
	_, err := connect(t, server, nil).Subscription("s").Open(limited(t), options)
	var failed *Error
	if !errors.As(err, &failed) || failed.Code != codes.DeadlineExceeded || !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	token := func(context.Context) (string, error) {
		<-asked
		return "token", nil
	}
	_, err = connect(t, server, &Options{Token: token}).Subscription("s").Open(limited(t), options)
	if !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	close(asked)
}

func TestWhatAnotherSessionHasAckedIsSaidToBeSkipped(t *testing.T) {
	skipped := noticed(&pb.Notice{Kind: &pb.Notice_Skipped_{Skipped: &pb.Notice_Skipped{
		From: clusterTime(2), To: clusterTime(5), FromPosition: position(2), ToPosition: position(5),
	}}})
	var heard []Notice
	session := subscribe(t, serve(t, nil, play(openedAt(5, nil), skipped, batchOf(1, 6))),
		&SessionOptions{OnNotice: func(n Notice) { heard = append(heard, n) }})
	same(t, take(t, session, 1), []int{6})
	same(t, heard, []Notice{Skipped{at(2).ClusterTime, at(5).ClusterTime, position(2), position(5)}})
}

func TestNextInsideOnNoticeTakesAnEvent(t *testing.T) {
	gap := noticed(&pb.Notice{Kind: &pb.Notice_Gap_{Gap: &pb.Notice_Gap{From: clusterTime(1), To: clusterTime(2)}}})
	var session *Session
	var inside []int
	session = subscribe(t, serve(t, nil, play(openedAt(0, nil), batchOf(1, 1), gap, batchOf(2, 2, 3), batchOf(4, 4))),
		&SessionOptions{OnNotice: func(Notice) { inside = append(inside, take(t, session, 1)...) }})
	same(t, take(t, session, 3), []int{1, 3, 4})
	same(t, inside, []int{2})
}

func TestABatchWithinTheLoopOverEventsIsNotHandedOutTwice(t *testing.T) {
	session := subscribe(t, serve(t, nil, play(openedAt(0, nil), batchOf(1, 1, 2, 3, 4), batchOf(5, 5))), nil)
	var seen []int
	for event, err := range session.Events(limited(t)) {
		same(t, err, nil)
		seen = append(seen, number(t, event))
		if event.Sequence() == 2 {
			rest, err := session.NextBatch(limited(t))
			same(t, err, nil)
			seen = append(seen, -number(t, rest.Event(0)), -number(t, rest.Event(1)))
		}
		if event.Sequence() == 5 {
			break
		}
	}
	same(t, seen, []int{1, 2, -3, -4, 5})
}

func TestGoroutinesShareTheEvents(t *testing.T) {
	messages := []any{openedAt(0, nil)}
	for first := 1; first < 1000; first += 5 {
		messages = append(messages, batchOf(int64(first), span(first, first+4)...))
	}
	session := subscribe(t, serve(t, nil, play(messages...)), nil)
	var mu sync.Mutex
	var seen []int
	var loops sync.WaitGroup
	for range 4 {
		loops.Go(func() {
			for event, err := range session.Events(limited(t)) {
				if err != nil {
					t.Error(err)
					return
				}
				session.Ack(event)
				mu.Lock()
				seen = append(seen, int(event.Sequence()))
				all := len(seen) == 1000
				mu.Unlock()
				if all {
					go func() { _ = session.Close() }()
				}
			}
		})
	}
	loops.Wait()
	slices.Sort(seen)
	same(t, seen, span(1, 1000))
}

func TestAcksInAnyOrderNeverMoveBack(t *testing.T) {
	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, span(1, 100)...)))
	session := subscribe(t, server, &SessionOptions{AckInterval: time.Hour})
	var acking sync.WaitGroup
	for range 100 {
		event, err := session.Next(limited(t))
		same(t, err, nil)
		acking.Go(func() { session.Ack(event) })
	}
	acking.Wait()
	for index := range 99 {
		session.Ack(Event{session.buffer.batch, index})
	}
	same(t, session.buffer.acked, 100)
	same(t, session.Close(), nil)
	same(t, server.calls[0].acked(), 100)
}

func TestAnEventThatCannotBeDecodedFailsAlone(t *testing.T) {
	broken := documentOf(2, 0)
	for index := 5 + len(idFirst) + len(token(2)); index < len(broken)-1; index++ {
		broken[index] = 0xff
	}
	message := batchOf(1, 1, 2, 3)
	message.GetBatch().Bson = slices.Concat(documents(0, 1), broken, documents(0, 3))
	session := subscribe(t, serve(t, nil, play(openedAt(0, nil), message)), nil)
	same(t, take(t, session, 1), []int{1})
	event, err := session.Next(limited(t))
	same(t, err, nil)
	if _, err := event.Document(); err == nil {
		t.Fatal("decoded")
	}
	if err := event.Decode(&bson.D{}); err == nil {
		t.Fatal("decoded")
	}
	same(t, event.Raw(), broken)
	same(t, take(t, session, 1), []int{3})
}

func TestATextComesAsExtendedJSON(t *testing.T) {
	text := `{"_id":{"_data":"8200000001"},"n":{"$numberInt":"7"}}`
	message := batchOf(1, 7)
	message.GetBatch().Bson, message.GetBatch().Json = nil, []string{text}
	server := serve(t, nil, play(openedAt(0, nil), message))
	session := subscribe(t, server, &SessionOptions{Format: FormatExtendedJSONCanonical})
	event, err := session.Next(limited(t))
	same(t, err, nil)
	same(t, number(t, event), 7)
	same(t, string(event.JSON()), text)
	same(t, event.ResumeToken(), marshal(bson.D{{Key: "_data", Value: "8200000001"}}))
	same(t, server.calls[0].open.GetFormat(), pb.Format_FORMAT_EXTENDED_JSON_CANONICAL)
}

func TestAnEventOfAnotherSessionPanics(t *testing.T) {
	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, 1)))
	event, err := subscribe(t, server, nil).Next(limited(t))
	same(t, err, nil)
	defer func() {
		if recover() == nil {
			t.Fatal("accepted")
		}
	}()
	subscribe(t, server, nil).Ack(event)
}

func TestWrongOptionsAreRefusedAtOnce(t *testing.T) {
	for _, options := range []SessionOptions{
		{WindowEvents: -1}, {WindowBytes: 1 << 41}, {MessageBytesMax: 1000}, {Heartbeat: time.Millisecond}, {Format: 9},
		{Takeover: true}, {BackoffFirst: -1}, {BackoffMost: -1},
	} {
		if _, err := NewClient("localhost:1", &Options{Session: options}); err == nil {
			t.Errorf("%+v", options)
		}
	}
}

func TestATextThatIsNotUTF8IsRefusedAtOnce(t *testing.T) {
	client := connect(t, serve(t, nil, play(openedAt(0, nil))), nil)
	_, ofFeed := client.Feed(Feed{Database: "a\xff"}).Open(limited(t), Latest(), nil)
	_, ofName := client.Subscription("a\xff").Open(limited(t), nil)
	for _, err := range []error{ofFeed, ofName} {
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "UTF-8") {
			t.Error(err)
		}
	}
}

func TestADurationThatTheServerCannotGetIsRefused(t *testing.T) {
	for wait, wanted := range map[time.Duration]int32{
		time.Millisecond: 1, math.MaxInt32 * time.Millisecond: math.MaxInt32,
		-time.Millisecond: -1, time.Microsecond: -1, 25 * 24 * time.Hour: -1, math.MaxInt64: -1,
	} {
		message, err := (&Feed{MaxAwaitTime: wait}).message("main")
		if (err != nil) != (wanted < 0) || err == nil && message.GetMaxAwaitTimeMs() != wanted {
			t.Errorf("%v: %v, %v", wait, message, err)
		}
	}
	if _, err := NewClient("localhost:1", &Options{CallTimeout: -1}); err == nil {
		t.Error("a negative CallTimeout")
	}
}

func TestExplicitValuesOverrideTheClientsDefaults(t *testing.T) {
	defaults := SessionOptions{
		AckInterval: time.Hour, ReconnectTimeout: time.Second, OpenTimeout: time.Second, CloseTimeout: time.Second,
		Format: FormatExtendedJSONRelaxed,
	}
	chosen := SessionOptions{AckInterval: -1, ReconnectTimeout: -1, OpenTimeout: -1, CloseTimeout: -1, Format: FormatBSON}
	got := chosen.over(defaults.over(packageDefaults))
	same(t, []time.Duration{got.AckInterval, got.ReconnectTimeout, got.OpenTimeout, got.CloseTimeout}, []time.Duration{-1, -1, -1, -1})
	same(t, got.Format, FormatBSON)
	same(t, deadline(got.OpenTimeout).IsZero(), true)
	same(t, SessionOptions{}.over(packageDefaults).Format, FormatBSON)

	server := serve(t, nil, play(openedAt(0, nil), batchOf(1, 1)))
	session := subscribe(t, server, &SessionOptions{AckInterval: -1})
	take(t, session, 1)
	session.AckAll()
	same(t, server.call(t, 0).untilAcked(1), nil)
}
