package ofi_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
)

func TestNames(t *testing.T) {
	if got := ofi.New(ofi.Options{}).Name(); got != "ofi" {
		t.Errorf("name %q, want ofi", got)
	}
	if got := ofi.New(ofi.Options{Provider: "efa"}).Name(); got != "ofi:efa" {
		t.Errorf("name %q, want ofi:efa", got)
	}
}

// TestUnavailableSaysWhatIsMissing: a network that is not here is no surprise, and the text says what to do.
func TestUnavailableSaysWhatIsMissing(t *testing.T) {
	network(t, "tcp")
	for name, want := range map[string]string{"efa": "kernel driver", "no_such_network": "fi_info -p"} {
		_, err := ofi.New(ofi.Options{Provider: name}).Devices(context.Background())
		if !errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("devices of %q: %v, want unavailable with %q", name, err, want)
		}
	}
}

// TestSoftwareIsNotHardware: without a name no network is taken that libfabric emulates.
func TestSoftwareIsNotHardware(t *testing.T) {
	network(t, "tcp")
	devs, err := ofi.New(ofi.Options{}).Devices(context.Background())
	if err != nil && !errors.Is(err, provider.ErrUnavailable) {
		t.Fatal(err)
	}
	for _, d := range devs {
		for _, s := range []string{"tcp", "udp", "shm", "net:", "sockets"} {
			if strings.Contains(d.Fabric, ":"+s) {
				t.Errorf("%+v is emulated in software", d)
			}
		}
	}
}

func TestDevices(t *testing.T) {
	p := network(t, "tcp")
	devs, err := p.Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range devs {
		if d.Provider != "ofi:tcp" || d.Fabric == "" || names[d.Name] {
			t.Errorf("device %+v: another provider, no fabric, or a name that is there twice", d)
		}
		names[d.Name] = true
	}
	if !devs[0].Loopback {
		t.Errorf("the first device is %+v, want a loopback", devs[0])
	}
	if _, err := p.Open(context.Background(), provider.Device{Name: "none"}, provider.Config{}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("open without a bell: %v", err)
	}
}
