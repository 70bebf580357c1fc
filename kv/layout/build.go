package layout

import (
	"fmt"
	"slices"
)

// builder fills a pair. Its maps are only looked up, so that the order of everything is that of the topologies.
type builder struct {
	*Pair
	flowOf     map[flowKey]uint32
	templateOf map[Template]uint32
	entries    int
}

// flowKey is what makes two lanes one flow.
type flowKey struct {
	src, dst, group  int
	replicas, number int
	box              box
}

// segment is a range of heads that the same source ranks hold.
type segment struct {
	first, heads int
	holders      []int
}

// stage is what consecutive layers that the same source ranks hold have in common.
type stage struct {
	holders  []int
	segments [][]segment // by destination rank; nil until wanted
}

func (b *builder) build() error {
	stages, err := b.stages()
	if err != nil {
		return err
	}
	for s, r := range b.srcRanks {
		starts := make([]int, 0, r.Layers+1)
		for layer := r.LayerFirst; layer < r.LayerFirst+r.Layers; layer++ {
			starts = append(starts, len(b.lanes))
			planes := b.src.Members[0].Groups[b.src.Members[0].GroupOf(layer)].Planes
			for plane := range planes {
				if err := b.plane(stages[layer], s, layer, plane); err != nil {
					return err
				}
			}
		}
		b.starts = append(b.starts, append(starts, len(b.lanes)))
	}
	return nil
}

// stages are those of all layers.
func (b *builder) stages() ([]*stage, error) {
	var stages []*stage
	for layer := range b.src.Members[0].Layers {
		var holders []int
		for s, r := range b.srcRanks {
			if r.HasLayer(layer) {
				holders = append(holders, s)
			}
		}
		if n := len(stages); n > 0 && slices.Equal(holders, stages[n-1].holders) {
			stages = append(stages, stages[n-1])
		} else {
			stages = append(stages, &stage{holders, make([][]segment, len(b.dstRanks))})
		}
		st := stages[layer]
		for d, r := range b.dstRanks {
			if !r.HasLayer(layer) || st.segments[d] != nil {
				continue
			}
			var err error
			if st.segments[d], err = b.split(holders, r.Rank); err != nil {
				return nil, fmt.Errorf("%w: layer %d: %w", ErrInfeasible, layer, err)
			}
		}
	}
	return stages, nil
}

// split cuts the heads of a destination rank where the set of source ranks that hold them changes.
func (b *builder) split(holders []int, d *Rank) ([]segment, error) {
	end := d.HeadFirst + d.Heads
	cuts := []int{d.HeadFirst, end}
	for _, s := range holders {
		r := b.srcRanks[s]
		for _, cut := range [...]int{r.HeadFirst, r.HeadFirst + r.Heads} {
			if cut > d.HeadFirst && cut < end {
				cuts = append(cuts, cut)
			}
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	var all []segment
	for i, first := range cuts[:len(cuts)-1] {
		g := segment{first: first, heads: cuts[i+1] - first}
		for _, s := range holders {
			if r := b.srcRanks[s]; r.HeadFirst <= first && first < r.HeadFirst+r.Heads {
				g.holders = append(g.holders, s)
			}
		}
		if len(g.holders) == 0 {
			return nil, fmt.Errorf("no rank of the prefill side holds head %d, which rank %d of the decode side wants", first, d.Index)
		}
		all = append(all, g)
	}
	return all, nil
}

// plane adds the lanes of one source rank, layer and plane.
func (b *builder) plane(st *stage, s, layer, plane int) error {
	for d, r := range b.dstRanks {
		if !r.HasLayer(layer) {
			continue
		}
		for _, g := range st.segments[d] {
			number, ok := slices.BinarySearch(g.holders, s)
			if !ok {
				continue
			}
			if err := b.lane(s, d, number, layer, plane, g); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) lane(s, d, number, layer, plane int, g segment) error {
	if len(b.lanes) == maxLanes {
		return fmt.Errorf("%w: more than %d pairs of ranks, layers and planes", ErrInfeasible, maxLanes)
	}
	src, dst := b.srcRanks[s], b.dstRanks[d]
	sv, dv := src.Views[layer-src.LayerFirst][plane], dst.Views[layer-dst.LayerFirst][plane]
	key := flowKey{
		src: s, dst: d, group: b.src.Members[0].GroupOf(layer), replicas: len(g.holders), number: number,
		box: box{g.heads, g.first - src.HeadFirst, g.first - dst.HeadFirst, sv.Strides, dv.Strides},
	}
	i, ok := b.flowOf[key]
	if !ok {
		i = uint32(len(b.flows))
		b.flowOf[key] = i
		f := flow{src: s, dst: d, group: key.group, replicas: key.replicas, number: number, shift: dst.Index}
		f.fill(b.src.Members[0].Groups[key.group], b.grids[key.group], &key.box)
		b.flows = append(b.flows, f)
		if b.entries += len(f.entries); b.entries > maxEntries {
			return fmt.Errorf("%w: the pattern has more than %d entries: use page sizes of which one divides the other", ErrInfeasible, maxEntries)
		}
	}
	f := &b.flows[i]
	f.lanes++
	b.wanted[f.group] = true
	t := Template{
		src.member, sv.Region, sv.Page / int64(f.srcFold),
		dst.member, dv.Region, dv.Page / int64(f.dstFold),
	}
	n, ok := b.templateOf[t]
	if !ok {
		n = uint32(len(b.templates))
		b.templateOf[t] = n
		b.templates = append(b.templates, t)
	}
	b.lanes = append(b.lanes, Lane{i, n, uint16(layer), uint8(plane)})
	return nil
}
