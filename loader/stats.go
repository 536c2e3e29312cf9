package loader

import (
	"time"

	"github.com/shardfeed/shardfeed/batch"
)

// Stats is what the loops over a Loader have done since New, all epochs
// together.
type Stats struct {
	// Steps is the number of batches that reached a loop's body.
	Steps int
	// Samples is the number of their samples, padding left out.
	Samples int
	// Bytes is their size, where T has a method Bytes() int.
	Bytes int64
	// Fetch is the time spent in fetches, summed over the workers.
	Fetch time.Duration
	// Idle is the time workers waited for a step before a fetch, summed: for
	// the plan, or for a place in the queue.
	Idle time.Duration
	// Wait is the time loops waited for a batch.
	Wait time.Duration
	// Work is the time spent in the loops' bodies.
	Work time.Duration
	// Ready is the mean number of fetched batches at hand when a loop asked
	// for the next: near Prefetch the body is the slower side, near 0 the
	// fetches are.
	Ready float64
}

// WaitShare is the share of their time that loops waited for data:
// Wait/(Wait+Work), 0 before the first batch.
func (s Stats) WaitShare() float64 {
	if s.Wait+s.Work == 0 {
		return 0
	}
	return float64(s.Wait) / float64(s.Wait+s.Work)
}

// Stats may be called at any time. Times are added when the fetch, the wait
// or the body that took them has ended.
func (l *Loader[T]) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Ready /= float64(max(s.Steps, 1))
	return s
}

func (l *Loader[T]) fetched(idle, fetch time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Idle += idle
	l.stats.Fetch += fetch
}

func (l *Loader[T]) delivered(step batch.Step, value any, ready int64, wait time.Duration) {
	bytes := 0
	if b, ok := value.(interface{ Bytes() int }); ok && !isNil(value) {
		bytes = b.Bytes()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Steps++
	l.stats.Samples += step.Rows()
	l.stats.Bytes += int64(bytes)
	l.stats.Ready += float64(ready)
	l.stats.Wait += wait
}

func (l *Loader[T]) worked(work time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Work += work
}
