package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/provider"
)

// network is the name of a provider that this program has; empty means the best that works.
type network string

// UnmarshalText checks that there is such a provider, not that it can be used here.
func (n *network) UnmarshalText(b []byte) error {
	*n = network(b)
	if *n == "" {
		return nil
	}
	_, err := bench.Provider(string(*n))
	return err
}

// open makes the provider of a name, the first that works for none. The error says why it cannot be used here.
func (n network) open(ctx context.Context) (provider.Provider, error) {
	if n != "" {
		p, err := bench.Provider(string(n))
		if err != nil {
			return nil, usage("--provider: %w", err)
		}
		if err := usable(ctx, p); err != nil {
			return nil, fmt.Errorf("--provider %s: %w: hawser doctor says more", n, err)
		}
		return p, nil
	}
	for _, p := range hawser.DefaultProviders() {
		if usable(ctx, p) == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no network can be used here: hawser doctor says why: %w", hawser.ErrUnavailable)
}

// usable says why a provider cannot be used here, nil if it can.
func usable(ctx context.Context, p provider.Provider) error {
	devices, err := p.Devices(ctx)
	if err == nil && len(devices) == 0 {
		return fmt.Errorf("%w: no device", hawser.ErrUnavailable)
	}
	return err
}

// size is a number of bytes: "4096", "64KiB", "1.5 GiB", "2GB".
type size uint64

var units = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"pib", 1 << 50},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"pb", 1e15},
	{"k", 1 << 10},
	{"m", 1 << 20},
	{"g", 1 << 30},
	{"t", 1 << 40},
	{"b", 1},
	{"", 1},
}

// maxSize keeps sums of a few sizes within 64 bits.
const maxSize = 1 << 60

// UnmarshalText parses a size.
func (s *size) UnmarshalText(b []byte) error {
	lower := strings.ToLower(strings.TrimSpace(string(b)))
	for _, u := range units {
		digits, ok := strings.CutSuffix(lower, u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || math.IsNaN(f) || f < 0 || f*u.bytes > maxSize {
			break
		}
		*s = size(f * u.bytes)
		return nil
	}
	return fmt.Errorf("size %q: want a number of bytes such as 65536, 64KiB or 1.5GiB", b)
}

// String is the shortest exact form.
func (s size) String() string {
	for _, u := range []struct {
		name  string
		bytes size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.bytes && s%u.bytes == 0 {
			return fmt.Sprintf("%d %s", s/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d B", uint64(s))
}

// arg is the form that UnmarshalText takes on a command line.
func (s size) arg() string { return strconv.FormatUint(uint64(s), 10) }

// percent is a share: "5%" or "0.05".
type percent float64

// UnmarshalText parses a share.
func (p *percent) UnmarshalText(b []byte) error {
	digits, hundred := strings.CutSuffix(strings.TrimSpace(string(b)), "%")
	f, err := strconv.ParseFloat(digits, 64)
	if hundred {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("share %q: want 0%% .. 100%%, or 0 .. 1", b)
	}
	*p = percent(f)
	return nil
}

func (p percent) arg() string { return strconv.FormatFloat(float64(p), 'g', -1, 64) }

// railPair is the number of rails of the two sides: "2,3", or "2" for both.
type railPair struct{ prefill, decode int }

// maxRails is more than any host has ports.
const maxRails = 64

// UnmarshalText parses a pair.
func (r *railPair) UnmarshalText(b []byte) error {
	first, second, two := strings.Cut(string(b), ",")
	if !two {
		second = first
	}
	a, err1 := strconv.Atoi(strings.TrimSpace(first))
	c, err2 := strconv.Atoi(strings.TrimSpace(second))
	if err1 != nil || err2 != nil || min(a, c) < 1 || max(a, c) > maxRails {
		return fmt.Errorf("rails %q: want two numbers from 1 to %d, as in 2,3", b, maxRails)
	}
	*r = railPair{a, c}
	return nil
}
