// Package sim is a network of NICs that do not exist: an in-process fabric on virtual time, driven by a seed.
//
// It is the adversary among the providers. Every write is cut into fragments that arrive in any order the contract
// allows (NIC.Ordered: of one connection in the order of posting), source bytes are read as late as possible, keys are valid for one
// peer only, and queues are exactly as deep as Caps say. It is also a model: bytes take the time that a NIC's speed, costs
// and latency give them, and memory may be phantom (a length without bytes), so that transfers larger than the machine
// can be played. [ConnectX7], [EFA2x200], [EFA4x100] and [RoCE] are NICs that exist.
//
//	f := sim.New(sim.Config{Seed: 7, NICs: 2})
//	a, b := f.Provider("a"), f.Provider("b") // two hosts with devices nic0 and nic1 each
//	g := sim.New(sim.Config{Rails: sim.EFA2x200(), Hosts: map[string][]sim.NIC{"c": sim.ConnectX7()}})
//
// # Time
//
// Virtual time moves from event to event. By default (auto mode) the domains move it: a Poll that finds nothing ready
// plays a bounded number of events, and Arm reports true while events are left, so that engines with real goroutines
// run on it unchanged. With Config.Manual only [Fabric.Step] moves it, and then equal seeds and equal calls give equal
// schedules ([Fabric.Trace] proves it). Time limits (provider.ConnectTimeout, Config.RetryTimeout, the lengths of faults) are
// real time in auto mode, where virtual time would run ahead of the goroutines, and virtual time in manual mode.
//
// # Faults
//
// [Fabric.Kill], [Fabric.Fail], [Fabric.Cut], [Fabric.Partition] and [Fabric.Stall] have something go wrong now; Config.Loss all the
// time; [Fabric.Script] just before the event of a given index, which in manual mode is a point of the schedule that can be met again:
//
//	f.Script(sim.Fault{At: 120, Kind: sim.FaultCut, Places: []string{"a/nic1"}, For: time.Millisecond})
//
// Places are a host ("a"), a NIC ("a/nic1"), or "" for every place. [RandomFaults] makes a script from a seed, and [Shrink] leaves of a
// script that fails what is needed to fail.
//
// # Ownership
//
// One mutex guards the fabric and all its domains, so domains may belong to different goroutines. Bytes are copied under
// it, inside the Poll or Step that plays the event.
package sim
