//go:build cgo

package ofi

import (
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// watch has the death of the process on the other side of p end the connection, where that process is of this host: libfabric does not
// tell, for a connection that is idle.
func (d *domain) watch(p *peer) {
	h := p.remote.host
	if h.boot == 0 || h.boot != d.self.boot || h.pid == d.self.pid {
		return
	}
	fd, err := unix.PidfdOpen(int(h.pid), 0)
	if err != nil || started(int(h.pid)) != h.start {
		if err == nil {
			_ = unix.Close(fd)
		}
		return // it has died, or is not ours to see: the handshake or the owner notices
	}
	p.pidfd = fd
	if d.sleep.add(fd, int32(p.handle)) != nil {
		_ = unix.Close(fd)
		p.pidfd = -1
	}
}

func (d *domain) unwatch(p *peer) {
	_ = unix.EpollCtl(d.sleep.gate, unix.EPOLL_CTL_DEL, p.pidfd, nil)
	_ = unix.Close(p.pidfd)
	p.pidfd = -1
}

// mourn: the process behind a handle has died.
func (d *domain) mourn(tag int32) {
	p := d.peer(provider.Peer(uint32(tag)))
	if p == nil || p.pidfd < 0 {
		return
	}
	d.unwatch(p)
	p.died, p.bye = true, true
	d.fail(p, provider.StatusPeerDown, 0)
}
