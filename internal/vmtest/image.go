package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cacheEnv names the folder of the image.
const cacheEnv = "HAWSER_VM_CACHE"

// image is what a VM boots: files in the cache.
type image struct {
	kernel string // an ELF file
	root   string // a cpio archive; process 1 is not in it
}

func cacheFolder() (string, error) {
	if dir := os.Getenv(cacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache: %w; set %s", err, cacheEnv)
	}
	return filepath.Join(dir, "hawser", "vm"), nil
}

func recipeKey() string {
	h := sha256.New()
	fmt.Fprintln(h, recipeVersion, release, kernelPackage, packages, modules, moduleFolders, left)
	return hex.EncodeToString(h.Sum(nil))
}

// lacking returns what this machine needs for VMs and does not have, each with the remedy.
func lacking() []string {
	var all []string
	if runtime.GOARCH != "amd64" {
		return []string{"the VMs are amd64, this machine is " + runtime.GOARCH}
	}
	for _, c := range [][2]string{{"qemu-system-x86_64", "qemu-system-x86"}, {"xz", "xz-utils"}, {"dpkg-deb", "dpkg"}, {"apt-get", "apt"}} {
		if _, err := exec.LookPath(c[0]); err != nil {
			all = append(all, fmt.Sprintf("%s is missing: apt-get install %s", c[0], c[1]))
		}
	}
	if text, _ := os.ReadFile("/etc/os-release"); !strings.Contains(string(text), "VERSION_CODENAME="+release) {
		all = append(all, "the image is made from packages of Debian 12 ("+release+"), which apt of this machine does not offer")
	}
	return all
}

// openImage returns the image of the cache, which it makes if it is not there. Another process that makes it is waited for.
func openImage() (*image, error) {
	dir, err := cacheFolder()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("cache: lock %s: %w", lock.Name(), err)
	}
	im := &image{kernel: filepath.Join(dir, "vmlinux"), root: filepath.Join(dir, "root.cpio")}
	key := filepath.Join(dir, "key")
	if got, _ := os.ReadFile(key); string(got) == recipeKey() {
		return im, nil
	}
	if err := os.Remove(key); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cache: %w", err)
	}
	began := time.Now()
	if err := im.build(dir); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	if err := os.WriteFile(key, []byte(recipeKey()), 0o644); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	say("image made in %.1f s: %s", time.Since(began).Seconds(), dir)
	return im, nil
}

// build downloads the packages and makes the files of the image. apt checks what it downloads against the signed lists; packages.txt
// tells which versions were taken.
func (im *image) build(dir string) error {
	debs, err := os.MkdirTemp(dir, "debs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	names, err := download(debs)
	if err != nil {
		return err
	}
	t := &tree{files: map[string][]byte{}, links: map[string]string{}, modes: map[string]int{}, modules: map[string][]byte{}}
	var list strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(debs, name))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum[:]), name)
		if err := t.unpack(filepath.Join(debs, name), strings.HasPrefix(name, "linux-image-")); err != nil {
			return err
		}
	}
	if lost := t.missingLibraries(); len(lost) > 0 {
		return fmt.Errorf("libraries are missing, add their packages to recipe.go: %s", strings.Join(lost, ", "))
	}
	kernel, err := unpackKernel(t.kernel)
	if err != nil {
		return err
	}
	var root bytes.Buffer
	if err := t.pack(&root); err != nil {
		return err
	}
	for file, data := range map[string][]byte{im.kernel: kernel, im.root: root.Bytes(), filepath.Join(dir, "packages.txt"): []byte(list.String())} {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// download fetches the packages into dir and returns their files. Without root the lists of apt are taken as they are.
func download(dir string) ([]string, error) {
	var option []string
	if os.Geteuid() == 0 {
		if err := aptGet(dir, "update", "-qq"); err != nil {
			return nil, err
		}
		option = []string{"-o", "APT::Sandbox::User=root"}
	}
	out, err := exec.Command("apt-cache", "depends", kernelPackage).Output()
	if err != nil {
		return nil, fmt.Errorf("apt-cache depends %s: %w", kernelPackage, err)
	}
	var kernel string
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "linux-image-") {
			kernel = name
		}
	}
	if kernel == "" {
		return nil, fmt.Errorf("apt knows no kernel by %s: apt-get update", kernelPackage)
	}
	args := append(append(option, "-qq", "download", kernel), packages...)
	if err := aptGet(dir, args...); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	if len(names) != len(packages)+1 {
		return nil, fmt.Errorf("apt-get download: %d files for %d packages", len(names), len(packages)+1)
	}
	return names, nil
}

