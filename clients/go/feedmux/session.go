package feedmux

import (
	"context"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Session is the events of a durable subscription or of a feed. It outlives the streams below it: when the connection
// breaks it opens another one, behind the last acked event, and nothing is handed out twice.
//
// It is safe for use by several goroutines; each event goes to one of them. It must be closed.
type Session struct {
	desk    *desk
	options SessionOptions
	runner  *runner
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
// It ends without an error after Close of the session, and otherwise with the first error of Next. A loop that was left
// can be entered again and goes on where it was.
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

// Batches is Events by whole batches, for work in bulk; AckBatch acks one.
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

// Next waits for the next event. It gives ErrClosed after Close, the *Error that ended the session, or the context's
// error: then the session goes on, and nothing is lost.
func (s *Session) Next(ctx context.Context) (Event, error) {
	d := s.desk
	for {
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		d.mu.Lock()
		if d.left() {
			event := Event{d.batch, d.given}
			d.given++
			d.mu.Unlock()
			return event, nil
		}
		notice, wait, err := d.advance()
		d.mu.Unlock()
		if err = s.settle(ctx, notice, wait, err); err != nil {
			return Event{}, err
		}
	}
}

// NextBatch is Next for a whole batch, or for what Next has left of one.
func (s *Session) NextBatch(ctx context.Context) (*Batch, error) {
	d := s.desk
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d.mu.Lock()
		if d.left() {
			batch := d.batch
			if d.given > 0 {
				batch = batch.part(d.given, batch.Len())
			}
			d.given = d.batch.Len()
			d.mu.Unlock()
			return batch, nil
		}
		notice, wait, err := d.advance()
		d.mu.Unlock()
		if err = s.settle(ctx, notice, wait, err); err != nil {
			return nil, err
		}
	}
}

// TryNext gives the next event if it is here already, else false.
func (s *Session) TryNext() (Event, bool, error) {
	d := s.desk
	for {
		d.mu.Lock()
		if d.left() {
			event := Event{d.batch, d.given}
			d.given++
			d.mu.Unlock()
			return event, true, nil
		}
		notice, wait, err := d.advance()
		d.mu.Unlock()
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
		s.runner.logger.Warn("feedmux: " + notice.String())
	}
}

// Ack says that everything up to and including this event has been processed. It is cumulative, costs next to nothing
// and never waits: acks are sent together, after AckInterval at most. On an inline feed it does nothing. It panics for
// another session's event.
func (s *Session) Ack(event Event) { s.ack(event.batch, event.index) }

// AckBatch acks everything up to the end of a batch, as Ack does.
func (s *Session) AckBatch(batch *Batch) { s.ack(batch, batch.Len()-1) }

// AckAll acks everything handed out, as Ack does.
func (s *Session) AckAll() {
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	s.desk.ack(s.desk.handed())
}

func (s *Session) ack(batch *Batch, index int) {
	if batch == nil || batch.desk != s.desk {
		panic("feedmux: the event is another session's")
	}
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	s.desk.ack(batch.first + int64(index))
}

// Close stops handing out, sends the acks and waits until they are confirmed, for CloseTimeout at most. It takes no
// context because it has to do so also when the user's has been cancelled. Where the acks could not be confirmed it
// gives ErrAcksUnconfirmed, wrapping the reason: that means repeats in the next session, never a loss. Closing again
// gives the same result.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.CloseTimeout)
	defer cancel()
	return s.CloseContext(ctx)
}

// CloseContext is Close with a context in place of CloseTimeout. With a cancelled one it abandons the session at once.
func (s *Session) CloseContext(ctx context.Context) error {
	s.desk.mu.Lock()
	s.desk.closedFor = nil
	s.desk.close()
	s.desk.mu.Unlock()
	return s.runner.finish(ctx)
}

// Progress is the last place up to which everything has been handed out, or where the session began. It moves on
// without events too, so that a feed that seldom matches does not fall off the oplog. Its position is to be stored where
// a feed was opened without a subscription.
func (s *Session) Progress() Place {
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	return s.desk.place()
}

// ResumeToken is MongoDB's resume token behind the last event handed out; where all are, that of Progress.
func (s *Session) ResumeToken() bson.Raw {
	d := s.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.batch != nil && d.given > 0 && d.given < d.batch.Len() {
		return d.batch.token(d.given - 1)
	}
	return d.place().ResumeToken
}

// Committed is the stored position as last confirmed by the server; nil before the first confirmation.
func (s *Session) Committed() []byte {
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	return s.desk.committed
}

// Closed says whether the session or its client was closed, or has handed out everything before the error that ended it.
func (s *Session) Closed() bool {
	d := s.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing || d.ended && !d.left() && len(d.items) == 0
}

// Epoch grows with each stream of the subscription; it is 0 on inline feeds.
func (s *Session) Epoch() int64 {
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	return s.desk.epoch
}
