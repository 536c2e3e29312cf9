package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The picture: three panels side by side.
const (
	pictureWidth, pictureHeight = 13 * vg.Inch, 4.2 * vg.Inch
	dotsPerInch                 = 150
	maxPoints                   = 1000 // of a curve
)

// colours are those of Okabe and Ito, which the colour-blind can tell apart,
// with grey for their yellow, too pale for lines.
var colours = []color.NRGBA{
	{0x00, 0x72, 0xB2, 0xFF}, {0xD5, 0x5E, 0x00, 0xFF}, {0x00, 0x9E, 0x73, 0xFF}, {0xCC, 0x79, 0xA7, 0xFF},
	{0x56, 0xB4, 0xE9, 0xFF}, {0xE6, 0x9F, 0x00, 0xFF}, {0x00, 0x00, 0x00, 0xFF}, {0x88, 0x88, 0x88, 0xFF},
}

// dashes tell curves apart on grey paper, and where they lie on each other, as
// those of equal global batches do.
var dashes = [][]vg.Length{
	nil, {7, 3}, {2, 2}, {8, 2, 2, 2}, {12, 3}, {4, 2}, {1, 3}, {8, 2, 2, 2, 2, 2},
}

// drawTrials is the picture of the trials, twice: loss by step, accuracy by
// step, and time.
func drawTrials(trials []*trial) (png, svg []byte, err error) {
	panels := make([]*plot.Plot, 3)
	for i, panel := range []func([]*trial) (*plot.Plot, error){lossPanel, accuracyPanel, timePanel} {
		if panels[i], err = panel(trials); err != nil {
			return nil, nil, err
		}
	}
	image := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(pictureWidth, pictureHeight), vgimg.UseDPI(dotsPerInch))}
	vector := vgsvg.New(pictureWidth, pictureHeight)
	var files [2]bytes.Buffer
	for i, canvas := range []vg.CanvasWriterTo{image, vector} {
		tiles := vgdraw.Tiles{Rows: 1, Cols: len(panels), PadX: 28, PadTop: 12, PadBottom: 10, PadLeft: 10, PadRight: 14}
		for k, panel := range panels {
			panel.Draw(tiles.At(vgdraw.New(canvas), k, 0))
		}
		if _, err := canvas.WriteTo(&files[i]); err != nil {
			return nil, nil, err
		}
	}
	// Fonts of the same widths, for a viewer that lacks Liberation Sans.
	svg = bytes.ReplaceAll(files[1].Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	return files[0].Bytes(), svg, nil
}

func newPanel(title, x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	p.Title.Text, p.Title.TextStyle.Font, p.Title.Padding = title, font.From(sans, 14), 10
	p.Legend.TextStyle.Font, p.Legend.Padding, p.Legend.ThumbnailWidth = font.From(sans, 11), 3, 34
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Label.Padding = font.From(sans, 12), 5
		axis.Tick.Label.Font, axis.Tick.Length, axis.Padding = font.From(sans, 11), 4, 0
		axis.Tick.Marker = plot.TickerFunc(linearTicks)
	}
	p.X.Label.Text, p.Y.Label.Text = x, y
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color, grid.Horizontal.Width = nil, color.Gray{0xE0}, 0.5
	p.Add(grid)
	return p
}

// lossPanel has the running mean of each trial's loss over faint lines of the
// loss itself, on a logarithmic scale that fits the means.
func lossPanel(trials []*trial) (*plot.Plot, error) {
	steps := 0
	for _, t := range trials {
		steps = max(steps, t.steps)
	}
	window := max(1, steps/50)
	p := newPanel("Training loss", "step", "loss")
	if window > 1 {
		p.Y.Label.Text = fmt.Sprintf("loss (mean of %d steps)", window)
	}
	p.Y.Tick.Marker = plot.TickerFunc(powerTicks)
	p.Legend.Top = true
	low, high := math.Inf(1), math.Inf(-1)
	var raws, means []plot.Plotter
	for i, t := range trials {
		raw, err := newCurve(t.Losses)
		if err != nil {
			return nil, err
		}
		faint := colours[i]
		faint.A = 0x38
		raw.Color, raw.Width = faint, 0.4
		raws = append(raws, raw)

		mean, err := newCurve(runningMean(t.Losses, window))
		if err != nil {
			return nil, err
		}
		for _, at := range mean.XYs {
			low, high = min(low, at.Y), max(high, at.Y)
		}
		mean.LineStyle = curveStyle(i, len(trials))
		means = append(means, mean)
		p.Legend.Add(t.label(), mean)
	}
	p.Add(raws...)
	p.Add(means...)
	p.X.Min, p.Y.Min, p.Y.Max = 0, low-0.3, high+0.1
	return p, nil
}

// floor is what stands for a loss of 0 on a logarithmic scale.
const floor = 1e-6

