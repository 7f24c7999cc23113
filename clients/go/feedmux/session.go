package feedmux

import (
	"context"
	"iter"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Session delivers the events of a durable subscription or of a feed. It outlives its streams: when the connection
// breaks, it opens another stream, resumes after the last acked event, and delivers no event twice.
//
// Several goroutines may use it; each event goes to one of them. It must be closed.
type Session struct {
	buffer     *sessionBuffer
	options    SessionOptions
	connection *connection
}

// Events iterates over the events, one by one:
//
//	for event, err := range session.Events(ctx) {
//		if err != nil {
//			return err
//		}
//		…
//		session.Ack(event)
//	}
//
// It ends without an error after the session's Close, and otherwise with the first error of Next. If you leave the
// loop, a new loop continues where the old one stopped.
func (s *Session) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			event, err := s.Next(ctx)
			if err == ErrClosed || !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Consume calls handle with each event, and acks the event when handle has returned nil. It returns the first error of
// handle, without acking that event, or the first error of Next, such as the context's; it returns nil after Close. The
// session stays open until Close, which sends the acks.
//
// Acks are cumulative: call Consume from one goroutine only. Close the session after an error of handle, and the next
// session begins with the event that failed. Consuming the same session again would skip and ack that event.
func (s *Session) Consume(ctx context.Context, handle func(context.Context, Event) error) error {
	for event, err := range s.Events(ctx) {
		if err == nil {
			err = handle(ctx, event)
		}
		if err != nil {
			return err
		}
		s.Ack(event)
	}
	return nil
}

// Batches iterates over whole batches, for bulk work; AckBatch acks a batch.
func (s *Session) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		for {
			batch, err := s.NextBatch(ctx)
			if err == ErrClosed || !yield(batch, err) || err != nil {
				return
			}
		}
	}
}

// Next waits for the next event. It returns ErrClosed after Close, the *Error that ended the session, or the context's
// error; after the context's error, the session continues and nothing is lost.
func (s *Session) Next(ctx context.Context) (Event, error) {
	b := s.buffer
	for {
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		b.mu.Lock()
		if b.left() {
			event := Event{b.batch, b.given}
			b.given++
			b.mu.Unlock()
			return event, nil
		}
		notice, wait, err := b.advance()
		b.mu.Unlock()
		if err = s.settle(ctx, notice, wait, err); err != nil {
			return Event{}, err
		}
	}
}

// NextBatch waits for the next batch, or returns the events of the current batch that Next has left.
func (s *Session) NextBatch(ctx context.Context) (*Batch, error) {
	b := s.buffer
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b.mu.Lock()
		if b.left() {
			batch := b.batch
			if b.given > 0 {
				batch = batch.part(b.given, batch.Len())
			}
			b.given = b.batch.Len()
			b.mu.Unlock()
			return batch, nil
		}
		notice, wait, err := b.advance()
		b.mu.Unlock()
		if err = s.settle(ctx, notice, wait, err); err != nil {
			return nil, err
		}
	}
}

// TryNext returns the next event if it has already arrived, otherwise false.
func (s *Session) TryNext() (Event, bool, error) {
	b := s.buffer
	for {
		b.mu.Lock()
		if b.left() {
			event := Event{b.batch, b.given}
			b.given++
			b.mu.Unlock()
			return event, true, nil
		}
		notice, wait, err := b.advance()
		b.mu.Unlock()
		if err != nil || wait != nil {
			return Event{}, false, err
		}
		s.tell(notice)
	}
}

func (s *Session) settle(ctx context.Context, notice Notice, wait <-chan struct{}, err error) error {
	s.tell(notice)
	if err != nil || wait == nil {
		return err
	}
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) tell(notice Notice) {
	switch {
	case notice == nil:
	case s.options.OnNotice != nil:
		s.options.OnNotice(notice)
	default:
		level := slog.LevelWarn
		switch notice.(type) {
		case SnapshotProgress, SnapshotComplete:
			level = slog.LevelInfo
		}
		s.connection.logger.Log(context.Background(), level, "feedmux: "+notice.String())
	}
}

