package ranklog_test

import (
	"log/slog"
	"os"

	"github.com/shardfeed/shardfeed/trainer/ranklog"
)

func Example() {
	withoutTime := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	for rank := range 2 {
		log := slog.New(ranklog.New(slog.NewTextHandler(os.Stdout, withoutTime), rank, 2))
		log.Info("epoch done", "loss", 0.25)
		log.Info("data opened", "rows", 30000, ranklog.All)
		log.Warn("slow disk")
	}
	// Output:
	// level=INFO msg="epoch done" rank=0 world=2 loss=0.25
	// level=INFO msg="data opened" rank=0 world=2 rows=30000
	// level=WARN msg="slow disk" rank=0 world=2
	// level=INFO msg="data opened" rank=1 world=2 rows=30000
	// level=WARN msg="slow disk" rank=1 world=2
}
