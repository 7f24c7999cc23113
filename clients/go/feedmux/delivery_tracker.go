package feedmux

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// deliveryTracker records which events were delivered under which number, which are acked, and which must not be handed
// out twice.
//
// The client numbers events with ordinals that never restart; the server's delivery sequences restart with every
// stream. The tracker maps one to the other by ranges, retains the unacked batches of a durable subscription, and after a
// reconnect recognises them by their `_id` when they come again. Beyond wholeBytesMax bytes, it retains only their
// `_id`s.
//
// Invariant: unacked begins with the first event in stream order that is not acked, and holds all received after it, in
// stream order. That is the order of ordinals, unless events came among repeats that had not been there before: the
// filter was widened. ranges hold the sequences of the present stream that are not yet covered by an ack, in sequence
// order.
type deliveryTracker struct {
	// durable says that acks matter and that a reopened stream may repeat; an inline feed continues after the last
	// event received, so nothing is retained for it.
	durable bool
	// received is the highest ordinal given out.
	received int64
	// latest is the position up to which everything has been received.
	latest FeedPosition
	// withinCopy says that what arrives belongs to a copy of existing documents: its documents, and changes
	// until its end.
	withinCopy bool
	// copiedUntil is the last ordinal within a copy. A resume token does not name the copy: only a whole position does.
	copiedUntil int64

	nextSequence, sequenceAcked int64
	// floor is the ordinal up to which acks are settled because the stored position was moved.
	floor   int64
	ranges  []sequenceRange
	unacked []*unackedBatch
	// whole are those of unacked that are whole, the oldest first, and dropped ones among them; wholeBytes are theirs.
	whole                     []*unackedBatch
	wholeBytes, wholeBytesMax int64
	repeats                   map[string]int64
	repeatsUntil              bson.Timestamp
	// passed and passedEvents say, while repeats are expected, that the stream has come past so many batches of
	// unacked, and events of the next one.
	passed, passedEvents int
	ackedTo              FeedPosition
}

// sequenceRange says that count delivery sequences from sequence on are the events from ordinal on.
type sequenceRange struct{ sequence, ordinal, count int64 }

// unackedBatch is a batch that is not acked to its end: whole, because that costs nothing, or reduced to its resume
// tokens.
type unackedBatch struct {
	first        int64
	count        int
	feedPosition FeedPosition
	// size is the bytes of its events; 0 when reduced.
	size  int64
	batch *Batch
	// Token i is tokens[ends[i-1]:ends[i]].
	tokens []byte
	ends   []uint32
}

func retain(batch *Batch) *unackedBatch {
	return &unackedBatch{
		first: batch.first, count: batch.Len(), feedPosition: batch.feedPosition, size: batch.size(), batch: batch,
	}
}

func (u *unackedBatch) last() int64 { return u.first + int64(u.count) - 1 }

// token is the resume token of an event; nil if it has none.
func (u *unackedBatch) token(index int) bson.Raw {
	if u.batch != nil {
		return u.batch.token(index)
	}
	begin := uint32(0)
	if index > 0 {
		begin = u.ends[index-1]
	}
	if begin == u.ends[index] {
		return nil
	}
	return u.tokens[begin:u.ends[index]:u.ends[index]]
}

// reduce evicts everything but the tokens.
func (u *unackedBatch) reduce() {
	if u.batch == nil {
		return
	}
	u.ends = make([]uint32, u.count)
	for index := range u.count {
		u.tokens = append(u.tokens, u.batch.token(index)...)
		u.ends[index] = uint32(len(u.tokens))
	}
	u.tokens = slices.Clone(u.tokens)
	u.drop()
}

// drop evicts the batch.
func (u *unackedBatch) drop() { u.batch, u.size = nil, 0 }

// split keeps the first events and returns the rest. Only of a reduced one.
func (u *unackedBatch) split(at int) *unackedBatch {
	cut := u.ends[at-1]
	rest := &unackedBatch{
		first: u.first + int64(at), count: u.count - at, feedPosition: u.feedPosition, tokens: u.tokens[cut:],
	}
	for _, end := range u.ends[at:] {
		rest.ends = append(rest.ends, end-cut)
	}
	u.count, u.feedPosition, u.tokens, u.ends = at, FeedPosition{}, u.tokens[:cut:cut], u.ends[:at]
	return rest
}

func newDeliveryTracker(durable bool, wholeBytesMax int64) *deliveryTracker {
	return &deliveryTracker{durable: durable, nextSequence: 1, wholeBytesMax: wholeBytesMax}
}

