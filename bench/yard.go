package bench

import (
	"bufio"
	"fmt"
	"io"
	"time"
)

// stream is the yardstick's connection: a pair of pipes or a TCP connection.
type stream interface {
	io.Reader
	io.Writer
}

// Sizes of the yardstick's messages in bytes. On TCP a Hawser write of 8 bytes carries a header, so an equal message does too.
const (
	pipeMessage   = immSize
	socketMessage = immSize + 32
)

// confirm is what the receiver answers when it has everything.
var confirm = []byte{1}

// copyBlocks is memcpy of one sample.
func copyBlocks(dst, src []byte, o order, first uint64, c Config) error {
	size := c.Size
	return o.runs(first, c.blocks(), maxBatch, func(ss, ds []uint32) error {
		for i := range ss {
			s, d := uint64(ss[i])*size, uint64(ds[i])*size
			copy(dst[d:d+size], src[s:s+size])
		}
		return nil
	})
}

// sendBlocks writes one sample to a stream, block by block, and waits for the confirmation.
func sendBlocks(w stream, src []byte, o order, first uint64, c Config) error {
	size := c.Size
	err := o.runs(first, c.blocks(), maxBatch, func(ss, _ []uint32) error {
		for _, s := range ss {
			if _, err := w.Write(src[uint64(s)*size : (uint64(s)+1)*size]); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = awaitConfirm(w)
	}
	if err != nil {
		return fmt.Errorf("yardstick: send: %w", err)
	}
	return nil
}

// receiveBlocks is the other side of sendBlocks.
func receiveBlocks(r stream, dst []byte, o order, first uint64, c Config) error {
	size := c.Size
	err := o.runs(first, c.blocks(), maxBatch, func(_, ds []uint32) error {
		for _, d := range ds {
			if _, err := io.ReadFull(r, dst[uint64(d)*size:(uint64(d)+1)*size]); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		_, err = r.Write(confirm)
	}
	if err != nil {
		return fmt.Errorf("yardstick: receive: %w", err)
	}
	return nil
}

func awaitConfirm(r io.Reader) error {
	var b [1]byte
	_, err := io.ReadFull(r, b[:])
	return err
}

// ping sends n messages, each after the answer to the one before, and returns the round trips.
func ping(rw stream, message, n int) ([]time.Duration, error) {
	buf := make([]byte, message)
	trips := make([]time.Duration, n)
	for i := range trips {
		start := time.Now()
		if _, err := rw.Write(buf); err != nil {
			return nil, fmt.Errorf("yardstick: ping: %w", err)
		}
		if _, err := io.ReadFull(rw, buf); err != nil {
			return nil, fmt.Errorf("yardstick: ping: %w", err)
		}
		trips[i] = time.Since(start)
	}
	return trips, nil
}

// echo answers n messages.
func echo(rw stream, message, n int) error {
	buf := make([]byte, message)
	for range n {
		if _, err := io.ReadFull(rw, buf); err != nil {
			return fmt.Errorf("yardstick: echo: %w", err)
		}
		if _, err := rw.Write(buf); err != nil {
			return fmt.Errorf("yardstick: echo: %w", err)
		}
	}
	return nil
}

// streamBuffer is the read buffer of a stream of small messages, bytes.
const streamBuffer = 64 << 10

// flood sends n messages without waiting between them, each in a call of its own, and waits for the confirmation.
func flood(rw stream, message, n int) error {
	buf := make([]byte, message)
	for range n {
		if _, err := rw.Write(buf); err != nil {
			return fmt.Errorf("yardstick: flood: %w", err)
		}
	}
	if err := awaitConfirm(rw); err != nil {
		return fmt.Errorf("yardstick: flood: %w", err)
	}
	return nil
}

// drain is the other side of flood.
func drain(rw stream, message, n int) error {
	r, buf := bufio.NewReaderSize(rw, streamBuffer), make([]byte, message)
	for range n {
		if _, err := io.ReadFull(r, buf); err != nil {
			return fmt.Errorf("yardstick: drain: %w", err)
		}
	}
	if _, err := rw.Write(confirm); err != nil {
		return fmt.Errorf("yardstick: drain: %w", err)
	}
	return nil
}
