package reshard

import (
	"slices"
	"strings"
)

// Drop as a rule's Into says that the destination does not want the tensors.
const Drop = "-"

// link says that a tensor of the source is a tensor of the destination, or a part of it, or has it as a part.
type link struct {
	src, dst int
	rule     int   // -1: by name
	how      fit   // what has to be done to the source's index space
	index    int64 // insert, pick: which index of the first dimension
	stage    int
}

// fit is how the index space of a source tensor becomes that of the destination.
type fit uint8

const (
	same    fit = iota
	insert      // the destination is a stack of sources: index is this one's
	pick        // the source is a stack of destinations: index is that one's
	reshape     // row-major
)

// matcher turns names into links.
type matcher struct {
	src, dst *side
	rules    []Rule
	match    []Pattern
	into     []Pattern
	fault    Fault
	target   map[string][]link // by the name in the destination; dst not set yet
	dropped  []bool            // by source tensor
	used     []bool
}

// matchAll returns links sorted by destination, then index.
func matchAll(src, dst *side, rules []Rule) ([]link, error) {
	m := &matcher{src: src, dst: dst, rules: rules, target: make(map[string][]link), fault: Fault{Kind: ErrLayout, What: "plan"}}
	m.dropped, m.used = make([]bool, len(src.Tensors)), make([]bool, len(src.Tensors))
	for i := range rules {
		p, err := ParsePattern(rules[i].Match)
		if err != nil {
			return nil, planFault(ErrLayout, "rule %d: %v", i, err)
		}
		q, err := ParsePattern(rules[i].Into)
		if err != nil {
			return nil, planFault(ErrLayout, "rule %d: %v", i, err)
		}
		m.match, m.into = append(m.match, p), append(m.into, q)
	}
	if len(rules) > 0 {
		for i := range src.Tensors {
			if src.way[i] >= 0 {
				m.source(i)
			}
		}
	}
	return m.links()
}

// source applies the first rule that fits.
func (m *matcher) source(i int) {
	t := &m.src.Tensors[i]
	for r := range m.rules {
		c, ok := m.match[r].Match(t.Name)
		if !ok {
			continue
		}
		rule := &m.rules[r]
		name := t.Name
		if rule.Into == Drop {
			m.dropped[i] = true
			return
		}
		if rule.Into != "" {
			name = m.into[r].Expand(c)
		}
		l := link{src: i, rule: r}
		switch {
		case c.Expert < 0 && rule.Into != "" && m.into[r].Has(expertMark): // a stack that becomes single tensors
			if len(t.Shape) == 0 {
				m.fault.add("%s: rule %q -> %q takes it apart, but it has no dimensions", t.Name, rule.Match, rule.Into)
				return
			}
			for e := int64(0); e < t.Shape[0]; e++ {
				c.Expert = int(e)
				l.how, l.index = pick, e
				one := m.into[r].Expand(c)
				m.target[one] = append(m.target[one], l)
			}
			return
		case rule.View != nil && len(rule.View) == len(t.Shape)+1 && slices.Equal(rule.View[1:], t.Shape):
			l.how, l.index = insert, int64(rule.Slot)
			if rule.Slot == -1 {
				l.index = int64(c.Expert)
			}
			if l.index < 0 {
				m.fault.add("%s: rule %q -> %q has slot -1, but captures no {expert}", t.Name, rule.Match, rule.Into)
				return
			}
		case rule.View != nil && !slices.Equal(rule.View, t.Shape):
			l.how = reshape
		}
		m.target[name] = append(m.target[name], l)
		return
	}
	m.target[t.Name] = append(m.target[t.Name], link{src: i, rule: -1})
}

// find returns the links of a name in the destination: by rules, by name, then by the source's aliases.
func (m *matcher) find(name string) []link {
	for range len(m.src.Aliases) + 1 {
		if l := m.target[name]; l != nil {
			return l
		}
		if i, ok := m.src.byName[name]; ok && len(m.rules) == 0 && m.src.way[i] >= 0 {
			return []link{{src: i, rule: -1}}
		}
		next, ok := m.src.Aliases[name]
		if !ok {
			return nil
		}
		name = next
	}
	return nil
}

