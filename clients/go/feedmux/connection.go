package feedmux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
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

// connection is the network's side of a session: it opens streams, one after the other, until the session is closed or
// an error ends it. One goroutine for each session.
type connection struct {
	transport *transport
	opening   opening
	options   *SessionOptions
	buffer    *sessionBuffer
	logger    *slog.Logger
	backoff   *backoff

	cancel context.CancelFunc
	// opened gets nil when the session is open for the first time, or the error for which it never will be.
	opened chan error
	done   chan struct{}
	// lastErr is why the last stream ended; to be read after done, or in the connection's goroutine.
	lastErr *Error

	// openedAt is when the present stream was opened.
	openedAt   time.Time
	route      string
	limitBytes int
	// openAcked is what was acked when the present stream was asked for, askedForCopy whether its Open has StartSnapshot.
	openAcked    int64
	askedForCopy bool
	// begins is where the present stream begins, and rewound whether that is before what was acknowledged.
	begins  FeedPosition
	rewound bool
	// movedFrom is what was acked when the server said that the stored position was moved; nil once a stream was opened
	// after that.
	movedFrom *FeedPosition
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
	// gRPC's error for a text that is not UTF-8 looks like the server's, and is tried again.
	if !utf8.ValidString(what.subscription) {
		return nil, fmt.Errorf("feedmux: the name of the subscription is not UTF-8: %q", what.subscription)
	}
	if _, err := proto.Marshal(what.feed); err != nil {
		return nil, fmt.Errorf("feedmux: the feed cannot be sent: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	session := &Session{buffer: newSessionBuffer(what.durable(), &chosen), options: chosen}
	session.connection = &connection{
		transport:  client.transport,
		opening:    what,
		options:    &session.options,
		buffer:     session.buffer,
		logger:     client.logger,
		backoff:    newBackoff(chosen.BackoffFirst, chosen.BackoffMost, rand.Float64),
		cancel:     cancel,
		opened:     make(chan error, 1),
		done:       make(chan struct{}),
		limitBytes: chosen.MessageBytesMax,
	}
	if !client.transport.join(session.connection) {
		cancel()
		return nil, clientClosed()
	}
	go session.connection.run(running)
	select {
	case err := <-session.connection.opened:
		if err != nil {
			return nil, err
		}
		return session, nil
	case <-ctx.Done():
		cancel()
		<-session.connection.done
		if last := session.connection.lastErr; last != nil {
			return nil, fmt.Errorf("%w; the last attempt: %w", ctx.Err(), last)
		}
		return nil, ctx.Err()
	}
}

func (c *connection) run(ctx context.Context) {
	defer close(c.done)
	defer c.transport.quit(c)
	defer c.cancel()
	var ended error
	if err := c.keepOpen(ctx); err != nil {
		ended = err
	}
	c.buffer.mu.Lock()
	if ended == nil && c.buffer.closedFor != nil {
		ended = c.buffer.closedFor
	}
	c.buffer.end(ended)
	c.buffer.mu.Unlock()
	if ended == nil {
		ended = ErrClosed
	}
	select {
	case c.opened <- ended:
	default: // The session was open before.
	}
}

// keepOpen returns nil when the session was closed.
func (c *connection) keepOpen(ctx context.Context) *Error {
	b := c.buffer
	patience := c.options.OpenTimeout
	giveUpAt := deadline(patience)
	for {
		tooLong := late("the server has not opened the session", patience)
		failed := c.oneStream(ctx, giveUpAt, tooLong)
		b.mu.Lock()
		// When opening times out, report the error of the earlier attempt, not that the last one was cut off.
		cutOff := failed == tooLong || ctx.Err() != nil && b.state.isFirstOpening()
		if !cutOff || c.lastErr == nil {
			c.lastErr = failed
		}
		if ctx.Err() != nil {
			b.move(eventAbandon)
		}
		if b.state == stateEnded {
			b.mu.Unlock()
			return nil
		}
		wasOpen := b.state.hasStream()
		happened := endings[nextStep(c.lastErr, wasOpen && c.transport.token != nil)]
		if failed == tooLong {
			happened = eventTimeOver
		}
		todo := b.move(happened)
		if wasOpen {
			c.backoff.lived(time.Since(c.openedAt))
			patience = c.options.ReconnectTimeout
			giveUpAt = deadline(patience)
		}
		delay := c.backoff.next(c.lastErr.RetryAfter)
		if b.state != stateEnded && !giveUpAt.IsZero() && !time.Now().Add(delay).Before(giveUpAt) {
			todo = b.move(eventTimeOver)
		}
		if b.state == stateEnded {
			b.mu.Unlock()
			if todo == actionRaise {
				return c.located(c.lastErr)
			}
			return nil
		}
		if todo == actionForget {
			if c.movedFrom == nil { // otherwise it was moved twice before a stream was open
				movedFrom := b.tracker.ackedPosition(b.acked)
				c.movedFrom = &movedFrom
			}
			b.forget()
		}
		if b.state.isFirstOpening() {
			c.logger.Info("feedmux: not open yet, trying again", "in", delay, "error", c.lastErr)
		} else {
			b.put(item{notice: Disconnected{c.lastErr, delay}})
		}
		closed := b.work.wait()
		b.mu.Unlock()
		c.pause(ctx, delay, closed)
		b.mu.Lock()
		if b.state != stateEnded {
			b.move(eventBackoffOver)
		}
		b.mu.Unlock()
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
func (c *connection) closeForClient() error {
	c.buffer.mu.Lock()
	if !c.buffer.closing {
		c.buffer.closedFor = clientClosed()
		c.buffer.close()
	}
	c.buffer.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), c.options.CloseTimeout)
	defer cancel()
	return c.finish(ctx)
}

// finish waits for the end of a session that is closing, and abandons it if the context ends first.
func (c *connection) finish(ctx context.Context) error {
	select {
	case <-c.done:
	case <-ctx.Done():
		c.cancel()
		<-c.done
	}
	b := c.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.durable && b.acked > b.acks.settled {
		return fmt.Errorf("%w: %w", ErrAcksUnconfirmed, c.lastErr)
	}
	return nil
}

// pause waits, unless the session is closed meanwhile: nothing else wakes work while there is no stream.
func (c *connection) pause(ctx context.Context, delay time.Duration, closed <-chan struct{}) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-closed:
	case <-ctx.Done():
	}
}

