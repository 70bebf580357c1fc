//go:build cgo

package ofi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// TestLibfabricIsForItsOwnCards: it is not loaded for cards that package verbs serves.
func TestLibfabricIsForItsOwnCards(t *testing.T) {
	type card struct{ name, node, driver string }
	mlx, rxe := card{"mlx5_0", "1: CA", "mlx5_core"}, card{"rxe0", "1: CA", ""}
	for name, c := range map[string]struct {
		cards []card
		cxi   bool
		want  string // why not
	}{
		"none":              {want: "nothing in /sys/class/infiniband"},
		"mlx5":              {cards: []card{mlx, rxe, {"irdma0", "4: RNIC", "ice"}}, want: "3 of package verbs"},
		"efa":               {cards: []card{mlx, {"rdmap0s6", "7: unspecified", "efa"}}},
		"omni-path":         {cards: []card{{"hfi1_0", "1: CA", "hfi1"}}},
		"what is not known": {cards: []card{{"new0", "", ""}}},
		"slingshot":         {cards: []card{mlx}, cxi: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			folder := func(dir string) string {
				dir = filepath.Join(root, dir)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				return dir
			}
			for _, k := range c.cards {
				dir := folder(filepath.Join(classIB, k.name, "device"))
				if k.driver != "" {
					if err := os.Symlink("../../drivers/"+k.driver, filepath.Join(dir, "driver")); err != nil {
						t.Fatal(err)
					}
				}
				if k.node == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, "../node_type"), []byte(k.node+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if c.cxi {
				folder(classCXI + "/cxi0")
			}
			switch err := checkHardware(root); {
			case c.want == "" && err != nil:
				t.Errorf("%v, want that libfabric is loaded", err)
			case c.want != "" && (!errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want unavailable with %q", err, c.want)
			}
		})
	}
}