// expectsRepeats says whether events handed out before may still come again.
func (t *deliveryTracker) expectsRepeats() bool { return len(t.repeats) > 0 }

// owesAcks says whether acks up to an ordinal are neither sent nor in the Open of the stream: those of events that may come
// again. Within a copy, the Open may name an earlier position than the last ack.
func (t *deliveryTracker) owesAcks(acked int64) bool {
	if len(t.unacked) > 0 && t.unacked[0].first <= t.copiedUntil {
		return t.expectsRepeats()
	}
	for _, ordinal := range t.repeats {
		if ordinal <= acked {
			return true
		}
	}
	return false
}

// ackedPosition is the position up to which everything is acked: where a new stream has to begin. Empty at the start.
func (t *deliveryTracker) ackedPosition(acked int64) FeedPosition {
	acked = max(acked, t.floor)
	if acked >= t.received && !t.expectsRepeats() {
		return t.latest
	}
	if settled := t.settle(acked); settled > 0 {
		if token := t.token(t.unacked[0], settled-1); token != nil {
			return tokenPosition(slices.Clone(token))
		}
	}
	return t.ackedTo
}

// forget says that the stored position was moved on purpose: what is unacked has lost its meaning, and may come again.
func (t *deliveryTracker) forget() {
	t.floor = t.received
	t.unacked, t.repeats = nil, nil
	t.whole, t.wholeBytes = nil, 0
	t.ackedTo, t.latest = FeedPosition{}, FeedPosition{}
}

// begin says that a stream begins at a position, with sequence 1. Acks up to acked were known when the client requested
// the stream.
func (t *deliveryTracker) begin(at FeedPosition, acked int64) {
	t.nextSequence, t.sequenceAcked = 1, 0
	settled := t.settle(max(acked, t.floor))
	t.ranges, t.repeats = nil, nil
	if len(t.unacked) == 0 {
		t.ackedTo, t.latest = at, at
		return
	}
	t.repeats = make(map[string]int64)
	t.passed, t.passedEvents = 0, settled
	var last bson.Raw
	for _, each := range t.unacked {
		for index := settled; index < each.count; index++ {
			if last = each.token(index); last != nil {
				t.repeats[string(last)] = each.first + int64(index)
			}
		}
		settled = 0
	}
	t.repeatsUntil, _ = tokenTime(last)
}

// arrive takes a batch that arrived: it, or what of it is new, comes back numbered. What is acked already need not be
// retained.
func (t *deliveryTracker) arrive(sequence int64, batch *Batch, acked int64) ([]*Batch, error) {
	if sequence != t.nextSequence {
		return nil, protocolError("delivery %d came where %d was due", sequence, t.nextSequence)
	}
	t.nextSequence += int64(batch.Len())
	if t.expectsRepeats() {
		t.stopAtNews(batch)
	}
	if !t.expectsRepeats() {
		t.take(sequence, batch)
		if t.durable {
			t.retain(batch, acked)
		}
		t.latest = batch.feedPosition
		return []*Batch{batch}, nil
	}
	fresh := t.sift(sequence, batch)
	if !t.expectsRepeats() {
		t.latest = batch.feedPosition
	}
	return fresh, nil
}

// progress says that everything at or before a position has been delivered: repeats up to there no longer come.
func (t *deliveryTracker) progress(feedPosition FeedPosition) {
	if !t.repeatsUntil.IsZero() && feedPosition.ClusterTime.After(t.repeatsUntil) {
		t.repeats = nil
	}
	if !t.expectsRepeats() {
		t.latest = feedPosition
	}
}

// ackedSequence is the delivery sequence of the present stream up to which everything is acked; 0 for nothing. After a
// rewind older events stand before those handed out earlier: then the first of them not acked decides.
func (t *deliveryTracker) ackedSequence(acked int64) int64 {
	t.settle(acked)
	for len(t.ranges) > 0 {
		next := t.ranges[0]
		done := min(acked-next.ordinal+1, next.count)
		if done <= 0 {
			break
		}
		t.sequenceAcked = next.sequence + done - 1
		if done < next.count {
			break
		}
		t.ranges = t.ranges[1:]
	}
	return t.sequenceAcked
}

func (t *deliveryTracker) retain(batch *Batch, acked int64) {
	added := retain(batch)
	t.unacked = append(t.unacked, added)
	t.whole = append(t.whole, added)
	t.wholeBytes += added.size
	if t.wholeBytes > t.wholeBytesMax {
		t.settle(acked)
	}
	for t.wholeBytes > t.wholeBytesMax {
		t.reduce(t.whole[0])
		t.whole[0] = nil
		t.whole = t.whole[1:]
	}
}