// oneStream opens a stream and reads it to its end; the error is why it ended: tooLong where it was not open at giveUpAt.
func (c *connection) oneStream(ctx context.Context, giveUpAt time.Time, tooLong *Error) *Error {
	streamCtx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	if !giveUpAt.IsZero() {
		timer := time.AfterFunc(time.Until(giveUpAt), func() {
			c.buffer.mu.Lock()
			defer c.buffer.mu.Unlock()
			if !c.buffer.state.hasStream() {
				cut(tooLong)
			}
		})
		defer timer.Stop()
	}
	c.buffer.mu.Lock()
	ended := c.buffer.state == stateEnded
	c.buffer.cut = cut
	c.buffer.mu.Unlock()
	if ended {
		return unavailable(nil, "closed while connecting")
	}
	err := c.stream(streamCtx, cut)
	if failed, ok := errors.AsType[*Error](context.Cause(streamCtx)); ok {
		return failed
	}
	return err
}

func (c *connection) openMessage() *feedmuxpb.SubscribeRequest {
	b := c.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	credit := b.window.open()
	message := &feedmuxpb.Open{
		Format:            formats[c.options.Format],
		InstanceId:        c.opening.instanceID,
		Credit:            &feedmuxpb.Credit{Events: credit.events, Bytes: credit.bytes},
		Takeover:          c.options.Takeover && b.state.isFirstOpening(),
		HeartbeatInterval: durationpb.New(c.options.Heartbeat),
		MessageBytesMax:   int32(c.options.MessageBytesMax),
	}
	c.openAcked = b.acked
	if c.opening.durable() {
		message.Target = &feedmuxpb.Open_Subscription{Subscription: c.opening.subscription}
		message.LastAcked = lastAcked(b.tracker.ackedPosition(c.openAcked), b.epoch)
	} else {
		message.Target = &feedmuxpb.Open_Feed{Feed: c.opening.feed}
		message.Start = c.opening.start.message
		if behind := b.tracker.latest.Position; len(behind) > 0 {
			message.Start = AtPosition(behind).message
		}
		c.askedForCopy = isSnapshot(message.Start)
	}
	return &feedmuxpb.SubscribeRequest{Message: &feedmuxpb.SubscribeRequest_Open{Open: message}}
}