// newCurve is a line through the logarithms of the losses, or of every k-th.
func newCurve(losses []lossAt) (*plotter.Line, error) {
	var points plotter.XYs
	every := (len(losses)-1)/maxPoints + 1
	for i := 0; i < len(losses); i += every {
		points = append(points, plotter.XY{X: float64(losses[i].Step), Y: math.Log10(max(floor, losses[i].Loss))})
	}
	return plotter.NewLine(points)
}

// runningMean has, for each loss, the mean of it and those before it, of
// window losses in all, or of as many as there are.
func runningMean(losses []lossAt, window int) []lossAt {
	means, sum := slices.Clone(losses), 0.0
	for i, l := range losses {
		sum += l.Loss
		if i >= window {
			sum -= losses[i-window].Loss
		}
		means[i].Loss = sum / float64(min(i+1, window))
	}
	return means
}

func accuracyPanel(trials []*trial) (*plot.Plot, error) {
	p := newPanel("Test accuracy", "step", "accuracy (%)")
	for i, t := range trials {
		var points plotter.XYs
		for _, test := range t.Accuracies {
			points = append(points, plotter.XY{X: float64(test.Step), Y: 100 * test.Accuracy})
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.LineStyle = curveStyle(i, len(trials))
		dots.GlyphStyle = vgdraw.GlyphStyle{Color: colours[i], Radius: 1.5 + line.Width, Shape: vgdraw.CircleGlyph{}}
		p.Add(line, dots)
	}
	margin := max(0.1, (p.Y.Max-p.Y.Min)/20)
	p.X.Min, p.Y.Min, p.Y.Max = 0, p.Y.Min-margin, p.Y.Max+margin
	return p, nil
}

// timePanel has a bar for each trial.
func timePanel(trials []*trial) (*plot.Plot, error) {
	p := newPanel("Time", "ranks", "time (s)")
	var names plot.ConstantTicks
	var tops plotter.XYLabels
	for i, t := range trials {
		seconds := t.summary.Seconds
		bar, err := plotter.NewBarChart(plotter.Values{seconds}, barWidth/vg.Length(len(trials)))
		if err != nil {
			return nil, err
		}
		bar.XMin, bar.Color, bar.LineStyle.Width = float64(i), colours[i], 0
		p.Add(bar)
		names = append(names, plot.Tick{Value: float64(i), Label: strings.Replace(t.Entry, "+", "\n+", 1)})
		tops.XYs = append(tops.XYs, plotter.XY{X: float64(i), Y: seconds})
		tops.Labels = append(tops.Labels, threeDigits(seconds))
	}
	labels, err := plotter.NewLabels(tops)
	if err != nil {
		return nil, err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font = p.X.Tick.Label.Font
		labels.TextStyle[i].XAlign = vgdraw.XCenter
	}
	labels.Offset.Y = 4
	p.Add(labels)
	p.X.Tick.Marker = names
	p.X.Min, p.X.Max, p.Y.Max = -0.5, float64(len(trials))-0.5, 1.1*p.Y.Max
	return p, nil
}

const barWidth = 2.4 * vg.Inch // of all bars together

// curveStyle is the later the thinner, so that a curve below others shows.
func curveStyle(trial, trials int) vgdraw.LineStyle {
	width := 1.4 + 2.4*vg.Length(trials-1-trial)/vg.Length(max(1, trials-1))
	return vgdraw.LineStyle{Color: colours[trial], Width: width, Dashes: dashes[trial]}
}

func (t *trial) label() string {
	label := "1 rank"
	if t.Ranks > 1 {
		label = fmt.Sprintf("%d ranks", t.Ranks)
	}
	if t.SyncBN {
		label += " + SyncBN"
	}
	return label
}

// threeDigits is a positive number in digits that matter: 0.31, 4.25, 12.3, 1302.
func threeDigits(v float64) string {
	decimals := 2 - int(math.Floor(math.Log10(v)))
	return strconv.FormatFloat(v, 'f', min(2, max(0, decimals)), 64)
}

// linearTicks are three to seven multiples of 1, 2 or 5 times a power of ten.
func linearTicks(low, high float64) (ticks []plot.Tick) {
	most := (high - low) / 3
	power := math.Floor(math.Log10(most))
	between := math.Pow(10, power)
	for _, factor := range []float64{5, 2} {
		if factor*between <= most {
			between *= factor
			break
		}
	}
	decimals := int(max(0, -power))
	for k := math.Ceil(low / between); k*between <= high; k++ {
		ticks = append(ticks, plot.Tick{Value: k * between, Label: strconv.FormatFloat(k*between, 'f', decimals, 64)})
	}
	return ticks
}

// powerTicks are at 1, 2 and 5 times each power of ten, on an axis of
// logarithms; on a long one at the powers alone.
func powerTicks(low, high float64) (ticks []plot.Tick) {
	digits := []float64{1, 2, 5}
	if high-low > 3 {
		digits = digits[:1]
	}
	for power := math.Floor(low); power <= high; power++ {
		for _, digit := range digits {
			value := digit * math.Pow(10, power)
			ticks = append(ticks, plot.Tick{Value: math.Log10(value), Label: strconv.FormatFloat(value, 'g', 3, 64)})
		}
	}
	return ticks
}
