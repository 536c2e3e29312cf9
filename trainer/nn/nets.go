// Package nn is small neural networks on the CPU: nets of layers, a classifier
// that trainer.DDP can train, and evaluation.
package nn

import (
	"fmt"
	"slices"

	"github.com/shardfeed/shardfeed/trainer"
	"github.com/shardfeed/shardfeed/trainer/nn/layer"
)

// The layers and what they have in common are those of package layer, so that
// most programs need to import nn alone.
type (
	Layer     = layer.Layer
	Linear    = layer.Linear
	ReLU      = layer.ReLU
	Conv2D    = layer.Conv2D
	MaxPool2D = layer.MaxPool2D
	BatchNorm = layer.BatchNorm
	Dropout   = layer.Dropout
)

// MLP is a multi-layer perceptron: linear layers named fc1, fc2, … with a ReLU
// between each two. sizes are the values of a row before the first, between
// each two, and behind the last layer: MLP(784, 512, 10) tells 28×28 images
// into ten classes. It panics where there are fewer than two sizes or one is
// below 1.
func MLP(sizes ...int) []Layer {
	if len(sizes) < 2 || slices.Min(sizes) < 1 {
		panic(fmt.Sprintf("nn: an MLP of sizes %v: it takes two or more, each 1 or more", sizes))
	}
	var net []Layer
	for i, in := range sizes[:len(sizes)-1] {
		if i > 0 {
			net = append(net, new(ReLU))
		}
		net = append(net, &Linear{Name: fmt.Sprintf("fc%d", i+1), In: in, Out: sizes[i+1]})
	}
	return net
}

// CNN is a small convolutional network for images of channels planes: twice a
// 5×5 convolution, pooling by 2, BatchNorm and ReLU, with 12 and 32 planes, and
// a linear layer; their names are conv1, bn1, conv2, bn2 and fc. Three epochs
// of MNIST take it to 99 % of the test images. Pooling comes first because it
// leaves a quarter of the values to normalize. It panics where planes are
// smaller than 16×16, or there are no channels or classes.
func CNN(channels, height, width, classes int) []Layer {
	if channels < 1 || height < 16 || width < 16 || classes < 1 {
		panic(fmt.Sprintf("nn: a CNN for %d planes of %d×%d and %d classes: it takes 1 or more of planes and classes, and at least 16×16", channels, height, width, classes))
	}
	const narrow, broad = 12, 32
	conv1 := &Conv2D{Name: "conv1", In: channels, Out: narrow, Height: height, Width: width, Kernel: 5}
	h, w := conv1.Size()
	conv2 := &Conv2D{Name: "conv2", In: narrow, Out: broad, Height: h / 2, Width: w / 2, Kernel: 5}
	h2, w2 := conv2.Size()
	return []Layer{
		conv1, &MaxPool2D{Height: h, Width: w, Size: 2}, &BatchNorm{Name: "bn1", Channels: narrow}, new(ReLU),
		conv2, &MaxPool2D{Height: h2, Width: w2, Size: 2}, &BatchNorm{Name: "bn2", Channels: broad}, new(ReLU),
		&Linear{Name: "fc", In: broad * (h2 / 2) * (w2 / 2), Out: classes},
	}
}

// SyncBatchNorm makes every BatchNorm of net take its statistics over all
// ranks of g, and returns net.
func SyncBatchNorm(net []Layer, g trainer.Group[trainer.Host]) []Layer {
	for _, l := range net {
		if bn, ok := l.(*BatchNorm); ok {
			bn.Group = g
		}
	}
	return net
}
