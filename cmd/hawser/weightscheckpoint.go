package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
	"github.com/hawser-project/hawser/reshard/safetensors"
)

type weightsCheckpointCmd struct {
	quietFlag

	Model   string `default:"tiny" placeholder:"NAME" help:"A published model, or tiny, of 53 MB (default: ${default})."`
	Version uint64 `default:"1" placeholder:"N" help:"Other versions have other values (default: ${default})."`
	Out     string `required:"" short:"o" placeholder:"DIR" help:"Where to write it; the directory is made."`
}

// madeUp is the result in JSON.
type madeUp struct {
	weightsHead

	Dir   string `json:"dir"`
	Count int    `json:"tensors"`
	Bytes int64  `json:"bytes"`
}

// Run writes the checkpoint.
func (c *weightsCheckpointCmd) Run(u *ui) error {
	c.hush(u)
	m, err := models.Lookup(c.Model)
	if err != nil {
		return &usageError{err}
	}
	n, err := makeCheckpoint(c.Out, m, c.Version)
	if err != nil {
		return err
	}
	r := madeUp{weightsResult("checkpoint gen"), c.Out, len(m.Checkpoint()), n}
	u.printf("%s: %d tensors, %s of made-up values\n", r.Dir, r.Count, bytesText(r.Bytes))
	return u.result(r)
}

// shardBytes is the most data of one file of a checkpoint that is made up.
const shardBytes = 32 << 20

// makeCheckpoint writes a checkpoint of made-up values: every element depends on its tensor, its index and the version.
func makeCheckpoint(dir string, m *models.Model, version uint64) (bytes int64, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	var tensors []safetensors.Tensor
	for _, t := range m.Checkpoint() {
		n, err := safetensors.Bytes(t.DType, t.Shape)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", t.Name, err)
		}
		bytes += n
		tensors = append(tensors, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	return bytes, safetensors.Save(dir, tensors, shardBytes, func(w io.Writer, i int) error {
		n, err := safetensors.Bytes(tensors[i].DType, tensors[i].Shape)
		if err != nil {
			return err
		}
		return madeUpValues(w, n, tensors[i].DType, mix(version<<32|uint64(i)))
	})
}

// madeUpValues writes n bytes that are finite numbers of a type around 1/32 in size, as weights are.
func madeUpValues(w io.Writer, n int64, d reshard.DType, seed uint64) error {
	block := make([]byte, 0, 64<<10)
	for at := int64(0); at < n; at += int64(cap(block)) {
		block = block[:0]
		for k := int64(0); k < int64(cap(block)) && at+k < n; k += 8 {
			x := mix(seed + uint64(at+k))
			switch d {
			case reshard.BF16: // exponents 2^-7 to 2^-4
				x = x&0x81ff81ff81ff81ff | 0x3c003c003c003c00
			case reshard.F32:
				x = x&0x81ffffff81ffffff | 0x3c0000003c000000
			}
			block = binary.LittleEndian.AppendUint64(block, x)
		}
		if _, err := w.Write(block[:min(int64(len(block)), n-at)]); err != nil {
			return err
		}
	}
	return nil
}

// mix spreads the bits of a number (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
