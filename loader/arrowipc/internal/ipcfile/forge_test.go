package ipcfile

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
)

// forged is a file made by hand, for what no writer writes.
type forged struct {
	fields     []fieldOf
	version    int16 // of the metadata: 3 is V4, 4 is V5
	big        bool  // says that its numbers are big-endian
	short      bool  // messages begin with their length alone, as before Arrow 0.15
	compressed bool

	rows     int64
	nodes    [][2]int64 // length, nulls
	buffers  [][2]int64 // offset, length
	variadic []int64
	body     []byte

	bodyLength int64 // that the message tells; 0: the body's
	kind       byte  // of the message; 0: a record batch

	// footer, if it is set, changes the footer's flatbuffer, and block the
	// place of the record batch.
	footer func(footer []byte)
	block  func(offset int64, meta int32, body int64) (int64, int32, int64)
}

// fieldOf is a field: the slots of its type's table, and its children.
type fieldOf struct {
	name     string
	kind     byte
	typ      func(b *flatbuffers.Builder)
	dict     bool
	children []fieldOf
}

func intOf(name string, bits int32, signed bool) fieldOf {
	return fieldOf{name: name, kind: integer, typ: func(b *flatbuffers.Builder) {
		b.PrependInt32Slot(0, bits, 0)
		b.PrependBoolSlot(1, signed, false)
	}}
}

func listsOf(size int32, of fieldOf) fieldOf {
	f := fieldOf{name: of.name, kind: fixedSizeList, typ: func(b *flatbuffers.Builder) { b.PrependInt32Slot(0, size, 0) }}
	of.name = "item"
	f.children = []fieldOf{of}
	return f
}

func (f fieldOf) build(b *flatbuffers.Builder) flatbuffers.UOffsetT {
	var children []flatbuffers.UOffsetT
	for _, c := range f.children {
		children = append(children, c.build(b))
	}
	kids, name := vectorOf(b, children), b.CreateString(f.name)
	b.StartObject(2)
	if f.typ != nil {
		f.typ(b)
	}
	typ := b.EndObject()
	b.StartObject(1)
	dict := b.EndObject()
	b.StartObject(7)
	b.PrependUOffsetTSlot(0, name, 0)
	b.PrependByteSlot(2, f.kind, 0)
	b.PrependUOffsetTSlot(3, typ, 0)
	if f.dict {
		b.PrependUOffsetTSlot(4, dict, 0)
	}
	b.PrependUOffsetTSlot(5, kids, 0)
	return b.EndObject()
}

func vectorOf(b *flatbuffers.Builder, of []flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	b.StartVector(4, len(of), 4)
	for i := len(of) - 1; i >= 0; i-- {
		b.PrependUOffsetT(of[i])
	}
	return b.EndVector(len(of))
}

func pairsOf(b *flatbuffers.Builder, of [][2]int64) flatbuffers.UOffsetT {
	b.StartVector(16, len(of), 8)
	for i := len(of) - 1; i >= 0; i-- {
		b.PrependInt64(of[i][1])
		b.PrependInt64(of[i][0])
	}
	return b.EndVector(len(of))
}

// message is the record batch's metadata, with its prefix.
func (f forged) message() []byte {
	b := flatbuffers.NewBuilder(0)
	nodes, buffers := pairsOf(b, f.nodes), pairsOf(b, f.buffers)
	b.StartVector(8, len(f.variadic), 8)
	for i := len(f.variadic) - 1; i >= 0; i-- {
		b.PrependInt64(f.variadic[i])
	}
	variadic := b.EndVector(len(f.variadic))
	b.StartObject(1)
	compression := b.EndObject()
	b.StartObject(5)
	b.PrependInt64Slot(0, f.rows, 0)
	b.PrependUOffsetTSlot(1, nodes, 0)
	b.PrependUOffsetTSlot(2, buffers, 0)
	if f.compressed {
		b.PrependUOffsetTSlot(3, compression, 0)
	}
	b.PrependUOffsetTSlot(4, variadic, 0)
	header := b.EndObject()
	b.StartObject(5)
	b.PrependInt16Slot(0, f.version, 0)
	b.PrependByteSlot(1, max(f.kind, headerRecordBatch), 0)
	b.PrependUOffsetTSlot(2, header, 0)
	b.PrependInt64Slot(3, max(f.bodyLength, int64(len(f.body))), 0)
	b.Finish(b.EndObject())
	meta := b.FinishedBytes()
	for len(meta)%8 != 0 {
		meta = append(meta, 0)
	}
	prefix := []byte{0xff, 0xff, 0xff, 0xff}
	if f.short {
		prefix = nil
	}
	return append(binary.LittleEndian.AppendUint32(prefix, uint32(len(meta))), meta...)
}

func (f forged) bytes() []byte {
	file := []byte(magic + "\x00\x00")
	offset, meta := int64(len(file)), f.message()
	metaLength, bodyLength := int32(len(meta)), int64(len(f.body))
	file = append(append(file, meta...), f.body...)
	if f.block != nil {
		offset, metaLength, bodyLength = f.block(offset, metaLength, bodyLength)
	}
	b := flatbuffers.NewBuilder(0)
	var fields []flatbuffers.UOffsetT
	for _, field := range f.fields {
		fields = append(fields, field.build(b))
	}
	all := vectorOf(b, fields)
	b.StartObject(4)
	if f.big {
		b.PrependInt16Slot(0, 1, 0)
	}
	b.PrependUOffsetTSlot(1, all, 0)
	schema := b.EndObject()
	b.StartVector(24, 1, 8)
	b.PrependInt64(bodyLength)
	b.Pad(4)
	b.PrependInt32(metaLength)
	b.PrependInt64(offset)
	blocks := b.EndVector(1)
	b.StartObject(5)
	b.PrependInt16Slot(0, f.version, 0)
	b.PrependUOffsetTSlot(1, schema, 0)
	b.PrependUOffsetTSlot(3, blocks, 0)
	b.Finish(b.EndObject())
	footer := b.FinishedBytes()
	if f.footer != nil {
		f.footer(footer)
	}
	return seal(file, footer)
}

// seal ends a file with its footer.
func seal(file, footer []byte) []byte {
	file = append(file, footer...)
	file = binary.LittleEndian.AppendUint32(file, uint32(len(footer)))
	return append(file, magic...)
}

func write(t testing.TB, content []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shard.arrow")
	if err := os.WriteFile(name, content, 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}
