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

func begun(durable bool) *ledger { return begunWith(durable, 1<<40) }

func begunWith(durable bool, wholeBytesMax int64) *ledger {
	made := newLedger(durable, wholeBytesMax)
	made.begin(at(0), 0)
	return made
}

// keptWhole lets the random tests keep tokens only, a few batches whole, or all.
func keptWhole(seed uint64) int64 { return []int64{0, 2000, 1 << 40}[seed%3] }

// counted fails where the bytes held whole are not counted, or are over the bound.
func counted(t *testing.T, l *ledger) {
	t.Helper()
	held := int64(0)
	for _, each := range l.kept {
		if each.batch != nil {
			held += each.batch.size()
		}
	}
	if held != l.wholeBytes || held > l.wholeBytesMax {
		t.Fatalf("%d bytes are whole, counted as %d of %d", held, l.wholeBytes, l.wholeBytesMax)
	}
}

func arrive(t *testing.T, l *ledger, sequence int64, numbers ...int) (fresh []int) {
	t.Helper()
	batches, err := l.arrive(sequence, events(t, numbers...), 0)
	if err != nil {
		t.Fatal(err)
	}
	counted(t, l)
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
	l := begun(true)
	arrive(t, l, 1, 1, 2)
	if _, err := l.arrive(4, events(t, 4), 0); !errors.Is(err, ErrProtocol) {
		t.Fatal(err)
	}
}

func TestAcksAndWhereToBeginAgain(t *testing.T) {
	l := begun(true)
	same(t, l.ackedPlace(0), at(0))
	arrive(t, l, 1, 1, 2, 3)
	arrive(t, l, 4, 4, 5)
	same(t, l.ackedSequence(2), 2)
	same(t, l.ackedPlace(2), Place{nil, token(2), at(2).ClusterTime})
	same(t, l.ackedPlace(3), at(3))
	same(t, l.ackedSequence(5), 5)
	l.progress(at(9))
	same(t, l.ackedPlace(5), at(9))
}

func TestRepeatsAreDroppedAndTheirAcksMapped(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2, 3)
	arrive(t, l, 4, 4, 5)
	l.begin(at(2), 2)
	same(t, l.ackedSequence(4), 0)
	same(t, len(arrive(t, l, 1, 3, 4)), 0)
	same(t, l.ackedSequence(4), 2)
	l.progress(at(4))
	same(t, l.latest, at(5))
	same(t, arrive(t, l, 3, 5, 6, 7), []int{6, 7})
	same(t, l.expectsRepeats(), false)
	same(t, l.latest, at(7))
	same(t, l.ackedSequence(6), 4)
}

func TestAReconnectBeforeTheRepeatsCame(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2, 3)
	l.begin(at(0), 0)
	arrive(t, l, 1, 1)
	l.begin(at(0), 0)
	same(t, arrive(t, l, 1, 1, 2, 3, 4), []int{4})
	same(t, l.ackedSequence(4), 4)
}

func TestALaterEventEndsTheDropping(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2)
	l.begin(at(0), 0)
	same(t, arrive(t, l, 1, 7), []int{7})
	same(t, l.expectsRepeats(), false)
	same(t, l.ackedSequence(3), 1)
}

func TestAfterARewindOlderEventsComeFirstAndHoldBackTheAck(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 5, 6)
	l.begin(at(2), 0)
	same(t, arrive(t, l, 1, 3, 4), []int{3, 4})
	same(t, len(arrive(t, l, 3, 5, 6)), 0)
	same(t, l.ackedSequence(2), 0)
	same(t, l.ackedSequence(4), 4)
}

func TestForgettingLetsEverythingComeAgain(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2, 3)
	l.forget()
	same(t, l.ackedPlace(2), Place{})
	l.begin(at(0), 2)
	same(t, arrive(t, l, 1, 1, 2), []int{1, 2})
	same(t, l.ackedSequence(3), 0)
	same(t, l.ackedSequence(4), 1)
}

func TestAnInlineFeedKeepsNothing(t *testing.T) {
	l := begun(false)
	arrive(t, l, 1, 1, 2)
	l.begin(l.latest, 0)
	same(t, l.expectsRepeats(), false)
	same(t, arrive(t, l, 1, 3), []int{3})
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
		l := begunWith(true, keptWhole(seed))
		var seen []int
		acked, begin := 0, 0
		for len(seen) < 60 {
			sequence := 1
			for range random.IntN(6) {
				chunk := span(begin+sequence, begin+sequence+random.IntN(4))
				seen = append(seen, arrive(t, l, int64(sequence), chunk...)...)
				sequence += len(chunk)
				if random.IntN(2) == 0 {
					acked += random.IntN(len(seen) - acked + 1)
				}
				// Sequence s of this stream is event begin + s: everything acked is covered, and nothing else.
				covered := begin + int(l.ackedSequence(int64(acked)))
				if wanted := min(max(acked, begin), begin+sequence-1); covered != wanted {
					t.Fatalf("seed %d: acked to %d, not %d", seed, covered, wanted)
				}
			}
			known := acked
			where := l.ackedPlace(int64(known))
			wanted := min(known, begin+sequence-1)
			if begin = numberOf(where); begin != wanted {
				t.Fatalf("seed %d: begins after %d, not %d", seed, begin, wanted)
			}
			acked += random.IntN(len(seen) - acked + 1) // Acked between asking and Opened.
			l.begin(at(begin), int64(known))
		}
		if !slices.Equal(seen, span(1, len(seen))) {
			t.Fatalf("seed %d: %v", seed, seen)
		}
	}
}

