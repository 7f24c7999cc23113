package feedmux

import (
	"math"
	"sync"
	"time"
)

// desk is where the user's side and the network's side of a session meet. Its lock guards everything in it, and no
// goroutine waits while it holds the lock: it takes a bell's channel and waits on that.
type desk struct {
	mu      sync.Mutex
	ledger  *ledger
	window  *creditWindow
	durable bool

	// What was received and not yet taken, in order. The credit window is its bound.
	items   []item
	ended   bool
	err     error
	arrived bell

	// The batch taken last, and how many of its events were handed out.
	batch *Batch
	given int
	// The last position up to which everything has been handed out, and the ordinal of the last event before it.
	reached      Place
	reachedAfter int64
	began        Place

	acked   int64
	closing bool
	// closedFor is what the user gets after the close: nil for ErrClosed.
	closedFor *Error
	// work wakes the stream's writer.
	work bell

	state state

	// Of the present stream.
	cut            func(error)
	acks           ackTimer
	sentSequence   int64
	confirmedUntil int64

	// What the server last said.
	epoch     int64
	committed []byte
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

// bell wakes every goroutine that waits for it. Its channel is closed once and then forgotten.
type bell struct{ waiting chan struct{} }

func (b *bell) wait() <-chan struct{} {
	if b.waiting == nil {
		b.waiting = make(chan struct{})
	}
	return b.waiting
}

func (b *bell) ring() {
	if b.waiting != nil {
		close(b.waiting)
		b.waiting = nil
	}
}

func newDesk(durable bool, options *SessionOptions) *desk {
	return &desk{
		ledger:  newLedger(durable, options.WindowBytes),
		window:  newCreditWindow(options.WindowEvents, options.WindowBytes),
		durable: durable,
		state:   stateOpening,
		acks:    ackTimer{interval: options.AckInterval, step: math.MaxInt64},
	}
}

// --- the user's side ------------------------------------------------------------------------------------------------

// advance makes the next batch the current one, or gives a notice to tell, or a channel to wait for.
func (d *desk) advance() (Notice, <-chan struct{}, error) {
	switch {
	case d.closing && d.closedFor != nil:
		return nil, nil, d.closedFor
	case d.closing:
		return nil, nil, ErrClosed
	case len(d.items) > 0:
		next := d.items[0]
		d.items[0] = item{}
		d.items = d.items[1:]
		if next.notice == nil {
			d.take(next.batch)
		}
		return next.notice, nil, nil
	case d.ended && d.err != nil:
		return nil, nil, d.err
	case d.ended:
		return nil, nil, ErrClosed
	}
	return nil, d.arrived.wait(), nil
}

func (d *desk) take(batch *Batch) {
	d.settleBatch()
	d.batch, d.given = batch, 0
	d.window.take(batch)
	if d.state.hasStream() && d.window.due() {
		d.work.ring()
	}
}

// left says whether the current batch has events that were not handed out.
func (d *desk) left() bool { return d.batch != nil && d.given < d.batch.Len() && !d.closing }

// handed is the ordinal of the last event handed out.
func (d *desk) handed() int64 {
	if d.batch == nil {
		return 0
	}
	return d.batch.first + int64(d.given) - 1
}

// place is the last position up to which everything has been handed out.
func (d *desk) place() Place {
	if d.batch != nil && d.given == d.batch.Len() {
		d.settleBatch()
	}
	if d.ledger.received <= d.handed() && len(d.ledger.latest.Position) > 0 {
		d.reached, d.reachedAfter = d.ledger.latest, d.ledger.received
	}
	if len(d.reached.Position) > 0 {
		return d.reached
	}
	return d.began
}

func (d *desk) settleBatch() {
	if d.batch != nil && len(d.batch.place.Position) > 0 && d.batch.LastSequence() > d.reachedAfter {
		d.reached, d.reachedAfter = d.batch.place, d.batch.LastSequence()
	}
}

func (d *desk) ack(ordinal int64) {
	if ordinal <= d.acked {
		return
	}
	d.acked = ordinal
	if !d.durable || !d.state.hasStream() {
		return
	}
	if d.acks.due.IsZero() {
		d.acks.due = time.Now().Add(d.acks.interval)
		d.work.ring()
	}
	if d.acked-d.acks.flushed >= d.acks.step {
		d.flush()
	}
}

func (d *desk) close() {
	d.closing = true
	d.arrived.ring()
	d.work.ring()
	d.move(eventClose)
	if d.state == stateEnded && d.cut != nil {
		d.cut(unavailable(nil, "closed while connecting"))
	}
}

// --- the network's side ---------------------------------------------------------------------------------------------

// move changes the state as the table says, and returns what else to do.
func (d *desk) move(happened event) (todo action) {
	d.state, todo = d.state.after(happened)
	return todo
}

func (d *desk) put(next item) {
	d.items = append(d.items, next)
	d.arrived.ring()
}

func (d *desk) end(err error) {
	d.ended, d.err = true, err
	d.arrived.ring()
}

// flush has all acks sent at once.
func (d *desk) flush() {
	if !d.acks.atOnce {
		d.acks.atOnce = true
		d.work.ring()
	}
}

// ackToSend is the sequence up to which to ack now; false where there is nothing to say.
func (d *desk) ackToSend(now time.Time) (int64, bool) {
	acks := &d.acks
	due := acks.atOnce || d.state == stateClosing || !acks.due.IsZero() && !now.Before(acks.due)
	if !d.durable || !due {
		return 0, false
	}
	acks.atOnce, acks.due, acks.flushed = false, time.Time{}, d.acked
	sequence := d.ledger.ackedSequence(acks.flushed)
	if sequence > d.sentSequence {
		d.sentSequence = sequence
		return sequence, true
	}
	d.settleAcks()
	return 0, false
}

// confirm says that the server has stored the acks up to a sequence.
func (d *desk) confirm(said committed) {
	d.committed = said.position
	d.confirmedUntil = said.sequence
	d.settleAcks()
}

func (d *desk) settleAcks() {
	if d.confirmedUntil >= d.sentSequence && !d.ledger.expectsRepeats() {
		d.acks.settled = d.acks.flushed
	}
}

// deliver takes events that arrived.
func (d *desk) deliver(arrived *delivery) error {
	if err := d.window.receive(arrived.batch); err != nil {
		return err
	}
	arrived.batch.desk = d
	repeats := d.ledger.expectsRepeats()
	fresh, err := d.ledger.arrive(arrived.sequence, arrived.batch, d.acked)
	if err != nil {
		return err
	}
	events, bytes := int64(arrived.batch.Len()), arrived.batch.size()
	for _, batch := range fresh {
		events -= int64(batch.Len())
		bytes -= batch.size()
		d.put(item{batch: batch})
	}
	if repeats {
		d.window.discard(events, bytes)
		// Acks of events from before the reconnect have a sequence only now.
		d.flush()
		d.work.ring()
	}
	return nil
}

// forget says that the stored position was moved on purpose. Notices stay.
func (d *desk) forget() {
	d.ledger.forget()
	waiting := d.items
	d.items = nil
	for _, each := range waiting {
		if each.notice != nil {
			d.items = append(d.items, each)
			continue
		}
		d.window.discard(int64(each.batch.Len()), each.batch.size())
	}
}
