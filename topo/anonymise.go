package topo

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path"
	"strings"
)

// addresses lists what tells machines apart in a tree, and replaces it if that is wanted.
func addresses(m *memory, replace bool) []Addresses {
	a := &anonymiser{ids: map[uint64]uint64{}, prefixes: map[uint64]uint64{}, nets: map[[3]byte]byte{}, hosts: map[netip.Addr]netip.Addr{}, used: map[[3]byte]byte{}, uuids: map[string]string{}}
	kinds := []string{"node GUIDs", "GIDs", "UUIDs of GPUs"}
	seen := map[string]map[string]bool{}
	for _, k := range kinds {
		seen[k] = map[string]bool{}
	}
	for _, name := range m.paths() {
		data, ok := m.files[name]
		if !ok {
			continue
		}
		text := strings.TrimSpace(string(data))
		switch {
		case path.Base(name) == "node_guid":
			if replace {
				text = a.guid(text)
			}
			seen[kinds[0]][text] = true
		case path.Base(path.Dir(name)) == "gids":
			gid, err := ParseGID(text)
			if err != nil || gid.IsUnspecified() {
				continue
			}
			if replace {
				gid = a.gid(gid)
				text = gid.StringExpanded()
				if gid.Is4In6() {
					text = expand4in6(gid)
				}
			}
			seen[kinds[1]][gid.Unmap().String()] = true
		case path.Base(name) == "information" && strings.HasPrefix(name, nvidiaGPUs+"/"):
			text = a.information(text, replace, seen[kinds[2]])
		default:
			continue
		}
		m.files[name] = []byte(text + "\n")
	}
	var all []Addresses
	for _, k := range kinds {
		all = append(all, Addresses{Kind: k, Values: sorted(seen[k])})
	}
	return all
}

// anonymiser replaces addresses by others, equal ones by equal ones. Owned by one Capture.
type anonymiser struct {
	ids      map[uint64]uint64         // GUIDs, which are also the lower half of many GIDs
	prefixes map[uint64]uint64         // the upper half of others: a number
	nets     map[[3]byte]byte          // the first three bytes of IPv4 addresses: a number
	used     map[[3]byte]byte          // hosts in each such net
	hosts    map[netip.Addr]netip.Addr // IPv4 addresses
	uuids    map[string]string
}

func (a *anonymiser) id(id uint64) uint64 {
	if id == 0 {
		return 0
	}
	if _, ok := a.ids[id]; !ok {
		a.ids[id] = uint64(len(a.ids) + 1)
	}
	return a.ids[id]
}

// guid replaces "506b:4b03:00c0:ffee".
func (a *anonymiser) guid(text string) string {
	var id uint64
	if _, err := fmt.Sscanf(strings.ReplaceAll(text, ":", ""), "%x", &id); err != nil {
		return ""
	}
	id = a.id(id)
	return fmt.Sprintf("%04x:%04x:%04x:%04x", id>>48, id>>32&0xffff, id>>16&0xffff, id&0xffff)
}

// gid replaces a GID by one of the same sort: IPv4 addresses by those of 198.18.0.0/15 (for benchmarks), with nets of 256 kept together,
// others by halves, where the upper one becomes a net of 2001:db8::/32 (for documentation) unless it is link-local.
func (a *anonymiser) gid(g netip.Addr) netip.Addr {
	if g.Is4In6() {
		return a.v4(g.Unmap())
	}
	b := g.As16()
	upper := binary.BigEndian.Uint64(b[:8])
	if !g.IsLinkLocalUnicast() {
		if _, ok := a.prefixes[upper]; !ok {
			a.prefixes[upper] = 0x20010db8<<32 | uint64(len(a.prefixes)+1)
		}
		upper = a.prefixes[upper]
	}
	binary.BigEndian.PutUint64(b[:8], upper)
	binary.BigEndian.PutUint64(b[8:], a.id(binary.BigEndian.Uint64(b[8:])))
	return netip.AddrFrom16(b)
}

func (a *anonymiser) v4(ip netip.Addr) netip.Addr {
	if to, ok := a.hosts[ip]; ok {
		return to
	}
	b := ip.As4()
	net := [3]byte(b[:3])
	if _, ok := a.nets[net]; !ok {
		a.nets[net] = byte(len(a.nets)) // a machine has fewer than 256 nets
	}
	a.used[net]++
	to := netip.AddrFrom16(netip.AddrFrom4([4]byte{198, 18, a.nets[net], a.used[net]}).As16())
	a.hosts[ip] = to
	return to
}

// expand4in6 writes an IPv4-mapped address as the kernel does in a GID table.
func expand4in6(a netip.Addr) string {
	b := a.As16()
	return fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", b[12], b[13], b[14], b[15])
}

// information lists and replaces the UUID in what NVIDIA's driver says of a GPU, line by line; serial numbers go altogether.
func (a *anonymiser) information(text string, replace bool, seen map[string]bool) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		name := strings.ToLower(strings.TrimSpace(key))
		if !strings.Contains(name, "uuid") && !strings.Contains(name, "serial") {
			out = append(out, line)
			continue
		}
		if replace {
			if _, ok := a.uuids[value]; !ok {
				a.uuids[value] = fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", len(a.uuids)+1)
			}
			line = strings.Replace(line, value, a.uuids[value], 1)
			value = a.uuids[value]
		}
		seen[value] = true
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}
