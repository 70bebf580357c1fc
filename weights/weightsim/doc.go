// Package weightsim plays pushes of weights that no machine at hand could carry: hundreds of ranks, terabytes, in seconds of one core.
//
// What it prints is a simulation and never a measurement. Real in it, the code that also runs in engines:
//
//   - the plan: package reshard, and the slices that it gives to each rank;
//   - which run a publisher writes next and where it stages: package weights/schedule, with its windows and its watermark;
//   - rails: the workers' placement of writes on NICs, their queues, and the failover of a rail (internal/rail);
//   - the protocol: the machines of package weights/proto, one for each rank and the controller's. What they send is encoded and decoded, and
//     what they want done is done on the simulated hosts: a trainer that dies is fenced, and the epoch is continued by another one.
//
// Modelled, as times that Options give:
//
//   - NICs and network: provider/sim, with the calibrated cost and latency of ConnectX-7 and a given line rate. Switches have all the
//     buffers and all the bandwidth that they need; nothing is lost; writes move in pieces of Fragment bytes instead of packets;
//   - copies from host memory (PCIe 5 x16), reading what is quantized, launches of kernels, the exchange of maxima;
//   - what messages need: the controller handles one at a time, each is under way for a fixed time, and a decision takes its time to be
//     durable. A repaired plan takes what it takes here. Pause and Resume of the engine, hooks and digests take no time: phantom memory
//     has no bytes.
//
// Memory is phantom: lengths without bytes.
package weightsim
