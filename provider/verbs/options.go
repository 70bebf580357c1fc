package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// Name of the provider.
const Name = "verbs"

// Options are how the cards are used. Zero works: each field says what it means then. Both ends of a connection should agree on the
// service level and the traffic class; nothing else has to be equal.
type Options struct {
	// Devices limits the provider to these devices: names of cards ("mlx5_0") or ports ("mlx5_0/1"). Empty: all.
	Devices []string

	// GIDIndex is the entry of the port's GID table to use. Nil: the best one, see the package's documentation.
	GIDIndex *int

	// TrafficClass of packets with a global header: DSCP in the upper six bits. Zero is the network's default class.
	TrafficClass uint8
	// ServiceLevel of packets, 0 to 15.
	ServiceLevel uint8
	// PKeyIndex is the entry of the port's P_Key table.
	PKeyIndex int

	// MTU bounds the bytes of payload in a packet: 256, 512, 1024, 2048 or 4096. Zero: the port's active MTU. The smaller one of
	// both ends counts.
	MTU int

	// Timeout is the exponent of the time after which a packet without an answer is sent again: 4.096 us * 2^Timeout, which cards
	// may quadruple. Zero: 14, which is 67 ms. At most 31.
	Timeout int
	// Retries is how many times it is sent again before the peer counts as dead, 1 to 6. Zero: 6. (7 is the largest that the
	// field takes; soft-RoCE reads it as endless.)
	Retries int

	// StrictOrdering registers memory without relaxed ordering. Relaxed is much faster on many hosts and changes nothing
	// that the contract promises.
	StrictOrdering bool

	// Library is the name or path of libibverbs; empty: libibverbs.so.1.
	Library string
}

// Defaults of Options.
const (
	defaultTimeout = 14
	defaultRetries = 6
)

// withDefaults fills the zero fields whose default is not zero.
func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Retries == 0 {
		o.Retries = defaultRetries
	}
	if o.Library == "" {
		o.Library = libraryName
	}
	return o
}

// validate returns all faults at once.
func (o Options) validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(o.GIDIndex == nil || *o.GIDIndex >= 0 && *o.GIDIndex <= 255, "GIDIndex is from 0 to 255")
	check(o.ServiceLevel <= 15, "ServiceLevel %d is above 15", o.ServiceLevel)
	check(o.PKeyIndex >= 0 && o.PKeyIndex <= 0xFFFF, "PKeyIndex %d is not from 0 to 65535", o.PKeyIndex)
	check(o.MTU == 0 || mtuNumber(o.MTU) > 0, "MTU %d is none of 256, 512, 1024, 2048, 4096", o.MTU)
	check(o.Timeout >= 1 && o.Timeout <= 31, "Timeout %d is not from 1 to 31", o.Timeout)
	check(o.Retries >= 1 && o.Retries <= 6, "Retries %d is not from 1 to 6", o.Retries)
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("verbs options: %w: %w", provider.ErrInvalid, errors.Join(faults...))
}

// mtuNumber is how the library counts MTUs, 0 for one that does not exist.
func mtuNumber(bytes int) uint8 {
	for i := range 5 {
		if bytes == 256<<i {
			return uint8(i + 1)
		}
	}
	return 0
}

// patience is the longest time between the first sending of a packet and the moment when its peer counts as dead. Cards may take four
// times as long as they are told.
func (o Options) patience() time.Duration {
	const tick, cardFactor = 4096 * time.Nanosecond, 4
	return cardFactor * time.Duration(o.Retries+1) * (tick << o.Timeout)
}
