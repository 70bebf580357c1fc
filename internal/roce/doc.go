// Package roce is the tests of whole engines over RDMA devices; all of it is tests, built with the tag vm ("make test-verbs"), and run
// in the virtual machines of internal/vmtest, whose devices are soft-RoCE. They change devices and cables, so they run nowhere else.
//
// Files: vm_test.go the machine, its cables and counters; smoke_test.go the devices without Hawser; duo_test.go two engines whose memory is
// compared byte by byte; fault_test.go links, lost packets, failover; burst_test.go and child_test.go a receiver that is stopped;
// machines_test.go two machines, of which one dies; leak_test.go and resource_test.go what is left behind; batch_test.go what cards are
// asked per write; perf_test.go the same loop in C and ib_write_bw beside it; tool_test.go the tool, also without libibverbs.
package roce