func (t *deliveryTracker) reduce(each *unackedBatch) {
	t.wholeBytes -= each.size
	each.reduce()
}

// evictFirst evicts the first of unacked.
func (t *deliveryTracker) evictFirst() {
	first := t.unacked[0]
	t.wholeBytes -= first.size
	first.drop()
	t.unacked[0] = nil
	t.unacked = t.unacked[1:]
	for len(t.whole) > 0 && t.whole[0].size == 0 {
		t.whole[0] = nil
		t.whole = t.whole[1:]
	}
}

func (t *deliveryTracker) take(sequence int64, batch *Batch) {
	batch.first = t.received + 1
	t.received += int64(batch.Len())
	if t.withinCopy {
		t.copiedUntil = t.received
	}
	t.mapRange(sequence, batch.first, int64(batch.Len()))
}

func (t *deliveryTracker) sift(sequence int64, batch *Batch) []*Batch {
	var fresh []*Batch
	start := 0
	takePart := func(end int) {
		if end > start {
			part := batch.part(start, end)
			t.take(sequence+int64(start), part)
			t.insert(part)
			fresh = append(fresh, part)
		}
	}
	for index := range batch.Len() {
		token := batch.token(index)
		ordinal, repeated := t.repeats[string(token)]
		if token == nil || !repeated {
			continue
		}
		delete(t.repeats, string(token))
		takePart(index)
		t.mapRange(sequence+int64(index), ordinal, 1)
		t.pass(ordinal)
		start = index + 1
	}
	takePart(batch.Len())
	return fresh
}

func (t *deliveryTracker) stopAtNews(batch *Batch) {
	first, ok := tokenTime(batch.token(0))
	if ok && !t.repeatsUntil.IsZero() && first.After(t.repeatsUntil) {
		t.repeats = nil
	}
}

func (t *deliveryTracker) mapRange(sequence, ordinal, count int64) {
	if !t.durable {
		return
	}
	if len(t.ranges) > 0 {
		last := &t.ranges[len(t.ranges)-1]
		if sequence-last.sequence == last.count && ordinal-last.ordinal == last.count {
			last.count += count
			return
		}
	}
	t.ranges = append(t.ranges, sequenceRange{sequence, ordinal, count})
}

// pass says that an event of unacked came again. They come in stream order.
func (t *deliveryTracker) pass(ordinal int64) {
	for index := t.passed; index < len(t.unacked); index++ {
		if each := t.unacked[index]; each.first <= ordinal && ordinal <= each.last() {
			t.passed, t.passedEvents = index, int(ordinal+1-each.first)
			return
		}
	}
}

// insert keeps a batch that is new among repeats: it belongs where the stream is.
func (t *deliveryTracker) insert(batch *Batch) {
	if cut := t.passedEvents; cut > 0 {
		around := t.unacked[t.passed]
		if cut < around.count {
			t.reduce(around)
			t.unacked = slices.Insert(t.unacked, t.passed+1, around.split(cut))
		}
		t.passed++
	}
	// A part of a message keeps the whole message in memory.
	added := retain(batch)
	added.reduce()
	t.unacked = slices.Insert(t.unacked, t.passed, added)
	t.passedEvents = added.count
}

// settle lets go of what is acked up to the first event that is not, and says how many of the first batch left are
// acked. While repeats are expected it goes no further than the stream has come: new events may come before the next of
// them.
func (t *deliveryTracker) settle(acked int64) int {
	for len(t.unacked) > 0 {
		first := t.unacked[0]
		done := int(min(int64(first.count), max(0, acked+1-first.first)))
		if t.expectsRepeats() && t.passed == 0 {
			done = min(done, t.passedEvents)
		}
		if done < first.count {
			return done
		}
		var last bson.Raw
		if len(first.feedPosition.Position) == 0 {
			last = t.token(first, first.count-1)
		}
		t.evictFirst()
		if t.passed > 0 {
			t.passed--
		} else {
			t.passedEvents = 0
		}
		if len(first.feedPosition.Position) > 0 {
			t.ackedTo = first.feedPosition
		} else if last != nil {
			t.ackedTo = tokenPosition(slices.Clone(last))
		}
	}
	return 0
}

// token is the token of an event, if a new stream may begin after the event alone; else nil.
func (t *deliveryTracker) token(each *unackedBatch, index int) bson.Raw {
	if each.first <= t.copiedUntil {
		return nil
	}
	return each.token(index)
}

func tokenPosition(token bson.Raw) FeedPosition {
	at, _ := tokenTime(token)
	return FeedPosition{ResumeToken: token, ClusterTime: at}
}
