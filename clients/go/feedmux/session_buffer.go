package feedmux

import (
	"math"
	"slices"
	"sync"
	"time"
)

// sessionBuffer is what the user's side and the network's side of a session share. Its lock guards everything in it,
// and no goroutine waits while it holds the lock: it takes a wakeup's channel and waits on that.
type sessionBuffer struct {
	mu      sync.Mutex
	tracker *deliveryTracker
	window  *creditWindow
	durable bool

	// What was received and not yet taken, in order. The credit window is its bound, and of notices that say the same, only
	// the newest waits.
	items   []item
	ended   bool
	err     error
	arrived wakeup

	// The batch taken last, and how many of its events were handed out; nil before the first one and after forget.
	batch *Batch
	given int
	// withdrawn is the ordinal up to which forget has dropped what was not handed out: for the progress, it counts as
	// handed out.
	withdrawn int64
	// The last position up to which everything has been handed out, or where the session began or was moved to, and the
	// ordinal of the last event before it.
	reached      FeedPosition
	reachedAfter int64

	acked   int64
	closing bool
	// closedFor is what the user gets after the close: nil for ErrClosed.
	closedFor *Error
	// work wakes the stream's writer.
	work wakeup

	state state

	// Of the present stream.
	cut            func(error)
	acks           ackTimer
	sentSequence   int64
	confirmedUntil int64

	// What the server last said.
	epoch     int64
	committed []byte

	// copying is set when a stream is opened within a copy of existing documents, follows the notices that are handed out,
	// and is nil from the end of the copy on.
	copying *SnapshotStatus
	// completionDue: the end of a copy was dropped before it was handed out, and another one is to come.
	completionDue bool
	// generation is that of the copy that the server announced last: of the batches that arrive after it.
	generation int64
}

// item is a batch, or a notice in order among the batches.
type item struct {
	batch  *Batch
	notice Notice
}

// ackTimer says when acks are sent: together, an interval after the first of them, or at once.
type ackTimer struct {
	interval time.Duration
	// step is the number of unsent acks that are sent at once: half of the unacked events that the server allows.
	step int64
	// flushed is the ordinal up to which acks were looked at for sending, settled that up to which they are confirmed.
	flushed, settled int64
	due              time.Time
	atOnce           bool
}

// wakeup wakes every goroutine that waits for it. Its channel is closed once and then forgotten.
type wakeup struct{ waiting chan struct{} }

func (w *wakeup) wait() <-chan struct{} {
	if w.waiting == nil {
		w.waiting = make(chan struct{})
	}
	return w.waiting
}

func (w *wakeup) notify() {
	if w.waiting != nil {
		close(w.waiting)
		w.waiting = nil
	}
}

func newSessionBuffer(durable bool, options *SessionOptions) *sessionBuffer {
	return &sessionBuffer{
		tracker: newDeliveryTracker(durable, options.WindowBytes),
		window:  newCreditWindow(options.WindowEvents, options.WindowBytes),
		durable: durable,
		state:   stateOpening,
		acks:    ackTimer{interval: options.AckInterval, step: math.MaxInt64},
	}
}

// --- the user's side ------------------------------------------------------------------------------------------------

// advance makes the next batch the current one, or gives a notice to tell, or a channel to wait for.
func (b *sessionBuffer) advance() (Notice, <-chan struct{}, error) {
	switch {
	case b.closing && b.closedFor != nil:
		return nil, nil, b.closedFor
	case b.closing:
		return nil, nil, ErrClosed
	case len(b.items) > 0:
		next := b.items[0]
		b.items[0] = item{}
		b.items = b.items[1:]
		if next.notice == nil {
			b.take(next.batch)
		}
		switch notice := next.notice.(type) {
		case SnapshotProgress:
			b.copying = &notice.SnapshotStatus
		case SnapshotComplete:
			b.copying, b.completionDue = nil, false
		}
		return next.notice, nil, nil
	case b.ended && b.err != nil:
		return nil, nil, b.err
	case b.ended:
		return nil, nil, ErrClosed
	}
	return nil, b.arrived.wait(), nil
}

