package board

import (
	"runtime"
	"testing"
	"time"
)

// A rank that sleeps is woken by the bell, and by nothing that rang before.
func TestBell(t *testing.T) {
	b := New(2)
	b.Ring()
	awake := make(chan struct{})
	go func() {
		for heard := b.Heard(); b.Heard() == heard; {
			b.Sleep(heard, time.Hour)
		}
		close(awake)
	}()
	for b.sleepers.Load() == 0 {
		runtime.Gosched()
	}
	for began := time.Now(); ; b.Ring() {
		select {
		case <-awake:
			b.Sleep(b.Heard()-1, time.Hour) // it has rung meanwhile
			return
		default:
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("the bell wakes nobody")
		}
	}
}