// lastAcked is a position if there is one, otherwise the event's token; nil if there is neither.
func lastAcked(feedPosition FeedPosition, epoch int64) *feedmuxpb.LastAcked {
	switch {
	case len(feedPosition.Position) > 0:
		return &feedmuxpb.LastAcked{Place: &feedmuxpb.LastAcked_Position{Position: feedPosition.Position}, Epoch: epoch}
	case len(feedPosition.ResumeToken) > 0:
		return &feedmuxpb.LastAcked{
			Place: &feedmuxpb.LastAcked_ResumeToken{ResumeToken: feedPosition.ResumeToken}, Epoch: epoch,
		}
	}
	return nil
}

// receive acts on one response.
func (c *connection) receive(said response) error {
	b := c.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	_, isOpened := said.(*opened)
	switch {
	case isOpened && !b.state.allows(eventOpened):
		return protocolError("Opened came twice")
	case !isOpened && said != nil && !b.state.allows(eventMessage):
		return protocolError("the first message was not Opened")
	}
	switch said := said.(type) {
	case *opened:
		if c.askedForCopy && said.copying == nil {
			return snapshotUnsupported("has opened the feed at the present")
		}
		c.onOpened(said)
	case *delivery:
		return b.deliver(said)
	case progress:
		b.tracker.progress(said.feedPosition)
		c.backoff.reset()
	case committed:
		b.confirm(said)
	case Rewound:
		if !c.rewound { // otherwise the client has noticed what the server announces
			c.rewind(said)
			b.tracker.begin(c.begins, c.openAcked)
			b.work.notify()
		}
	case Draining:
		b.flush()
		b.say(said)
	case Notice:
		b.say(said)
	}
	return nil
}

func (c *connection) onOpened(first *opened) {
	b := c.buffer
	isFirst := b.state.isFirstOpening()
	had := b.tracker.ackedPosition(c.openAcked)
	wasMoved := c.movedFrom != nil
	if wasMoved {
		had, c.movedFrom = *c.movedFrom, nil
	}
	hadReached, begins := had.ClusterTime, first.feedPosition.ClusterTime
	c.begins, c.rewound = first.feedPosition, false
	switch {
	case isFirst || !b.durable || first.atLastAcked || begins.IsZero() || hadReached.IsZero():
	case begins.Before(hadReached):
		c.rewind(Rewound{begins, hadReached})
	case wasMoved && begins.After(hadReached) && first.copying == nil: // a copy leaves nothing out
		// The Open had no last_acked, so the server cannot tell.
		b.put(item{notice: Skipped{hadReached, begins, had.Position, first.feedPosition.Position}})
	}
	b.tracker.begin(first.feedPosition, c.openAcked)
	if isFirst || wasMoved {
		b.begin(first.feedPosition)
	}
	b.window.limit(first.credit.events, first.credit.bytes)
	b.sentSequence, b.confirmedUntil = 0, 0
	b.epoch = first.epoch
	b.beginWithin(first.copying)
	if first.unackedEvents > 0 {
		b.acks.step = max(1, first.unackedEvents/2)
	}
	b.move(eventOpened)
	c.openedAt = time.Now()
	// Acks and reads while there was no stream did not wake the writer.
	b.acks.atOnce = true
	b.work.notify()

	if first.messageBytesMax > 0 {
		c.limitBytes = min(c.options.MessageBytesMax, first.messageBytesMax)
	}
	if first.route != "" {
		c.route = first.route
	}
	if isFirst {
		c.opened <- nil
	}
}

// rewind is for a stream that begins before what was acknowledged: what was delivered comes again, acknowledged or not.
func (c *connection) rewind(said Rewound) {
	c.buffer.forget()
	c.buffer.begin(c.begins)
	c.buffer.put(item{notice: said})
	c.rewound = true
}

// located adds the position to resume from to an ErrFeedInvalidated error.
func (c *connection) located(failed *Error) *Error {
	if errors.Is(failed, ErrFeedInvalidated) {
		c.buffer.mu.Lock()
		defer c.buffer.mu.Unlock()
		failed.Position = c.buffer.tracker.latest.Position
		failed.ResumeToken = c.buffer.tracker.latest.ResumeToken
	}
	return failed
}
