package feedmux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func events(t *testing.T, numbers ...int) *Batch {
	t.Helper()
	batch, err := bsonBatch(documents(0, numbers...), len(numbers), at(numbers[len(numbers)-1]), batchTime)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func begun(durable bool) *deliveryTracker { return begunWith(durable, 1<<40) }

func begunWith(durable bool, wholeBytesMax int64) *deliveryTracker {
	made := newDeliveryTracker(durable, wholeBytesMax)
	made.begin(at(0), 0)
	return made
}

// keptWhole lets the random tests keep tokens only, a few batches whole, or all.
func keptWhole(seed uint64) int64 { return []int64{0, 2000, 1 << 40}[seed%3] }

// counted fails where the bytes held whole are not counted, or are over the bound.
func counted(t *testing.T, tracker *deliveryTracker) {
	t.Helper()
	held := int64(0)
	for _, each := range tracker.unacked {
		if each.batch != nil {
			held += each.batch.size()
		}
	}
	if held != tracker.wholeBytes || held > tracker.wholeBytesMax {
		t.Fatalf("%d bytes are whole, counted as %d of %d", held, tracker.wholeBytes, tracker.wholeBytesMax)
	}
}

func arrive(t *testing.T, tracker *deliveryTracker, sequence int64, numbers ...int) (fresh []int) {
	t.Helper()
	batches, err := tracker.arrive(sequence, events(t, numbers...), 0)
	if err != nil {
		t.Fatal(err)
	}
	counted(t, tracker)
	for _, batch := range batches {
		for index := range batch.Len() {
			fresh = append(fresh, number(t, batch.Event(index)))
		}
	}
	return fresh
}

func same[T any](t *testing.T, got, wanted T) {
	t.Helper()
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", wanted) {
		t.Fatalf("%+v, not %+v", got, wanted)
	}
}

func TestAGapIsAViolation(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2)
	if _, err := tracker.arrive(4, events(t, 4), 0); !errors.Is(err, ErrProtocol) {
		t.Fatal(err)
	}
}

func TestAcksAndWhereToBeginAgain(t *testing.T) {
	tracker := begun(true)
	same(t, tracker.ackedPosition(0), at(0))
	arrive(t, tracker, 1, 1, 2, 3)
	arrive(t, tracker, 4, 4, 5)
	same(t, tracker.ackedSequence(2), 2)
	same(t, tracker.ackedPosition(2), FeedPosition{nil, token(2), at(2).ClusterTime})
	same(t, tracker.ackedPosition(3), at(3))
	same(t, tracker.ackedSequence(5), 5)
	tracker.progress(at(9))
	same(t, tracker.ackedPosition(5), at(9))
}

func TestRepeatsAreDroppedAndTheirAcksMapped(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2, 3)
	arrive(t, tracker, 4, 4, 5)
	tracker.begin(at(2), 2)
	same(t, tracker.ackedSequence(4), 0)
	same(t, len(arrive(t, tracker, 1, 3, 4)), 0)
	same(t, tracker.ackedSequence(4), 2)
	tracker.progress(at(4))
	same(t, tracker.latest, at(5))
	same(t, arrive(t, tracker, 3, 5, 6, 7), []int{6, 7})
	same(t, tracker.expectsRepeats(), false)
	same(t, tracker.latest, at(7))
	same(t, tracker.ackedSequence(6), 4)
}

func TestAReconnectBeforeTheRepeatsCame(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2, 3)
	tracker.begin(at(0), 0)
	arrive(t, tracker, 1, 1)
	tracker.begin(at(0), 0)
	same(t, arrive(t, tracker, 1, 1, 2, 3, 4), []int{4})
	same(t, tracker.ackedSequence(4), 4)
}

func TestALaterEventEndsTheDropping(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2)
	tracker.begin(at(0), 0)
	same(t, arrive(t, tracker, 1, 7), []int{7})
	same(t, tracker.expectsRepeats(), false)
	same(t, tracker.ackedSequence(3), 1)
}

