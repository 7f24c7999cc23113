package feedmux

import (
	"testing"
	"time"
)

func silentTicks(s *silenceDetector, ticks int) (tooLong []bool) {
	for range ticks {
		tooLong = append(tooLong, s.tick(s.ticked.Add(s.ticking())))
	}
	return tooLong
}

func only(last bool, ticks int) []bool {
	all := make([]bool, ticks)
	all[ticks-1] = last
	return all
}

func TestThreeSilentIntervalsAreTooLong(t *testing.T) {
	s := &silenceDetector{interval: 10 * time.Second, ticked: time.Unix(100, 0)}
	same(t, []time.Duration{s.ticking(), s.most()}, []time.Duration{time.Second, 30 * time.Second})
	same(t, silentTicks(s, 30), only(true, 30))
}

func TestAMessageBeginsTheCountOfSilenceAgain(t *testing.T) {
	s := &silenceDetector{interval: 10 * time.Second, ticked: time.Unix(100, 0)}
	silentTicks(s, 29)
	s.hear()
	same(t, silentTicks(s, 31), only(true, 31))
	s.allow(20 * time.Second)
	same(t, silentTicks(s, 31), only(true, 31))
}

func TestTimeInWhichNothingCouldBeHeardCountsAsTwoTicks(t *testing.T) {
	for _, stopped := range []time.Duration{2 * time.Second, 29500 * time.Millisecond, 31 * time.Second, time.Hour} {
		s := &silenceDetector{interval: 10 * time.Second, ticked: time.Unix(100, 0)}
		silentTicks(s, 27)
		same(t, s.tick(s.ticked.Add(stopped)), false)
		same(t, s.tick(s.ticked.Add(time.Second)), true)
	}
}

func TestAWatchdogThatWasStoppedTicksNoMore(t *testing.T) {
	watch := newWatchdog(time.Hour, func(error) { t.Error("cut") })
	watch.stop()
	watch.silence.silent = watch.silence.most()
	watch.tick() // It had begun before.
	same(t, watch.timer.Stop(), false)
}
