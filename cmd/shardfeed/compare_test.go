package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot"
)

func TestParseEntries(t *testing.T) {
	for list, want := range map[string][]entry{
		"1":                     {{1, false}},
		"1,2,4,4+syncbn":        {{1, false}, {2, false}, {4, false}, {4, true}},
		" 2 , 1+syncbn":         {{2, false}, {1, true}},
		"8,7,6,5,4,3,2,1":       {{8, false}, {7, false}, {6, false}, {5, false}, {4, false}, {3, false}, {2, false}, {1, false}},
		"100+syncbn,99":         {{100, true}, {99, false}},
		"1,1+syncbn,2+syncbn,2": {{1, false}, {1, true}, {2, true}, {2, false}},
	} {
		if got, err := parseEntries(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	const form = "1,2,4,4+syncbn" // the form, by example
	for list, says := range map[string][]string{
		"":                   {`""`, form},
		"0":                  {`"0"`, form, "at least 1"},
		"-2":                 {`"-2"`, form},
		"x":                  {`"x"`, form},
		"4+foo":              {`"4+foo"`, form},
		"4+syncbn+syncbn":    {`"4+syncbn+syncbn"`, form},
		"+syncbn":            {`"+syncbn"`, form},
		"1,,2":               {`""`, form},
		"1,2,":               {`""`, form},
		"1 2":                {`"1 2"`, form},
		"2.5":                {`"2.5"`, form},
		"1,2,1":              {"1 is there twice"},
		"2+syncbn,02+syncbn": {"2+syncbn is there twice"},
		"1,2,3,4,5,6,7,8,9":  {"9 entries", "at most 8"},
	} {
		entries, err := parseEntries(list)
		if err == nil {
			t.Errorf("%q: %v and no error", list, entries)
			continue
		}
		for _, words := range append(says, "--compare") {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%q: the message does not say %q: %v", list, words, err)
			}
		}
	}
}

func TestNewComparison(t *testing.T) {
	if c, err := newComparison("2,1,4+syncbn,3", "dir"); err != nil || c.out != "dir" || len(c.entries) != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := newComparison("1,2", ""); err == nil || !strings.Contains(err.Error(), "--out DIR") {
		t.Errorf("without --out: %v", err)
	}
}

// What train --json prints becomes losses by step, accuracies by step and the
// summary; objects of kinds that are not known yet are left out.
func TestTrialRead(t *testing.T) {
	const printed = `{"epoch":0,"step":0,"loss":2.5}
{"epoch":0,"step":1,"loss":1.5}
{"checkpoint":"step-2"}
{"epoch":0,"test_accuracy":0.5}
{"epoch":1,"step":0,"loss":null}
{"epoch":1,"step":1,"loss":1.25,"rate":0.1}
null
{"test_accuracy":0.75,"test_loss":0.5,"world":2,"steps":3,"samples_per_second":1000,"seconds":1.5,"overlap":0.875}
`
	var tr trial
	var steps []int
	if err := tr.read(strings.NewReader(printed), func(n int) { steps = append(steps, n) }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tr.Losses, []lossAt{{1, 2.5}, {2, 1.5}, {4, 1.25}}) || !slices.Equal(steps, []int{1, 2, 3, 4}) {
		t.Errorf("losses %v, steps %v", tr.Losses, steps)
	}
	if want := []accuracyAt{{2, 0.5}, {4, 0.75}}; !slices.Equal(tr.Accuracies, want) {
		t.Errorf("accuracies %v, want %v", tr.Accuracies, want)
	}
	if s := tr.summary; s.Accuracy != 0.75 || s.Loss != 0.5 || s.Rate != 1000 || s.Seconds != 1.5 {
		t.Errorf("summary %+v", s)
	}
	if lines := strings.Split(printed, "\n"); strings.TrimSpace(string(tr.Summary)) != lines[len(lines)-2] {
		t.Errorf("summary %s", tr.Summary)
	}
}

// The summary's accuracy is that of the last epoch, and counted once, unless
// the run was stopped within an epoch.
func TestTrialAccuracies(t *testing.T) {
	for printed, want := range map[string][]accuracyAt{
		`{"epoch":0,"step":0,"loss":1}
{"epoch":0,"test_accuracy":0.5}
{"test_accuracy":0.5,"world":1}
`: {{1, 0.5}},
		`{"epoch":0,"step":0,"loss":1}
{"test_accuracy":0.5,"world":1}
`: {{1, 0.5}},
		`{"epoch":0,"test_accuracy":0.5}
{"epoch":1,"step":0,"loss":1}
{"test_accuracy":0.5,"world":1}
`: {{0, 0.5}, {1, 0.5}},
	} {
		var tr trial
		if err := tr.read(strings.NewReader(printed), func(int) {}); err != nil || !slices.Equal(tr.Accuracies, want) {
			t.Errorf("%s: %v, want %v, %v", printed, tr.Accuracies, want, err)
		}
	}
}

// A loss that is not finite is none, and not 0.
func TestTrialLossNull(t *testing.T) {
	var tr trial
	const printed = `{"epoch":0,"step":0,"loss":null}
{"test_accuracy":0.1,"test_loss":null,"world":1}
`
	if err := tr.read(strings.NewReader(printed), func(int) {}); err != nil || len(tr.Losses) > 0 || !math.IsNaN(float64(tr.summary.Loss)) {
		t.Errorf("losses %v, summary %+v, %v", tr.Losses, tr.summary, err)
	}
}

func TestTrialReadFails(t *testing.T) {
	const step, end = `{"epoch":0,"step":0,"loss":1}` + "\n", `{"test_accuracy":0.5,"world":1}` + "\n"
	for printed, says := range map[string][]string{
		"":                                 {"without a summary"},
		step:                               {"without a summary"},
		step + strings.TrimSpace(end):      {"without a summary"}, // cut short
		step + "hello\n" + end:             {"line 2", "train --json", `"hello\n"`},
		step + "[rank 0] " + end:           {"line 2", "[rank 0]"},
		"\n" + end:                         {"line 1"},
		"7\n" + end:                        {"line 1", "number"},
		`{"epoch":"zero"}` + "\n" + end:    {"line 1", "epoch"},
		`{"world":1,"seconds":"x"}` + "\n": {"line 1", "seconds"},
		strings.Repeat("x", 1<<20) + "\n":  {"line 1", "xxx"},
	} {
		err := new(trial).read(strings.NewReader(printed), func(int) {})
		if err == nil {
			t.Errorf("%.50q: no error", printed)
			continue
		}
		if len(err.Error()) > 400 {
			t.Errorf("%.50q: a message of %d bytes", printed, len(err.Error()))
		}
		for _, words := range says {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%.50q: the message does not say %q: %v", printed, words, err)
			}
		}
	}
}