func TestAfterARewindOlderEventsComeFirstAndHoldBackTheAck(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 5, 6)
	tracker.begin(at(2), 0)
	same(t, arrive(t, tracker, 1, 3, 4), []int{3, 4})
	same(t, len(arrive(t, tracker, 3, 5, 6)), 0)
	same(t, tracker.ackedSequence(2), 0)
	same(t, tracker.ackedSequence(4), 4)
}

func TestForgettingLetsEverythingComeAgain(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2, 3)
	tracker.forget()
	same(t, tracker.ackedPosition(2), FeedPosition{})
	tracker.begin(at(0), 2)
	same(t, arrive(t, tracker, 1, 1, 2), []int{1, 2})
	same(t, tracker.ackedSequence(3), 0)
	same(t, tracker.ackedSequence(4), 1)
}

func TestAnInlineFeedKeepsNothing(t *testing.T) {
	tracker := begun(false)
	arrive(t, tracker, 1, 1, 2)
	tracker.begin(tracker.latest, 0)
	same(t, tracker.expectsRepeats(), false)
	same(t, arrive(t, tracker, 1, 3), []int{3})
}

func TestTheTimeOfATokenIsUnknownForWhatIsNotUnderstood(t *testing.T) {
	known, ok := tokenTime(token(5))
	same(t, ok, true)
	same(t, known, at(5).ClusterTime)
	for _, strange := range [][]byte{nil, []byte("rubbish"), marshal(map[string]any{"_data": 7}), marshal(map[string]any{"_data": "99"})} {
		if _, ok := tokenTime(strange); ok {
			t.Fatalf("%q", strange)
		}
	}
}

// The server begins after the event that was acked when the stream was asked for, as far as its last one had come: there
// could have been new events among what it had not repeated.
func TestRandomReconnectsGiveEveryEventOnceInOrder(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		tracker := begunWith(true, keptWhole(seed))
		var seen []int
		acked, begin := 0, 0
		for len(seen) < 60 {
			sequence := 1
			for range random.IntN(6) {
				chunk := span(begin+sequence, begin+sequence+random.IntN(4))
				seen = append(seen, arrive(t, tracker, int64(sequence), chunk...)...)
				sequence += len(chunk)
				if random.IntN(2) == 0 {
					acked += random.IntN(len(seen) - acked + 1)
				}
				// Sequence s of this stream is event begin + s: everything acked is covered, and nothing else.
				covered := begin + int(tracker.ackedSequence(int64(acked)))
				if wanted := min(max(acked, begin), begin+sequence-1); covered != wanted {
					t.Fatalf("seed %d: acked to %d, not %d", seed, covered, wanted)
				}
			}
			known := acked
			where := tracker.ackedPosition(int64(known))
			wanted := min(known, begin+sequence-1)
			if begin = numberOf(where); begin != wanted {
				t.Fatalf("seed %d: begins after %d, not %d", seed, begin, wanted)
			}
			acked += random.IntN(len(seen) - acked + 1) // Acked between asking and Opened.
			tracker.begin(at(begin), int64(known))
		}
		if !slices.Equal(seen, span(1, len(seen))) {
			t.Fatalf("seed %d: %v", seed, seen)
		}
	}
}

func numberOf(where FeedPosition) int {
	if len(where.Position) > 0 {
		number, _ := strconv.Atoi(string(where.Position[1:]))
		return number
	}
	return int(where.ClusterTime.T) - 1000
}

// The filter was widened: event 3 has a higher ordinal than those after it, and the stream begins before it until it is
// acked.
func TestAnEventAmongRepeatsThatWasNotThereBefore(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2)
	arrive(t, tracker, 3, 4, 5)
	tracker.begin(at(2), 2)
	same(t, arrive(t, tracker, 1, 3, 4, 5), []int{3})
	same(t, tracker.ackedSequence(4), 0)
	same(t, tracker.ackedPosition(4), at(2))
	tracker.begin(at(2), 4)
	same(t, arrive(t, tracker, 1, 3, 4, 5), nil)
	same(t, tracker.ackedSequence(5), 3)
	same(t, tracker.ackedPosition(5), at(5))
}

