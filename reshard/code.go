package reshard

import (
	"encoding/binary"
	"slices"
)

// The canonical encoding of layouts, rules and options: what plan ids are made of, and what plan files hold. Integers are varints,
// strings and lists have their length before them, maps are sorted.

// append encodes a layout.
func (l *Layout) append(b []byte) []byte {
	b = appendString(b, l.Side)
	b = binary.AppendUvarint(b, uint64(len(l.Tensors)))
	for i := range l.Tensors {
		t := &l.Tensors[i]
		b = append(appendInts(appendString(b, t.Name), t.Shape), byte(t.DType))
	}
	b = binary.AppendUvarint(b, uint64(len(l.Grids)))
	for i := range l.Grids {
		b = l.Grids[i].append(b)
	}
	b = binary.AppendUvarint(b, uint64(len(l.Fragments)))
	for i := range l.Fragments {
		f := &l.Fragments[i]
		b = f.key(binary.AppendVarint(binary.AppendVarint(b, int64(f.Tensor)), f.Offset))
	}
	b = binary.AppendUvarint(b, uint64(len(l.Pads)))
	for _, r := range l.Pads {
		b = appendInts(b, []int64{int64(r.Rank), int64(r.Buffer), r.Offset, r.Len})
	}
	b = binary.AppendUvarint(b, uint64(len(l.Buffers)))
	for _, s := range l.Buffers {
		b = appendInts(b, s)
	}
	names := make([]string, 0, len(l.Aliases))
	for n := range l.Aliases {
		names = append(names, n)
	}
	slices.Sort(names)
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, n := range names {
		b = appendString(appendString(b, n), l.Aliases[n])
	}
	b = binary.AppendUvarint(b, uint64(len(l.Derived)))
	for _, d := range l.Derived {
		b = appendString(appendString(appendStrings(b, d.From), d.Name), d.Hook)
	}
	return appendInts(appendInts(appendInts(b, l.Topo.Node), l.Topo.Rail), l.Topo.Instance)
}

// append encodes a grid: names of the mesh's dimensions too, which key leaves out.
func (g *Grid) append(b []byte) []byte {
	b = appendStrings(b, g.Mesh.Dims)
	b = appendInts(appendInts(b, g.Tensors), g.Offsets)
	b = binary.AppendUvarint(b, uint64(len(g.Place)))
	return g.key(b)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

func appendRules(b []byte, rules []Rule) []byte {
	b = binary.AppendUvarint(b, uint64(len(rules)))
	for _, r := range rules {
		b = appendInts(appendString(appendString(b, r.Match), r.Into), r.View)
		b = r.Codec.key(binary.AppendVarint(b, int64(r.Slot)))
	}
	return b
}

func (o Options) append(b []byte) []byte {
	b = appendInts(appendBool(b, o.Split), []int64{o.MaxWrite, o.SmallTensor, o.MaxRegions})
	return binary.AppendUvarint(b, o.Seed)
}

// inputs encodes all that a plan is computed from.
func (p *Plan) inputs() []byte {
	b := p.dst.append(p.src.append(nil))
	return p.opts.append(appendRules(b, p.rules))
}

// ID is the SHA-256 of both layouts, the rules and the options: equal inputs give equal ids everywhere.
func (p *Plan) ID() ID { return p.id }