// fakeSteps is the length of a fake run, of two epochs.
const fakeSteps = 200

// fakeTrain prints what a run might: more ranks are faster and a little worse,
// which SyncBatchNorm makes up for.
func fakeTrain(_ context.Context, e entry, stdout io.Writer) error {
	accuracy := 0.97 - float64(e.ranks)/100
	if e.syncBN {
		accuracy += 0.03
	}
	for step := range fakeSteps {
		epoch, index := step/100, step%100
		fmt.Fprintf(stdout, `{"epoch":%d,"step":%d,"loss":%g}`+"\n", epoch, index, 2.3*math.Exp(-float64(step)/float64(40+10*e.ranks))+0.1+0.05*float64(step%7))
		if index == 99 {
			fmt.Fprintf(stdout, `{"epoch":%d,"test_accuracy":%g}`+"\n", epoch, accuracy-0.05*float64(1-epoch))
		}
	}
	_, err := fmt.Fprintf(stdout, `{"test_accuracy":%g,"test_loss":%g,"world":%d,"samples_per_second":%d,"seconds":%g}`+"\n",
		accuracy, 0.08+0.01*float64(e.ranks), e.ranks, 12000*e.ranks, 40/float64(e.ranks)+float64(len(e.String())))
	return err
}

func fakeComparison(t *testing.T, list string) *comparison {
	t.Helper()
	c, err := newComparison(list, filepath.Join(t.TempDir(), "below", "out"))
	if err != nil {
		t.Fatal(err)
	}
	c.steps, c.train = fakeSteps, fakeTrain
	return c
}

