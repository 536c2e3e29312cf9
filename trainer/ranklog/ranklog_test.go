package ranklog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"time"
)

// lines is what log prints as text on each rank; {} stands for rank and world.
func lines(world int, log func(*slog.Logger)) (said []string) {
	for rank := range world {
		var out strings.Builder
		log(slog.New(New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}), rank, world)))
		text := strings.TrimSpace(out.String())
		said = append(said, strings.ReplaceAll(text, fmt.Sprintf("rank=%d world=%d", rank, world), "{}"))
	}
	return said
}

func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.Attr{}
	}
	return a
}

// Which ranks speak, and what they say.
func TestWhoSpeaks(t *testing.T) {
	n := slog.Int("n", 1)
	for _, c := range []struct {
		log  func(*slog.Logger)
		says string
		all  bool
	}{
		{func(l *slog.Logger) { l.Debug("m", n) }, `level=DEBUG msg=m {} n=1`, false},
		{func(l *slog.Logger) { l.Info("m", n) }, `level=INFO msg=m {} n=1`, false},
		{func(l *slog.Logger) { l.Log(context.Background(), slog.LevelWarn-1, "m") }, `level=INFO+3 msg=m {}`, false},
		{func(l *slog.Logger) { l.Warn("m", n) }, `level=WARN msg=m {} n=1`, true},
		{func(l *slog.Logger) { l.Error("m", n) }, `level=ERROR msg=m {} n=1`, true},

		// The attribute, anywhere, and nothing of it in print.
		{func(l *slog.Logger) { l.Info("m", All) }, `level=INFO msg=m {}`, true},
		{func(l *slog.Logger) { l.Warn("m", All) }, `level=WARN msg=m {}`, true},
		{func(l *slog.Logger) { l.Info("m", n, All, "o", 2) }, `level=INFO msg=m {} n=1 o=2`, true},
		{func(l *slog.Logger) { l.Info("m", n, n, n, n, n, n, All) }, `level=INFO msg=m {} n=1 n=1 n=1 n=1 n=1 n=1`, true},
		{func(l *slog.Logger) { l.Info("m", slog.Group("g", n, All)) }, `level=INFO msg=m {} g.n=1`, true},
		{func(l *slog.Logger) { l.Info("m", slog.Group("g", slog.Group("h", All)), n) }, `level=INFO msg=m {} n=1`, true},
		{func(l *slog.Logger) { l.With(All).Info("m", n) }, `level=INFO msg=m {} n=1`, true},
		{func(l *slog.Logger) { l.With(n, All).Info("m") }, `level=INFO msg=m {} n=1`, true},
		{func(l *slog.Logger) { l.With(slog.Group("g", All)).Info("m", n) }, `level=INFO msg=m {} n=1`, true},
		{func(l *slog.Logger) { l.With(All).With(n).WithGroup("g").Debug("m", n) }, `level=DEBUG msg=m {} n=1 g.n=1`, true},
		{func(l *slog.Logger) { l.WithGroup("g").With(n).Info("m", n, All) }, `level=INFO msg=m {} g.n=1 g.n=1`, true},
		{func(l *slog.Logger) { l.WithGroup("g").With(n, All).WithGroup("h").Info("m", n) }, `level=INFO msg=m {} g.n=1 g.h.n=1`, true},

		// Without it With and WithGroup change nothing about who speaks; rank
		// and world stay outside the groups.
		{func(l *slog.Logger) { l.With(n).Info("m") }, `level=INFO msg=m {} n=1`, false},
		{func(l *slog.Logger) { l.WithGroup("g").With(n).WithGroup("h").Info("m", n) }, `level=INFO msg=m {} g.n=1 g.h.n=1`, false},
		{func(l *slog.Logger) { l.WithGroup("g").With(n).Error("m", n) }, `level=ERROR msg=m {} g.n=1 g.n=1`, true},
		{func(l *slog.Logger) { l.With(All); l.Info("m") }, `level=INFO msg=m {}`, false}, // a logger beside

		// Other attributes that print nothing, or a LogValuer, do not let it through.
		{func(l *slog.Logger) { l.Info("m", slog.Attr{}) }, `level=INFO msg=m {}`, false},
		{func(l *slog.Logger) { l.Info("m", "g", secret{}) }, `level=INFO msg=m {} g.n=1`, false},
	} {
		for rank, said := range lines(3, c.log) {
			want := ""
			if rank == 0 || c.all {
				want = c.says
			}
			if said != want {
				t.Errorf("rank %d says %q, want %q", rank, said, want)
			}
		}
	}
}

// secret has All where it is not searched: finding out may be expensive.
type secret struct{}

func (secret) LogValue() slog.Value { return slog.GroupValue(slog.Int("n", 1), All) }

