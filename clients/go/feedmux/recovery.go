package feedmux

import (
	"errors"
	"math"
	"slices"
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

// endings is what the end of a stream is to the table of states, by the step that its error asks for.
var endings = map[step]event{reopen: eventLost, reopenAtStored: eventMoved, giveUp: eventFailed}

// rule is a step, and the errors that it is for. An empty field matches anything.
type rule struct {
	step  step
	codes []codes.Code
	// reasons may contain "", for errors without a reason.
	reasons, causes []string
	// asksToWait: only errors with RetryInfo.
	asksToWait bool
	// newToken: only if the stream was open and the next stream will use a new token.
	newToken bool
	// violation: only errors of the client itself, because the server broke the protocol.
	violation bool
}

// rules decide about errors: the first one that matches.
var rules = []rule{
	{step: giveUp, violation: true},
	{step: reopen, codes: []codes.Code{codes.Unauthenticated}, newToken: true},
	{step: reopenAtStored, reasons: []string{reasonFenced}, causes: []string{"SEEK"}},
	{step: reopen, reasons: []string{reasonFenced}, causes: []string{"UPDATE", "LEASE"}},
	{step: giveUp, reasons: []string{reasonFenced}},
	{step: reopen, reasons: []string{reasonChanged}},
	{step: reopen, codes: []codes.Code{codes.Unavailable, codes.DeadlineExceeded}},
	// gRPC itself and proxies return these for a broken stream. The server always adds a reason.
	{
		step:    reopen,
		codes:   []codes.Code{codes.Internal, codes.Unknown, codes.Canceled, codes.Aborted},
		reasons: []string{""},
	},
	{step: reopen, codes: []codes.Code{codes.ResourceExhausted}, asksToWait: true},
	{step: giveUp},
}

// nextStep decides by the rules. renewsToken says that the stream was open and that the next stream will use a new token.
func nextStep(failed *Error, renewsToken bool) step {
	return rules[slices.IndexFunc(rules, func(r rule) bool { return r.matches(failed, renewsToken) })].step
}

func (r rule) matches(failed *Error, renewsToken bool) bool {
	return (len(r.codes) == 0 || slices.Contains(r.codes, failed.Code)) &&
		(len(r.reasons) == 0 || slices.Contains(r.reasons, failed.Reason)) &&
		(len(r.causes) == 0 || slices.Contains(r.causes, failed.Metadata["cause"])) &&
		(!r.asksToWait || failed.asksToWait) &&
		(!r.newToken || renewsToken) &&
		(!r.violation || errors.Is(failed, ErrProtocol))
}

// backoff is exponential with full jitter: a delay is random between 0 and a bound that doubles.
type backoff struct {
	first, most, bound time.Duration
	// random returns a number in [0, 1).
	random func() float64
}

// longestDelay, and what two of them add up to, is a Duration: a larger sum would be negative, and so no delay at all.
const longestDelay = math.MaxInt64 / 2

func newBackoff(first, most time.Duration, random func() float64) *backoff {
	first, most = min(first, longestDelay), min(most, longestDelay)
	return &backoff{first: first, most: most, bound: first, random: random}
}

// next returns how long to wait now, which is never less than the server asked for.
func (b *backoff) next(atLeast time.Duration) time.Duration {
	delay := min(atLeast, longestDelay) + time.Duration(b.random()*float64(b.bound))
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