func TestComparison(t *testing.T) {
	c := fakeComparison(t, "1,2,4,4+syncbn")
	var out strings.Builder
	if err := c.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = `
entry     ranks  accuracy    loss  seconds  samples/s  speed-up
1             1   96.00 %  0.0900     41.0      12000      1.00
2             2   95.00 %  0.1000     21.0      24000      1.95
4             4   93.00 %  0.1200     11.0      48000      3.73
4+syncbn      4   96.00 %  0.1200     18.0      48000      2.28
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	// The directory has the pictures, and what they show.
	files, err := os.ReadDir(c.out)
	if err != nil || len(files) != 3 {
		t.Errorf("%v, %v", files, err)
	}
	data, err := os.ReadFile(filepath.Join(c.out, "compare.json"))
	if err != nil {
		t.Fatal(err)
	}
	var trials []*trial
	if err := json.Unmarshal(data, &trials); err != nil || len(trials) != 4 {
		t.Fatalf("%d trials, %v", len(trials), err)
	}
	if last := trials[3]; last.Entry != "4+syncbn" || last.Ranks != 4 || !last.SyncBN || len(last.Losses) != fakeSteps || len(last.Accuracies) != 2 {
		t.Errorf("%+v", last)
	}
	for name, start := range map[string]string{"compare.png": "\x89PNG", "compare.svg": "<?xml"} {
		if got, err := os.ReadFile(filepath.Join(c.out, name)); err != nil || !bytes.HasPrefix(got, []byte(start)) {
			t.Errorf("%s begins with %.10q, %v", name, got, err)
		}
	}
}

// With --json there is an object a line, and no table.
func TestComparisonJSON(t *testing.T) {
	c := fakeComparison(t, "2,1+syncbn")
	c.json = true
	var out strings.Builder
	if err := c.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	const want = `{"entry":"2","ranks":2,"syncbn":false,"speed_up":1,"summary":{"test_accuracy":0.95,"test_loss":0.1,"world":2,"samples_per_second":24000,"seconds":21}}
{"entry":"1+syncbn","ranks":1,"syncbn":true,"speed_up":0.4375,"summary":{"test_accuracy":0.99,"test_loss":0.09,"world":1,"samples_per_second":12000,"seconds":48}}
`
	if out.String() != want {
		t.Errorf("got %s\nwant %s", out.String(), want)
	}
}

// The first entry that fails ends the comparison: it is named, and there is no
// picture of the others. A picture that was there stays.
func TestComparisonFails(t *testing.T) {
	errDisk := errors.New("disk full")
	for what, fail := range map[string]func(context.Context, io.Writer) error{
		"at once": func(context.Context, io.Writer) error { return errDisk },
		"in the midst": func(_ context.Context, w io.Writer) error {
			fmt.Fprintln(w, `{"epoch":0,"step":0,"loss":1}`)
			return errDisk
		},
		"in a line":  func(_ context.Context, w io.Writer) error { fmt.Fprint(w, `{"epoch":0,"st`); return errDisk },
		"at the end": func(ctx context.Context, w io.Writer) error { fakeTrain(ctx, entry{2, false}, w); return errDisk },
	} {
		c := fakeComparison(t, "1,2,4")
		var ran []entry
		c.train = func(ctx context.Context, e entry, w io.Writer) error {
			ran = append(ran, e)
			if e.ranks == 2 {
				return fail(ctx, w)
			}
			return fakeTrain(ctx, e, w)
		}
		if err := os.MkdirAll(c.out, 0o777); err != nil {
			t.Fatal(err)
		}
		old := filepath.Join(c.out, "compare.png")
		if err := os.WriteFile(old, []byte("old"), 0o666); err != nil {
			t.Fatal(err)
		}
		err := c.run(t.Context(), io.Discard)
		if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "entry 2") {
			t.Errorf("%s: %v", what, err)
		}
		if len(ran) != 2 {
			t.Errorf("%s: %v were run", what, ran)
		}
		text, err := os.ReadFile(old)
		if files, _ := os.ReadDir(c.out); err != nil || string(text) != "old" || len(files) != 1 {
			t.Errorf("%s: %v is there: %v, %v", what, files, text, err)
		}
	}
}

