package nn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/layer"
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
	// Epoch and Samples, one a label, are what chance depends on in training,
	// see Dropout. Without Samples the rows' numbers stand for them.
	Epoch   int
	Samples []int
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
//
// Step trains; Evaluate and Predict only ask. The mode is the call's, so there
// is none to set or to restore: between two steps, evaluation changes nothing.
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
	seed   uint64
	x      layer.Matrix // pixels as values
	dy     layer.Matrix // gradient of the loss with respect to the scores
	pass   layer.Pass
	task   task[B]
	do     func() // c.compute, made once: a method value allocates
}

// task is what one call asks of compute, and its answer.
type task[B any] struct {
	ctx     context.Context
	batch   B
	train   bool
	scale   float64
	ready   func(param int)
	score   *Score // to add to
	predict bool
	classes []int // predicted ones, appended

	loss float64 // the mean over the rows
	err  error
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

// Init sets the first values of all parameters; equal seeds, equal values.
// What is left to chance later depends on the seed, too.
// The parameters' memory must be there, as trainer.New sees to.
func (c *Classifier[B]) Init(seed uint64) error {
	for _, p := range c.Params() {
		if len(p.Value) != p.Len() {
			return fmt.Errorf("nn: parameter %s of shape %v has memory for %d values", p.Name, p.Shape, len(p.Value))
		}
	}
	c.seed = seed
	r := rand.New(rand.NewPCG(seed, 0x6e6e)) // "nn": a stream of its own, whatever else uses the seed
	for _, l := range c.Net {
		l.Init(r)
	}
	return nil
}

// Step is as trainer.Model has it: it adds scale times the gradient of the
// batch's mean cross-entropy and returns that mean, over the rows that are no
// padding. It calls ready from the last trained parameter to the first. A
// label that names no class is a *LabelError; then, and after any other error
// before the backward pass, no gradient has changed and ready was not called.
// Later ones come from layers that exchange something with other ranks.
func (c *Classifier[B]) Step(ctx context.Context, b B, scale float64, ready func(param int)) (loss float64, err error) {
	t, err := c.run(task[B]{ctx: ctx, batch: b, train: true, scale: scale, ready: ready})
	return t.loss, err
}

// Idle is a Step without rows: it takes part in what the layers exchange with
// other ranks, as trainer.Model has it. No gradient changes.
func (c *Classifier[B]) Idle(ctx context.Context, ready func(param int)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.pass = layer.Pass{Context: ctx, Train: true, Seed: c.seed}
	defer func() { c.pass = layer.Pass{} }()
	y, err := c.forward(layer.Matrix{})
	if err != nil {
		return err
	}
	return c.backward(layer.Matrix{Cols: y.Cols}, ready)
}

// Evaluate adds to score the rows of the batch, those whose highest output is
// their label's, and their cross-entropies. Padding counts in none. Where it
// fails, score stays as it was. Parameters and buffers stay as they are, and
// gradients need no memory.
func (c *Classifier[B]) Evaluate(ctx context.Context, b B, score *Score) error {
	_, err := c.run(task[B]{ctx: ctx, batch: b, score: score})
	return err
}

// Predict appends to classes the class with the highest score of each row that
// is no padding; the lowest one of equal scores. Labels are not looked at, but
// there must be one a row.
func (c *Classifier[B]) Predict(ctx context.Context, b B, classes []int) ([]int, error) {
	t, err := c.run(task[B]{ctx: ctx, batch: b, predict: true, classes: classes})
	return t.classes, err
}

// run does a task where Run says, and keeps nothing of it.
func (c *Classifier[B]) run(t task[B]) (task[B], error) {
	if t.ctx.Err() != nil {
		return t, context.Cause(t.ctx)
	}
	if c.do == nil {
		c.do = c.compute
	}
	c.task = t
	if c.Run == nil {
		c.do()
	} else {
		c.Run(c.do)
	}
	t = c.task
	c.task, c.pass = task[B]{}, layer.Pass{}
	return t, t.err
}

// compute does the task.
func (c *Classifier[B]) compute() {
	t := &c.task
	e, err := c.Examples(t.batch)
	if err != nil {
		t.err = err
		return
	}
	x, err := c.values(e)
	if err != nil {
		t.err = err
		return
	}
	c.pass = layer.Pass{Context: t.ctx, Train: t.train, Seed: c.seed, Epoch: e.Epoch, Samples: e.Samples}
	scores, err := c.forward(x)
	switch {
	case err != nil:
		t.err = err
	case t.predict:
		for i := range scores.Rows {
			t.classes = append(t.classes, argmax(scores.Row(i)))
		}
	default:
		t.err = c.judge(scores, e.Labels[:e.Rows])
	}
}

// judge compares scores with labels, and goes backward from there in training.
func (c *Classifier[B]) judge(scores layer.Matrix, labels []int) error {
	for row, label := range labels {
		if label < 0 || label >= scores.Cols {
			return &LabelError{row, label, scores.Cols}
		}
	}
	t, loss := &c.task, 0.0
	c.dy = c.dy.Resize(scores.Rows, scores.Cols)
	for i, label := range labels {
		row := scores.Row(i)
		loss += crossEntropy(row, label, t.scale/float64(scores.Rows), c.dy.Row(i))
		if t.score != nil {
			tally := t.score.class(label)
			tally.Rows++
			if argmax(row) == label {
				tally.Correct++
			}
		}
	}
	if t.score != nil {
		t.score.Loss += loss
	}
	t.loss = loss / float64(max(scores.Rows, 1))
	if !t.train {
		return nil
	}
	return c.backward(c.dy, t.ready)
}

// forward computes the scores.
func (c *Classifier[B]) forward(y layer.Matrix) (layer.Matrix, error) {
	var err error
	for i, l := range c.Net {
		c.pass.Layer = i
		if y, err = l.Forward(&c.pass, y); err != nil {
			return layer.Matrix{}, err
		}
	}
	return y, nil
}

// values is the rows that count, as the first layer takes them.
func (c *Classifier[B]) values(e Examples) (layer.Matrix, error) {
	n, all := len(e.Pixels)+len(e.Values), len(e.Labels)
	switch {
	case e.Pixels != nil && e.Values != nil:
		return layer.Matrix{}, errors.New("nn: the examples have both Pixels and Values: set one")
	case e.Rows < 0 || e.Rows > all:
		return layer.Matrix{}, fmt.Errorf("nn: %d rows of examples count, but there are %d labels", e.Rows, all)
	case e.Samples != nil && len(e.Samples) != all:
		return layer.Matrix{}, fmt.Errorf("nn: the examples have %d samples, but there are %d labels", len(e.Samples), all)
	case all == 0 && n > 0 || all > 0 && n%all != 0:
		return layer.Matrix{}, fmt.Errorf("nn: %d values do not make %d rows of equal width: there must be one label a row", n, all)
	}
	width := n / max(all, 1)
	if e.Values != nil {
		return layer.Matrix{Rows: e.Rows, Cols: width, Data: e.Values[:e.Rows*width]}, nil
	}
	c.x = c.x.Resize(e.Rows, width)
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

// backward adds the gradients of all trained parameters and calls ready from
// the last to the first. Nothing below the first one is computed.
func (c *Classifier[B]) backward(dy layer.Matrix, ready func(param int)) error {
	params := c.Params()
	first := slices.IndexFunc(params, trained)
	next := len(params)
	for i := len(c.Net) - 1; i >= 0 && first >= 0; i-- {
		l := c.Net[i]
		l.Gradient(dy)
		for range l.Params() {
			if next--; trained(params[next]) {
				ready(next)
			}
		}
		if next <= first {
			break
		}
		var err error
		c.pass.Layer = i
		if dy, err = l.Backward(&c.pass, dy); err != nil {
			return err
		}
	}
	return nil
}

func trained(p *trainer.Param[trainer.Host]) bool { return p.Role == trainer.Trained }

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
