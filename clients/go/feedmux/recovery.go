package feedmux

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
)

// step is what a session does about the error that ended its stream.
type step int

const (
	// giveUp: only the user can decide.
	giveUp step = iota
	// reopen behind the last acked event.
	reopen
	// reopenAtStored: where the stored position now stands; what is unacked is forgotten.
	reopenAtStored
)

var stepWhenFenced = map[string]step{"SEEK": reopenAtStored, "UPDATE": reopen, "LEASE": reopen}

// nextStep decides by the protocol's table. renewsToken says that the stream was open and that the next one will be
// opened with a token asked for anew.
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
		// What gRPC itself and proxies give for a broken stream. The server always adds a reason.
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

// backoff is exponential with full jitter: a delay is anywhere between 0 and a bound that doubles.
type backoff struct {
	first, most, bound time.Duration
	// random gives a number in [0, 1).
	random func() float64
}

func newBackoff(first, most time.Duration, random func() float64) *backoff {
	return &backoff{first: first, most: most, bound: first, random: random}
}

// next is how long to wait now; never less than what the server asked for.
func (b *backoff) next(atLeast time.Duration) time.Duration {
	delay := atLeast + time.Duration(b.random()*float64(b.bound))
	b.bound = min(b.most, b.bound*2)
	return delay
}

// lived says that a stream has ended; one that held for longer than the largest bound was good.
func (b *backoff) lived(duration time.Duration) {
	if duration > b.most {
		b.reset()
	}
}

// reset says that the connection holds: begin small again.
func (b *backoff) reset() { b.bound = b.first }
