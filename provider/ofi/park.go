//go:build cgo

package ofi

import (
	"errors"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// libfabric's shm hands an endpoint's memory to the other endpoints of the same process as it is, and takes it away when the endpoint is
// closed: whoever still has something for it then writes to memory that is gone. So an endpoint that others of this process know stays until no
// Domain over shm is open here. Nobody polls it, and its registrations have ended, so nothing lands.

// yard keeps what such Domains leave behind.
type yard struct {
	mu      sync.Mutex
	open    int            // Domains, guarded by mu
	remains []func() error // guarded by mu
}

var graveyard yard

func (y *yard) enter() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.open++
}

// leave frees everything when the last Domain has gone.
func (y *yard) leave(remains func() error) (err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.remains = append(y.remains, remains)
	if y.open--; y.open > 0 {
		return nil
	}
	for _, free := range y.remains {
		err = errors.Join(err, free())
	}
	y.remains = nil
	return err
}

// remains closes what is left of libfabric's.
func (d *domain) remains() func() error {
	rail, ctl, parked, info, arenas := d.rail, d.ctl, d.parked, d.info, d.arenas
	return func() (err error) {
		if rail != nil {
			for _, ep := range append([]unsafe.Pointer{ctl}, parked...) {
				if ep != nil {
					err = errors.Join(err, rail.closeEndpoint(ep))
				}
			}
			err = errors.Join(err, rail.close())
		}
		info.free()
		for _, b := range arenas {
			err = errors.Join(err, unix.Munmap(b))
		}
		return err
	}
}

// bury closes the remains, now or when that is safe.
func (d *domain) bury(remains func() error) error {
	if d.fragile && d.rail != nil {
		return graveyard.leave(remains)
	}
	return remains()
}
