package moetest

import "testing"

// hazards are what has gone wrong elsewhere, or could go wrong here, each with a world in which it would be seen.
var hazards = map[string]struct {
	routing string
	change  func(c *Config)
}{
	"ZeroTokensRank":        {"single", func(*Config) {}},
	"ZeroOffNode":           {"self", func(*Config) {}},
	"MaskedIdCrash":         {"none", func(*Config) {}},
	"WarmupDummyTokens":     {"dummy", func(c *Config) { c.MaxRecv, c.FirstChunk = 8, 1 }},
	"OverwriteOneStepAhead": {"uniform", func(c *Config) { c.Style = Eager }},
	"EarlyImmediate":        {"uniform", func(c *Config) { c.Style = Slow }},
	"SignalOvertakesData":   {"uniform", func(c *Config) { c.Style = ImmediatesLast }},
	"GrantReorder":          {"rank", func(c *Config) { c.ChunkRecords, c.PoolRecords, c.Window, c.FirstChunk = 1, 4, 4, -1 }},
	"PoolDeadlock":          {"rank", func(c *Config) { c.ChunkRecords, c.PoolRecords, c.Window, c.FirstChunk = 2, 2, 4, -1 }},
	"Duplicates":            {"dup", func(c *Config) { c.MaxRecv = 4 }},
	"RowOrderStable":        {"zipf", func(c *Config) { c.Align = 3 }},
	"HalfAfterWhole":        {"hot", func(c *Config) { c.MaxRecv, c.StreamRows, c.FirstChunk, c.ChunkRecords, c.PoolRecords = 6, 2, 1, 1, 4 }},
}

// TestHazards: none of them happens.
func TestHazards(t *testing.T) {
	for name, h := range hazards {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				c := setup(t, seed, h.routing)
				c.Steps = 12
				h.change(&c)
				run(t, c)
			}
		})
	}
}

// TestLostAckThenFailover: rails die one after the other while chunks are under way whose place is lent to others at once. What was counted
// is not written again, and nobody notices.
func TestLostAckThenFailover(t *testing.T) {
	for seed := range uint64(60) {
		c := setup(t, 5*(seed%12), "rank")
		c.Seed, c.Steps, c.ChunkRecords, c.PoolRecords, c.FirstChunk = seed, 6, 1, 2, -1
		for at := 5; at < 800; at += 11 {
			c.Faults = append(c.Faults, Fault{Kind: RailDeath, At: at, Rank: at % 3, Peer: (at + 1 + at/3%2) % 3})
		}
		if r := run(t, c); r.Steps != c.Steps || r.Views != 1 {
			t.Errorf("seed %d: %+v", seed, r)
		}
	}
}

// TestFrozenWriter: a write whose end nobody can prove lands in memory that was set aside, and the group goes on in other memory.
func TestFrozenWriter(t *testing.T) {
	parked := 0
	for seed := range uint64(8) {
		c := setup(t, 5*seed, "uniform")
		events := run(t, c).Events
		for at := 0; at < events; at += 9 {
			c.Faults = []Fault{{Kind: Frozen, At: at, Rank: at % 3, Peer: (at + 1) % 3}}
			parked += run(t, c).Parked
		}
	}
	if parked < 20 {
		t.Errorf("memory was set aside %d times: too few to say anything", parked)
	}
}
