package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Save is everything that a checkpoint needs of the model and the optimizer:
// the values under the parameters' names, the optimizer's state under
// optimizer.STATE.PARAMETER. The caller owns it. Steps that are pending are
// not in it, nor what they have changed in buffers.
func (d *DDP[B, V]) Save() ([]Tensor, error) {
	tensors, err := d.tensors("", d.value)
	if err != nil {
		return nil, err
	}
	state := d.opt.State()
	for _, name := range sortedKeys(state) {
		if n := state[name].Len(); n != d.grad.Len() {
			return nil, fmt.Errorf("trainer: the optimizer's state %s has %d values, the model trains %d", name, n, d.grad.Len())
		}
		more, err := d.tensors("optimizer."+name+".", state[name])
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, more...)
	}
	return tensors, nil
}

// tensors is an arena of all values, or a state of those that are trained.
func (d *DDP[B, V]) tensors(prefix string, arena V) (tensors []Tensor, err error) {
	for i, at := range d.parts {
		role := d.params[i].Role
		if prefix != "" && role != Trained {
			continue
		}
		t := Tensor{Name: prefix + at.Name, Shape: at.Shape, Data: make([]float32, at.To-at.From)}
		if role == Buffer && d.pending > 0 {
			copy(t.Data, d.before[at.From-(arena.Len()-len(d.before)):])
		} else if err := arena.Slice(at.From, at.To).Read(t.Data); err != nil {
			return nil, fmt.Errorf("trainer: reading %s: %w", t.Name, err)
		}
		tensors = append(tensors, t)
	}
	return tensors, nil
}

// Restore goes on from what Save gave after that many steps, and forgets steps
// that are pending. Every rank calls it; it fails on all of them where the
// ranks restore different things, and names every tensor that is missing, not
// known or of another shape.
func (d *DDP[B, V]) Restore(ctx context.Context, steps int, tensors []Tensor) error {
	arenas, err := d.arenas(tensors)
	if all := compare(ctx, d.group, []string{fmt.Sprintf("restored step %d", steps), fmt.Sprintf("restored values %08x", checksum(tensors))}); all != nil {
		return errors.Join(err, all)
	}
	if err != nil {
		return err
	}
	if err := d.value.Write(arenas[""]); err != nil {
		return fmt.Errorf("trainer: restoring the values: %w", err)
	}
	delete(arenas, "")
	if err := d.opt.Restore(arenas); err != nil {
		return fmt.Errorf("trainer: restoring the optimizer: %w", err)
	}
	if err := zero(d.grad); err != nil {
		return fmt.Errorf("trainer: restoring: the gradients of pending steps: %w", err)
	}
	d.forget()
	d.steps = steps
	return nil
}

// arenas sorts tensors into arenas: the values under "", each state of the
// optimizer under its name.
func (d *DDP[B, V]) arenas(tensors []Tensor) (map[string][]float32, error) {
	var errs []error
	arenas, seen := map[string][]float32{"": make([]float32, d.value.Len())}, map[string]bool{}
	for _, t := range tensors {
		state, name := "", t.Name
		if rest, ok := strings.CutPrefix(t.Name, "optimizer."); ok {
			state, name, _ = strings.Cut(rest, ".")
		}
		i := slices.IndexFunc(d.parts, func(at Part) bool { return at.Name == name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("trainer: the checkpoint has %s, this model has no such parameter", t.Name))
			continue
		case state != "" && d.params[i].Role != Trained:
			errs = append(errs, fmt.Errorf("trainer: the checkpoint has %s, this model does not train %s", t.Name, name))
			continue
		case !slices.Equal(t.Shape, d.parts[i].Shape) || len(t.Data) != d.params[i].Len():
			errs = append(errs, fmt.Errorf("trainer: the checkpoint's %s has the shape %v, this model's %v", t.Name, t.Shape, d.parts[i].Shape))
			continue
		}
		if arenas[state] == nil {
			arenas[state] = make([]float32, d.grad.Len())
		}
		copy(arenas[state][d.parts[i].From:], t.Data)
		seen[state+"."+name] = true
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	for _, state := range sortedKeys(arenas) {
		for i, at := range d.parts {
			if !seen[state+"."+at.Name] && (state == "" || d.params[i].Role == Trained) {
				errs = append(errs, fmt.Errorf("trainer: the checkpoint lacks %s", strings.TrimPrefix("optimizer."+state+"."+at.Name, "optimizer..")))
			}
		}
	}
	return arenas, errors.Join(errs...)
}
