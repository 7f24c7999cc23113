package feedmux

import "time"

const (
	silentIntervals  = 3
	ticksPerInterval = 10
)

// silenceDetector measures how long the server has sent nothing, counting only time in which this process could have
// received a message. Its owner calls tick at every ticking, and hear at every message. A tick that comes late, because
// the process was stopped, counts as two at most: what has arrived meanwhile has not been read yet.
type silenceDetector struct {
	interval time.Duration
	silent   time.Duration
	ticked   time.Time
	heard    bool
}

// ticking is the time between two ticks.
func (s *silenceDetector) ticking() time.Duration { return s.interval / ticksPerInterval }

// most is the silence that is too long.
func (s *silenceDetector) most() time.Duration { return silentIntervals * s.interval }

// hear says that a message came: silence counts from the next tick on.
func (s *silenceDetector) hear() { s.heard = true }

// allow says that the server speaks at least this often from now on. The next tick is due after the new ticking.
func (s *silenceDetector) allow(interval time.Duration) { s.interval, s.heard = interval, true }

// tick says whether the server has been silent for three intervals.
func (s *silenceDetector) tick(now time.Time) bool {
	passed := min(now.Sub(s.ticked), 2*s.ticking())
	s.silent += passed
	if s.heard {
		s.silent = 0
	}
	s.ticked, s.heard = now, false
	return s.silent >= s.most()
}