func numberOf(where Place) int {
	if len(where.Position) > 0 {
		number, _ := strconv.Atoi(string(where.Position[1:]))
		return number
	}
	return int(where.ClusterTime.T) - 1000
}

// The filter was widened: event 3 has a higher ordinal than those after it, and the stream begins before it until it is
// acked.
func TestAnEventAmongRepeatsThatWasNotThereBefore(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2)
	arrive(t, l, 3, 4, 5)
	l.begin(at(2), 2)
	same(t, arrive(t, l, 1, 3, 4, 5), []int{3})
	same(t, l.ackedSequence(4), 0)
	same(t, l.ackedPlace(4), at(2))
	l.begin(at(2), 4)
	same(t, arrive(t, l, 1, 3, 4, 5), nil)
	same(t, l.ackedSequence(5), 3)
	same(t, l.ackedPlace(5), at(5))
}

// Whatever was received and is not acked comes again when the next process begins where this one would.
func TestRandomReconnectsUnderAGrowingFilterLoseNothing(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := begunWith(true, keptWhole(seed))
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
				received = append(received, arrive(t, l, sequence, coming[:count]...)...)
				sequence, coming = sequence+int64(count), coming[count:]
				if random.IntN(2) == 0 {
					acked += random.IntN(len(received) - acked + 1)
					l.ackedSequence(int64(acked))
				}
			}
			begin = numberOf(l.ackedPlace(int64(acked)))
			for _, number := range received[acked:] {
				if number <= begin {
					t.Fatalf("seed %d: begins after %d, and %d is not acked", seed, begin, number)
				}
			}
			l.begin(at(begin), int64(acked))
		}
		if slices.Sort(received); len(slices.Compact(slices.Clone(received))) != len(received) {
			t.Fatalf("seed %d: handed out twice: %v", seed, received)
		}
	}
}

func TestWhereATokenIsMissingTheLastKnownPlaceCounts(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2)
	stripped, err := bson.Marshal(bson.D{{Key: "n", Value: 3}})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := bsonBatch(append(stripped, documents(0, 4)...), 2, at(4), batchTime)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.arrive(3, batch.part(0, 1), 0); err != nil {
		t.Fatal(err)
	}
	arrive(t, l, 4, 5)
	same(t, l.ackedPlace(3), at(2))
}

func TestProgressPastAllRepeatsEndsTheWaitForThem(t *testing.T) {
	l := begun(true)
	arrive(t, l, 1, 1, 2, 3)
	l.begin(at(5), 1)
	l.progress(at(3))
	same(t, l.expectsRepeats(), true)
	l.progress(at(5))
	same(t, l.expectsRepeats(), false)
	same(t, l.latest, at(5))
}

func TestWhatIsUnackedTakesNoMoreMemoryThanItsTokensAndABound(t *testing.T) {
	const size = 1 << 20
	l := begunWith(true, 3*size)
	before := heap()
	for number := 1; number <= 100; number++ {
		batch, err := bsonBatch(documents(size, number), 1, at(number), batchTime)
		same(t, err, nil)
		_, err = l.arrive(int64(number), batch, 0)
		same(t, err, nil)
		counted(t, l)
	}
	if held := heap() - before; held > 6*size {
		t.Errorf("%d bytes held", held)
	}
	l.begin(at(7), 7)
	var coming []int
	for number := 8; number <= 102; number++ {
		coming = append(coming, number)
	}
	same(t, arrive(t, l, 1, coming...), []int{101, 102})
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestWhatWasAckedMakesRoomForWholeBatches(t *testing.T) {
	size := events(t, 1).size()
	l := begunWith(true, 2*size)
	for number := 1; number <= 100; number++ {
		arrive(t, l, int64(number), number)
		if number%5 == 0 {
			l.ackedSequence(int64(number))
		}
		same(t, l.wholeBytes, size*int64(min(2, number%5)))
		if len(l.whole) > 2 {
			t.Fatalf("%d are whole", len(l.whole))
		}
	}
	for number := int64(101); number <= 103; number++ {
		_, err := l.arrive(number, events(t, int(number)), number-1)
		same(t, err, nil)
	}
	same(t, l.wholeBytes, size)
	l.forget()
	counted(t, l)
}