func (m *matcher) links() ([]link, error) {
	derived := map[string]bool{}
	for _, d := range m.dst.Derived {
		derived[d.Name] = true
	}
	var all []link
	for i := range m.dst.Tensors {
		t := &m.dst.Tensors[i]
		if m.dst.way[i] < 0 || derived[t.Name] {
			continue
		}
		if to, alias := m.dst.Aliases[t.Name]; alias { // the same bytes by another name
			if k, ok := m.dst.byName[to]; !ok || m.dst.way[k] != m.dst.way[i] || !slices.Equal(m.dst.offsets(k), m.dst.offsets(i)) {
				m.fault.add("%s: it is an alias of %s in the destination, and lies elsewhere; drop the alias there, and declare it in the source", t.Name, to)
			}
			continue
		}
		found := m.find(t.Name)
		if len(found) == 0 {
			m.fault.add("%s: the destination needs it, no source tensor has this name; add a rule or an alias", t.Name)
			continue
		}
		all = append(all, m.check(i, found)...)
	}
	for i := range m.src.Tensors {
		name := m.src.Tensors[i].Name
		if _, alias := m.dst.Aliases[name]; m.src.way[i] >= 0 && !m.used[i] && !m.dropped[i] && !alias && !derived[name] {
			m.fault.add("%s: the source has it, the destination does not want it; add a rule, or one with Into %q", name, Drop)
		}
	}
	return all, m.fault.err()
}

// check says whether the shapes of the links of one destination tensor fit, and whether they are all of it.
func (m *matcher) check(dst int, found []link) []link {
	t := &m.dst.Tensors[dst]
	out := make([]link, 0, len(found))
	var seen map[int64]int // index -> source; nil if there is one only
	if len(found) > 1 {
		seen = make(map[int64]int, len(found))
	}
	for _, l := range found {
		s := &m.src.Tensors[l.src]
		m.used[l.src] = true
		l.dst = dst
		var ok bool
		switch want := t.Shape; l.how {
		case same:
			ok = slices.Equal(s.Shape, want)
		case insert:
			ok = len(want) == len(s.Shape)+1 && slices.Equal(want[1:], s.Shape) && l.index < want[0]
		case pick:
			ok = slices.Equal(s.Shape[1:], want)
		case reshape:
			ok = slices.Equal(m.rules[l.rule].View, want) && volume(want) == volume(s.Shape)
		}
		if !ok {
			m.fault.add("%s %v: the source has %s %v, %s makes no such shape", t.Name, t.Shape, s.Name, s.Shape, m.ruleName(l.rule))
			continue
		}
		before, twice := seen[l.index]
		if len(found) > 1 && (twice || l.how != insert) {
			m.fault.add("%s: comes from both %s and %s", t.Name, m.src.Tensors[before].Name, s.Name)
			continue
		}
		if seen != nil {
			seen[l.index] = l.src
		}
		out = append(out, l)
	}
	if len(out) == len(found) && found[0].how == insert {
		for e := int64(0); e < t.Shape[0]; e++ {
			if _, ok := seen[e]; !ok && (len(found) > 1 || e != found[0].index) {
				m.fault.add("%s: no source tensor for index %d of %d", t.Name, e, t.Shape[0])
			}
		}
	}
	slices.SortStableFunc(out, func(a, b link) int { return int(a.index - b.index) })
	return out
}

func (m *matcher) ruleName(r int) string {
	if r < 0 {
		return "a match by name"
	}
	return "rule " + m.rules[r].Match + " -> " + m.rules[r].Into
}

func volume(shape []int64) int64 {
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	return n
}

// stageOf is the stage of a tensor by its name, and its place in the order of stages.
func stageOf(name string) (stage string, order int) {
	rest := name
	for rest != "" {
		var word string
		word, rest, _ = strings.Cut(rest, ".")
		switch word {
		case "layers", "h", "blocks", "block", "layer":
			number, _, _ := strings.Cut(rest, ".")
			if n, ok := decimal(number); ok {
				return "layer-" + number, n + 1
			}
		}
	}
	switch {
	case strings.Contains(name, "embed") || strings.Contains(name, "wte"):
		return "embed", 0
	case strings.Contains(name, "lm_head") || strings.Contains(name, "output"):
		return "head", maxLayers + 2
	}
	return "final", maxLayers + 1
}

// maxLayers bounds the numbers of layers that name a stage.
const maxLayers = 1 << 20

func decimal(s string) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' || n > maxLayers/10 {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, s != "" && (s == "0" || s[0] != '0')
}
