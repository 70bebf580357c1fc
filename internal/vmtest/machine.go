package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// layout is what VMs there are and what they have.
type layout struct {
	vms    int
	pairs  int    // veth cables in the first VM, a device on each end
	links  int    // cables between the two VMs, a device on each end
	cpus   int    // of each VM
	memory int    // MiB of each VM
	mtu    int    // of all cables; path MTUs are the largest power of two that fits
	path   string // folder of this machine that VMs see
}

const (
	portName = "hawser" // of the serial port that frames go through
	shareTag = "share"  // of the shared folder
	// Carry-less multiplication is dear under emulation, and rxe's checksums use it where they find it.
	cpuModel = "max,-pclmulqdq"
	// What emulation makes slow or wrong is off: mitigations, clocks that are checked against each other, self-tests.
	kernelLine = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on nowatchdog audit=0 apparmor=0 cryptomgr.notests tsc=unstable no_timer_check"
)

// machine is one VM. Its session owns it.
type machine struct {
	rank    int
	cmd     *exec.Cmd
	port    net.Conn
	in      *bufio.Reader
	out     *frames
	console *tail
	job     sync.Mutex    // held while a program runs
	ready   chan struct{} // closed when it has booted or died
	hello   hello
	dead    error // why no job can run; set before ready is closed, or under job
	powered bool  // it was told to lose its power; under job
}

// start starts qemu. initrd is a memory file. cables are this VM's ends of the links. The calling goroutine must be locked to a
// thread that lives as long as the VM shall: the kernel ends the VM with that thread.
func start(im *image, l layout, rank int, initrd *os.File, cables []*os.File) (*machine, error) {
	ours, theirs, err := socketPair("port", unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	m := &machine{rank: rank, console: &tail{}, ready: make(chan struct{})}
	m.port, err = net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, fmt.Errorf("start VM %d: %w", rank, err)
	}
	m.in, m.out = bufio.NewReaderSize(m.port, 64<<10), &frames{w: m.port}

	const first = 3 // descriptor of ExtraFiles[0] in the child
	files := append([]*os.File{initrd, theirs}, cables...)
	args := []string{
		"-M", "q35", "-nodefaults", "-no-reboot", "-display", "none", "-accel", "tcg,thread=multi", "-cpu", cpuModel,
		"-smp", fmt.Sprint(l.cpus), "-m", fmt.Sprint(l.memory), "-kernel", im.kernel, "-initrd", fmt.Sprintf("/proc/self/fd/%d", first),
		"-append", kernelLine + " " + l.line(rank), "-serial", "stdio",
		"-device", "virtio-serial-pci", "-chardev", fmt.Sprintf("socket,id=port,fd=%d", first+1), "-device", "virtserialport,chardev=port,name=" + portName,
	}
	if l.path != "" {
		args = append(args,
			"-fsdev", "local,id=share,readonly=on,security_model=none,multidevs=remap,path="+strings.ReplaceAll(l.path, ",", ",,"),
			"-device", "virtio-9p-pci,fsdev=share,mount_tag="+shareTag)
	}
	for i := range cables {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=n%d,local.type=fd,local.str=%d", i, first+2+i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:78:%02x:%02x", i, i, rank+1))
	}
	m.cmd = exec.Command("qemu-system-x86_64", args...)
	m.cmd.ExtraFiles = files
	m.cmd.Stdout, m.cmd.Stderr = m.console, m.console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.port.Close()
		return nil, fmt.Errorf("start VM %d: %w", rank, err)
	}
	return m, nil
}

// stop ends the VM and waits for it.
func (m *machine) stop() {
	_ = m.cmd.Process.Kill() // it may have ended
	_ = m.cmd.Wait()         // killed: that is no news
	m.port.Close()
}

// boot waits for the VM's first words.
func (m *machine) boot() {
	defer close(m.ready)
	k, body, err := readFrame(m.in)
	switch {
	case err != nil:
		m.dead = fmt.Errorf("VM %d ended while it booted", m.rank)
	case k != frameHello:
		m.dead = fmt.Errorf("VM %d: frame %q in place of its greeting", m.rank, k)
	default:
		m.dead = decode(body, &m.hello)
		if m.dead == nil && m.hello.Err != "" {
			m.dead = fmt.Errorf("VM %d: %s", m.rank, m.hello.Err)
		}
	}
}

// memoryFile is the first file system of the VMs: the image and, as process 1, this program.
func memoryFile(im *image) (*os.File, error) {
	fd, err := unix.MemfdCreate("initrd", 0)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initrd")
	err = func() error {
		root, err := os.Open(im.root)
		if err != nil {
			return err
		}
		defer root.Close()
		if _, err := io.Copy(f, root); err != nil {
			return err
		}
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			return err
		}
		a := newArchive(f)
		a.add("init", modeFile|0o755, self)
		return a.close()
	}()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("initrd: %w", err)
	}
	return f, nil
}

// socketPair returns two connected sockets. A stream is for frames, datagrams are for packets: with them qemu does not keep half of one
// for a machine that has gone, behind which a card would wait for ever.
func socketPair(name string, kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// tail keeps the last of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if cut := len(t.buf) - tailBytes; cut > 0 {
		t.buf = t.buf[cut:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(string(t.buf), "\r", "")
}

var errPower = errors.New("lost its power, as it was told to")
