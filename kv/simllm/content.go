package simllm

import (
	"fmt"
	"hash/fnv"
)

// Content is what the KV cache of one prompt holds. Each row (one head of one token in one plane of one layer) is a sequence of
// words that begins with a mix of the model's fingerprint, the token and all before it, the layer, the plane and the head. So a
// row that is swapped, stale, shifted, of another prompt or empty is found wrong, and each row can be computed by itself,
// whatever the layout it lies in.
type Content struct {
	prefix []uint64 // one per token: the fingerprint, the token and all before it
}

// NewContent derives the content of a prompt. It takes some 8 ns and 8 bytes per token.
func NewContent(fingerprint string, tokens []uint32) *Content {
	h := fnv.New64a()
	_, _ = h.Write([]byte(fingerprint))
	x := h.Sum64()
	c := &Content{prefix: make([]uint64, len(tokens))}
	for i, t := range tokens {
		x = mix64(x ^ uint64(t))
		c.prefix[i] = x
	}
	return c
}

// Tokens is the length of the prompt.
func (c *Content) Tokens() int { return len(c.prefix) }

// row is the first word of a row. place is that of placeOf for the layer, plane and head.
//
// hot: once per row on both sides.
func (c *Content) row(token int, place uint64) uint64 { return mix64(c.prefix[token] ^ place) }

func placeOf(layer, plane, head int) uint64 {
	return mix64(uint64(layer)<<40 ^ uint64(plane)<<32 ^ uint64(head))
}

// tailPlace is the place of the tail: no layer has it.
const tailPlace = 0x7461696c

// FillTail writes what follows the last layer: a hidden state that depends on the whole prompt.
func (c *Content) FillTail(dst []byte) { fillWords(dst, c.row(len(c.prefix)-1, tailPlace)) }

// WrongTail counts the bytes in which src differs from FillTail's.
func (c *Content) WrongTail(src []byte) int {
	return wrongBytes(src, c.row(len(c.prefix)-1, tailPlace))
}

// Rows is where one plane of one layer of one rank lies in memory: the row of head h (counted in the rank) and token t of page p
// begins at Base + p*Page + h*Head + t*Token of Memory.
type Rows struct {
	Memory            []byte
	Base              int64
	Page, Head, Token int64 // strides in bytes
	PageTokens        int
	RowBytes          int // one head of one token

	Rank, Layer, Plane int
	HeadFirst, Heads   int // the rank's heads of the model
}

// Span is tokens [First, N) of a prompt.
type Span struct{ First, N int }

// Fill writes the content of the tokens of a span. pages[k] is the page of logical page k of the prompt; those outside the span
// are not looked at.
func (c *Content) Fill(r Rows, pages []uint32, s Span) {
	r.walk(pages, s, 1, func(mem []byte, token, head int) {
		fillWords(mem, c.row(token, r.place(head)))
	})
}

// place is placeOf of the rank's head.
func (r *Rows) place(head int) uint64 { return placeOf(r.Layer, r.Plane, r.HeadFirst+head) }

// walk calls f for each row of a span in every step-th page, in an order that is good for the memory.
func (r *Rows) walk(pages []uint32, s Span, step int, f func(mem []byte, token, head int)) {
	var polite yielder
	for page := s.First / r.PageTokens; page*r.PageTokens < s.N; page += step {
		from, to := max(s.First, page*r.PageTokens), min(s.N, (page+1)*r.PageTokens)
		base := r.Base + int64(pages[page])*r.Page - int64(page*r.PageTokens)*r.Token
		if r.Head > r.Token {
			for head := range r.Heads {
				for at, token := base+int64(head)*r.Head+int64(from)*r.Token, from; token < to; at, token = at+r.Token, token+1 {
					f(r.Memory[at:at+int64(r.RowBytes)], token, head)
				}
			}
		} else {
			for token := from; token < to; token++ {
				for at, head := base+int64(token)*r.Token, 0; head < r.Heads; at, head = at+r.Head, head+1 {
					f(r.Memory[at:at+int64(r.RowBytes)], token, head)
				}
			}
		}
		polite.did(uint64((to - from) * r.Heads * r.RowBytes))
	}
}

// Fault is a byte that is not what it must be.
type Fault struct {
	Rank, Layer, Plane, Head, Token int // Head is of the model
	Offset                          int // in the row
	Want, Got                       byte
}

func (f Fault) String() string {
	return fmt.Sprintf("rank %d, layer %d, plane %d, head %d, token %d, byte %d: want %#02x, got %#02x",
		f.Rank, f.Layer, f.Plane, f.Head, f.Token, f.Offset, f.Want, f.Got)
}

// before orders faults by layer, plane, head, token and offset, then by rank.
func (f Fault) before(g Fault) bool {
	a := [...]int{f.Layer, f.Plane, f.Head, f.Token, f.Offset, f.Rank}
	b := [...]int{g.Layer, g.Plane, g.Head, g.Token, g.Offset, g.Rank}
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// Verdict is the result of checking content. The zero Verdict has checked nothing.
type Verdict struct {
	Bytes uint64 // checked
	Wrong uint64
	First Fault // when Wrong is not 0: the first one by layer, plane, head, token and offset, whatever the layout
}

// Add joins the results of two checks.
func (v *Verdict) Add(w Verdict) {
	if w.Wrong > 0 && (v.Wrong == 0 || w.First.before(v.First)) {
		v.First = w.First
	}
	v.Bytes += w.Bytes
	v.Wrong += w.Wrong
}

// Check compares the tokens of a span with their content; arguments as those of Fill. It looks at every step-th page of the
// span: 1 checks each byte.
func (c *Content) Check(r Rows, pages []uint32, s Span, step int) (v Verdict) {
	r.walk(pages, s, max(1, step), func(mem []byte, token, head int) {
		w := c.row(token, r.place(head))
		v.Bytes += uint64(len(mem))
		if wrong := wrongBytes(mem, w); wrong > 0 {
			f := Fault{Rank: r.Rank, Layer: r.Layer, Plane: r.Plane, Head: r.HeadFirst + head, Token: token}
			f.Offset, f.Want, f.Got = firstWrong(mem, w)
			v.Add(Verdict{Wrong: uint64(wrong), First: f})
		}
	})
	return v
}
