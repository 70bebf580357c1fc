package reshard

import (
	"fmt"
	"strconv"
	"strings"
)

// Pattern is a name with {layer} and {expert}, which stand for numbers, and *, which stands for anything.
type Pattern struct {
	parts []string // literals and wildcards in turn; a literal may be empty
}

// wildcards of patterns. A number has no sign and no leading zero.
const (
	layerMark  = "{layer}"
	expertMark = "{expert}"
	star       = "*"
)

// ParsePattern fails for other braces.
func ParsePattern(s string) (Pattern, error) {
	var p Pattern
	text := s
	for {
		at, mark := len(s), ""
		for _, m := range [...]string{layerMark, expertMark, star} {
			if i := strings.Index(s, m); i >= 0 && i < at {
				at, mark = i, m
			}
		}
		if strings.ContainsAny(s[:at], "{}") {
			return p, fmt.Errorf("pattern %q: only {layer}, {expert} and * are wildcards", text)
		}
		p.parts = append(p.parts, s[:at])
		if mark == "" {
			return p, nil
		}
		p.parts = append(p.parts, mark)
		s = s[at+len(mark):]
	}
}

// Captures is what the wildcards of a pattern stood for.
type Captures struct {
	Layer, Expert int // -1: the pattern has none
	Stars         []string
}

// Match says whether a name fits, and how. A wildcard that comes twice must stand for the same number.
func (p Pattern) Match(name string) (Captures, bool) {
	c := Captures{Layer: -1, Expert: -1}
	ok := p.match(name, 0, &c)
	return c, ok
}

func (p Pattern) match(name string, part int, c *Captures) bool {
	if !strings.HasPrefix(name, p.parts[part]) {
		return false
	}
	name = name[len(p.parts[part]):]
	if part == len(p.parts)-1 {
		return name == ""
	}
	if p.parts[part+1] == star {
		next := p.parts[part+2]
		for i := 0; i <= len(name); i++ {
			if !strings.HasPrefix(name[i:], next) {
				continue
			}
			c.Stars = append(c.Stars, name[:i])
			saved := *c
			if p.match(name[i:], part+2, c) {
				return true
			}
			*c = saved
			c.Stars = c.Stars[:len(c.Stars)-1]
		}
		return false
	}
	n := 0
	for n < len(name) && name[n] >= '0' && name[n] <= '9' {
		n++
	}
	v, err := strconv.Atoi(name[:n])
	if err != nil || n > 1 && name[0] == '0' {
		return false
	}
	to := &c.Layer
	if p.parts[part+1] == expertMark {
		to = &c.Expert
	}
	if *to >= 0 && *to != v {
		return false
	}
	*to = v
	return p.match(name[n:], part+2, c)
}

// Has says whether the pattern has {layer} or {expert}.
func (p Pattern) Has(mark string) bool {
	for i := 1; i < len(p.parts); i += 2 {
		if p.parts[i] == mark {
			return true
		}
	}
	return false
}

// Expand puts captures in the place of the wildcards: those that the captures lack stay as they are.
func (p Pattern) Expand(c Captures) string {
	var b strings.Builder
	stars := 0
	for i, s := range p.parts {
		switch {
		case i%2 == 0:
			b.WriteString(s)
		case s == layerMark && c.Layer >= 0:
			b.WriteString(strconv.Itoa(c.Layer))
		case s == expertMark && c.Expert >= 0:
			b.WriteString(strconv.Itoa(c.Expert))
		case s == star && stars < len(c.Stars):
			b.WriteString(c.Stars[stars])
			stars++
		default:
			b.WriteString(s)
		}
	}
	return b.String()
}
