package shm

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

func TestDatagramsRoundTrip(t *testing.T) {
	for _, m := range []datagram{
		{kind: kindHello, handle: 0x10002, to: secret{1, 2, 3}, from: secret{4, 5, 6}, proof: proof{addr: 7, value: [proofSize]byte{8, 9}}},
		{kind: kindWelcome, proof: proof{addr: 1 << 63, value: [proofSize]byte{5}}},
		{kind: kindForeign, region: regionKey(1, 3), size: 1},
		{kind: kindSource, region: regionKey(2, 3), size: 1},
		{kind: kindGrant, region: regionKey(maxRegions-1, 7), size: 1 << 40},
		{kind: kindSweep},
	} {
		b := m.append(nil)
		if len(b) > maxDatagram {
			t.Errorf("kind %d has %d bytes, maxDatagram is %d", m.kind, len(b), maxDatagram)
		}
		got, err := decode(b)
		if err != nil || got != m {
			t.Errorf("decode(%x) = %+v, %v, want %+v", b, got, err, m)
		}
		for n := range b {
			if _, err := decode(b[:n]); !errors.Is(err, errDatagram) {
				t.Errorf("the first %d bytes of %x decode with %v, want errDatagram", n, b, err)
			}
		}
		if _, err := decode(append(b, 0)); !errors.Is(err, errDatagram) {
			t.Errorf("%x with a byte more decodes with %v, want errDatagram", b, err)
		}
	}
}

func TestDecodeRefusesImpossibleGrants(t *testing.T) {
	for name, m := range map[string]datagram{
		"index past the table":     {region: regionKey(maxRegions, 1), size: 1},
		"generation of a dead one": {region: regionKey(1, 2), size: 1},
		"generation 0":             {region: regionKey(1, 0), size: 1},
		"no bytes":                 {region: regionKey(1, 1)},
		"too many bytes":           {region: regionKey(1, 1), size: math.MaxInt64},
		"all bytes":                {region: regionKey(1, 1), size: math.MaxUint64},
	} {
		for _, m.kind = range []kind{kindGrant, kindForeign, kindSource} {
			if _, err := decode(m.append(nil)); !errors.Is(err, errDatagram) {
				t.Errorf("%s: decode of kind %d returned %v, want errDatagram", name, m.kind, err)
			}
		}
	}
}

func TestAddrRoundTripsAndOthersAreRefused(t *testing.T) {
	a := address{handle: 0x7fff0001, name: [16]byte{9, 8}, secret: secret{7, 6}}
	b := a.encode()
	if got, err := decodeAddr(b); err != nil || got != a {
		t.Errorf("decodeAddr = %+v, %v, want %+v", got, err, a)
	}
	other := append(provider.Addr(nil), b...)
	other[3]++ // the version
	for name, b := range map[string]provider.Addr{"empty": nil, "short": b[:len(b)-1], "long": append(b, 0), "other version": other} {
		if _, err := decodeAddr(b); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%s: decodeAddr returned %v, want ErrInvalid", name, err)
		}
	}
}

// FuzzDecode: whatever decodes encodes to the same bytes, so no field is ignored, and holds only what a region can have.
func FuzzDecode(f *testing.F) {
	hello := datagram{kind: kindHello, handle: 1, to: secret{1}, from: secret{2}}
	grant := datagram{kind: kindGrant, region: regionKey(3, 5), size: 4096}
	f.Add(hello.append(nil))
	f.Add(grant.append(nil))
	welcome := datagram{kind: kindWelcome, proof: proof{addr: 5}}
	f.Add(welcome.append(nil))
	foreign := datagram{kind: kindForeign, region: regionKey(3, 5), size: 4096}
	f.Add(foreign.append(nil))
	f.Add([]byte{byte(kindSweep)})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			if !errors.Is(err, errDatagram) {
				t.Fatalf("error %v does not wrap errDatagram", err)
			}
			return
		}
		if got := m.append(nil); !bytes.Equal(got, b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, m, got)
		}
		if (m.kind == kindGrant || m.kind == kindForeign || m.kind == kindSource) && (regionIndex(m.region) >= maxRegions || m.size == 0 || m.size > math.MaxInt64/2) {
			t.Fatalf("decoded an impossible grant: %+v", m)
		}
	})
}

func FuzzDecodeAddr(f *testing.F) {
	f.Add([]byte(address{handle: 1}.encode()))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddr(b)
		if err == nil && !bytes.Equal(a.encode(), b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, a, a.encode())
		}
	})
}

func TestFifoKeepsOrderWhileItGrows(t *testing.T) {
	var q fifo[int]
	var want []int
	next := 0
	for round := range 100 {
		for range round % 23 {
			*q.push() = next
			want = append(want, next)
			next++
		}
		n := min(round%17, q.len())
		for i := range q.len() {
			if *q.at(i) != want[i] {
				t.Fatalf("round %d: element %d is %d, want %d", round, i, *q.at(i), want[i])
			}
		}
		q.drop(n)
		want = want[n:]
	}
	if q.len() != len(want) || len(want) == 0 {
		t.Fatalf("%d elements are left, want %d, and more than none", q.len(), len(want))
	}
}
