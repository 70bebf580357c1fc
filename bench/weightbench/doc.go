// Package weightbench measures pushes of weights between real processes: training ranks, inference ranks and their controller, on one machine.
//
// The clock of a round starts when the sources hold the new bytes, and stops when the controller knows that every destination holds every
// byte in its own layout and serves it. Destinations are overwritten before, and every byte of every round is compared afterwards with what
// the formula that filled the sources says, quantized where it is quantized. What is compared with takes its turn in every round:
//
//   - floor: two threads copy as many bytes as are delivered, in pieces of 1 MiB, between two memories that no cache holds.
//   - file: sources write their shards as safetensors to a file system in memory; destinations read their ranges.
//   - gloo: torch.distributed broadcasts over Gloo, tensor by tensor or in buckets; destinations cut out their parts.
package weightbench
