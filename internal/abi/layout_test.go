//go:build abi

package abi

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"slices"
	"strings"
)

// field is one of a structure, also one inside nested structures and unions that have no name of their own.
type field struct {
	path string // "wr.rdma.rkey"
	fn   string // of a pointer to a function: its parameters and result; see signature
}

// layout is what debugging information says of our headers, or of theirs.
type layout struct {
	structs map[string][]field // by tag
	enums   []string           // constants
	fns     map[string]string  // signatures of variables that point to functions, by name
}

// readLayout reads an object file that was compiled with -g -fno-eliminate-unused-debug-types.
func readLayout(object string) (*layout, error) {
	f, err := elf.Open(object)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	d, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	l := &layout{structs: map[string][]field{}, fns: map[string]string{}}
	for r := d.Reader(); ; {
		e, err := r.Next()
		if err != nil || e == nil {
			return l, err
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		switch e.Tag {
		case dwarf.TagEnumerator:
			l.enums = append(l.enums, name)
		case dwarf.TagStructType, dwarf.TagUnionType:
			t, err := d.Type(e.Offset)
			if err != nil {
				return nil, err
			}
			if s := t.(*dwarf.StructType); s.StructName != "" && !s.Incomplete {
				l.structs[s.StructName] = fields(s, "")
			}
		case dwarf.TagVariable:
			off, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
			if !ok {
				continue
			}
			t, err := d.Type(off)
			if err != nil {
				return nil, err
			}
			l.fns[name] = signature(t)
		}
	}
}

func fields(s *dwarf.StructType, prefix string) (all []field) {
	for _, f := range s.Field {
		path := prefix + f.Name
		t := bare(f.Type)
		inner, nested := t.(*dwarf.StructType)
		nested = nested && inner.StructName == ""
		switch {
		case nested && f.Name == "":
			all = append(all, fields(inner, prefix)...)
		case nested:
			all = append(append(all, field{path: path}), fields(inner, path+".")...)
		default:
			all = append(all, field{path, signature(t)})
		}
	}
	return all
}

// bare is a type without names and qualifiers.
func bare(t dwarf.Type) dwarf.Type {
	for {
		switch x := t.(type) {
		case *dwarf.TypedefType:
			t = x.Type
		case *dwarf.QualType:
			t = x.Type
		default:
			return t
		}
	}
}

// signature is the parameters and the result of what a pointer points to, by kind and size; "" if that is no function.
func signature(t dwarf.Type) string {
	p, ok := bare(t).(*dwarf.PtrType)
	if !ok {
		return ""
	}
	f, ok := bare(p.Type).(*dwarf.FuncType)
	if !ok {
		return ""
	}
	var params []string
	for _, t := range f.ParamType {
		params = append(params, kind(t))
	}
	return fmt.Sprintf("%s(%s)", kind(f.ReturnType), strings.Join(params, ", "))
}

// kind is how a value is passed. Numbers of one size are passed alike, enumerations among them.
func kind(t dwarf.Type) string {
	if t == nil {
		return "void"
	}
	switch x := bare(t).(type) {
	case *dwarf.VoidType:
		return "void"
	case *dwarf.PtrType, *dwarf.ArrayType:
		return "pointer"
	case *dwarf.StructType:
		return fmt.Sprintf("struct of %d bytes", x.ByteSize)
	default:
		return fmt.Sprintf("%d bytes", x.Size())
	}
}

func (l *layout) field(tag, path string) (field, bool) {
	i := slices.IndexFunc(l.structs[tag], func(f field) bool { return f.path == path })
	if i < 0 {
		return field{}, false
	}
	return l.structs[tag][i], true
}