// A run that prints what it should not is ended, whether it waits or goes on
// printing, and so is one whose comparison is. It has ended before the
// comparison does.
func TestComparisonEnds(t *testing.T) {
	c := fakeComparison(t, "1")
	for what, goOn := range map[string]func(context.Context, io.Writer) error{
		"waits": func(ctx context.Context, _ io.Writer) error { <-ctx.Done(); return context.Cause(ctx) },
		"prints": func(_ context.Context, w io.Writer) error {
			for {
				if _, err := fmt.Fprintln(w, "hello again"); err != nil {
					return err
				}
			}
		},
	} {
		ended := false
		c.train = func(ctx context.Context, _ entry, w io.Writer) error {
			defer func() { ended = true }()
			fmt.Fprintln(w, "hello")
			return goOn(ctx, w)
		}
		if err := c.run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), `"hello\n"`) {
			t.Errorf("a foreign line, and it %s: %v", what, err)
		}
		if !ended {
			t.Errorf("a foreign line, and it %s for ever", what)
		}
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupt")
	c.train = func(ctx context.Context, _ entry, w io.Writer) error {
		cancel(why)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := c.run(ctx, io.Discard); !errors.Is(err, why) {
		t.Errorf("after the end of its context: %v", err)
	}
}

// --out that cannot be made fails before anything is trained.
func TestComparisonOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	c := comparison{entries: []entry{{1, false}}, out: filepath.Join(file, "out"), train: func(context.Context, entry, io.Writer) error {
		t.Error("it trains")
		return nil
	}}
	if err := c.run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--out") {
		t.Errorf("%v", err)
	}
}

// fakeTrials are as fakeComparison makes them.
func fakeTrials(t *testing.T, entries ...entry) (trials []*trial) {
	t.Helper()
	for _, e := range entries {
		var out bytes.Buffer
		if err := fakeTrain(t.Context(), e, &out); err != nil {
			t.Fatal(err)
		}
		tr := &trial{outcome: outcome{Entry: e.String(), Ranks: e.ranks, SyncBN: e.syncBN}}
		if err := tr.read(&out, func(int) {}); err != nil {
			t.Fatal(err)
		}
		trials = append(trials, tr)
	}
	return trials
}

// Each panel of the picture shows each trial in its colour, on white; and the
// same as SVG has its texts, in fonts that every viewer has one of.
func TestPicture(t *testing.T) {
	trials := fakeTrials(t, entry{1, false}, entry{2, false}, entry{4, false}, entry{4, true})
	data, svg, err := drawTrials(trials)
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	size := picture.Bounds().Size()
	if size != (image.Point{1950, 630}) { // 13 by 4.2 inches at 150 dots
		t.Errorf("%v", size)
	}
	for panel, want := range []struct{ top, dots int }{{size.Y / 2, 100}, {0, 300}, {0, 300}} { // from below the legend
		count := dots(picture, panel, want.top)
		for i := range trials {
			if n := count[colours[i]]; n < want.dots {
				t.Errorf("panel %d has %d dots in the colour of trial %d", panel, n, i)
			}
		}
		if n := count[color.NRGBA{0xFF, 0xFF, 0xFF, 0xFF}]; n < size.X*size.Y/12 {
			t.Errorf("panel %d has only %d white dots", panel, n)
		}
	}
	var texts []string
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, strings.TrimSpace(string(text)))
		}
	}
	for _, want := range []string{
		"Training loss", "loss (mean of 4 steps)", "step", "0.2", "2", "1 rank", "2 ranks", "4 ranks", "4 ranks + SyncBN",
		"Test accuracy", "accuracy (%)", "92", "200",
		"Time", "time (s)", "ranks", "+syncbn", "41.0", "21.0", "11.0", "18.0",
	} {
		if !slices.Contains(texts, want) {
			t.Errorf("no text %q in %q", want, texts)
		}
	}
	if bytes.Count(svg, []byte("Liberation Sans,Arial,Helvetica,sans-serif;")) != bytes.Count(svg, []byte("font-family")) {
		t.Error("a font has no substitutes")
	}
}

