package main

import (
	"fmt"
	"testing"
)

// The controller is killed between two pushes, and started again with its state: at the address that members were given, or at one that its file names.
func TestWeightsControllerKilled(t *testing.T) {
	for name, fixed := range map[string]bool{"file": false, "port": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "fsdp=2", "tp=2")
			at := fmt.Sprint("127.0.0.1:", freePort(t))
			control := func() {
				c.control(4, "--listen", at)
				if fixed {
					c.flags = []string{"--controller", at}
				}
			}
			control()
			c.join()
			c.mustPush(1)
			c.members["controller"].kill()
			control()
			c.mustPush(2)
			c.verify(2, "--all")
		})
	}
}