func (b *sessionBuffer) take(batch *Batch) {
	b.settleBatch()
	b.batch, b.given = batch, 0
	b.window.take(batch)
	if b.state.hasStream() && b.window.due() {
		b.work.notify()
	}
}

// left says whether the current batch has events that were not handed out.
func (b *sessionBuffer) left() bool { return b.batch != nil && b.given < b.batch.Len() && !b.closing }

// handed is the ordinal of the last event handed out or withdrawn.
func (b *sessionBuffer) handed() int64 {
	if b.batch == nil {
		return b.withdrawn
	}
	return b.batch.first + int64(b.given) - 1
}

// feedPosition is the last position up to which everything has been handed out.
func (b *sessionBuffer) feedPosition() FeedPosition {
	if b.batch != nil && b.given == b.batch.Len() {
		b.settleBatch()
	}
	latest := b.tracker.latest
	// Not after the end of a copy that was not handed out: a program that stores that position would miss the end.
	owesCompletion := b.completionDue || slices.ContainsFunc(b.items, isCompletion)
	if b.tracker.received <= b.handed() && len(latest.Position) > 0 && !owesCompletion {
		b.reached, b.reachedAfter = latest, b.tracker.received
	}
	return b.reached
}

// begin says that the session begins at a position, for the first time or because it was moved there.
func (b *sessionBuffer) begin(at FeedPosition) { b.reached, b.reachedAfter = at, b.tracker.received }

func (b *sessionBuffer) settleBatch() {
	if b.batch != nil && len(b.batch.feedPosition.Position) > 0 && b.batch.LastSequence() > b.reachedAfter {
		b.reached, b.reachedAfter = b.batch.feedPosition, b.batch.LastSequence()
	}
}

func (b *sessionBuffer) ack(ordinal int64) error {
	switch {
	case ordinal <= b.acked:
		return nil
	case b.closing && b.ended && b.closedFor != nil:
		return b.closedFor
	case b.closing && b.ended:
		return ErrClosed
	}
	b.acked = ordinal
	if !b.durable || !b.state.hasStream() {
		return nil
	}
	if b.acks.due.IsZero() {
		b.acks.due = time.Now().Add(b.acks.interval)
		b.work.notify()
	}
	if b.acked-b.acks.flushed >= b.acks.step {
		b.flush()
	}
	return nil
}

func (b *sessionBuffer) close() {
	b.closing = true
	b.arrived.notify()
	b.work.notify()
	happened := eventClose
	if b.durable && b.acked > b.acks.settled {
		happened = eventCloseWithAcks
	}
	b.move(happened)
	if b.state == stateEnded && b.cut != nil {
		b.cut(unavailable(nil, "closed while connecting"))
	}
}

// --- the network's side ---------------------------------------------------------------------------------------------

// move changes the state as the table says, and returns what else to do.
func (b *sessionBuffer) move(happened event) (todo action) {
	b.state, todo = b.state.after(happened)
	return todo
}

func (b *sessionBuffer) put(next item) {
	if told := topic(next.notice); told != nil {
		since := len(b.items)
		for since > 0 && b.items[since-1].batch == nil {
			since--
		}
		replaced := func(each item) bool { return topic(each.notice) == told }
		b.items = append(b.items[:since], slices.DeleteFunc(b.items[since:], replaced)...)
	}
	b.items = append(b.items, next)
	b.arrived.notify()
}

// say puts a notice in its order among the batches.
func (b *sessionBuffer) say(notice Notice) {
	switch notice := notice.(type) {
	case SnapshotProgress:
		b.generation, b.tracker.withinCopy = notice.Generation, true
	case SnapshotComplete:
		b.generation, b.tracker.withinCopy = notice.Generation, false
	case Gap:
		// After a restore of MongoDB, events from before the gap come once more after it, and are no repeats. For the
		// server, what it has sent before counts as acknowledged.
		if notice.Reason == "TIMELINE_FORKED" {
			b.tracker.forget()
		}
	}
	b.put(item{notice: notice})
}

func (b *sessionBuffer) end(err error) {
	b.ended, b.err = true, err
	b.arrived.notify()
}

// flush has all acks sent at once.
func (b *sessionBuffer) flush() {
	if !b.acks.atOnce {
		b.acks.atOnce = true
		b.work.notify()
	}
}

