package nn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shardfeed/shardfeed/trainer"
)

// Examples is what a Classifier reads of a batch: len(Labels) rows of equal
// width, of which the first Rows count and the others are padding. Exactly one
// of Pixels and Values is set. All memory stays the caller's, who leaves it as
// it is while the call that asked for it lasts.
type Examples struct {
	Pixels []uint8   // divided by 255
	Values []float32 // as they are
	Labels []int     // the class of each row, from 0
	Rows   int
}

// LabelError is a label that names no class.
type LabelError struct {
	Row     int // of the batch
	Label   int
	Classes int
}

// Error names row, label and the labels there are.
func (e *LabelError) Error() string {
	return fmt.Sprintf("nn: row %d has the label %d: the model has %d classes, so labels go from 0 to %d",
		e.Row, e.Label, e.Classes, e.Classes-1)
}

// Classifier is a net whose outputs are scores of classes, trained by softmax
// and cross-entropy. It is a trainer.Model for batches of type B. It serves
// one goroutine at a time.
type Classifier[B any] struct {
	// Net is the layers, the first one first. The last one's outputs are the
	// classes' scores.
	Net []Layer
	// Examples reads a batch. It is called where the batch may be read: inside
	// Run.
	Examples func(b B) (Examples, error)
	// Run runs f where compute on the batch has its turn and returns when f
	// has ended, as pinned.Host.Run does; nil means to call f.
	Run func(f func())

	params []*trainer.Param[trainer.Host]
	x      Matrix // pixels as values
	dy     Matrix // gradient of the loss with respect to the scores
	task   task[B]
	do     func() // c.pass, made once: a method value allocates
}

// task is what one call asks of pass, and its answer.
type task[B any] struct {
	batch   B
	train   bool
	scale   float64
	ready   func(param int)
	predict bool
	classes []int // predicted ones, appended

	rows, correct int
	loss          float64 // the sum over the rows
	err           error
}

// Params are the parameters of all layers in order of use.
func (c *Classifier[B]) Params() []*trainer.Param[trainer.Host] {
	if c.params == nil {
		for _, l := range c.Net {
			c.params = append(c.params, l.Params()...)
		}
	}
	return c.params
}

// Init draws the first values of all parameters; equal seeds, equal values.
// The parameters' memory must be there, as trainer.New sees to.
func (c *Classifier[B]) Init(seed uint64) error {
	for _, p := range c.Params() {
		if len(p.Value) != p.Len() {
			return fmt.Errorf("nn: parameter %s of shape %v has memory for %d values", p.Name, p.Shape, len(p.Value))
		}
	}
	r := rand.New(rand.NewPCG(seed, 0x6e6e)) // "nn": a stream of its own, whatever else uses the seed
	for _, l := range c.Net {
		l.Init(r)
	}
	return nil
}

// Step is as trainer.Model has it: it adds scale times the gradient of the
// batch's mean cross-entropy and returns that mean, over the rows that are no
// padding. A label that names no class is a *LabelError; then and after any
// other error no gradient has changed and ready was not called.
func (c *Classifier[B]) Step(ctx context.Context, b B, scale float64, ready func(param int)) (loss float64, err error) {
	c.task = task[B]{batch: b, train: true, scale: scale, ready: ready}
	if err := c.run(ctx); err != nil {
		return 0, err
	}
	return c.task.loss / float64(max(c.task.rows, 1)), nil
}

// Evaluate counts the rows whose highest score is their label's, and adds up
// their cross-entropies. Padding counts in neither. Parameters stay as they
// are, and their gradients need no memory.
func (c *Classifier[B]) Evaluate(ctx context.Context, b B) (correct int, loss float64, err error) {
	c.task = task[B]{batch: b}
	err = c.run(ctx)
	return c.task.correct, c.task.loss, err
}

// Predict appends to classes the class with the highest score of each row that
// is no padding; the lowest one of equal scores. Labels are not looked at, but
// there must be one a row.
func (c *Classifier[B]) Predict(ctx context.Context, b B, classes []int) ([]int, error) {
	c.task = task[B]{batch: b, predict: true, classes: classes}
	err := c.run(ctx)
	return c.task.classes, err
}