// One rank alone has nobody to tell apart from, and New gives back its handler.
func TestOneRank(t *testing.T) {
	for _, world := range []int{0, 1} {
		h := slog.Handler(slog.NewTextHandler(io.Discard, nil))
		if New(h, 0, world) != h {
			t.Errorf("a world of %d gets another handler", world)
		}
	}
	if said, want := lines(1, func(l *slog.Logger) { l.With("n", 1).Info("m", All) })[0], "level=INFO msg=m n=1"; said != want {
		t.Errorf("%q, want %q", said, want)
	}
}

// All prints nothing through a JSON handler either, with ranks or without.
func TestPrintsNothing(t *testing.T) {
	for world := range 3 {
		var out bytes.Buffer
		log := slog.New(New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: withoutTime}), 0, world))
		log.With(All).WithGroup("g").Info("m", All, "n", 1, slog.Group("h", All, "o", 2))
		want := `{"level":"INFO","msg":"m","g":{"n":1,"h":{"o":2}}}`
		if world == 2 {
			want = `{"level":"INFO","msg":"m","rank":0,"world":2,"g":{"n":1,"h":{"o":2}}}`
		}
		if got := strings.TrimSpace(out.String()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A level that the handler below leaves out stays out, on every rank: All lifts
// the rank's reserve and no other.
func TestEnabled(t *testing.T) {
	below := slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError})
	for rank := range 3 {
		for _, h := range []slog.Handler{New(below, rank, 3), New(below, rank, 3).WithAttrs([]slog.Attr{All}), New(below, rank, 3).WithGroup("g")} {
			for level := slog.LevelDebug; level <= slog.LevelError; level++ {
				if got, want := h.Enabled(context.Background(), level), below.Enabled(context.Background(), level); got != want {
					t.Errorf("rank %d, %v: enabled %v, below %v", rank, level, got, want)
				}
			}
		}
	}
}

type failing struct{ slog.Handler }

func (failing) Handle(context.Context, slog.Record) error { return errDisk }

var errDisk = errors.New("disk full")

func (f failing) WithAttrs([]slog.Attr) slog.Handler { return f }

// What the handler below reports comes back, and only from those who wrote.
func TestErrors(t *testing.T) {
	for rank := range 2 {
		h := New(failing{slog.NewTextHandler(io.Discard, nil)}, rank, 2)
		for level, want := range map[slog.Level]error{slog.LevelWarn: errDisk, slog.LevelInfo: errDisk} {
			if rank == 1 && level == slog.LevelInfo {
				want = nil
			}
			if err := h.Handle(context.Background(), slog.NewRecord(time.Time{}, level, "m", 0)); err != want {
				t.Errorf("rank %d, %v: %v, want %v", rank, level, err, want)
			}
		}
	}
}

// Where it speaks it is a handler as good as the one below.
func TestSlogtest(t *testing.T) {
	for name, wrap := range map[string]func(slog.Handler) slog.Handler{
		"alone":  func(h slog.Handler) slog.Handler { return New(h, 0, 1) },
		"rank 0": func(h slog.Handler) slog.Handler { return New(h, 0, 2) },
		"rank 1": func(h slog.Handler) slog.Handler { return New(h, 1, 2).WithAttrs([]slog.Attr{All}) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			slogtest.Run(t, func(*testing.T) slog.Handler {
				out.Reset()
				return wrap(slog.NewJSONHandler(&out, nil))
			}, func(t *testing.T) map[string]any {
				var line map[string]any
				if err := json.Unmarshal(out.Bytes(), &line); err != nil {
					t.Fatalf("%v: %q", err, out.String())
				}
				return line
			})
		})
	}
}

// A line that its rank keeps to itself allocates nothing.
func TestKeptAllocations(t *testing.T) {
	log := slog.New(New(slog.NewTextHandler(io.Discard, nil), 1, 2))
	if n := testing.AllocsPerRun(100, func() {
		log.LogAttrs(context.Background(), slog.LevelInfo, "step", slog.Int("step", 1), slog.Float64("loss", 0.5))
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// What a line costs: kept by rank 1, printed by rank 0, and where the handler
// below leaves its level out.
func BenchmarkLine(b *testing.B) {
	for _, c := range []struct {
		name  string
		rank  int
		level slog.Level
	}{{"kept", 1, slog.LevelInfo}, {"printed", 0, slog.LevelInfo}, {"disabled", 1, slog.LevelDebug}} {
		b.Run(c.name, func(b *testing.B) {
			log := slog.New(New(slog.NewTextHandler(io.Discard, nil), c.rank, 2))
			b.ReportAllocs()
			for b.Loop() {
				log.LogAttrs(context.Background(), c.level, "step", slog.Int("step", 1), slog.Float64("loss", 0.5))
			}
		})
	}
}
