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
func (r *runner) stream(ctx context.Context, cut context.CancelCauseFunc) *Error {
	connection := r.link.begin()
	defer r.link.end(connection)
	watch := newWatchdog(r.options.Heartbeat, func(silent error) {
		r.link.leave(connection)
		cut(silent)
	})
	defer watch.stop()
	call, err := r.link.subscribe(ctx, connection, r.route)
	if err != nil {
		return asError(err)
	}
	// If a write fails, the stream has ended, and the reader gets its status.
	_ = call.SendMsg(r.openMessage())
	var writer sync.WaitGroup
	writer.Go(func() { r.write(ctx, call) })
	defer writer.Wait()
	defer cut(nil)

	reader := &responseReader{format: r.options.Format}
	for {
		var message []byte
		if err := call.RecvMsg(&message); err != nil {
			return r.ended(err)
		}
		watch.hear()
		if len(message) > r.limitBytes {
			return protocolError("a message of %d bytes, over the limit of %d", len(message), r.limitBytes)
		}
		said, err := reader.read(message)
		if err == nil {
			err = r.receive(said)
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
func (r *runner) ended(err error) *Error {
	if !errors.Is(err, io.EOF) {
		return errorFromStatus(err)
	}
	d := r.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == stateClosing && !d.ledger.expectsRepeats() {
		d.acks.settled = d.acks.flushed
	}
	return unavailable(nil, "the server ended the stream")
}

// write sends acks and credit as they fall due, and ends with Close.
func (r *runner) write(ctx context.Context, call grpc.ClientStream) {
	for {
		messages, closed, due, wait := r.outgoing()
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
func (r *runner) outgoing() (messages []*feedmuxpb.SubscribeRequest, closed bool, due time.Time, wait <-chan struct{}) {
	d := r.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.state.hasStream() {
		return nil, false, time.Time{}, d.work.wait()
	}
	if sequence, ok := d.ackToSend(time.Now()); ok {
		ack := &feedmuxpb.Ack{DeliverySequence: sequence}
		messages = append(messages, &feedmuxpb.SubscribeRequest{Message: &feedmuxpb.SubscribeRequest_Ack{Ack: ack}})
	}
	if d.state == stateClosing {
		last := &feedmuxpb.SubscribeRequest_Close{Close: &feedmuxpb.Close{}}
		return append(messages, &feedmuxpb.SubscribeRequest{Message: last}), true, time.Time{}, nil
	}
	if d.window.due() {
		more := d.window.refill()
		credit := &feedmuxpb.Credit{Events: more.events, Bytes: more.bytes}
		messages = append(messages, &feedmuxpb.SubscribeRequest{Message: &feedmuxpb.SubscribeRequest_Credit{Credit: credit}})
	}
	return messages, false, d.acks.due, d.work.wait()
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
	silence silence
	stopped bool
	timer   *time.Timer
	cut     context.CancelCauseFunc
}

func newWatchdog(interval time.Duration, cut context.CancelCauseFunc) *watchdog {
	w := &watchdog{silence: silence{interval: interval, ticked: time.Now()}, cut: cut}
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
