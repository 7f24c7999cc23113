package feedmux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/feedmux/feedmux/clients/go/feedmux/feedmuxpb"
)

// opening is what to open: a durable subscription by name, or a feed with a start.
type opening struct {
	subscription string
	feed         *feedmuxpb.Feed
	start        Start
	instanceID   string
}

func (o *opening) durable() bool { return o.feed == nil }

// runner is the network's side of a session: it opens streams, one after the other, until the session is closed or an
// error ends it. One goroutine for each session.
type runner struct {
	link    *link
	opening opening
	options *SessionOptions
	desk    *desk
	logger  *slog.Logger
	backoff *backoff

	cancel context.CancelFunc
	// opened gets nil when the session is open for the first time, or the error for which it never will be.
	opened chan error
	done   chan struct{}
	// lastErr is why the last stream ended; to be read after done, or in the runner's goroutine.
	lastErr *Error

	// openedAt is when the present stream was opened.
	openedAt   time.Time
	route      string
	limitBytes int
	// openAcked is what was acked when the present stream was asked for.
	openAcked int64
	rewound   *Rewound
}

// open opens a session. The context bounds the opening, not the session.
func open(ctx context.Context, client *Client, what opening, options *SessionOptions) (*Session, error) {
	chosen := client.session
	if options != nil {
		chosen = options.over(client.session)
	}
	if err := chosen.check(); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	session := &Session{desk: newDesk(what.durable(), &chosen), options: chosen}
	session.runner = &runner{
		link:       client.link,
		opening:    what,
		options:    &session.options,
		desk:       session.desk,
		logger:     client.logger,
		backoff:    newBackoff(chosen.BackoffFirst, chosen.BackoffMost, rand.Float64),
		cancel:     cancel,
		opened:     make(chan error, 1),
		done:       make(chan struct{}),
		limitBytes: chosen.MessageBytesMax,
	}
	if !client.link.join(session.runner) {
		cancel()
		return nil, clientClosed()
	}
	go session.runner.run(running)
	select {
	case err := <-session.runner.opened:
		if err != nil {
			return nil, err
		}
		return session, nil
	case <-ctx.Done():
		cancel()
		<-session.runner.done
		if last := session.runner.lastErr; last != nil {
			return nil, fmt.Errorf("%w; the last attempt: %w", ctx.Err(), last)
		}
		return nil, ctx.Err()
	}
}

func (r *runner) run(ctx context.Context) {
	defer close(r.done)
	defer r.link.quit(r)
	defer r.cancel()
	var ended error
	if err := r.keepOpen(ctx); err != nil {
		ended = err
	}
	r.desk.mu.Lock()
	if ended == nil && r.desk.closedFor != nil {
		ended = r.desk.closedFor
	}
	r.desk.end(ended)
	r.desk.mu.Unlock()
	if ended == nil {
		ended = ErrClosed
	}
	select {
	case r.opened <- ended:
	default: // The session was open before.
	}
}

