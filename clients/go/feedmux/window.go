package feedmux

// grant is permission for more.
type grant struct{ events, bytes int64 }

// creditWindow is how much the server may still send, and when to grant more: bookkeeping in totals over the life of a
// session. Invariant: granted - taken never exceeds the window, so what waits in the client is bounded by it.
type creditWindow struct {
	// size is what was chosen, or less, if the server of the present stream allows less.
	chosen, size                        grant
	granted, received, discarded, taken grant
}

func newCreditWindow(events, bytes int64) *creditWindow {
	chosen := grant{events, bytes}
	return &creditWindow{chosen: chosen, size: chosen}
}

// open begins a new stream: earlier grants are void. The credit to open with leaves room for what still waits.
func (w *creditWindow) open() grant {
	w.size = w.chosen
	waitingEvents := w.received.events - w.discarded.events - w.taken.events
	waitingBytes := w.received.bytes - w.discarded.bytes - w.taken.bytes
	first := grant{max(0, w.size.events-waitingEvents), max(0, w.size.bytes-waitingBytes)}
	if first.events == 0 || first.bytes == 0 {
		// One without the other brings nothing. A server that clamps it would leave nothing to grant after that.
		first = grant{}
	}
	w.granted = grant{w.received.events + first.events, w.received.bytes + first.bytes}
	return first
}

// limit applies the server's limits: it clamps unused credit to them, and so does this window. 0 says nothing.
func (w *creditWindow) limit(events, bytes int64) {
	if events > 0 {
		w.size.events = min(w.size.events, events)
		w.granted.events = min(w.granted.events, w.received.events+events)
	}
	if bytes > 0 {
		w.size.bytes = min(w.size.bytes, bytes)
		w.granted.bytes = min(w.granted.bytes, w.received.bytes+bytes)
	}
}

// receive counts a batch that arrived. It fails where that exceeds the credit; one event may overdraw the bytes.
func (w *creditWindow) receive(batch *Batch) error {
	w.received.events += int64(batch.Len())
	w.received.bytes += batch.size()
	if over := w.received.events - w.granted.events; over > 0 {
		return protocolError("%d events more than the credit granted", over)
	}
	over := w.received.bytes - w.granted.bytes
	if over > 0 && over >= int64(len(batch.bytes(batch.Len()-1))) {
		return protocolError("%d bytes more than the credit granted", over)
	}
	return nil
}

// discard counts received events that the user will never take.
func (w *creditWindow) discard(events, bytes int64) {
	w.discarded.events += events
	w.discarded.bytes += bytes
}

// take counts what the user's loop has taken.
func (w *creditWindow) take(batch *Batch) {
	w.taken.events += int64(batch.Len())
	w.taken.bytes += batch.size()
}

// due says whether refill would grant anything: not until a quarter of the window, in events or bytes, is free again.
func (w *creditWindow) due() bool {
	free := w.free()
	return free.events >= 1 && free.bytes >= 1 && (free.events*4 >= w.size.events || free.bytes*4 >= w.size.bytes)
}

// refill grants all there is to grant.
func (w *creditWindow) refill() grant {
	more := w.free()
	w.granted.events += more.events
	w.granted.bytes += more.bytes
	return more
}

func (w *creditWindow) free() grant {
	return grant{
		w.size.events + w.taken.events + w.discarded.events - w.granted.events,
		w.size.bytes + w.taken.bytes + w.discarded.bytes - w.granted.bytes,
	}
}
