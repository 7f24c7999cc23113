package feedmux

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// stream runs one Subscribe call: this goroutine reads, another writes acks and credit, a timer watches for silence.
func (c *connection) stream(ctx context.Context, cut context.CancelCauseFunc) *Error {
	channel := c.transport.begin()
	defer c.transport.end(channel)
	watch := newWatchdog(c.options.Heartbeat, func(silent error) {
		c.transport.leave(channel)
		cut(silent)
	})
	defer watch.stop()
	call, err := c.transport.subscribe(ctx, channel, c.route)
	if err != nil {
		return asError(err)
	}
	// If a write fails, the stream has ended, and the reader gets its status.
	_ = call.SendMsg(c.openMessage())
	var writer sync.WaitGroup
	writer.Go(func() { c.write(ctx, call) })
	defer writer.Wait()
	defer cut(nil)

	reader := &responseReader{format: c.options.Format}
	for {
		var message []byte
		if err := call.RecvMsg(&message); err != nil {
			return c.ended(err)
		}
		watch.hear()
		if len(message) > c.limitBytes {
			return protocolError("a message of %d bytes, over the limit of %d", len(message), c.limitBytes)
		}
		said, err := reader.read(message)
		if err == nil {
			err = c.receive(said)
		}
		if err != nil {
			return asError(err)
		}
		if first, ok := said.(*opened); ok && first.heartbeat > 0 {
			watch.allow(first.heartbeat)
		}
	}
}

// ended is the error for the end of a call. With OK the server confirms what was acked before Close.
func (c *connection) ended(err error) *Error {
	if !errors.Is(err, io.EOF) {
		return errorFromStatus(err)
	}
	b := c.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stateClosing && !b.tracker.owesAcks(b.acks.flushed) {
		b.acks.settled = b.acks.flushed
	}
	return unavailable(nil, "the server ended the stream")
}

// write sends acks and credit as they fall due, and ends with Close.
func (c *connection) write(ctx context.Context, call grpc.ClientStream) {
	for {
		messages, closed, due, wait := c.outgoing()
		for _, message := range messages {
			if call.SendMsg(message) != nil {
				return
			}
		}
		if closed {
			return
		}
		timer := (<-chan time.Time)(nil)
		if !due.IsZero() {
			timer = time.After(time.Until(due))
		}
		select {
		case <-wait:
		case <-timer:
		case <-ctx.Done():
			return
		}
	}
}

// outgoing is what to send now, whether Close was the last of it, when the next acks are due, and what to wait for.
func (c *connection) outgoing() (messages []*feedmuxpb.SubscribeRequest, closed bool, due time.Time, wait <-chan struct{}) {
	b := c.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.state.hasStream() {
		return nil, false, time.Time{}, b.work.wait()
	}
	if sequence, ok := b.ackToSend(time.Now()); ok {
		ack := &feedmuxpb.Ack{DeliverySequence: sequence}
		messages = append(messages, &feedmuxpb.SubscribeRequest{Message: &feedmuxpb.SubscribeRequest_Ack{Ack: ack}})
	}
	if b.state == stateClosing {
		last := &feedmuxpb.SubscribeRequest_Close{Close: &feedmuxpb.Close{}}
		return append(messages, &feedmuxpb.SubscribeRequest{Message: last}), true, time.Time{}, nil
	}
	if b.window.due() {
		more := b.window.refill()
		credit := &feedmuxpb.Credit{Events: more.events, Bytes: more.bytes}
		messages = append(messages, &feedmuxpb.SubscribeRequest{Message: &feedmuxpb.SubscribeRequest_Credit{Credit: credit}})
	}
	return messages, false, b.acks.due, b.work.wait()
}

func asError(err error) *Error {
	if failed, ok := errors.AsType[*Error](err); ok {
		return failed
	}
	return errorFromStatus(err)
}

// watchdog ends a call when the server has been silent for too long.
type watchdog struct {
	mu      sync.Mutex
	silence silenceDetector
	stopped bool
	timer   *time.Timer
	cut     context.CancelCauseFunc
}

func newWatchdog(interval time.Duration, cut context.CancelCauseFunc) *watchdog {
	w := &watchdog{silence: silenceDetector{interval: interval, ticked: time.Now()}, cut: cut}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.silence.ticking(), w.tick)
	return w
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}

func (w *watchdog) hear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence.hear()
}

// allow sets how often the server speaks at least, from now on.
func (w *watchdog) allow(interval time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence.allow(interval)
	w.timer.Reset(w.silence.ticking())
}

func (w *watchdog) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if w.silence.tick(time.Now()) {
		w.cut(unavailable(nil, "the server sent nothing for %v", w.silence.most()))
		return
	}
	w.timer.Reset(w.silence.ticking())
}