// keepOpen returns nil when the session was closed.
func (r *runner) keepOpen(ctx context.Context) *Error {
	d := r.desk
	patience := r.options.OpenTimeout
	giveUpAt := deadline(patience)
	for {
		tooLong := late("the server has not opened the session", patience)
		failed := r.oneStream(ctx, giveUpAt, tooLong)
		d.mu.Lock()
		// When opening times out, report the error of the earlier attempt, not that the last one was cut off.
		cutOff := failed == tooLong || ctx.Err() != nil && d.state.isFirstOpening()
		if !cutOff || r.lastErr == nil {
			r.lastErr = failed
		}
		if ctx.Err() != nil {
			d.move(eventAbandon)
		}
		if d.state == stateEnded {
			d.mu.Unlock()
			return nil
		}
		wasOpen := d.state.hasStream()
		happened := endings[nextStep(r.lastErr, wasOpen && r.link.token != nil)]
		if failed == tooLong {
			happened = eventTimeOver
		}
		todo := d.move(happened)
		if wasOpen {
			r.backoff.lived(time.Since(r.openedAt))
			patience = r.options.ReconnectTimeout
			giveUpAt = deadline(patience)
		}
		delay := r.backoff.next(r.lastErr.RetryAfter)
		if d.state != stateEnded && !giveUpAt.IsZero() && !time.Now().Add(delay).Before(giveUpAt) {
			todo = d.move(eventTimeOver)
		}
		if d.state == stateEnded {
			d.mu.Unlock()
			if todo == actionRaise {
				return r.located(r.lastErr)
			}
			return nil
		}
		if todo == actionForget {
			d.forget()
		}
		if d.state.isFirstOpening() {
			r.logger.Info("feedmux: not open yet, trying again", "in", delay, "error", r.lastErr)
		} else {
			d.put(item{notice: Disconnected{r.lastErr, delay}})
		}
		closed := d.work.wait()
		d.mu.Unlock()
		r.pause(ctx, delay, closed)
		d.mu.Lock()
		if d.state != stateEnded {
			d.move(eventBackoffOver)
		}
		d.mu.Unlock()
	}
}

// deadline is so long from now; the zero time where there is no bound.
func deadline(patience time.Duration) time.Time {
	if patience <= 0 {
		return time.Time{}
	}
	return time.Now().Add(patience)
}

// closeForClient closes the session because its client was closed. The user did not close the session, and so gets an
// error.
func (r *runner) closeForClient() error {
	r.desk.mu.Lock()
	if !r.desk.closing {
		r.desk.closedFor = clientClosed()
		r.desk.close()
	}
	r.desk.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), r.options.CloseTimeout)
	defer cancel()
	return r.finish(ctx)
}

// finish waits for the end of a session that is closing, and abandons it if the context ends first.
func (r *runner) finish(ctx context.Context) error {
	select {
	case <-r.done:
	case <-ctx.Done():
		r.cancel()
		<-r.done
	}
	d := r.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.durable && d.acked > d.acks.settled {
		return fmt.Errorf("%w: %w", ErrAcksUnconfirmed, r.lastErr)
	}
	return nil
}

// pause waits, unless the session is closed meanwhile: nothing else rings the bell for work while there is no stream.
func (r *runner) pause(ctx context.Context, delay time.Duration, closed <-chan struct{}) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-closed:
	case <-ctx.Done():
	}
}

// oneStream opens a stream and reads it to its end; the error is why it ended: tooLong where it was not open at giveUpAt.
func (r *runner) oneStream(ctx context.Context, giveUpAt time.Time, tooLong *Error) *Error {
	streamCtx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	if !giveUpAt.IsZero() {
		timer := time.AfterFunc(time.Until(giveUpAt), func() {
			r.desk.mu.Lock()
			defer r.desk.mu.Unlock()
			if !r.desk.state.hasStream() {
				cut(tooLong)
			}
		})
		defer timer.Stop()
	}
	r.desk.mu.Lock()
	ended := r.desk.state == stateEnded
	r.desk.cut = cut
	r.desk.mu.Unlock()
	if ended {
		return unavailable(nil, "closed while connecting")
	}
	err := r.stream(streamCtx, cut)
	if failed, ok := errors.AsType[*Error](context.Cause(streamCtx)); ok {
		return failed
	}
	return err
}

func (r *runner) openMessage() *feedmuxpb.SubscribeRequest {
	d := r.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	credit := d.window.open()
	message := &feedmuxpb.Open{
		Format:            formats[r.options.Format],
		InstanceId:        r.opening.instanceID,
		Credit:            &feedmuxpb.Credit{Events: credit.events, Bytes: credit.bytes},
		Takeover:          r.options.Takeover && d.state.isFirstOpening(),
		HeartbeatInterval: durationpb.New(r.options.Heartbeat),
		MessageBytesMax:   int32(r.options.MessageBytesMax),
	}
	r.openAcked = d.acked
	if r.opening.durable() {
		message.Target = &feedmuxpb.Open_Subscription{Subscription: r.opening.subscription}
		message.LastAcked = lastAcked(d.ledger.ackedPlace(r.openAcked), d.epoch)
	} else {
		message.Target = &feedmuxpb.Open_Feed{Feed: r.opening.feed}
		message.Start = r.opening.start.message
		if behind := d.ledger.latest.Position; len(behind) > 0 {
			message.Start = AtPosition(behind).message
		}
	}
	return &feedmuxpb.SubscribeRequest{Message: &feedmuxpb.SubscribeRequest_Open{Open: message}}
}

