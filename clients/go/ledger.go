package feedmux

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ledger knows what was delivered under which number, what of it is acked, and what must not come out a second time.
//
// The client numbers events with ordinals that never restart; the server's delivery sequences restart with every stream.
// The ledger maps one to the other by ranges, keeps the unacked batches of a durable subscription, and after a
// reconnect recognises them by their `_id` when they come again.
//
// Invariant: kept begins with the first event in stream order that is not acked, and holds all received after it, in
// stream order. That is the order of ordinals, unless events came among repeats that had not been there before: the
// filter was widened. ranges hold the sequences of the present stream that are not yet covered by an ack, in sequence
// order.
type ledger struct {
	// durable says that acks matter and that a reopened stream may repeat; an inline feed continues behind the last
	// event received, so nothing is kept for it.
	durable bool
	// received is the highest ordinal given out.
	received int64
	// latest is the place up to which everything has been received.
	latest Place

	nextSequence, sequenceAcked int64
	// floor is the ordinal up to which acks are settled because the stored position was moved.
	floor        int64
	ranges       []sequenceRange
	kept         []*Batch
	repeats      map[string]int64
	repeatsUntil bson.Timestamp
	// passed and passedEvents say, while repeats are expected, that the stream has come past so many batches of kept,
	// and events of the next one.
	passed, passedEvents int
	ackedTo              Place
}

// sequenceRange says that count delivery sequences from sequence on are the events from ordinal on.
type sequenceRange struct{ sequence, ordinal, count int64 }

func newLedger(durable bool) *ledger { return &ledger{durable: durable, nextSequence: 1} }

// expectsRepeats says whether events handed out before may still come again.
func (l *ledger) expectsRepeats() bool { return len(l.repeats) > 0 }

// ackedPlace is the place up to which everything is acked: where a new stream has to begin. Empty at the start.
func (l *ledger) ackedPlace(acked int64) Place {
	acked = max(acked, l.floor)
	if acked >= l.received && !l.expectsRepeats() {
		return l.latest
	}
	if settled := l.settle(acked); settled > 0 {
		if token := l.kept[0].token(settled - 1); token != nil {
			return tokenPlace(token)
		}
	}
	return l.ackedTo
}

// forget says that the stored position was moved on purpose: what is unacked has lost its meaning, and may come again.
func (l *ledger) forget() {
	l.floor = l.received
	l.kept, l.repeats = nil, nil
	l.ackedTo, l.latest = Place{}, Place{}
}

// begin says that a stream begins at a place, its sequences at 1. Acks up to acked were known when it was asked for.
func (l *ledger) begin(at Place, acked int64) {
	l.nextSequence, l.sequenceAcked = 1, 0
	settled := l.settle(max(acked, l.floor))
	l.ranges, l.repeats = nil, nil
	if len(l.kept) == 0 {
		l.ackedTo, l.latest = at, at
		return
	}
	l.repeats = make(map[string]int64)
	l.passed, l.passedEvents = 0, settled
	var last bson.Raw
	for _, batch := range l.kept {
		for index := settled; index < batch.Len(); index++ {
			if last = batch.token(index); last != nil {
				l.repeats[string(last)] = batch.first + int64(index)
			}
		}
		settled = 0
	}
	l.repeatsUntil, _ = tokenTime(last)
}

// arrive takes a batch that arrived: it, or what of it is new, comes back numbered.
func (l *ledger) arrive(sequence int64, batch *Batch) ([]*Batch, error) {
	if sequence != l.nextSequence {
		return nil, protocolError("delivery %d came where %d was due", sequence, l.nextSequence)
	}
	l.nextSequence += int64(batch.Len())
	if l.expectsRepeats() {
		l.stopAtNews(batch)
	}
	if !l.expectsRepeats() {
		l.take(sequence, batch)
		if l.durable {
			l.kept = append(l.kept, batch)
		}
		l.latest = batch.place
		return []*Batch{batch}, nil
	}
	fresh := l.sift(sequence, batch)
	if !l.expectsRepeats() {
		l.latest = batch.place
	}
	return fresh, nil
}

// progress says that everything at or before a place has been delivered: so have repeats, or they do not come.
func (l *ledger) progress(place Place) {
	if !l.repeatsUntil.IsZero() && place.ClusterTime.After(l.repeatsUntil) {
		l.repeats = nil
	}
	if !l.expectsRepeats() {
		l.latest = place
	}
}

