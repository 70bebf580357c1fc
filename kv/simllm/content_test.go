package simllm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// layRows lays one plane out: pages, heads and tokens in the given order ("phd": page, head, token from the slowest to the
// fastest), with some padding after each, in memory that is not zero.
func layRows(order string, pages, pageTokens, heads, rowBytes, padding int) Rows {
	r := Rows{PageTokens: pageTokens, RowBytes: rowBytes, Heads: heads, Base: 3}
	stride := int64(rowBytes)
	for i := len(order) - 1; i >= 0; i-- {
		n := map[byte]int{'p': pages, 'h': heads, 't': pageTokens}[order[i]]
		*map[byte]*int64{'p': &r.Page, 'h': &r.Head, 't': &r.Token}[order[i]] = stride
		stride = stride*int64(n) + int64(padding)
	}
	r.Memory = bytes.Repeat([]byte{0xa5}, int(r.Base+stride))
	return r
}

func someTokens(n int, seed uint64) []uint32 {
	r := rand.New(rand.NewPCG(seed, 0))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(50000)
	}
	return tokens
}

// slowRow is a row as the documents say, byte by byte.
func slowRow(c *Content, layer, plane, head, token, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		word := mix64(c.prefix[token]^placeOf(layer, plane, head)) + uint64(i/8)*golden
		b[i] = byte(word >> (i % 8 * 8))
	}
	return b
}

func TestContentIsTheSameInEachLayout(t *testing.T) {
	const tokens, pageTokens, heads = 37, 8, 3
	pages := []uint32{4, 0, 6, 1, 5}
	c := NewContent("model", someTokens(tokens, 1))
	for _, order := range []string{"pht", "pth", "hpt", "tph"} {
		for _, rowBytes := range []int{1, 13, 64, 200} {
			t.Run(fmt.Sprint(order, rowBytes), func(t *testing.T) {
				r := layRows(order, 7, pageTokens, heads, rowBytes, 5)
				r.Layer, r.Plane, r.HeadFirst = 9, 1, 6
				before := bytes.Clone(r.Memory)
				s := Span{First: 5, N: tokens - 1}
				c.Fill(r, pages, s)
				for token := range tokens {
					for head := range heads {
						at := r.Base + int64(pages[token/pageTokens])*r.Page + int64(head)*r.Head + int64(token%pageTokens)*r.Token
						want := before[at : at+int64(rowBytes)]
						if token >= s.First && token < s.N {
							want = slowRow(c, 9, 1, 6+head, token, rowBytes)
						}
						if got := r.Memory[at : at+int64(rowBytes)]; !bytes.Equal(got, want) {
							t.Fatalf("token %d, head %d: got %x, want %x", token, head, got, want)
						}
						copy(before[at:], r.Memory[at:at+int64(rowBytes)])
					}
				}
				if !bytes.Equal(before, r.Memory) {
					t.Error("bytes outside the rows were written")
				}
				if v := c.Check(r, pages, s, 1); v != (Verdict{Bytes: uint64((s.N - s.First) * heads * rowBytes)}) {
					t.Errorf("got %+v, want all checked and nothing wrong", v)
				}
			})
		}
	}
}

// TestCheckNamesFirstWrongByte whatever the layout, and counts all.
func TestCheckNamesFirstWrongByte(t *testing.T) {
	const rowBytes = 72
	pages := []uint32{1, 2, 0}
	c := NewContent("model", someTokens(12, 1))
	for _, order := range []string{"pht", "pth"} {
		r := layRows(order, 3, 4, 4, rowBytes, 0)
		r.Rank, r.Layer, r.Plane, r.HeadFirst = 2, 7, 1, 8
		c.Fill(r, pages, Span{0, 12})
		row := func(token, head int) []byte {
			at := r.Base + int64(pages[token/4])*r.Page + int64(head)*r.Head + int64(token%4)*r.Token
			return r.Memory[at : at+rowBytes]
		}
		row(2, 3)[1] ^= 1
		row(9, 1)[70] ^= 0x80
		row(9, 1)[71] ^= 0xff
		want := Fault{Rank: 2, Layer: 7, Plane: 1, Head: 9, Token: 9, Offset: 70, Got: row(9, 1)[70], Want: row(9, 1)[70] ^ 0x80}
		v := c.Check(r, pages, Span{0, 12}, 1)
		if v.Wrong != 3 || v.First != want {
			t.Errorf("%s: got %+v, want 3 wrong bytes, the first %+v", order, v, want)
		}
		if text := v.First.String(); !strings.Contains(text, "layer 7, plane 1, head 9, token 9, byte 70: want 0x") {
			t.Errorf("got %q", text)
		}
		if v := c.Check(r, pages, Span{4, 8}, 1); v.Wrong != 0 {
			t.Errorf("%s: got %+v for tokens that are right", order, v)
		}
		if v := c.Check(r, pages, Span{0, 12}, 2); v.Wrong != 3 || v.Bytes != 8*4*rowBytes {
			t.Errorf("%s: got %+v, want pages 0 and 2 checked", order, v)
		}
	}
}

