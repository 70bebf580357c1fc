package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxJSON is the longest geometry file in bytes.
const maxJSON = 1 << 20

// jsonModel is a geometry file.
type jsonModel struct {
	Name   string      `json:"name"`
	Layers int         `json:"layers"`
	TP     *int        `json:"tp"`
	PP     *int        `json:"pp"`
	Groups []jsonGroup `json:"groups"`
}

type jsonGroup struct {
	PageTokens int   `json:"page_tokens"`
	KVHeads    int   `json:"kv_heads"`
	HeadDim    int   `json:"head_dim"`
	ElemSize   int   `json:"elem_size"`
	Planes     int   `json:"planes"`
	Window     int   `json:"window"`
	Layers     []int `json:"layers"`
}

// ReadJSON reads a model from a geometry file:
//
//	{
//	  "name": "my-model",        fingerprint, at most 200 bytes
//	  "layers": 62,
//	  "tp": 4, "pp": 1,          optional, default 1
//	  "groups": [
//	    {"page_tokens": 64, "kv_heads": 8, "head_dim": 128, "elem_size": 2, "planes": 2},
//	    {"page_tokens": 64, "kv_heads": 8, "head_dim": 128, "elem_size": 2, "planes": 2,
//	     "window": 1024, "layers": [0, 1, 2, 3, 4]}
//	  ]
//	}
//
// elem_size is in bytes; planes is 2 for keys and values, 1 for a latent. Each layer belongs to one group: a group without
// layers has all that the others do not name, and only one may lack them. Unknown fields are refused. Errors name the field.
func ReadJSON(r io.Reader) (Model, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxJSON+1))
	if err != nil {
		return Model{}, fmt.Errorf("geometry file: %w", err)
	}
	if len(data) > maxJSON {
		return Model{}, fmt.Errorf("geometry file: more than %d bytes", maxJSON)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var j jsonModel
	if err := d.Decode(&j); err != nil {
		return Model{}, fmt.Errorf("geometry file: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Model{}, errors.New("geometry file: more follows after the first object")
	}
	m, err := j.model()
	if err != nil {
		return Model{}, fmt.Errorf("geometry file: %w", err)
	}
	return m, nil
}

// maxName leaves room for what Scale adds to a fingerprint.
const maxName = 200

func (j *jsonModel) model() (Model, error) {
	m := Model{Name: j.Name, Layers: j.Layers, TP: 1, PP: 1}
	if j.TP != nil {
		m.TP = *j.TP
	}
	if j.PP != nil {
		m.PP = *j.PP
	}
	err := inRange(
		number{"length of name", len(j.Name), 1, maxName}, number{"layers", j.Layers, 1, maxLayers}, number{"tp", m.TP, 1, maxRanks}, number{"pp", m.PP, 1, j.Layers},
		number{"number of groups", len(j.Groups), 1, maxGroups})
	if err != nil {
		return m, err
	}
	for i, g := range j.Groups {
		err := inRange(
			number{"page_tokens", g.PageTokens, 1, maxTokenPage}, number{"kv_heads", g.KVHeads, 1, maxDim}, number{"head_dim", g.HeadDim, 1, maxDim},
			number{"elem_size", g.ElemSize, 1, maxElem}, number{"planes", g.Planes, 1, maxPlanes}, number{"window", g.Window, 0, maxWindow})
		if err != nil {
			return m, fmt.Errorf("groups[%d]: %w", i, err)
		}
		m.Groups = append(m.Groups, Group{g.PageTokens, g.KVHeads, g.HeadDim, g.ElemSize, g.Planes, g.Window})
	}
	if err := j.assign(&m); err != nil {
		return m, err
	}
	// What only shows when the model is laid out, as pages that are too large.
	_, _, err = Build(Spec{Model: m})
	return m, err
}

// assign gives each layer its group.
func (j *jsonModel) assign(m *Model) error {
	const none = 0xff
	of := bytes.Repeat([]byte{none}, j.Layers)
	rest := -1
	for i, g := range j.Groups {
		if g.Layers == nil {
			if rest >= 0 {
				return fmt.Errorf("%w: groups[%d].layers is missing, as groups[%d].layers: only one group may have the rest", ErrInvalid, i, rest)
			}
			rest = i
		}
		for _, l := range g.Layers {
			if l < 0 || l >= j.Layers {
				return fmt.Errorf("%w: groups[%d].layers has layer %d, want 0 .. %d", ErrInvalid, i, l, j.Layers-1)
			}
			if of[l] != none {
				return fmt.Errorf("%w: groups[%d].layers has layer %d, which groups[%d] has", ErrInvalid, i, l, of[l])
			}
			of[l] = uint8(i)
		}
	}
	for l := range of {
		if of[l] != none {
			continue
		}
		if rest < 0 {
			return fmt.Errorf("%w: layer %d is in no group's layers", ErrInvalid, l)
		}
		of[l] = uint8(rest)
	}
	if len(j.Groups) > 1 {
		m.LayerGroups = of
		return checkLayerGroups(&Geometry{Layers: m.Layers, Groups: m.Groups, LayerGroups: of})
	}
	return nil
}