func aptGet(dir string, args ...string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// tree is the contents of the image, by path without a leading slash.
type tree struct {
	files   map[string][]byte
	modes   map[string]int
	links   map[string]string
	modules map[string][]byte // by path below kernel/
	kernel  []byte            // a bzImage
}

// merged is a path of a package in a system where /bin, /sbin and /lib* lie in /usr.
func merged(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	top, _, _ := strings.Cut(name, "/")
	switch top {
	case "bin", "sbin", "lib", "lib64":
		return "usr/" + name
	}
	return name
}

func (t *tree) unpack(deb string, kernel bool) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	take := t.take
	if kernel {
		take = t.takeKernel
	}
	in := tar.NewReader(out)
	for err == nil {
		var h *tar.Header
		if h, err = in.Next(); err == nil {
			err = take(h, in)
		}
	}
	if errors.Is(err, io.EOF) {
		_, err = io.Copy(io.Discard, out)
	}
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	return nil
}

func (t *tree) take(h *tar.Header, in io.Reader) error {
	name := merged(h.Name)
	if slices.ContainsFunc(left, func(p string) bool { return strings.HasPrefix(name+"/", p) }) {
		return nil
	}
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		t.modes[name] = int(h.Mode & 0o777)
		t.files[name], err = io.ReadAll(in)
	case tar.TypeSymlink:
		t.links[name] = h.Linkname
	case tar.TypeLink:
		t.links[name] = "/" + merged(h.Linkname)
	}
	return err
}

func (t *tree) takeKernel(h *tar.Header, in io.Reader) error {
	name := path.Clean(h.Name)
	var err error
	if strings.HasPrefix(name, "boot/vmlinuz-") {
		t.kernel, err = io.ReadAll(in)
		return err
	}
	_, below, ok := strings.Cut(name, "/kernel/")
	if ok && strings.HasSuffix(name, ".ko") && slices.Contains(moduleFolders, path.Dir(below)) {
		t.modules[below], err = io.ReadAll(in)
	}
	return err
}

// missingLibraries returns the libraries that programs and libraries of the image ask for and that it lacks.
func (t *tree) missingLibraries() []string {
	have := map[string]bool{}
	for name := range t.files {
		have[path.Base(name)] = true
	}
	for name := range t.links {
		have[path.Base(name)] = true
	}
	lost := map[string]bool{}
	for name, data := range t.files {
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			continue // no ELF file
		}
		libs, _ := f.ImportedLibraries() // a static program has none
		for _, l := range libs {
			if !have[l] {
				lost[l+" (for "+name+")"] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(lost))
}

// Where process 1 finds the modules: files in the order to load them.
const modulesFolder = "modules"

func (t *tree) pack(w io.Writer) error {
	a := newArchive(w)
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		a.folder("usr/" + dir)
		a.add(dir, modeLink|0o777, []byte("usr/"+dir))
	}
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "run", "root", "etc"} {
		a.folder(dir)
	}
	a.add("etc/passwd", modeFile|0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	a.add("etc/group", modeFile|0o644, []byte("root:x:0:\n"))
	a.add("etc/hosts", modeFile|0o644, []byte("127.0.0.1 localhost\n"))
	t.links["usr/bin/sh"] = "dash"
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		a.add(name, modeFile|t.modes[name], t.files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(t.links)) {
		a.add(name, modeLink|0o777, []byte(t.links[name]))
	}
	order, err := loadOrder(t.modules, modules, needs)
	if err != nil {
		return err
	}
	for i, file := range order {
		a.add(fmt.Sprintf("%s/%02d-%s", modulesFolder, i, path.Base(file)), modeFile|0o644, t.modules[file])
	}
	return a.close()
}
