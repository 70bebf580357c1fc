package proto

import "fmt"

// Record is an entry of a controller's log.
type Record struct {
	Seq      uint64 // 1, 2, ...
	Term     Term   // of the controller that wrote it
	Decision Decision
	By       Key // not zero: the epoch Decision.Of ended undecided, and By, an attempt of the same version, continues it
}

func (r *Record) fields(c *coder) {
	c.u64("seq", &r.Seq)
	c.term("term", &r.Term)
	r.Decision.fields(c)
	c.key("by", &r.By)
}

// Encode is what a log stores.
func (r *Record) Encode() []byte {
	var c coder
	r.fields(&c)
	return c.b
}

// DecodeRecord reads what Encode made. Errors wrap ErrProtocol.
func DecodeRecord(data []byte) (Record, error) {
	var r Record
	c := coder{b: data, reading: true}
	r.fields(&c)
	if c.err == nil && len(c.b) > 0 {
		c.fail("end", "has %d more bytes", len(c.b))
	}
	if c.err != nil {
		return Record{}, fmt.Errorf("%w: record: %w", ErrProtocol, c.err)
	}
	return r, nil
}
