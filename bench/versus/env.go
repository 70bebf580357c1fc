package versus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hawser-project/hawser/bench/peers"
)

// Env is a folder into which the peers are installed; nothing outside it changes. Owned by one goroutine.
//
//	src    drivers' sources
//	bin    drivers
//	root   unpacked Debian packages
//	venv   Python's virtual environment
//	apt    apt's lists, where the system has none
//	tmp    temporary files of compilers, installers and drivers, which do not remove theirs when they are killed
type Env struct {
	dir   string
	keep  bool
	self  func(driver string) command
	ready map[string]error // of what has been installed or built, by name
}

// Self starts a driver of this package by its name: it calls [Drive].
type Self func(driver string) (args, env []string)

// NewEnv makes an environment in dir, which stays, or in a temporary folder, which Close removes, when dir is empty.
func NewEnv(dir string, self Self) (*Env, error) {
	e := &Env{dir: dir, keep: dir != "", ready: map[string]error{}, self: func(driver string) command {
		args, env := self(driver)
		return command{Args: args, Env: env}
	}}
	var err error
	if e.keep {
		if e.dir, err = filepath.Abs(dir); err == nil {
			err = os.MkdirAll(e.dir, 0o755)
		}
	} else {
		e.dir, err = os.MkdirTemp("", "hawser-versus-")
	}
	if err == nil {
		err = e.unpack()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("versus: environment: %w", err), e.Close())
	}
	return e, nil
}

// unpack writes the sources, anew when they were there.
func (e *Env) unpack() error {
	src := filepath.Join(e.dir, "src")
	if err := os.RemoveAll(src); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(src, peers.Source), os.MkdirAll(filepath.Join(e.dir, "bin"), 0o755), os.MkdirAll(e.tmp(), 0o755))
}

// Close removes the environment, unless it is to stay.
func (e *Env) Close() error {
	if e.keep || e.dir == "" {
		return nil
	}
	if err := os.RemoveAll(e.dir); err != nil {
		return fmt.Errorf("versus: environment: %w", err)
	}
	return nil
}

func (e *Env) tmp() string    { return filepath.Join(e.dir, "tmp") }
func (e *Env) venv() string   { return filepath.Join(e.dir, "venv") }
func (e *Env) python() string { return filepath.Join(e.venv(), "bin", "python") }

// root is a path below usr of the unpacked packages.
func (e *Env) root(path ...string) string {
	return filepath.Join(append([]string{e.dir, "root", "usr"}, path...)...)
}

// libraries is where the unpacked packages have theirs: usr/lib/x86_64-linux-gnu and such.
func (e *Env) libraries() string {
	var all []string
	for _, pattern := range []string{e.root("lib", "*-linux-gnu"), e.root("lib", "libpsm1"), filepath.Join(e.dir, "root", "lib", "*-linux-gnu")} {
		dirs, _ := filepath.Glob(pattern) // the pattern is valid
		all = append(all, dirs...)
	}
	return strings.Join(all, ":")
}

// module is the folder of a Python package.
func (e *Env) module(name string) (string, error) {
	dirs, _ := filepath.Glob(filepath.Join(e.venv(), "lib", "python3*", "site-packages", name)) // the pattern is valid
	if len(dirs) == 0 {
		return "", fmt.Errorf("the virtual environment has no package %s", name)
	}
	return dirs[0], nil
}

func (e *Env) bin(name string) string {
	return filepath.Join(e.dir, "bin", name)
}

// command installs and builds what a peer needs, unless that is done, and returns how to start its driver.
func (e *Env) command(ctx context.Context, p Peer, k Case, congestion string) (command, error) {
	if err := e.install(ctx, p); err != nil {
		return command{}, err
	}
	var c command
	switch {
	case p.C != "":
		c.Args = []string{e.bin(p.Name)}
	case p.Python != "":
		c.Args = []string{e.python(), filepath.Join(e.dir, "src", p.Python)}
	default:
		c = e.self(p.Go)
	}
	if p.Under != nil {
		c.Args = append(p.Under(e, k), c.Args...)
	}
	c.Env = append(c.Env, "TMPDIR="+e.tmp())
	if p.Env != nil {
		c.Env = append(c.Env, p.Env(e, k)...)
	}
	if p.Go == "" || p.Beside != "" { // over shm, too: some peers use TCP within a host
		if err := e.once("congestion", func() error { return e.compile(ctx, "congestion.so", "congestion.c", "-shared", "-fPIC", "-ldl") }); err != nil {
			return command{}, err
		}
		c.Env = append(c.Env, "LD_PRELOAD="+e.bin("congestion.so"), "HAWSER_CONGESTION="+congestion)
	}
	return c, nil
}

