package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
)

// Immediates of a run.
const (
	immData   = 1 // a block
	immAnswer = 2 // the receiver has everything, or answers a ping
)

// open opens an engine with the config's rails, all of its provider's first device, and nothing else.
// It logs to the config's file; the function that is returned closes both.
func open(ctx context.Context, c Config, name string) (eng *hawser.Engine, closeAll func() error, err error) {
	p, err := Provider(c.Provider)
	if err != nil {
		return nil, nil, err
	}
	rails := make([]hawser.Rail, c.Rails)
	for i := range rails {
		rails[i].Provider = c.Provider
	}
	o := hawser.Options{Name: name, Providers: []provider.Provider{p}, Rails: rails, Require: c.Provider}
	closeLog := func() error { return nil }
	if c.Log != "" {
		file, err := os.OpenFile(c.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, nil, fmt.Errorf("bench: log: %w", err)
		}
		o.Log, closeLog = slog.New(slog.NewTextHandler(file, nil)).With("process", name), file.Close
	}
	if eng, err = hawser.Open(ctx, o); err != nil {
		return nil, nil, errors.Join(err, closeLog())
	}
	return eng, func() error {
		// The context of the run may have ended: that is why the engine closes.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(eng.Close(ctx), closeLog())
	}, nil
}

// closeTimeout bounds how long an engine of a run drains at its end.
const closeTimeout = 5 * time.Second

// Provider makes the provider of a name; the error lists the names.
func Provider(name string) (provider.Provider, error) {
	switch name {
	case "shm":
		return shm.New(), nil
	case "tcp":
		return tcp.New(), nil
	}
	return nil, fmt.Errorf("provider %q: %w: there are shm and tcp", name, hawser.ErrInvalid)
}

// export gives a peer the right to write to a whole region, as text.
func export(r *hawser.Region) (string, error) {
	text, err := r.Descriptor(r.All(), hawser.RightWrite).MarshalText()
	return string(text), err
}

func importText(ctx context.Context, eng *hawser.Engine, text string) (*hawser.Remote, error) {
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return nil, err
	}
	return eng.Import(ctx, d)
}
