//go:build abi

package abi

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// requiredEnv makes missing headers a failure.
const requiredEnv = "ABI_REQUIRED"

// headersEnv is a folder with headers of another release of libfabric, which .ci/headers unpacks.
const headersEnv = "ABI_LIBFABRIC2"

// edition is a library's headers as they are installed somewhere.
type edition struct {
	library
	folder string // of the headers, "" for the system's
}

func editions() map[string]edition {
	return map[string]edition{
		"libibverbs":  {verbs, ""},
		"libfabric":   {libfabric, ""},
		"libfabric-2": {libfabric, os.Getenv(headersEnv)},
	}
}

// lacks skips a test, or fails it where everything must be there.
func lacks(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv(requiredEnv) != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// need finds the compiler and the headers.
func (e edition) need(t *testing.T, name string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(e.ours, "abi.h")); err != nil {
		lacks(t, "no declarations of %s: %v", e.name, err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		lacks(t, "no gcc: apt-get install gcc")
	}
	if name == "libfabric-2" && e.folder == "" {
		lacks(t, "no headers of libfabric 2: %s names no folder; make abi fetches them", headersEnv)
	}
	if _, err := e.compile(t.TempDir(), "probe", e.includes()); err != nil {
		lacks(t, "no headers of %s: apt-get install libibverbs-dev libfabric-dev: %v", e.name, err)
	}
}

func (e edition) includes() string {
	var b strings.Builder
	for _, h := range e.include {
		fmt.Fprintf(&b, "#include <%s>\n", h)
	}
	return b.String()
}

// own includes our headers, from a folder.
func own(folder string) string {
	return fmt.Sprintf("#include \"%s/abi.h\"\n#include \"%s/shim.h\"\n", folder, folder)
}

// compile compiles a source and returns the object; the error has what the compiler says.
func (e edition) compile(dir, name, source string) (object string, err error) {
	file := filepath.Join(dir, name+".c")
	object = filepath.Join(dir, name+".o")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		return "", err
	}
	args := []string{"-std=gnu11", "-g", "-fno-eliminate-unused-debug-types", "-Werror", "-c", file, "-o", object}
	if e.folder != "" {
		args = append([]string{"-I" + e.folder}, args...)
	}
	out, err := exec.Command("gcc", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return object, nil
}

// declared reads what our headers in a folder declare: types, and constants of both kinds.
func (e edition) declared(dir, folder string) (l *layout, consts []string, err error) {
	object, err := e.compile(dir, "ours", own(folder))
	if err != nil {
		return nil, nil, err
	}
	if l, err = readLayout(object); err != nil {
		return nil, nil, err
	}
	out, err := exec.Command("gcc", "-dM", "-E", filepath.Join(folder, "abi.h")).Output()
	if err != nil {
		return nil, nil, err
	}
	for _, m := range regexp.MustCompile(`(?m)^#define (\w+) .+$`).FindAllStringSubmatch(string(out), -1) {
		consts = append(consts, m[1])
	}
	consts = append(consts, l.enums...)
	consts = slices.DeleteFunc(consts, func(c string) bool { return !strings.HasPrefix(c, e.macro[0]) })
	slices.Sort(consts)
	return l, consts, nil
}

// theirs is the tag of their structure for one of ours, "" if there is none.
func (e edition) theirs(tag string) string {
	if t, ok := e.types[tag]; ok {
		return t
	}
	if rest, ok := strings.CutPrefix(tag, e.prefix[0]); ok {
		return e.prefix[1] + rest
	}
	return ""
}

func (e edition) theirField(tag, path string) string {
	if p, ok := e.fields[tag+"."+path]; ok {
		return p
	}
	first, rest, nested := strings.Cut(path, ".")
	if p, ok := e.fields[tag+"."+first]; ok && nested {
		return p + "." + rest
	}
	return path
}

// function is what a field of the table is looked up as.
func (e edition) function(field string) string {
	if f, ok := e.library.hidden[field]; ok {
		return f
	}
	return e.named + field
}

func (e edition) theirConst(name string) string {
	if c, ok := e.consts[name]; ok {
		return c
	}
	return e.macro[1] + strings.TrimPrefix(name, e.macro[0])
}

// hidden: padding, which their headers have under other names or none.
func hidden(path string) bool { return strings.HasPrefix(path, "_") || strings.Contains(path, "._") }

// assertions is a source with one static assertion for each offset, size and constant, and a variable of the type of each function.
func (e edition) assertions(l *layout, consts []string, folder string) (source string, n int) {
	var b strings.Builder
	b.WriteString(e.includes() + own(folder) + "#include <stddef.h>\n")
	add := func(key, format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		if when := e.since[key]; when != "" {
			line = "#if " + when + "\n" + line + "\n#endif"
		}
		b.WriteString(line + "\n")
		n++
	}
	for _, c := range consts {
		if their := e.theirConst(c); their != "" {
			add(c, `_Static_assert((long long)(%s) == (long long)(%s), "%s is not %s");`, c, their, c, their)
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(l.structs)) {
		their := e.theirs(tag)
		if their == "" {
			continue
		}
		word := "struct"
		if strings.HasSuffix(tag, "_gid") {
			word = "union"
		}
		for _, f := range l.structs[tag] {
			if hidden(f.path) {
				continue
			}
			key, path := tag+"."+f.path, e.theirField(tag, f.path)
			if e.since[key] == "" && e.since[tag] != "" {
				key = tag
			}
			add(key, `_Static_assert(offsetof(%s %s, %s) == offsetof(%s %s, %s), "%s.%s is elsewhere");`, word, tag, f.path, word, their, path, tag, f.path)
			if !strings.Contains(path, "mutex") {
				add(key, `_Static_assert(sizeof(((%s %s *)0)->%s) == sizeof(((%s %s *)0)->%s), "%s.%s has another size");`, word, tag, f.path, word, their, path, tag, f.path)
			}
		}
		rel := e.size[tag]
		if rel == "" {
			rel = atMost
		}
		add(tag, `_Static_assert(sizeof(%s %s) %s sizeof(%s %s), "%s has another length");`, word, tag, rel, word, their, tag)
	}
	for _, f := range l.structs[e.table] {
		add(e.table+"."+f.path, "__typeof__(&%s) hawser_%s;", e.function(f.path), f.path)
	}
	return b.String(), n
}

// functions compares the functions in tables, and those that are looked up by name.
func (e edition) functions(ours, theirs *layout) (faults []string, n int) {
	for _, tag := range slices.Sorted(maps.Keys(ours.structs)) {
		for _, f := range ours.structs[tag] {
			if f.fn == "" {
				continue
			}
			var want, of string
			if tag == e.table {
				want, of = theirs.fns["hawser_"+f.path], e.function(f.path)
			} else if their := e.theirs(tag); their != "" {
				x, _ := theirs.field(their, e.theirField(tag, f.path))
				want, of = x.fn, their+"."+x.path
			} else {
				continue
			}
			n++
			if f.fn != want {
				faults = append(faults, fmt.Sprintf("%s.%s is %s, %s is %s", tag, f.path, f.fn, of, want))
			}
		}
	}
	return faults, n
}

// check compares our headers in a folder with theirs.
func (e edition) check(dir, folder string) (asserted, compared int, err error) {
	ours, consts, err := e.declared(dir, folder)
	if err != nil {
		return 0, 0, err
	}
	source, asserted := e.assertions(ours, consts, folder)
	object, err := e.compile(dir, "assertions", source)
	if err != nil {
		return asserted, 0, err
	}
	theirs, err := readLayout(object)
	if err != nil {
		return asserted, 0, err
	}
	faults, compared := e.functions(ours, theirs)
	if len(faults) > 0 {
		return asserted, compared, fmt.Errorf("functions differ:\n%s", strings.Join(faults, "\n"))
	}
	return asserted, compared, nil
}

// mutations are wrong declarations: a part of abi.h or shim.h, and what it becomes.
var mutations = map[string][][2]string{
	"libibverbs": {
		{"ABI_WC_REM_ACCESS_ERR = 10", "ABI_WC_REM_ACCESS_ERR = 11"},
		{"uint32_t lkey;\n\tuint32_t rkey;", "uint32_t rkey;\n\tuint32_t lkey;"},
		{"void *_before_post_send[4]", "void *_before_post_send[3]"},
		{"(*poll_cq)(struct abi_cq *, int, struct abi_wc *)", "(*poll_cq)(struct abi_cq *, struct abi_wc *)"},
		{"uint8_t dlid_path_bits;\n", "uint8_t dlid_path_bits;\n\tuint64_t more;\n"},
		{"uint16_t pkey_tbl_len;", "uint32_t pkey_tbl_len;"},
		{"(*query_port)(struct abi_context *, uint8_t,", "(*query_port)(struct abi_context *, uint64_t,"},
		{"uint16_t port_cap_flags2;\n", ""},
	},
	"libfabric": {
		{"HF_REMOTE_CQ_DATA (1ULL << 17)", "HF_REMOTE_CQ_DATA (1ULL << 16)"},
		{"HF_EP_RDM = 3", "HF_EP_RDM = 2"},
		{"uint64_t caps, mode;", "uint64_t mode, caps;"},
		{"void *read, *readv, *readmsg, *write, *writev;", "void *read, *readv, *readmsg, *write;"},
		{"(*writemsg)(struct hf_ep *, const struct hf_msg_rma *, uint64_t flags)", "(*writemsg)(struct hf_ep *, const struct hf_msg_rma *)"},
		{"int (*getinfo)(uint32_t version,", "int (*getinfo)(uint64_t version,"},
		{"ssize_t (*read)(struct hf_cq *", "int (*read)(struct hf_cq *"},
	},
}

// TestWrongDeclarationsAreCaught changes a copy of our headers.
func TestWrongDeclarationsAreCaught(t *testing.T) {
	for name, all := range mutations {
		e := editions()[name]
		t.Run(name, func(t *testing.T) {
			e.need(t, name)
			for _, m := range all {
				dir := t.TempDir()
				found := false
				for _, file := range []string{"abi.h", "shim.h"} {
					b, err := os.ReadFile(filepath.Join(e.ours, file))
					if err != nil {
						t.Fatal(err)
					}
					changed := strings.Replace(string(b), m[0], m[1], 1)
					found = found || changed != string(b)
					if err := os.WriteFile(filepath.Join(dir, file), []byte(changed), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if !found {
					t.Errorf("%q is not in our headers any more: name another mutation", m[0])
					continue
				}
				if _, _, err := e.check(dir, dir); err == nil {
					t.Errorf("%q in place of %q passes", m[1], m[0])
				}
			}
		})
	}
}

// TestDeclarations: our declarations are the headers'.
func TestDeclarations(t *testing.T) {
	for name, e := range editions() {
		t.Run(name, func(t *testing.T) {
			e.need(t, name)
			folder, err := filepath.Abs(e.ours)
			if err != nil {
				t.Fatal(err)
			}
			asserted, compared, err := e.check(t.TempDir(), folder)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d assertions, %d functions", asserted, compared)
			if asserted < 100 || compared < 10 {
				t.Errorf("%d assertions and %d functions: our headers were not understood", asserted, compared)
			}
		})
	}
}
