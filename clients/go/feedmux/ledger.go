package feedmux

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ledger records which events were delivered under which number, which are acked, and which must not be handed out
// twice.
//
// The client numbers events with ordinals that never restart; the server's delivery sequences restart with every
// stream. The ledger maps one to the other by ranges, keeps the unacked batches of a durable subscription, and after a
// reconnect recognises them by their `_id` when they come again. Beyond wholeBytesMax bytes, it retains only their
// `_id`s.
//
// Invariant: kept begins with the first event in stream order that is not acked, and holds all received after it, in
// stream order. That is the order of ordinals, unless events came among repeats that had not been there before: the
// filter was widened. ranges hold the sequences of the present stream that are not yet covered by an ack, in sequence
// order.
type ledger struct {
	// durable says that acks matter and that a reopened stream may repeat; an inline feed continues after the last
	// event received, so nothing is retained for it.
	durable bool
	// received is the highest ordinal given out.
	received int64
	// latest is the position up to which everything has been received.
	latest Place

	nextSequence, sequenceAcked int64
	// floor is the ordinal up to which acks are settled because the stored position was moved.
	floor  int64
	ranges []sequenceRange
	kept   []*kept
	// whole are those of kept that are whole, the oldest first, and dropped ones among them; wholeBytes are theirs.
	whole                     []*kept
	wholeBytes, wholeBytesMax int64
	repeats                   map[string]int64
	repeatsUntil              bson.Timestamp
	// passed and passedEvents say, while repeats are expected, that the stream has come past so many batches of kept,
	// and events of the next one.
	passed, passedEvents int
	ackedTo              Place
}

// sequenceRange says that count delivery sequences from sequence on are the events from ordinal on.
type sequenceRange struct{ sequence, ordinal, count int64 }

// kept is a batch that is not acked to its end: whole, because that costs nothing, or reduced to its resume tokens.
type kept struct {
	first int64
	count int
	place Place
	// size is the bytes of its events; 0 when reduced.
	size  int64
	batch *Batch
	// Token i is tokens[ends[i-1]:ends[i]].
	tokens []byte
	ends   []uint32
}

func keep(batch *Batch) *kept {
	return &kept{first: batch.first, count: batch.Len(), place: batch.place, size: batch.size(), batch: batch}
}

func (k *kept) last() int64 { return k.first + int64(k.count) - 1 }

// token is the resume token of an event; nil if it has none.
func (k *kept) token(index int) bson.Raw {
	if k.batch != nil {
		return k.batch.token(index)
	}
	begin := uint32(0)
	if index > 0 {
		begin = k.ends[index-1]
	}
	if begin == k.ends[index] {
		return nil
	}
	return k.tokens[begin:k.ends[index]:k.ends[index]]
}

// reduce evicts everything but the tokens.
func (k *kept) reduce() {
	if k.batch == nil {
		return
	}
	k.ends = make([]uint32, k.count)
	for index := range k.count {
		k.tokens = append(k.tokens, k.batch.token(index)...)
		k.ends[index] = uint32(len(k.tokens))
	}
	k.tokens = slices.Clone(k.tokens)
	k.drop()
}

// drop evicts the batch.
func (k *kept) drop() { k.batch, k.size = nil, 0 }

// split keeps the first events and returns the rest. Only of a reduced one.
func (k *kept) split(at int) *kept {
	cut := k.ends[at-1]
	rest := &kept{first: k.first + int64(at), count: k.count - at, place: k.place, tokens: k.tokens[cut:]}
	for _, end := range k.ends[at:] {
		rest.ends = append(rest.ends, end-cut)
	}
	k.count, k.place, k.tokens, k.ends = at, Place{}, k.tokens[:cut:cut], k.ends[:at]
	return rest
}

func newLedger(durable bool, wholeBytesMax int64) *ledger {
	return &ledger{durable: durable, nextSequence: 1, wholeBytesMax: wholeBytesMax}
}

// expectsRepeats says whether events handed out before may still come again.
func (l *ledger) expectsRepeats() bool { return len(l.repeats) > 0 }

