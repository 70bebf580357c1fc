package versus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// iperf3Name is the driver of iperf3, and iperf3Path the variable that tells it where the program is.
const (
	iperf3Name = "iperf3"
	iperf3Path = "HAWSER_IPERF3"
)

// A server that is not ready, or a client that does not come to an end, within this time is hung.
const toolLimit = 30 * time.Second

// iperf3Bytes is the least that a client sends: in less, the start of the stream would count against it.
const iperf3Bytes = 2 << 30

// iperf3 is the driver: a server and a client for each sample. It sends one buffer again and again, and nobody reads it.
type iperf3 struct {
	ctx context.Context // of the process: a driver's methods have none
	o   Opening
}

func (d *iperf3) open(o Opening) (reply, error) {
	d.o = o
	if o.Scenario != Pages || o.Transport != "tcp" {
		return reply{}, fmt.Errorf("it has no %s over %s", o.Scenario, o.Transport)
	}
	out, err := d.command(d.ctx, "--version").Output()
	if err != nil {
		return reply{}, fmt.Errorf("iperf3 --version: %w", err)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(string(out), "iperf "), " ")
	return reply{Name: iperf3Name, Version: version, Settings: fmt.Sprintf(
		"one stream, -l block -C %s, a server and a client for each sample of %d GiB; its one buffer is hot, its content not checked", o.Congestion, iperf3Bytes>>30)}, nil
}

func (d *iperf3) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Getenv(iperf3Path), args...)
	cmd.WaitDelay = endGrace
	return cmd
}

// iperf3Result is the part of the client's report that is needed.
type iperf3Result struct {
	Error string `json:"error"`
	End   struct {
		Received struct {
			Seconds float64 `json:"seconds"`
			Bytes   float64 `json:"bytes"`
		} `json:"sum_received"`
	} `json:"end"`
}

func (d *iperf3) run(uint64) (reply, error) {
	ctx, cancel := context.WithTimeout(d.ctx, toolLimit)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return reply{}, err
	}
	where := []string{"-p", strconv.Itoa(port)}
	server := d.command(ctx, append(where, "-s", "-1", "-B", "127.0.0.1", "--forceflush")...)
	said, err := server.StdoutPipe()
	if err != nil {
		return reply{}, err
	}
	if err := server.Start(); err != nil {
		return reply{}, err
	}
	// Until its first line the server does not listen. The rest of what it says is read to its end, which Wait needs.
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening") {
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines.Scan() {
		}
	}()
	work := uint64(d.o.Count) * d.o.Size
	var out bytes.Buffer
	client := d.command(ctx, append(where, "-c", "127.0.0.1", "-J", "-C", d.o.Congestion,
		"-l", strconv.FormatUint(d.o.Size, 10), "-n", strconv.FormatUint(max(work, iperf3Bytes), 10))...)
	client.Stdout = &out
	err = client.Run()
	if err != nil {
		_ = server.Process.Kill() // it would wait for another client
	}
	<-drained
	err = errors.Join(err, server.Wait())
	var r iperf3Result
	if bad := json.Unmarshal(out.Bytes(), &r); bad == nil && r.Error != "" {
		return reply{}, errors.New(r.Error)
	}
	if err != nil {
		return reply{}, fmt.Errorf("iperf3: %w", err)
	}
	if r.End.Received.Bytes <= 0 {
		return reply{}, errors.New("iperf3: a report without bytes")
	}
	// As if it had moved what the others move.
	share := float64(work) / r.End.Received.Bytes
	cpu := server.ProcessState.UserTime() + server.ProcessState.SystemTime() + client.ProcessState.UserTime() + client.ProcessState.SystemTime()
	return reply{Seconds: r.End.Received.Seconds * share, CPU: cpu.Seconds() * share}, nil
}

func (d *iperf3) verify(uint64) (reply, error) {
	return reply{}, errors.New("nobody has its content")
}

func (d *iperf3) close() error { return nil }

// freePort is a port of the loopback that nobody listens on.
func freePort() (int, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