func (e *Env) install(ctx context.Context, p Peer) error {
	for _, deb := range p.Debs {
		if err := e.once("deb "+deb, func() error { return e.deb(ctx, deb) }); err != nil {
			return err
		}
	}
	if p.Requirements != "" {
		if err := e.once("venv", func() error { return e.makeVenv(ctx) }); err != nil {
			return err
		}
		if err := e.once(p.Requirements, func() error { return e.wheels(ctx, p.Requirements) }); err != nil {
			return err
		}
	}
	if p.C == "" {
		return nil
	}
	return e.once("build "+p.Name, func() error {
		args := []string{filepath.Join(e.dir, "src", "c", "driver.c")}
		if p.Flags != nil {
			flags, err := p.Flags(e)
			if err != nil {
				return err
			}
			args = append(args, flags...)
		}
		return e.compile(ctx, p.Name, p.C, args...)
	})
}

// once does something the first time that it is asked for, and gives the same answer from then on, unless it was interrupted.
func (e *Env) once(what string, f func() error) error {
	err, known := e.ready[what]
	if known {
		return err
	}
	err = f()
	if !errors.Is(err, context.Canceled) {
		e.ready[what] = err
	}
	return err
}

func (e *Env) compile(ctx context.Context, name, source string, args ...string) error {
	all := []string{"-O2", "-std=gnu11", "-o", e.bin(name), filepath.Join(e.dir, "src", "c", source)}
	if err := e.run(ctx, e.dir, "gcc", append(all, args...)...); err != nil {
		return fmt.Errorf("build %s: %w", name, err)
	}
	return nil
}

func (e *Env) makeVenv(ctx context.Context) error {
	if _, err := os.Stat(e.python()); err == nil {
		return nil
	}
	if err := e.run(ctx, e.dir, "python3", "-m", "venv", e.venv()); err != nil {
		return fmt.Errorf("virtual environment: %w", err)
	}
	return nil
}

// wheels installs the Python packages of a file, which pins them. What is there already costs pip a second.
func (e *Env) wheels(ctx context.Context, file string) error {
	err := e.run(ctx, filepath.Join(e.dir, "src"), e.python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
		"--only-binary=:all:", "--no-deps", "--require-hashes", "-r", file)
	if err != nil {
		return fmt.Errorf("pip install -r %s: %w", file, err)
	}
	return nil
}

// deb unpacks a Debian package without what it depends on. It is not installed, so nobody has to be root.
func (e *Env) deb(ctx context.Context, spec string) error {
	name, _, _ := strings.Cut(spec, "=")
	dir := filepath.Join(e.dir, "debs", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	find := func() string {
		files, _ := filepath.Glob(filepath.Join(dir, "*.deb")) // the pattern is valid
		return strings.Join(files, "")
	}
	if find() == "" {
		if err := e.download(ctx, dir, spec); err != nil {
			return fmt.Errorf("apt-get download %s: %w", spec, err)
		}
	}
	if err := e.run(ctx, dir, "dpkg", "-x", find(), filepath.Join(e.dir, "root")); err != nil {
		return fmt.Errorf("unpack %s: %w", spec, err)
	}
	return nil
}

// download takes the system's lists of packages, or gets its own when those do not know the package.
func (e *Env) download(ctx context.Context, dir, spec string) error {
	if err := e.run(ctx, dir, "apt-get", "download", "-qq", spec); err == nil || ctx.Err() != nil {
		return err
	}
	apt := filepath.Join(e.dir, "apt")
	if err := os.MkdirAll(filepath.Join(apt, "lists", "partial"), 0o755); err != nil {
		return err
	}
	own := []string{"-o", "Dir::State::lists=" + filepath.Join(apt, "lists"), "-o", "Dir::Cache=" + apt, "-o", "APT::Sandbox::User=", "-qq"}
	if err := e.once("apt lists", func() error { return e.run(ctx, dir, "apt-get", slices.Concat(own, []string{"update"})...) }); err != nil {
		return err
	}
	return e.run(ctx, dir, "apt-get", slices.Concat(own, []string{"download", spec})...)
}

// run runs a command to its end; an error has the last line that it wrote.
func (e *Env) run(ctx context.Context, dir, name string, args ...string) error {
	var out tail
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TMPDIR="+e.tmp())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = endGrace
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if last := out.errorLine(); last != "" {
		return fmt.Errorf("%s: %w", last, err)
	}
	return err
}
