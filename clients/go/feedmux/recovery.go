package feedmux

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
)

// step is what a session does about the error that ended its stream.
type step int

const (
	// giveUp: the session ends, because only the user can decide what to do.
	giveUp step = iota
	// reopen: resume after the last acked event.
	reopen
	// reopenAtStored: begin at the current stored position, and forget the unacked events.
	reopenAtStored
)

var stepWhenFenced = map[string]step{"SEEK": reopenAtStored, "UPDATE": reopen, "LEASE": reopen}

// nextStep decides by the protocol's table. renewsToken says that the stream was open and that the next stream will use
// a new token.
func nextStep(failed *Error, renewsToken bool) step {
	switch {
	case errors.Is(failed, ErrUnauthenticated) && renewsToken:
		return reopen
	case errors.Is(failed, ErrProtocol):
		return giveUp
	case failed.Reason == reasonFenced:
		return stepWhenFenced[failed.Metadata["cause"]]
	case failed.Reason == reasonChanged:
		return reopen
	}
	switch failed.Code {
	case codes.Unavailable, codes.DeadlineExceeded:
		return reopen
	case codes.Internal, codes.Unknown, codes.Canceled, codes.Aborted:
		// gRPC itself and proxies return these for a broken stream. The server always adds a reason.
		if failed.Reason == "" {
			return reopen
		}
	case codes.ResourceExhausted:
		if failed.asksToWait {
			return reopen
		}
	}
	return giveUp
}

// backoff is exponential with full jitter: a delay is random between 0 and a bound that doubles.
type backoff struct {
	first, most, bound time.Duration
	// random returns a number in [0, 1).
	random func() float64
}

func newBackoff(first, most time.Duration, random func() float64) *backoff {
	return &backoff{first: first, most: most, bound: first, random: random}
}

// next returns how long to wait now, which is never less than the server asked for.
func (b *backoff) next(atLeast time.Duration) time.Duration {
	delay := atLeast + time.Duration(b.random()*float64(b.bound))
	b.bound = min(b.most, b.bound*2)
	return delay
}

// lived reports how long a stream was open; a stream that was open for longer than the largest bound resets the
// backoff.
func (b *backoff) lived(duration time.Duration) {
	if duration > b.most {
		b.reset()
	}
}

// reset says that the connection works: the bound begins small again.
func (b *backoff) reset() { b.bound = b.first }
