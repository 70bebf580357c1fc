package bench

import (
	"strings"
	"testing"
)

func TestDefaultsOfEverySize(t *testing.T) {
	for kind, k := range scenarios {
		for _, cold := range []bool{false, true} {
			for _, size := range kind.Sizes() {
				c, err := Config{Kind: kind, Provider: "shm", Size: size, Cold: cold}.WithDefaults()
				if err != nil {
					t.Fatalf("%s %d: %v", kind, size, err)
				}
				if c.Pool%c.Size != 0 || c.Bytes%c.Size != 0 || c.blocks() < 1 || c.slots() < 1 {
					t.Errorf("%s %d: pool %d, sample %d: not whole blocks", kind, size, c.Pool, c.Bytes)
				}
				if c.Depth < 2 || c.Depth > maxDepth || c.Batch < 1 || c.Batch > k.maxBatch() {
					t.Errorf("%s %d: depth %d, batch %d", kind, size, c.Depth, c.Batch)
				}
			}
		}
	}
}

func TestFaultsAreNamed(t *testing.T) {
	ok := Config{Kind: Write, Provider: "shm", Size: 1 << 10}
	for want, spoil := range map[string]func(*Config){
		"scenario is \"read\"":      func(c *Config) { c.Kind = "read" },
		"no provider":               func(c *Config) { c.Provider = "" },
		"block size is 0":           func(c *Config) { c.Size = 0 },
		"do not fit":                func(c *Config) { c.Pool = 100 },
		"rounds, want 1":            func(c *Config) { c.Rounds = -1 },
		"round trips, want 1":       func(c *Config) { c.Pings = -1 },
		"rails, want 1":             func(c *Config) { c.Rails = -2 },
		"use larger blocks":         func(c *Config) { c.Size, c.Pool = 1, 1<<40 },
		"foreign memory is \"src\"": func(c *Config) { c.Foreign = "src" },
		"is not cold":               func(c *Config) { c.Cold, c.Pool = true, 64<<20 },
		"-1 operations":             func(c *Config) { c.Depth = -1 },
		"-1 pages of one":           func(c *Config) { c.Batch = -1 },
		"targets, want 1":           func(c *Config) { c.Kind, c.Batch = Scatter, 1<<20 },
		"want at most 65536":        func(c *Config) { c.Kind, c.Size = Message, 1<<17 },
		"is between two":            func(c *Config) { c.Peers = 2 },
		"65 receiving":              func(c *Config) { c.Kind, c.Peers = Barrier, 65 },
		"poll mode is":              func(c *Config) { c.Poll = "often" },
		"a sample of":               func(c *Config) { c.Bytes = 1 << 60 },
	} {
		c := ok
		spoil(&c)
		if _, err := c.WithDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", c, err, want)
		}
	}
}