// lastAcked is a position if there is one, otherwise the event's token; nil if there is neither.
func lastAcked(place Place, epoch int64) *feedmuxpb.LastAcked {
	switch {
	case len(place.Position) > 0:
		return &feedmuxpb.LastAcked{Place: &feedmuxpb.LastAcked_Position{Position: place.Position}, Epoch: epoch}
	case len(place.ResumeToken) > 0:
		return &feedmuxpb.LastAcked{
			Place: &feedmuxpb.LastAcked_ResumeToken{ResumeToken: place.ResumeToken}, Epoch: epoch,
		}
	}
	return nil
}

// receive acts on one response.
func (r *runner) receive(said response) error {
	d := r.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	_, isOpened := said.(*opened)
	switch {
	case isOpened && !d.state.allows(eventOpened):
		return protocolError("Opened came twice")
	case !isOpened && said != nil && !d.state.allows(eventMessage):
		return protocolError("the first message was not Opened")
	}
	switch said := said.(type) {
	case *opened:
		r.onOpened(said)
	case *delivery:
		return d.deliver(said)
	case progress:
		d.ledger.progress(said.place)
		r.backoff.reset()
	case committed:
		d.confirm(said)
	case Rewound:
		r.sayRewound(said)
	case Draining:
		d.flush()
		d.put(item{notice: said})
	case Notice:
		d.put(item{notice: said})
	}
	return nil
}

func (r *runner) onOpened(first *opened) {
	d := r.desk
	isFirst := d.state.isFirstOpening()
	hadReached := d.ledger.ackedPlace(r.openAcked).ClusterTime
	begins := first.place.ClusterTime
	if !isFirst && d.durable && !first.atLastAcked && !begins.IsZero() && begins.Before(hadReached) {
		d.forget()
		r.sayRewound(Rewound{begins, hadReached})
	}
	d.ledger.begin(first.place, r.openAcked)
	d.window.limit(first.credit.events, first.credit.bytes)
	d.sentSequence, d.confirmedUntil = 0, 0
	d.epoch = first.epoch
	if isFirst {
		d.began = first.place
	}
	if first.unackedEvents > 0 {
		d.acks.step = max(1, first.unackedEvents/2)
	}
	d.move(eventOpened)
	r.openedAt = time.Now()
	// Acks and reads while there was no stream did not wake the writer.
	d.acks.atOnce = true
	d.work.ring()

	if first.messageBytesMax > 0 {
		r.limitBytes = min(r.options.MessageBytesMax, first.messageBytesMax)
	}
	if first.route != "" {
		r.route = first.route
	}
	if isFirst {
		r.opened <- nil
	}
}

// sayRewound keeps the server from announcing again what the client has noticed already.
func (r *runner) sayRewound(said Rewound) {
	if r.rewound == nil || r.rewound.BeginsAt != said.BeginsAt {
		r.desk.put(item{notice: said})
	}
	r.rewound = &said
}

// located adds the position to resume from to an ErrFeedInvalidated error.
func (r *runner) located(failed *Error) *Error {
	if errors.Is(failed, ErrFeedInvalidated) {
		r.desk.mu.Lock()
		defer r.desk.mu.Unlock()
		failed.Position = r.desk.ledger.latest.Position
		failed.ResumeToken = r.desk.ledger.latest.ResumeToken
	}
	return failed
}