// ackedPlace is the position up to which everything is acked: where a new stream has to begin. Empty at the start.
func (l *ledger) ackedPlace(acked int64) Place {
	acked = max(acked, l.floor)
	if acked >= l.received && !l.expectsRepeats() {
		return l.latest
	}
	if settled := l.settle(acked); settled > 0 {
		if token := l.kept[0].token(settled - 1); token != nil {
			return tokenPlace(slices.Clone(token))
		}
	}
	return l.ackedTo
}

// forget says that the stored position was moved on purpose: what is unacked has lost its meaning, and may come again.
func (l *ledger) forget() {
	l.floor = l.received
	l.kept, l.repeats = nil, nil
	l.whole, l.wholeBytes = nil, 0
	l.ackedTo, l.latest = Place{}, Place{}
}

// begin says that a stream begins at a position, with sequence 1. Acks up to acked were known when the client requested
// the stream.
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
	for _, each := range l.kept {
		for index := settled; index < each.count; index++ {
			if last = each.token(index); last != nil {
				l.repeats[string(last)] = each.first + int64(index)
			}
		}
		settled = 0
	}
	l.repeatsUntil, _ = tokenTime(last)
}

// arrive takes a batch that arrived: it, or what of it is new, comes back numbered. What is acked already need not be kept.
func (l *ledger) arrive(sequence int64, batch *Batch, acked int64) ([]*Batch, error) {
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
			l.keep(batch, acked)
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

// progress says that everything at or before a position has been delivered: repeats up to there no longer come.
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

func (l *ledger) keep(batch *Batch, acked int64) {
	added := keep(batch)
	l.kept = append(l.kept, added)
	l.whole = append(l.whole, added)
	l.wholeBytes += added.size
	if l.wholeBytes > l.wholeBytesMax {
		l.settle(acked)
	}
	for l.wholeBytes > l.wholeBytesMax {
		l.reduce(l.whole[0])
		l.whole[0] = nil
		l.whole = l.whole[1:]
	}
}

func (l *ledger) reduce(each *kept) {
	l.wholeBytes -= each.size
	each.reduce()
}

// letGo evicts the first of kept.
func (l *ledger) letGo() {
	first := l.kept[0]
	l.wholeBytes -= first.size
	first.drop()
	l.kept[0] = nil
	l.kept = l.kept[1:]
	for len(l.whole) > 0 && l.whole[0].size == 0 {
		l.whole[0] = nil
		l.whole = l.whole[1:]
	}
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
		if each := l.kept[index]; each.first <= ordinal && ordinal <= each.last() {
			l.passed, l.passedEvents = index, int(ordinal+1-each.first)
			return
		}
	}
}

// insert keeps a batch that is new among repeats: it belongs where the stream is.
func (l *ledger) insert(batch *Batch) {
	if cut := l.passedEvents; cut > 0 {
		around := l.kept[l.passed]
		if cut < around.count {
			l.reduce(around)
			l.kept = slices.Insert(l.kept, l.passed+1, around.split(cut))
		}
		l.passed++
	}
	// A part of a message keeps the whole message in memory.
	added := keep(batch)
	added.reduce()
	l.kept = slices.Insert(l.kept, l.passed, added)
	l.passedEvents = added.count
}

// settle lets go of what is acked up to the first event that is not, and says how many of the first batch left are
// acked. While repeats are expected it goes no further than the stream has come: new events may come before the next of
// them.
func (l *ledger) settle(acked int64) int {
	for len(l.kept) > 0 {
		first := l.kept[0]
		done := int(min(int64(first.count), max(0, acked+1-first.first)))
		if l.expectsRepeats() && l.passed == 0 {
			done = min(done, l.passedEvents)
		}
		if done < first.count {
			return done
		}
		var last bson.Raw
		if len(first.place.Position) == 0 {
			last = first.token(first.count - 1)
		}
		l.letGo()
		if l.passed > 0 {
			l.passed--
		} else {
			l.passedEvents = 0
		}
		if len(first.place.Position) > 0 {
			l.ackedTo = first.place
		} else if last != nil {
			l.ackedTo = tokenPlace(slices.Clone(last))
		}
	}
	return 0
}

func tokenPlace(token bson.Raw) Place {
	at, _ := tokenTime(token)
	return Place{ResumeToken: token, ClusterTime: at}
}
