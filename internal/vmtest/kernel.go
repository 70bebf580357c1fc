package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strings"
)

// Offsets in a bzImage, of the x86 boot protocol (Documentation/arch/x86/boot.rst).
const (
	setupSectors  = 0x1f1 // 1 byte: sectors of the real-mode part after the first
	payloadOffset = 0x248 // 4 bytes: from the beginning of the protected-mode part
	payloadLength = 0x24c
	headerEnd     = 0x250
	sector        = 512
)

// payload finds the compressed kernel in a bzImage. qemu boots the ELF file in it without the decompression, which is slow
// under emulation. The last 4 bytes of the payload are its unpacked size and no part of the stream.
func payload(image []byte) ([]byte, error) {
	if len(image) < headerEnd || string(image[0x202:0x206]) != "HdrS" {
		return nil, errors.New("kernel: not a bzImage")
	}
	begin := (int64(image[setupSectors])+1)*sector + int64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	end := begin + int64(binary.LittleEndian.Uint32(image[payloadLength:])) - 4
	if begin >= end || end > int64(len(image)) {
		return nil, fmt.Errorf("kernel: payload from %d to %d of %d bytes", begin, end, len(image))
	}
	return image[begin:end], nil
}

// unpackKernel returns the ELF file in a bzImage.
func unpackKernel(image []byte) ([]byte, error) {
	packed, err := payload(image)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("xz", "-dc")
	cmd.Stdin = bytes.NewReader(packed)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kernel: xz: %w", err)
	}
	if !bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
		return nil, errors.New("kernel: the payload is not an ELF file")
	}
	return out, nil
}

// moduleName is a module's name from its file's: the kernel takes - for _.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".ko"), "-", "_")
}

// needs returns what a module depends on, by its own section .modinfo.
func needs(file string, data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("module %s: no section .modinfo", file)
	}
	info, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	for line := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// loadOrder returns the wanted modules and what they need, each after what it needs. files are all there are, by path.
func loadOrder(files map[string][]byte, wanted []string, needs func(file string, data []byte) ([]string, error)) ([]string, error) {
	byName := map[string]string{}
	for file := range files {
		byName[moduleName(file)] = file
	}
	var order []string
	seen := map[string]bool{}
	var visit func(name, of string) error
	visit = func(name, of string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		file, ok := byName[name]
		if !ok {
			return fmt.Errorf("module %s (for %s): not in the folders of recipe.go", name, of)
		}
		list, err := needs(file, files[file])
		if err != nil {
			return err
		}
		for _, n := range list {
			if err := visit(n, name); err != nil {
				return err
			}
		}
		order = append(order, file)
		return nil
	}
	for _, name := range wanted {
		if err := visit(name, "the image"); err != nil {
			return nil, err
		}
	}
	return order, nil
}
