package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardfeed/shardfeed/trainer"
)

// python is a script of testdata with the modules that it needs, to be run by
// python3 or what SHARDFEED_PYTHON names. Where modules are missing, the test is
// skipped.
func python(t *testing.T, modules []string, script string, args ...string) *exec.Cmd {
	t.Helper()
	name := cmp.Or(os.Getenv("SHARDFEED_PYTHON"), "python3")
	const find = `import sys, importlib.util as u; sys.exit(", ".join("no module " + m for m in sys.argv[1:] if not u.find_spec(m)) or 0)`
	if out, err := exec.Command(name, append([]string{"-c", find}, modules...)...).CombinedOutput(); err != nil {
		t.Skipf("no python to compare with: %s: %v, %s; SHARDFEED_PYTHON may name one with %s", name, err, bytes.TrimSpace(out), strings.Join(modules, " and "))
	}
	cmd := exec.CommandContext(t.Context(), name, append([]string{filepath.Join("testdata", script)}, args...)...)
	cmd.Stderr = t.Output()
	return cmd
}

// Python's safetensors reads what is written here to the last bit, and what it
// writes is read here, whatever numbers numpy stores it as.
func TestNumpyInterop(t *testing.T) {
	dir := t.TempDir()
	want := []trainer.Tensor{
		{Name: "fc1.weight", Shape: []int{2, 3}, Data: []float32{0.1, -1, float32(math.Copysign(0, -1)), math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.Inf(-1))}},
		{Name: "fc1.bias", Shape: []int{1}, Data: []float32{math.Float32frombits(0x7fc12345)}},
		{Name: "module.conv.weight", Shape: []int{1, 1, 2, 1}, Data: []float32{3, 4}},
		{Name: "optimizer.momentum.fc1.bias", Shape: []int{1}, Data: []float32{5}},
		{Name: `a "quoted" name, ünïcode`, Shape: []int{1}, Data: []float32{6}},
		{Name: "nothing", Shape: []int{0, 7}, Data: []float32{}},
		{Name: "scalar", Data: []float32{7}},
	}
	f, err := os.Create(filepath.Join(dir, "go.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeTensors(f, want); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := python(t, []string{"safetensors", "numpy"}, "numpy_interop.py", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	var theirs struct{ Read, Written map[string]pythonTensor }
	if err := json.Unmarshal(out, &theirs); err != nil {
		t.Fatal(err)
	}
	checkPython(t, "go.safetensors", want, theirs.Read, "")
	got, err := loadTensors(filepath.Join(dir, "python.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want)+11 {
		t.Errorf("python.safetensors has %d tensors", len(got))
	}
	checkPython(t, "python.safetensors", got, theirs.Written, "module.")
}

// pythonTensor is the shape of a tensor and its values as float32, in hex.
type pythonTensor struct {
	Shape []int
	Hex   string
}

func (p *pythonTensor) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&p.Shape, &p.Hex})
}

// checkPython compares tensors with Python's, whose names may have a prefix.
func checkPython(t *testing.T, file string, ours []trainer.Tensor, theirs map[string]pythonTensor, prefix string) {
	t.Helper()
	if len(ours) != len(theirs) {
		t.Errorf("%s: %d tensors in Go, %d in Python", file, len(ours), len(theirs))
	}
	for _, o := range ours {
		p, ok := theirs[o.Name]
		if !ok {
			p = theirs[prefix+o.Name]
		}
		var data strings.Builder
		if err := writeValues(hex.NewEncoder(&data), o.Data); err != nil {
			t.Fatal(err)
		}
		if data.String() != p.Hex || !slices.Equal(o.Shape, p.Shape) {
			t.Errorf("%s: %s is %v %s in Go, %v %s in Python", file, o.Name, o.Shape, data.String(), p.Shape, p.Hex)
		}
	}
}

// The state of a model that PyTorch has trained by DistributedDataParallel is
// loaded here, the int64 counter of BatchNorm included, and PyTorch's
// load_state_dict takes what is saved here of it.
func TestTorchInterop(t *testing.T) {
	dir := t.TempDir()
	theirs, ours := filepath.Join(dir, "torch.safetensors"), filepath.Join(dir, "step-3", modelName)
	cmd := python(t, []string{"safetensors", "torch"}, "torch_interop.py", theirs, ours)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(out, make([]byte, len("saved\n")))
	tensors, err := loadTensors(theirs)
	if err == nil {
		err = Save(dir, Checkpoint{Step: 3, Tensors: tensors}, 0)
	}
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(tensors, func(t trainer.Tensor) bool { return t.Name == "1.num_batches_tracked" })
	if len(tensors) != 9 || i < 0 || len(tensors[i].Shape) != 0 || tensors[i].Data[0] != 3 {
		t.Errorf("loaded %v", tensors)
	}
}
