package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The programs that the README shows are the compiled ones.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)<!-- (examples/[^ ]*) -->\n```go\n(.*?)\n```").FindAllStringSubmatch(string(text), -1)
	if len(shown) != 2 {
		t.Fatalf("the README shows %d programs, want examples/embed and examples/ddp", len(shown))
	}
	for _, s := range shown {
		source, err := os.ReadFile(filepath.Join("..", "..", s[1]))
		if err != nil {
			t.Fatal(err)
		}
		_, program, _ := strings.Cut(string(source), "\npackage main")
		if strings.TrimSpace("package main"+program) != s[2] {
			t.Errorf("the README's program is not %s <- copy it from \"package main\" on", s[1])
		}
	}
}

// Programs that a newcomer reads stay short: what is not counted are the
// blocks that return an error.
func TestShortExamples(t *testing.T) {
	for file, most := range map[string]int{"embed": 20, "ddp": 45} {
		f, err := parser.ParseFile(fset, filepath.Join("..", "..", "examples", file, "main.go"), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				lines += linesOf(d.Body) - 2 // the braces
				ast.Inspect(d.Body, func(n ast.Node) bool {
					if s, ok := n.(*ast.IfStmt); ok && strings.HasPrefix(render(s.Cond), "err != nil") {
						lines -= linesOf(s)
						return false
					}
					return true
				})
			}
		}
		if lines > most {
			t.Errorf("examples/%s has %d lines of body, the limit is %d", file, lines, most)
		}
		t.Logf("examples/%s: %d lines of body", file, lines)
	}
}

func linesOf(n ast.Node) int {
	line := func(p token.Pos) int { return fset.Position(p).Line }
	return line(n.End()) - line(n.Pos()) + 1
}