// ackToSend is the sequence up to which to ack now; false where there is nothing to say.
func (b *sessionBuffer) ackToSend(now time.Time) (int64, bool) {
	acks := &b.acks
	due := acks.atOnce || b.state == stateClosing || !acks.due.IsZero() && !now.Before(acks.due)
	if !b.durable || !due {
		return 0, false
	}
	acks.atOnce, acks.due, acks.flushed = false, time.Time{}, b.acked
	sequence := b.tracker.ackedSequence(acks.flushed)
	if sequence > b.sentSequence {
		b.sentSequence = sequence
		return sequence, true
	}
	b.settleAcks()
	return 0, false
}

// confirm says that the server has stored the acks up to a sequence.
func (b *sessionBuffer) confirm(said committed) {
	b.committed = said.position
	b.confirmedUntil = said.sequence
	b.settleAcks()
}

func (b *sessionBuffer) settleAcks() {
	if b.confirmedUntil >= b.sentSequence && !b.tracker.owesAcks(b.acks.flushed) {
		b.acks.settled = max(b.acks.settled, b.acks.flushed)
	}
}

// deliver takes events that arrived.
func (b *sessionBuffer) deliver(arrived *delivery) error {
	if err := b.window.receive(arrived.batch); err != nil {
		return err
	}
	arrived.batch.buffer, arrived.batch.generation = b, b.generation
	repeats := b.tracker.expectsRepeats()
	fresh, err := b.tracker.arrive(arrived.sequence, arrived.batch, b.acked)
	if err != nil {
		return err
	}
	events, bytes := int64(arrived.batch.Len()), arrived.batch.size()
	for _, batch := range fresh {
		events -= int64(batch.Len())
		bytes -= batch.size()
		b.put(item{batch: batch})
	}
	if repeats {
		b.window.discard(events, bytes)
		// Acks of events from before the reconnect have a sequence only now.
		b.flush()
		b.work.notify()
	}
	return nil
}

// beginWithin takes what a new stream says of a copy; nil if the stream is not within one. What former streams said of
// how far a copy is, and was not handed out, is void. Outside of a copy, a notice before documents stays, because it
// tells of which copy they are, and so does an end.
func (b *sessionBuffer) beginWithin(copying *SnapshotStatus) {
	b.tracker.withinCopy = copying != nil
	if copying != nil || !slices.ContainsFunc(b.items, isCompletion) {
		b.copying = copying
	}
	lastDocuments := -1
	if copying == nil {
		for i, each := range b.items {
			if each.batch != nil && each.batch.snapshot {
				lastDocuments = i
			}
		}
	}
	kept := make([]item, 0, len(b.items))
	for i, each := range b.items {
		if _, running := each.notice.(SnapshotProgress); !running || i < lastDocuments {
			kept = append(kept, each)
		}
	}
	b.items = kept
	if copying != nil {
		b.generation = copying.Generation
		b.completionDue = b.completionDue || slices.ContainsFunc(b.items, isCompletion)
		b.withdrawCompletion()
	} else {
		b.completionDue = false
	}
}

// withdrawCompletion drops the end of a copy that was not handed out: its documents are forgotten, or come again before
// another end.
func (b *sessionBuffer) withdrawCompletion() { b.items = slices.DeleteFunc(b.items, isCompletion) }

func isCompletion(each item) bool {
	_, complete := each.notice.(SnapshotComplete)
	return complete
}

// forget says that the stored position was moved on purpose: what was not handed out is dropped, also the rest of the
// current batch. Other notices stay.
func (b *sessionBuffer) forget() {
	b.feedPosition() // reached, while the batch and the tracker know it
	b.tracker.forget()
	b.batch, b.given, b.withdrawn = nil, 0, b.tracker.received
	// Acks of what came before have no meaning any more: the server need not confirm them.
	b.acks.settled = b.tracker.received
	b.withdrawCompletion()
	b.completionDue = false
	waiting := b.items
	b.items = nil
	for _, each := range waiting {
		if each.notice != nil {
			b.items = append(b.items, each)
			continue
		}
		b.window.discard(int64(each.batch.Len()), each.batch.size())
	}
}