// ackedSequence is the delivery sequence of the present stream up to which everything is acked; 0 for nothing. After a
// rewind older events stand before those handed out earlier: then the first of them not acked decides.
func (l *ledger) ackedSequence(acked int64) int64 {
	l.settle(acked)
	for len(l.ranges) > 0 {
		next := l.ranges[0]
		done := min(acked-next.ordinal+1, next.count)
		if done <= 0 {
			break
		}
		l.sequenceAcked = next.sequence + done - 1
		if done < next.count {
			break
		}
		l.ranges = l.ranges[1:]
	}
	return l.sequenceAcked
}

func (l *ledger) take(sequence int64, batch *Batch) {
	batch.first = l.received + 1
	l.received += int64(batch.Len())
	l.mapRange(sequence, batch.first, int64(batch.Len()))
}

func (l *ledger) sift(sequence int64, batch *Batch) []*Batch {
	var fresh []*Batch
	start := 0
	takePart := func(end int) {
		if end > start {
			part := batch.part(start, end)
			l.take(sequence+int64(start), part)
			l.insert(part)
			fresh = append(fresh, part)
		}
	}
	for index := range batch.Len() {
		token := batch.token(index)
		ordinal, repeated := l.repeats[string(token)]
		if token == nil || !repeated {
			continue
		}
		delete(l.repeats, string(token))
		takePart(index)
		l.mapRange(sequence+int64(index), ordinal, 1)
		l.pass(ordinal)
		start = index + 1
	}
	takePart(batch.Len())
	return fresh
}

func (l *ledger) stopAtNews(batch *Batch) {
	first, ok := tokenTime(batch.token(0))
	if ok && !l.repeatsUntil.IsZero() && first.After(l.repeatsUntil) {
		l.repeats = nil
	}
}

func (l *ledger) mapRange(sequence, ordinal, count int64) {
	if !l.durable {
		return
	}
	if len(l.ranges) > 0 {
		last := &l.ranges[len(l.ranges)-1]
		if sequence-last.sequence == last.count && ordinal-last.ordinal == last.count {
			last.count += count
			return
		}
	}
	l.ranges = append(l.ranges, sequenceRange{sequence, ordinal, count})
}

// pass says that an event of kept came again. They come in stream order.
func (l *ledger) pass(ordinal int64) {
	for index := l.passed; index < len(l.kept); index++ {
		if batch := l.kept[index]; batch.first <= ordinal && ordinal <= batch.LastSequence() {
			l.passed, l.passedEvents = index, int(ordinal+1-batch.first)
			return
		}
	}
}

// insert keeps a batch that is new among repeats: it belongs where the stream is.
func (l *ledger) insert(batch *Batch) {
	if cut := l.passedEvents; cut > 0 {
		around := l.kept[l.passed]
		if cut < around.Len() {
			l.kept[l.passed] = around.part(0, cut)
			l.kept = slices.Insert(l.kept, l.passed+1, around.part(cut, around.Len()))
		}
		l.passed++
	}
	l.kept = slices.Insert(l.kept, l.passed, batch)
	l.passedEvents = batch.Len()
}

// settle lets go of what is acked up to the first event that is not, and says how many of the first batch left are
// acked. While repeats are expected it goes no further than the stream has come: new events may come before the next of
// them.
func (l *ledger) settle(acked int64) int {
	for len(l.kept) > 0 {
		batch := l.kept[0]
		done := int(min(int64(batch.Len()), max(0, acked+1-batch.first)))
		if l.expectsRepeats() && l.passed == 0 {
			done = min(done, l.passedEvents)
		}
		if done < batch.Len() {
			return done
		}
		l.kept[0] = nil
		l.kept = l.kept[1:]
		if l.passed > 0 {
			l.passed--
		} else {
			l.passedEvents = 0
		}
		if len(batch.place.Position) > 0 {
			l.ackedTo = batch.place
		} else if token := batch.token(batch.Len() - 1); token != nil {
			l.ackedTo = tokenPlace(token)
		}
	}
	return 0
}

func tokenPlace(token bson.Raw) Place {
	at, _ := tokenTime(token)
	return Place{ResumeToken: token, ClusterTime: at}
}
