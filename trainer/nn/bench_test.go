package nn

import (
	"fmt"
	"testing"
)

// The nets that shardfeed trains, forward and backward, on one thread.
func BenchmarkStep(b *testing.B) {
	for _, e := range engines(b) {
		for _, net := range []string{"mlp", "cnn"} {
			for _, rows := range []int{64, 128} {
				b.Run(fmt.Sprintf("%s/%s/%d", net, e, rows), func(b *testing.B) {
					use(b, e)
					layers := MLP(784, 512, 10)
					if net == "cnn" {
						layers = CNN(1, 28, 28, 10)
					}
					c := model(b, layers)
					ex := Examples{Pixels: make([]uint8, rows*784), Labels: make([]int, rows), Rows: rows}
					for i := range ex.Pixels {
						ex.Pixels[i] = uint8(i * 7)
					}
					b.SetBytes(int64(len(ex.Pixels)))
					b.ReportAllocs()
					step(b, c, ex, 1) // which allocates the scratch memory
					for b.Loop() {
						step(b, c, ex, 1)
					}
					b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "samples/s")
				})
			}
		}
	}
}