// Whatever was received and is not acked comes again when the next process begins where this one would.
func TestRandomReconnectsUnderAGrowingFilterLoseNothing(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		tracker := begunWith(true, keptWhole(seed))
		shown := make(map[int]bool)
		var received []int
		acked, begin := 0, 0
		for range 12 {
			for range 8 {
				shown[1+random.IntN(80)] = true
			}
			var coming []int
			for number := begin + 1; number <= 80 && len(coming) < 30; number++ {
				if shown[number] {
					coming = append(coming, number)
				}
			}
			coming = coming[:random.IntN(len(coming)+1)]
			for sequence := int64(1); len(coming) > 0; {
				count := min(len(coming), 1+random.IntN(4))
				received = append(received, arrive(t, tracker, sequence, coming[:count]...)...)
				sequence, coming = sequence+int64(count), coming[count:]
				if random.IntN(2) == 0 {
					acked += random.IntN(len(received) - acked + 1)
					tracker.ackedSequence(int64(acked))
				}
			}
			begin = numberOf(tracker.ackedPosition(int64(acked)))
			for _, number := range received[acked:] {
				if number <= begin {
					t.Fatalf("seed %d: begins after %d, and %d is not acked", seed, begin, number)
				}
			}
			tracker.begin(at(begin), int64(acked))
		}
		if slices.Sort(received); len(slices.Compact(slices.Clone(received))) != len(received) {
			t.Fatalf("seed %d: handed out twice: %v", seed, received)
		}
	}
}

func TestWhereATokenIsMissingTheLastKnownPlaceCounts(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2)
	stripped, err := bson.Marshal(bson.D{{Key: "n", Value: 3}})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := bsonBatch(append(stripped, documents(0, 4)...), 2, at(4), batchTime)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tracker.arrive(3, batch.part(0, 1), 0); err != nil {
		t.Fatal(err)
	}
	arrive(t, tracker, 4, 5)
	same(t, tracker.ackedPosition(3), at(2))
}

func TestProgressPastAllRepeatsEndsTheWaitForThem(t *testing.T) {
	tracker := begun(true)
	arrive(t, tracker, 1, 1, 2, 3)
	tracker.begin(at(5), 1)
	tracker.progress(at(3))
	same(t, tracker.expectsRepeats(), true)
	tracker.progress(at(5))
	same(t, tracker.expectsRepeats(), false)
	same(t, tracker.latest, at(5))
}

func TestWhatIsUnackedTakesNoMoreMemoryThanItsTokensAndABound(t *testing.T) {
	const size = 1 << 20
	tracker := begunWith(true, 3*size)
	before := heap()
	for number := 1; number <= 100; number++ {
		batch, err := bsonBatch(documents(size, number), 1, at(number), batchTime)
		same(t, err, nil)
		_, err = tracker.arrive(int64(number), batch, 0)
		same(t, err, nil)
		counted(t, tracker)
	}
	if held := heap() - before; held > 6*size {
		t.Errorf("%d bytes held", held)
	}
	tracker.begin(at(7), 7)
	var coming []int
	for number := 8; number <= 102; number++ {
		coming = append(coming, number)
	}
	same(t, arrive(t, tracker, 1, coming...), []int{101, 102})
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestWhatWasAckedMakesRoomForWholeBatches(t *testing.T) {
	size := events(t, 1).size()
	tracker := begunWith(true, 2*size)
	for number := 1; number <= 100; number++ {
		arrive(t, tracker, int64(number), number)
		if number%5 == 0 {
			tracker.ackedSequence(int64(number))
		}
		same(t, tracker.wholeBytes, size*int64(min(2, number%5)))
		if len(tracker.whole) > 2 {
			t.Fatalf("%d are whole", len(tracker.whole))
		}
	}
	for number := int64(101); number <= 103; number++ {
		_, err := tracker.arrive(number, events(t, int(number)), number-1)
		same(t, err, nil)
	}
	same(t, tracker.wholeBytes, size)
	tracker.forget()
	counted(t, tracker)
}
