package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// entries reads a cpio archive back.
func entries(t *testing.T, b []byte) (names []string, contents map[string]string) {
	t.Helper()
	contents = map[string]string{}
	even := func(n int) int { return (n + 3) &^ 3 }
	for len(b) > 0 {
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		const head = 110
		size, length := field(6), field(11)
		name := string(b[head : head+length-1])
		at := even(head + length)
		if name == "TRAILER!!!" {
			return names, contents
		}
		names = append(names, name)
		contents[name] = string(b[at : at+size])
		b = b[at+even(size):]
	}
	t.Fatal("the archive has no end")
	return nil, nil
}

func TestArchiveHasFoldersBeforeWhatIsInThem(t *testing.T) {
	var b bytes.Buffer
	a := newArchive(&b)
	a.add("a/b/file", modeFile|0o644, []byte("12345"))
	a.add("a/link", modeLink|0o777, []byte("b"))
	a.add("a/b/other", modeFile|0o755, nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	names, contents := entries(t, b.Bytes())
	if want := []string{"a", "a/b", "a/b/file", "a/link", "a/b/other"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if contents["a/b/file"] != "12345" || contents["a/link"] != "b" {
		t.Errorf("%q", contents)
	}
}

func TestPayloadIsFoundOrRefused(t *testing.T) {
	image := make([]byte, 4096)
	copy(image[0x202:], "HdrS")
	image[setupSectors] = 1
	binary.LittleEndian.PutUint32(image[payloadOffset:], 10)
	binary.LittleEndian.PutUint32(image[payloadLength:], 8+4)
	copy(image[2*sector+10:], "abcdefgh")
	if got, err := payload(image); err != nil || string(got) != "abcdefgh" {
		t.Errorf("%q, %v", got, err)
	}
	binary.LittleEndian.PutUint32(image[payloadLength:], 1<<20)
	if _, err := payload(image); err == nil {
		t.Error("a payload beyond the end was accepted")
	}
	if _, err := payload(make([]byte, 4096)); err == nil {
		t.Error("zeros were accepted")
	}
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	info := map[string][]string{"d/a-b.ko": {"c"}, "d/c.ko": {"e"}, "d/e.ko": nil, "d/other.ko": nil, "d/lost.ko": {"nowhere"}}
	files := map[string][]byte{}
	for f := range info {
		files[f] = nil
	}
	look := func(file string, _ []byte) ([]string, error) { return info[file], nil }
	got, err := loadOrder(files, []string{"e", "a_b"}, look)
	if want := []string{"d/e.ko", "d/c.ko", "d/a-b.ko"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := loadOrder(files, []string{"lost"}, look); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a module that is not there: %v", err)
	}
}

// The libraries that programs of the image need are in it: a program without its library is found when the image is made.
func TestMissingLibraryIsNamed(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	data, err := os.ReadFile(sh)
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{files: map[string][]byte{}, links: map[string]string{}, modes: map[string]int{}}
	if err := tr.take(&tar.Header{Typeflag: tar.TypeReg, Name: "./bin/sh", Mode: 0o755, Size: int64(len(data))}, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if _, ok := tr.files["usr/bin/sh"]; !ok {
		t.Error("/bin is not merged into /usr")
	}
	lost := tr.missingLibraries()
	if len(lost) == 0 || !strings.Contains(lost[0], "usr/bin/sh") {
		t.Errorf("sh alone lacks %q", lost)
	}
	for _, l := range lost {
		name, _, _ := strings.Cut(l, " ")
		tr.links["usr/lib/"+name] = "somewhere"
	}
	if lost := tr.missingLibraries(); len(lost) > 0 {
		t.Errorf("still lacking %q", lost)
	}
}

func TestLayoutReachesTheVM(t *testing.T) {
	l := layout{vms: 2, pairs: 3, links: 1, mtu: 4500, path: "/some/where"}
	got, rank := parseLine("console=ttyS0 " + l.line(1) + " quiet\n")
	if want := (layout{vms: 2, links: 1, mtu: 4500, path: "/some/where"}); got != want || rank != 1 {
		t.Errorf("got %+v, rank %d, want %+v, rank 1", got, rank, want)
	}
}

func TestOnlyOurVariablesGoAlong(t *testing.T) {
	got := environment([]string{"HOME=/root", "GOMAXPROCS=3", "GOPATH=/go", "HAWSER_X=1", sessionEnv + "=@x", "HAWSER_TEST_COUNTS=/tmp/x"})
	if want := []string{"GOMAXPROCS=3", "HAWSER_X=1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestModuleRootIsFoundFromBelow(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := moduleRoot(below); got != dir {
		t.Errorf("got %s, want %s", got, dir)
	}
}
