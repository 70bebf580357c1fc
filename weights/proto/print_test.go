package proto

import (
	"encoding/binary"
	"hash/maphash"
	"reflect"
	"slices"
	"time"
)

// printer makes a number of a world, the same for worlds that go on in the same way: times count from now, and the numbers of messages do
// not count.
type printer struct {
	now  Time
	data []byte
}

var printSeed = maphash.MakeSeed()

// unprinted are fields that do not matter for what comes, or that point back.
var unprinted = map[string]bool{
	"w": true, "out": true, "mine": true, "role": true, "cfg": true, "seq": true, "data": true,
	"faults": true, "now": true, "stops": true, "Seq": true, "net": true, "text": true, "why": true, "result": true, "Text": true, "asked": true, "trace": true,
}

var durationType = reflect.TypeFor[time.Duration]()

func (w *world) print() uint64 {
	p := printer{now: w.now, data: make([]byte, 0, 8<<10)}
	p.value(reflect.ValueOf(w).Elem())
	var packets []uint64
	for _, x := range w.net {
		var h maphash.Hash
		h.SetSeed(printSeed)
		h.Write(x.from[:1])
		h.Write(x.to[:1])
		h.Write(x.data[:8])
		h.Write(x.data[16:])
		if t := w.node(x.to); Kind(x.data[3]) == KindJoin && t.c != nil {
			if q := t.c.peer(x.from); q != nil && q.seq > seqOf(x.data) {
				h.WriteByte(1)
			}
		}
		packets = append(packets, h.Sum64())
	}
	slices.Sort(packets)
	for _, x := range packets {
		p.number('p', x)
	}
	return maphash.Bytes(printSeed, p.data)
}

func seqOf(data []byte) uint64 {
	h, _, _ := Decode(data)
	return h.Seq
}

func (p *printer) number(tag byte, v uint64) {
	p.data = binary.LittleEndian.AppendUint64(append(p.data, tag), v)
}

// printed are the fields of a struct that are printed.
var printed = map[reflect.Type][]int{}

func fieldsOf(t reflect.Type) []int {
	list, ok := printed[t]
	if !ok {
		list = []int{}
		for i := range t.NumField() {
			name := t.Field(i).Name
			if !unprinted[name] && (t != reflect.TypeFor[letter]() || name != "since") {
				list = append(list, i)
			}
		}
		printed[t] = list
	}
	return list
}

func (p *printer) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			p.data = append(p.data, 1)
		} else {
			p.data = append(p.data, 0)
		}
	case reflect.Int, reflect.Int64:
		x := v.Int()
		if v.Type() == durationType && x != 0 {
			x = max(x-int64(p.now), -int64(20*time.Second))
		}
		p.number('i', uint64(x))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		p.number('u', v.Uint())
	case reflect.String:
		p.number('s', uint64(v.Len()))
		p.data = append(p.data, v.String()...)
	case reflect.Slice, reflect.Array:
		p.number('l', uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Array && v.CanAddr() {
			p.data = append(p.data, v.Bytes()...)
			return
		}
		for i := range v.Len() {
			p.value(v.Index(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			p.data = append(p.data, '0')
			return
		}
		p.data = append(p.data, '&')
		p.value(v.Elem())
	case reflect.Interface:
		if v.IsNil() {
			p.data = append(p.data, '0')
			return
		}
		p.data = append(p.data, v.Elem().Type().String()...)
		if v.Elem().Kind() == reflect.Pointer && v.Elem().Type() != reflect.TypeFor[*EpochError]() {
			p.value(v.Elem())
		}
	case reflect.Struct:
		for _, i := range fieldsOf(v.Type()) {
			p.value(v.Field(i))
		}
	default:
		panic("printer: " + v.Kind().String())
	}
}