func TestVerdictsAreJoined(t *testing.T) {
	a := Verdict{Bytes: 10, Wrong: 1, First: Fault{Layer: 2, Head: 1}}
	b := Verdict{Bytes: 5, Wrong: 2, First: Fault{Layer: 1, Head: 3}}
	for _, order := range [][]Verdict{{a, b, {Bytes: 7}}, {{Bytes: 7}, b, a}} {
		var v Verdict
		for _, w := range order {
			v.Add(w)
		}
		if v != (Verdict{Bytes: 22, Wrong: 3, First: b.First}) {
			t.Errorf("got %+v", v)
		}
	}
}

// TestContentDependsOnAll that can be confused: whatever differs, nearly all bytes do.
func TestContentDependsOnAll(t *testing.T) {
	const n = 4 * 16 * 128
	tokens := someTokens(64, 1)
	pages := []uint32{0, 1, 2, 3}
	r := layRows("pht", 4, 16, 1, 128, 0)
	r.Layer, r.Plane, r.HeadFirst = 3, 1, 5
	NewContent("model", tokens).Fill(r, pages, Span{0, 64})
	wrong := func(name string, want float64, c *Content, r Rows, pages []uint32, s Span) {
		t.Helper()
		v := c.Check(r, pages, s, 1)
		if share := float64(v.Wrong) / n; share < want*0.98 || share > want {
			t.Errorf("%s: %.3f of the bytes are wrong, want %.3f", name, share, want)
		}
	}
	all, same := Span{0, 64}, NewContent("model", tokens)
	wrong("nothing", 0, same, r, pages, all)
	wrong("model", 1, NewContent("model2", tokens), r, pages, all)
	wrong("prompt", 1, NewContent("model", someTokens(64, 2)), r, pages, all)
	wrong("swapped pages", 0.5, same, r, []uint32{0, 2, 1, 3}, all)
	for _, k := range []int{0, 31, 63} {
		changed := append([]uint32(nil), tokens...)
		changed[k]++
		wrong(fmt.Sprintf("token %d", k), float64(64-k)/64, NewContent("model", changed), r, pages, all)
	}
	other := r
	other.Layer = 4
	wrong("layer", 1, same, other, pages, all)
	other = r
	other.Plane = 0
	wrong("plane", 1, same, other, pages, all)
	other = r
	other.HeadFirst = 6
	wrong("head", 1, same, other, pages, all)
	other = r
	other.Base += 128
	wrong("shifted by a token", 63./64, same, other, pages, Span{0, 63})
	other.Base = r.Base
	other.Memory = make([]byte, len(r.Memory))
	wrong("zeros", 1, same, other, pages, all)
}

func TestTailDependsOnThePrompt(t *testing.T) {
	tokens := someTokens(9, 1)
	c := NewContent("model", tokens)
	tail := make([]byte, 100)
	c.FillTail(tail)
	if w := c.WrongTail(tail); w != 0 {
		t.Errorf("%d bytes wrong, want 0", w)
	}
	tokens[0]++
	if w := NewContent("model", tokens).WrongTail(tail); w < 90 {
		t.Errorf("another prompt: %d bytes wrong, want nearly 100", w)
	}
}

func benchmarkRows(b *testing.B, f func(c *Content, r Rows, pages []uint32, s Span)) {
	const tokens, pageTokens = 4096, 128
	for _, c := range []struct {
		name, order     string
		heads, rowBytes int
	}{{"mini-HND", "pht", 2, 128}, {"mini-NHD", "pth", 2, 128}, {"gqa-HND", "pht", 8, 256}, {"mla", "pth", 1, 1152}} {
		b.Run(c.name, func(b *testing.B) {
			r := layRows(c.order, tokens/pageTokens, pageTokens, c.heads, c.rowBytes, 0)
			pages := make([]uint32, tokens/pageTokens)
			for i := range pages {
				pages[i] = uint32(i)
			}
			content := NewContent("model", someTokens(tokens, 1))
			content.Fill(r, pages, Span{0, tokens})
			b.SetBytes(int64(tokens * c.heads * c.rowBytes))
			for b.Loop() {
				f(content, r, pages, Span{0, tokens})
			}
		})
	}
}

func BenchmarkContentFill(b *testing.B) {
	benchmarkRows(b, func(c *Content, r Rows, pages []uint32, s Span) { c.Fill(r, pages, s) })
}

func BenchmarkContentCheck(b *testing.B) {
	benchmarkRows(b, func(c *Content, r Rows, pages []uint32, s Span) {
		if v := c.Check(r, pages, s, 1); v.Wrong != 0 {
			b.Fatal(v)
		}
	})
}

func BenchmarkNewContent(b *testing.B) {
	tokens := someTokens(16384, 1)
	b.SetBytes(int64(4 * len(tokens)))
	for b.Loop() {
		NewContent("model", tokens)
	}
}
