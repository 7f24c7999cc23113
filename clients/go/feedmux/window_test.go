package feedmux

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

var batchTime time.Time

// sized is a batch of a number of events, whose last one has a size of its own.
func sized(count, size, last int) *Batch {
	offsets := make([]int, count+1)
	for index := 1; index < count; index++ {
		offsets[index] = (size - last) * index / (count - 1)
	}
	offsets[count] = size
	return &Batch{data: make([]byte, size), offsets: offsets, format: FormatBSON}
}

func opened100() *creditWindow {
	window := newCreditWindow(100, 1000)
	window.open()
	return window
}

func receive(t *testing.T, window *creditWindow, batch *Batch) {
	t.Helper()
	if err := window.receive(batch); err != nil {
		t.Fatal(err)
	}
}

func TestRefillsWhenAQuarterWasTaken(t *testing.T) {
	window := opened100()
	receive(t, window, sized(60, 240, 4))
	window.take(sized(24, 100, 4))
	same(t, window.due(), false)
	window.take(sized(1, 4, 4))
	same(t, window.due(), true)
	same(t, window.refill(), grant{25, 104})
	same(t, window.due(), false)
}

func TestBytesAloneRefillToo(t *testing.T) {
	window := opened100()
	receive(t, window, sized(1, 900, 900))
	window.take(sized(1, 900, 900))
	same(t, window.due(), true)
	same(t, window.refill(), grant{1, 900})
}

func TestWhatWaitsIsNotGrantedAgainAfterAReconnect(t *testing.T) {
	window := opened100()
	receive(t, window, sized(100, 1200, 300))
	same(t, window.open(), grant{0, 0})
	window.take(sized(40, 300, 3))
	same(t, window.open(), grant{40, 100})
}

func TestRepeatsCountAsTaken(t *testing.T) {
	window := opened100()
	receive(t, window, sized(50, 100, 2))
	window.discard(50, 100)
	same(t, window.refill(), grant{50, 100})
}

func TestTheServerClampsTheWindow(t *testing.T) {
	window := opened100()
	window.limit(10, 0)
	receive(t, window, sized(10, 10, 1))
	window.take(sized(10, 10, 1))
	same(t, window.refill(), grant{10, 10})
	if err := window.receive(sized(11, 11, 1)); !errors.Is(err, ErrProtocol) {
		t.Fatal(err)
	}
	window.take(sized(11, 11, 1))
	same(t, window.open(), grant{100, 1000}) // the next server limits it no longer
}

func TestAServerThatAllowsLessThanTheOneBeforeIsGrantedMore(t *testing.T) {
	window := opened100()
	receive(t, window, sized(5, 1500, 600))
	same(t, window.open(), grant{}) // the bytes are used up
	window.limit(10, 0)
	window.take(sized(5, 1500, 600))
	same(t, window.refill(), grant{10, 1000})
}

func TestOneEventMayOverdrawTheBytes(t *testing.T) {
	receive(t, opened100(), sized(2, 5000, 4500))
	for _, over := range []*Batch{sized(101, 101, 1), sized(2, 2000, 1000), sized(2, 2000, 500)} {
		if err := opened100().receive(over); !errors.Is(err, ErrProtocol) {
			t.Fatal(err)
		}
	}
}

// Whatever sizes come: once everything is taken there is credit again, and what waits stays within the window.
func TestTheWindowNeverStallsAndNeverExceeds(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 0))
	window := newCreditWindow(64, 4096)
	left := window.open()
	waiting := int64(0)
	for range 5000 {
		if count := min(random.Int64N(30)+1, left.events); count > 0 && left.bytes > 0 {
			size := min(count*5+random.Int64N(400), left.bytes+50)
			batch := sized(int(count), int(size), int(min(size, max(51, size-(count-1)))))
			if count == 1 {
				batch = sized(1, int(size), int(size))
			}
			receive(t, window, batch)
			left = grant{left.events - count, left.bytes - size}
			waiting += count
			if waiting > 64 {
				t.Fatalf("%d events wait", waiting)
			}
			if random.IntN(4) == 0 {
				continue
			}
			window.taken = window.received
			waiting = 0
		}
		if random.IntN(10) == 0 {
			window.taken = window.received
			waiting = 0
			left = window.open()
		} else if window.due() {
			more := window.refill()
			left = grant{left.events + more.events, left.bytes + more.bytes}
		}
		if waiting == 0 && (left.events < 1 || left.bytes < 1) {
			t.Fatalf("stalled with %+v", left)
		}
	}
}
