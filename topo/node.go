package topo

import (
	"path"
	"strconv"
	"strings"
)

// Node is a NUMA node.
type Node struct {
	ID        int    `json:"id"`
	CPUs      string `json:"cpus"`      // as Linux writes lists: "0-47,96-143"; "" for a node of memory alone
	Distances []int  `json:"distances"` // to the nodes in their order; 10 is the node itself
}

const nodesDir = "sys/devices/system/node"

func (t *tree) nodes() []Node {
	nodes := []Node{}
	for _, name := range t.list(nodesDir) {
		digits, ok := strings.CutPrefix(name, "node")
		id, err := strconv.Atoi(digits)
		if !ok || err != nil || id < 0 || id > maxNode {
			continue
		}
		n := Node{ID: id, CPUs: t.line(path.Join(nodesDir, name, "cpulist"))}
		for _, f := range strings.Fields(t.line(path.Join(nodesDir, name, "distance"))) {
			if d, err := strconv.Atoi(f); err == nil {
				n.Distances = append(n.Distances, d)
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}