// Ack says that everything up to and including this event has been processed. It is cumulative, cheap and never waits:
// the client sends acks together, after AckInterval at most. On an inline feed, it stores nothing. It returns ErrClosed
// once Close has returned, and ErrClientClosed once the client's has: nothing sends the ack, and the event comes again.
// It panics if the event belongs to another session.
func (s *Session) Ack(event Event) error { return s.ack(event.batch, event.index) }

// AckBatch acks everything up to the end of a batch, as Ack does.
func (s *Session) AckBatch(batch *Batch) error { return s.ack(batch, batch.Len()-1) }

// AckAll acks everything handed out, as Ack does.
func (s *Session) AckAll() error {
	s.buffer.mu.Lock()
	defer s.buffer.mu.Unlock()
	return s.buffer.ack(s.buffer.handed())
}

func (s *Session) ack(batch *Batch, index int) error {
	if batch == nil || batch.buffer != s.buffer {
		panic("feedmux: the event or batch belongs to another session")
	}
	s.buffer.mu.Lock()
	defer s.buffer.mu.Unlock()
	return s.buffer.ack(batch.first + int64(index))
}

// Close stops delivery, sends the acks and waits until they are confirmed, for CloseTimeout at most. It takes no
// context, because it must also work after the caller's context was cancelled. If the acks could not be confirmed,
// Close returns ErrAcksUnconfirmed, which wraps the reason: the next session repeats events, but none is lost. Closing
// again returns the same result.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.CloseTimeout)
	defer cancel()
	return s.CloseContext(ctx)
}

// CloseContext is Close with a context instead of CloseTimeout. With a cancelled context, it abandons the session
// immediately.
func (s *Session) CloseContext(ctx context.Context) error {
	s.buffer.mu.Lock()
	s.buffer.closedFor = nil
	s.buffer.close()
	s.buffer.mu.Unlock()
	return s.connection.finish(ctx)
}

// Progress is the last position up to which everything has been handed out, or where the session began. It advances
// even without events, so that the position of a feed that seldom matches stays in the oplog. If you opened a feed
// without a subscription, store this position.
func (s *Session) Progress() FeedPosition {
	s.buffer.mu.Lock()
	defer s.buffer.mu.Unlock()
	return s.buffer.feedPosition()
}

// ResumeToken is MongoDB's resume token after the last event handed out or, at the end of a batch, that of Progress.
func (s *Session) ResumeToken() bson.Raw {
	b := s.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.feedPosition().ResumeToken
	// The server omits a long token, which only the event itself has.
	if b.batch != nil && b.given > 0 && (b.given < b.batch.Len() || len(at) == 0) {
		return b.batch.token(b.given - 1)
	}
	return at
}

// Committed is the stored position as last confirmed by the server; nil before the first confirmation.
func (s *Session) Committed() []byte {
	s.buffer.mu.Lock()
	defer s.buffer.mu.Unlock()
	return s.buffer.committed
}

// Closed says whether the session or its client was closed, or the session has handed out everything before the error
// that ended it.
func (s *Session) Closed() bool {
	b := s.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closing || b.ended && !b.left() && len(b.items) == 0
}

// Copying is how far the copy is, by the last notice, while documents are still to come: the session began with
// StartSnapshot, or at a position of such a copy, and the notice SnapshotComplete has not come. Otherwise it is nil.
func (s *Session) Copying() *SnapshotStatus {
	s.buffer.mu.Lock()
	defer s.buffer.mu.Unlock()
	return s.buffer.copying
}

// Epoch grows with each stream of the subscription; it is 0 on inline feeds.
func (s *Session) Epoch() int64 {
	s.buffer.mu.Lock()
	defer s.buffer.mu.Unlock()
	return s.buffer.epoch
}
