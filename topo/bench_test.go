package topo

import (
	"path/filepath"
	"testing"
)

// BenchmarkRead reads the largest machine from a folder, as a machine reads itself.
func BenchmarkRead(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "m")
	if _, err := Capture("testdata/aws-p5.tar.gz", dir, false); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Read(dir); err != nil {
			b.Fatal(err)
		}
	}
}
