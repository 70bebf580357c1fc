//go:build cgo

package ofi

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

const (
	secretSize  = 16
	addrVersion = 1
)

// hostID tells processes apart that can watch each other's death.
type hostID struct {
	boot  uint64 // a digest of the boot id and the pid namespace, 0 when they are not known
	pid   uint32
	start uint64 // of the process, in ticks since boot: pids come back
}

// thisHost is about this process.
func thisHost() (hostID, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return hostID{pid: uint32(os.Getpid())}, nil //nolint:nilerr // then nobody watches this process
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", bootID(), st.Dev, st.Ino))
	pid := os.Getpid()
	return hostID{binary.LittleEndian.Uint64(sum[:]), uint32(pid), started(pid)}, nil
}

// started is when a process was started, 0 when it does not exist.
func started(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// Fields after the name, which is in brackets and may hold anything; starttime is the 22nd of all.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return 0
	}
	t, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return 0
	}
	return t
}

// offer is what an Addr says.
type offer struct {
	kind    uint32 // a digest of the network's name: both sides must be of one
	handle  provider.Peer
	host    hostID
	scratch [2]uint64 // address and key of what empty writes name
	ctl     []byte    // name of the endpoint for control messages
	data    []byte    // and of that for writes; empty: the same
	secret  [secretSize]byte
}

func digest(network string) uint32 {
	sum := sha256.Sum256([]byte(network))
	return binary.LittleEndian.Uint32(sum[:])
}

func (o *offer) addr() provider.Addr {
	b := []byte{addrVersion}
	b = binary.LittleEndian.AppendUint32(b, o.kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(o.handle))
	b = binary.LittleEndian.AppendUint64(b, o.host.boot)
	b = binary.LittleEndian.AppendUint32(b, o.host.pid)
	b = binary.LittleEndian.AppendUint64(b, o.host.start)
	b = binary.LittleEndian.AppendUint64(b, o.scratch[0])
	b = binary.LittleEndian.AppendUint64(b, o.scratch[1])
	b = append(append(b, byte(len(o.ctl))), o.ctl...)
	b = append(append(b, byte(len(o.data))), o.data...)
	return append(b, o.secret[:]...)
}

// offerFixed is the length of what stands before the names.
const offerFixed = 1 + 4 + 4 + 8 + 4 + 8 + 8 + 8

func parseOffer(b provider.Addr) (o offer, err error) {
	bad := func(what string) error {
		return fmt.Errorf("%w: not an address of libfabric: %s", provider.ErrInvalid, what)
	}
	if len(b) > provider.MaxAddr || len(b) < offerFixed+2+secretSize {
		return o, bad("its length")
	}
	if b[0] != addrVersion {
		return o, bad("its version")
	}
	o.kind = binary.LittleEndian.Uint32(b[1:])
	o.handle = provider.Peer(binary.LittleEndian.Uint32(b[5:]))
	o.host = hostID{binary.LittleEndian.Uint64(b[9:]), binary.LittleEndian.Uint32(b[17:]), binary.LittleEndian.Uint64(b[21:])}
	o.scratch = [2]uint64{binary.LittleEndian.Uint64(b[29:]), binary.LittleEndian.Uint64(b[37:])}
	rest := []byte(b[offerFixed:])
	for _, name := range []*[]byte{&o.ctl, &o.data} {
		if len(rest) < 1 || int(rest[0]) > maxName || len(rest) < 1+int(rest[0]) {
			return o, bad("a name")
		}
		*name = bytes.Clone(rest[1 : 1+rest[0]])
		rest = rest[1+rest[0]:]
	}
	if len(rest) != secretSize || len(o.ctl) == 0 {
		return o, bad("its end")
	}
	o.secret = [secretSize]byte(rest)
	return o, nil
}