// dots counts the colours of a panel from a line downwards.
func dots(picture image.Image, panel, top int) map[color.NRGBA]int {
	count, size := map[color.NRGBA]int{}, picture.Bounds().Size()
	for x := panel * size.X / 3; x < (panel+1)*size.X/3; x++ {
		for y := top; y < size.Y; y++ {
			count[color.NRGBAModel.Convert(picture.At(x, y)).(color.NRGBA)]++
		}
	}
	return count
}

// The shortest run, the longest, and the most. A single test of a model is a
// dot; a loss of 0 has a place on the scale.
func TestPictureExtremes(t *testing.T) {
	short := &trial{outcome: outcome{Entry: "1", Ranks: 1, summary: summary{Seconds: 0.01}}, Losses: []lossAt{{1, 0}}, Accuracies: []accuracyAt{{1, 1}}}
	empty := &trial{outcome: outcome{Entry: "2", Ranks: 2, summary: summary{Seconds: 12345}}}
	if _, _, err := drawTrials([]*trial{empty}); err != nil {
		t.Errorf("a run without any number: %v", err)
	}
	data, _, err := drawTrials([]*trial{short})
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if n := dots(picture, 1, 0)[colours[0]]; n < 50 {
		t.Errorf("the only test of a model has %d dots", n)
	}

	var most []entry
	for n := range len(colours) {
		most = append(most, entry{n + 1, false})
	}
	trials := fakeTrials(t, most...)
	for _, tr := range trials {
		tr.Losses, tr.steps = slices.Repeat(tr.Losses, 1000), 1000*fakeSteps
		for i := range tr.Losses {
			tr.Losses[i].Step = i + 1
		}
	}
	_, svg, err := drawTrials(trials)
	if err != nil {
		t.Fatal(err)
	}
	if len(svg) > 500e3 {
		t.Errorf("an SVG of %d bytes", len(svg))
	}
}

func TestRunningMean(t *testing.T) {
	losses := []lossAt{{1, 4}, {2, 2}, {3, 6}, {5, 0}, {6, 1}, {7, 8}, {9, 8}, {10, 3}}
	for window := 1; window <= len(losses)+1; window++ {
		for i, got := range runningMean(losses, window) {
			sum, n := 0.0, 0
			for k := max(0, i-window+1); k <= i; k++ {
				sum, n = sum+losses[k].Loss, n+1
			}
			if want := sum / float64(n); math.Abs(got.Loss-want) > 1e-12 || got.Step != losses[i].Step {
				t.Errorf("window %d: mean %d is %v, want %v", window, i, got, want)
			}
		}
	}
}

// Few ticks, within the axis, and labels that say where they are.
func TestTicks(t *testing.T) {
	for _, c := range []struct {
		ticks     plot.TickerFunc
		low, high float64
		want      string
	}{
		{linearTicks, 0, 938, "0 200 400 600 800"},
		{linearTicks, 0, 3000, "0 1000 2000 3000"},
		{linearTicks, 96.98, 97.83, "97.0 97.2 97.4 97.6 97.8"},
		{linearTicks, 0, 17.7, "0 5 10 15"},
		{linearTicks, 0, 0.34, "0.0 0.1 0.2 0.3"},
		{linearTicks, 0, 2e6, "0 500000 1000000 1500000 2000000"},
		{powerTicks, math.Log10(0.03), math.Log10(3), "0.05 0.1 0.2 0.5 1 2"},
		{powerTicks, math.Log10(0.0003), math.Log10(3), "0.001 0.01 0.1 1"},
		{powerTicks, math.Log10(30), math.Log10(3000), "50 100 200 500 1e+03 2e+03"},
	} {
		var labels []string
		for _, tick := range c.ticks(c.low, c.high) {
			if c.low <= tick.Value && tick.Value <= c.high { // the others are not drawn
				labels = append(labels, tick.Label)
			}
		}
		if got := strings.Join(labels, " "); got != c.want {
			t.Errorf("%v … %v: %s, want %s", c.low, c.high, got, c.want)
		}
	}
}