func (c *Classifier[B]) run(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if c.do == nil {
		c.do = c.pass
	}
	if c.Run == nil {
		c.do()
	} else {
		c.Run(c.do)
	}
	err := c.task.err
	var none B
	c.task.batch, c.task.ready = none, nil // held no longer than the call
	return err
}

// pass does the task.
func (c *Classifier[B]) pass() {
	t := &c.task
	scores, labels, err := c.forward(t.batch, !t.predict)
	if err != nil {
		t.err = err
		return
	}
	t.rows = scores.Rows
	c.dy = c.dy.resize(scores.Rows, scores.Cols)
	for i := range scores.Rows {
		row := scores.Row(i)
		if t.predict {
			t.classes = append(t.classes, argmax(row))
			continue
		}
		t.loss += crossEntropy(row, labels[i], t.scale/float64(scores.Rows), c.dy.Row(i))
		if argmax(row) == labels[i] {
			t.correct++
		}
	}
	if t.train {
		c.backward(c.dy, t.ready)
	}
}

// forward computes the scores of the rows that count.
func (c *Classifier[B]) forward(b B, labelled bool) (Matrix, []int, error) {
	e, err := c.Examples(b)
	if err != nil {
		return Matrix{}, nil, err
	}
	y, err := c.values(e)
	if err != nil || y.Rows == 0 {
		return Matrix{}, nil, err
	}
	for _, l := range c.Net {
		if y, err = l.Forward(y); err != nil {
			return Matrix{}, nil, err
		}
	}
	labels := e.Labels[:e.Rows]
	for row, label := range labels {
		if labelled && (label < 0 || label >= y.Cols) {
			return Matrix{}, nil, &LabelError{row, label, y.Cols}
		}
	}
	return y, labels, nil
}

// values is the rows that count, as the first layer takes them.
func (c *Classifier[B]) values(e Examples) (Matrix, error) {
	n, all := len(e.Pixels)+len(e.Values), len(e.Labels)
	switch {
	case e.Pixels != nil && e.Values != nil:
		return Matrix{}, errors.New("nn: the examples have both Pixels and Values: set one")
	case e.Rows < 0 || e.Rows > all:
		return Matrix{}, fmt.Errorf("nn: %d rows of examples count, but there are %d labels", e.Rows, all)
	case all == 0 && n > 0 || all > 0 && n%all != 0:
		return Matrix{}, fmt.Errorf("nn: %d values do not make %d rows of equal width: there must be one label a row", n, all)
	}
	width := n / max(all, 1)
	if e.Values != nil {
		return Matrix{e.Rows, width, e.Values[:e.Rows*width]}, nil
	}
	c.x = c.x.resize(e.Rows, width)
	for i, p := range e.Pixels[:len(c.x.Data)] {
		c.x.Data[i] = shade[p]
	}
	return c.x, nil
}

// shade is p/255 for each pixel p.
var shade = func() (s [256]float32) {
	for p := range s {
		s[p] = float32(p) / 255
	}
	return s
}()

// backward adds the gradients of all layers and calls ready from the last
// parameter to the first. The first layer's input needs none.
func (c *Classifier[B]) backward(dy Matrix, ready func(param int)) {
	next := len(c.Params())
	for i := len(c.Net) - 1; i >= 0; i-- {
		l := c.Net[i]
		if dy.Rows > 0 {
			l.Gradient(dy)
		}
		for range l.Params() {
			next--
			ready(next)
		}
		if next == 0 {
			return
		}
		if dy.Rows > 0 {
			dy = l.Backward(dy)
		}
	}
}

// crossEntropy is -log softmax(scores)[label], by the sum of exponents below
// the highest score, which cannot overflow. It writes scale times its gradient
// with respect to the scores, softmax(scores) - onehot(label), to d.
func crossEntropy(scores []float32, label int, scale float64, d []float32) float64 {
	top := float64(scores[0])
	for _, s := range scores {
		top = max(top, float64(s))
	}
	sum := 0.0
	for _, s := range scores {
		sum += math.Exp(float64(s) - top)
	}
	for j, s := range scores {
		p := math.Exp(float64(s)-top) / sum
		if j == label {
			p--
		}
		d[j] = float32(scale * p)
	}
	return math.Log(sum) - (float64(scores[label]) - top)
}

// argmax is the index of the highest value, the lowest one of equals.
func argmax(v []float32) int {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return best
}
