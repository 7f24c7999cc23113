package feedmux

import "testing"

func TestNoticesOfAnOutageThatNobodyReadsDoNotPileUp(t *testing.T) {
	buffer := newSessionBuffer(true, &SessionOptions{})
	first, last := Disconnected{unavailable(nil, "first"), 1}, Disconnected{unavailable(nil, "last"), 1}
	away, back := Degraded{"source", true}, Degraded{"source", false}
	gap := Gap{Reason: "TIMELINE_FORKED"}
	buffer.put(item{notice: first})
	buffer.put(item{batch: &Batch{}})
	buffer.put(item{notice: gap})
	buffer.put(item{notice: gap})
	for range 100 {
		for _, each := range []Notice{first, away, back, Draining{}, last} {
			buffer.put(item{notice: each})
		}
	}
	shown := make([]Notice, 0, len(buffer.items))
	for _, each := range buffer.items {
		shown = append(shown, each.notice)
	}
	same(t, shown, []Notice{first, nil, gap, gap, away, back, Draining{}, last})
}
