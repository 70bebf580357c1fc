package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
)

var le = binary.LittleEndian

// Count sorts the ids of in by (destination rank, expert, token, column) into the plan. If it fails the plan stays as it was.
//
// hot: no allocation.
func (l *Lane) Count(_ backend.Queue, seq uint64, in *backend.Input, reuse bool) error {
	if err := l.ready(); err != nil {
		return err
	}
	if in.N < 0 || in.N > l.cfg.MaxTokens {
		return fmt.Errorf("%w: %d tokens, want 0 .. %d", hawser.ErrInvalid, in.N, l.cfg.MaxTokens)
	}
	hash, err := l.readIDs(in)
	if err != nil {
		return err
	}
	if reuse {
		if in.N != l.plan.Tokens || hash != l.plan.RouteHash {
			return fmt.Errorf("%w: the ids are not those of the step before, whose plan was to be used again", hawser.ErrInvalid)
		}
	} else {
		l.keys, l.nextKeys = l.nextKeys, l.keys
		l.sort(in.N, hash)
	}
	l.flags.Counted.Store(seq)
	return nil
}

// readIDs writes the place of each id into nextKeys, and returns the hash of all.
func (l *Lane) readIDs(in *backend.Input) (uint64, error) {
	k := l.cfg.TopK
	hash := mix(uint64(in.N), uint64(k))
	if in.N == 0 {
		return hash, nil
	}
	t := in.IDs.Type
	if t != backend.I32 && t != backend.U32 && t != backend.I64 {
		return 0, wrongType("IDs", t)
	}
	ids, err := look("IDs", &in.IDs, 2, k, sizeOf(t))
	if err != nil {
		return 0, err
	}
	if ids.n[1] < in.N {
		return 0, fmt.Errorf("%w: IDs of %d tokens, want %d", hawser.ErrInvalid, ids.n[1], in.N)
	}
	keys, direct := l.nextKeys[:in.N*k], l.place.Of == nil
	for token := range in.N {
		at := ids.at(0, token, 0)
		for j := range k {
			var id int64
			switch b := ids.data[at:]; t {
			case backend.I32:
				id = int64(int32(le.Uint32(b)))
			case backend.I64:
				id = int64(le.Uint64(b))
			default:
				if id = int64(le.Uint32(b)); id == math.MaxUint32 {
					id = -1
				}
			}
			at += ids.s[2]
			hash = mix(hash, uint64(id))
			switch key := &keys[token*k+j]; {
			case id == -1:
				*key = backend.NoSlot
			case uint64(id) >= uint64(l.experts):
				return 0, fmt.Errorf("%w: token %d, column %d: no expert %d, there are %d", hawser.ErrInvalid, token, j, id, l.experts)
			case direct:
				*key = uint32(id)
			default:
				*key = l.place.Pick(l.cfg, token, int(id))
			}
		}
	}
	return hash, nil
}

// mix is a step of a hash of 64-bit words: a bijection of h for each v.
func mix(h, v uint64) uint64 {
	return bits.RotateLeft64(h^v*0x9e3779b97f4a7c15, 29) * 0xbf58476d1ce4e5b9
}

// sort makes the plan of the keys of n tokens: a counting sort.
func (l *Lane) sort(n int, hash uint64) {
	p, k, local := &l.plan, l.cfg.TopK, l.cfg.Local
	keys := l.keys[:n*k]
	p.Tokens, p.RouteHash, p.Slot = n, hash, p.Slot[:n*k]
	clear(p.Counts)
	for _, key := range keys {
		if key != backend.NoSlot {
			p.Counts[key]++
		}
	}
	total := uint32(0)
	for r := range p.Records {
		p.Base[r] = total
		for x := r * local; x < (r+1)*local; x++ {
			l.cursor[x] = total
			total += p.Counts[x]
		}
		p.Records[r] = total - p.Base[r]
	}
	p.Token, p.Column = p.Token[:total], p.Column[:total]
	i := 0
	for token := range n {
		for j := range k {
			slot := uint32(backend.NoSlot)
			if key := keys[i]; key != backend.NoSlot {
				slot = l.cursor[key]
				l.cursor[key]++
				p.Token[slot], p.Column[slot] = uint32(token), uint16(j)
			}
			p.Slot[i] = slot
			i++
		}
	}
}
