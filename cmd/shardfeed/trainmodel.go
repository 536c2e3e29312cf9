package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardfeed/shardfeed/sampler"
	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn"
	"github.com/shardfeed/shardfeed/trainer/optim"
)

const (
	hidden   = 512 // units of the mlp's hidden layer
	smallest = 16  // height and width of an image that nn.CNN takes
)

// The values that --model, --optimizer, --schedule and --non-finite take; the
// first is the default.
var (
	models     = []string{"mlp", "cnn"}
	optimizers = []string{"sgd", "adamw"}
	schedules  = []string{"linear", "cosine", "step", "constant"}
	policies   = []string{"fail", "skip"}
)

// net is the model for images of the set. Where statistics are of all ranks,
// group is the ranks.
func (o *trainOptions) net(set *images, group trainer.Group[trainer.Host]) (net []nn.Layer, err error) {
	switch o.model {
	case "mlp":
		net = nn.MLP(set.pixels, hidden, o.classes)
	case "cnn":
		channels, height, width, err := planes(set.shape)
		if err == nil && min(height, width) < smallest {
			err = fmt.Errorf("images of %d×%d: --model cnn needs %d×%d at least; take --model mlp", height, width, smallest, smallest)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", set.dir, err)
		}
		net = nn.CNN(channels, height, width, o.classes)
	}
	if o.dropout > 0 { // of what the last layer, which tells classes, sees
		net = slices.Insert(net, len(net)-1, nn.Layer(&nn.Dropout{P: o.dropout}))
	}
	if o.syncBN {
		nn.SyncBatchNorm(net, group)
	}
	return net, o.freezeParams(net)
}

// planes takes the shape of an image as channels, height and width.
func planes(shape []int) (channels, height, width int, err error) {
	switch len(shape) {
	case 2:
		return 1, shape[0], shape[1], nil
	case 3:
		return shape[0], shape[1], shape[2], nil
	}
	return 0, 0, 0, fmt.Errorf("images of the shape %v: --model cnn takes [height, width] or [channels, height, width]; take --model mlp, or convert them", shape)
}

// freezeParams freezes the parameters whose names begin as --freeze says.
func (o *trainOptions) freezeParams(net []nn.Layer) error {
	var names []string
	prefixes, used := strings.FieldsFunc(o.freeze, func(r rune) bool { return r == ',' }), map[string]bool{}
	for _, l := range net {
		for _, p := range l.Params() {
			names = append(names, p.Name)
			for _, prefix := range prefixes {
				if strings.HasPrefix(p.Name, prefix) {
					used[prefix] = true
					if p.Role == trainer.Trained {
						p.Role = trainer.Frozen
					}
				}
			}
		}
	}
	for _, prefix := range prefixes {
		if !used[prefix] {
			return usageError{fmt.Errorf("--freeze %s: no parameter's name begins so; there are %s", prefix, strings.Join(names, ", "))}
		}
	}
	return nil
}

// newOptimizer is the optimizer of a run of so many updates.
func (o *trainOptions) newOptimizer(updates int) trainer.Optimizer[trainer.Host] {
	rate := optim.Constant(o.lr)
	after := max(1, updates-o.warmup) // the warm-up, which a short run never leaves
	switch o.schedule {
	case "linear":
		rate = optim.Linear(o.lr, after)
	case "cosine":
		rate = optim.Cosine(o.lr, after, 0)
	case "step":
		rate = optim.Step(o.lr, (after+2)/3, 0.1)
	}
	if o.warmup > 0 {
		rate = optim.Warmup(o.warmup, 0, rate)
	}
	clip := optim.Clip{Norm: o.clipNorm, Value: o.clipValue}
	if o.optimizer == "adamw" {
		return &optim.AdamW{LR: rate, WeightDecay: o.weightDecay, Decay: optim.Weights, Clip: clip}
	}
	return &optim.SGD{LR: rate, Momentum: o.momentum, Nesterov: o.nesterov, WeightDecay: o.weightDecay, Decay: optim.Weights, Clip: clip}
}

// ddp is how the ranks train together, and what must be the same on all.
func (o *trainOptions) ddp(order sampler.Distributed, begin beginning) trainer.Config {
	cfg := trainer.Config{
		Seed: o.seed, FirstBucket: int(o.firstBucket * (1 << 20)), Bucket: int(o.bucket * (1 << 20)),
		Accumulate: o.accumulate, GlobalBatch: o.globalBatch * o.accumulate, SkipNonFinite: o.nonFinite == "skip",
		Agree: []string{
			fmt.Sprintf("order %v with fingerprint %016x", order.Order, order.Fingerprint(0)),
			begin.String(),
			fmt.Sprintf("--samples-log: %t", o.samplesLog != ""), // the directory may be each rank's own
		},
	}
	for _, name := range []string{
		"epochs", "steps", "global-batch", "tail", "dropout", "syncbn", "optimizer", "lr", "schedule", "warmup",
		"momentum", "nesterov", "weight-decay", "clip-norm", "clip-value",
	} {
		cfg.Agree = append(cfg.Agree, "--"+name+" "+o.values[name])
	}
	return cfg
}
