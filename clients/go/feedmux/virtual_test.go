package feedmux

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"
)

// inMemory serves scripts without a network, so that time is virtual in a bubble of synctest.
func inMemory(t *testing.T, scripts ...script) (server *scripted, options *Options, dialled *atomic.Int32) {
	listener := bufconn.Listen(1 << 20)
	server, dialled = serveOn(t, listener, nil, scripts...), &atomic.Int32{}
	server.address = "passthrough:///in-memory"
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		dialled.Add(1)
		return listener.DialContext(ctx)
	}
	return server, &Options{DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)}}, dialled
}

func mute(c *scriptedCall) error { return c.untilClosed() }

func TestAUnaryCallThatWaitedInVainLeavesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, options, dialled := inMemory(t, mute)
		server.control.mute = true
		client := connect(t, server, options)
		for _, each := range []struct {
			patience time.Duration
			dialled  int32
		}{{deadAfter - 1, 1}, {deadAfter, 1}, {deadAfter - 1, 2}} {
			ctx, cancel := context.WithTimeout(t.Context(), each.patience)
			_, err := client.Subscription("s").Get(ctx)
			cancel()
			if failed, ok := errors.AsType[*Error](err); !ok || failed.Code != codes.DeadlineExceeded {
				t.Fatal(err)
			}
			same(t, dialled.Load(), each.dialled)
		}
	})
}

func TestTheTimeoutOfReconnectingEndsAnAttemptUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, options, _ := inMemory(t, func(c *scriptedCall) error {
			_ = c.send(openedAt(0, nil))
			time.Sleep(20 * time.Second)
			return away
		}, mute)
		begun := time.Now()
		session, err := connect(t, server, options).Subscription("s").Open(t.Context(), &SessionOptions{
			OpenTimeout: time.Second, ReconnectTimeout: 7 * time.Second, Heartbeat: time.Minute, OnNotice: func(Notice) {},
		})
		same(t, err, nil)
		_, err = session.Next(t.Context())
		if failed, ok := errors.AsType[*Error](err); !ok || failed.Code != codes.Unavailable || failed.Message != "away" {
			t.Fatal(err)
		}
		same(t, time.Since(begun), 27*time.Second)
		same(t, session.Close(), nil)
	})
}

func TestTheTimeoutOfOpenIsOverOnceTheSessionIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, options, _ := inMemory(t, func(c *scriptedCall) error {
			_ = c.send(openedAt(0, nil))
			time.Sleep(10 * time.Second)
			return play(batchOf(1, 1))(c)
		})
		session, err := connect(t, server, options).Subscription("s").Open(t.Context(), &SessionOptions{OpenTimeout: time.Second})
		same(t, err, nil)
		same(t, take(t, session, 1), []int{1})
		same(t, len(server.calls), 1)
		same(t, session.Close(), nil)
	})
}

func TestABusyFeedResetsTheBackoffToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := fail(away, openedAt(0, nil))
		server, options, _ := inMemory(t, lost, lost, lost, func(c *scriptedCall) error {
			_ = c.send(openedAt(0, nil))
			for number := 1; number <= 11; number++ {
				time.Sleep(time.Second)
				_ = c.send(batchOf(int64(number), number))
			}
			return away
		}, play(openedAt(0, nil)))
		session, err := connect(t, server, options).Subscription("s").Open(t.Context(), &SessionOptions{
			BackoffFirst: time.Second, BackoffMost: 10 * time.Second, OnNotice: func(Notice) {},
		})
		same(t, err, nil)
		take(t, session, 11)
		server.call(t, 4)
		synctest.Wait()
		// After the first loss since.
		same(t, session.connection.backoff.bound, 2*time.Second)
		same(t, session.Close(), nil)
	})
}

func TestClosingAClientClosesAllItsSessionsAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deaf := func(c *scriptedCall) error {
			_ = c.send(openedAt(0, nil), batchOf(1, 1))
			<-c.stream.Context().Done()
			return nil
		}
		server, options, dialled := inMemory(t, deaf)
		client := connect(t, server, options)
		for range 3 {
			session, err := client.Subscription("s").Open(t.Context(), &SessionOptions{CloseTimeout: 7 * time.Second})
			same(t, err, nil)
			take(t, session, 1)
			session.AckAll()
			client.transport.leave(client.transport.current)
		}
		same(t, dialled.Load(), 3)
		begun := time.Now()
		err := client.Close()
		if !errors.Is(err, ErrAcksUnconfirmed) {
			t.Fatal(err)
		}
		same(t, time.Since(begun), 7*time.Second)
		same(t, client.Close(), err)
		for number := range 3 {
			same(t, server.call(t, number).acked(), 1)
			same(t, server.call(t, number).closed(), true)
		}
	})
}

// The client is closing, and has not come to this session yet.
func TestAnAttemptThatFailsWhileTheClientIsClosedIsNotWhyOpenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var client *Client
		server, options, _ := inMemory(t, func(*scriptedCall) error {
			client.transport.mu.Lock()
			defer client.transport.mu.Unlock()
			client.transport.closed = true
			return away
		}, mute)
		client = connect(t, server, options)
		opened := make(chan error)
		go func() {
			_, err := client.Subscription("s").Open(t.Context(), nil)
			opened <- err
		}()
		server.call(t, 1)
		same(t, client.Close(), nil)
		if err := <-opened; !errors.Is(err, ErrClientClosed) {
			t.Fatal(err)
		}
	})
}

func TestATokenFunctionThatHangsLeavesFewGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		never := make(chan struct{})
		client, err := NewClient("localhost:1", &Options{Token: func(context.Context) (string, error) {
			running.Add(1)
			<-never
			return "token", nil
		}})
		same(t, err, nil)
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := client.Subscription("s").Get(ctx)
			cancel()
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if running.Load() > tokenCallsMax {
			t.Fatalf("%d calls have not returned", running.Load())
		}
		close(never)
		same(t, client.Close(), nil)
	})
}
