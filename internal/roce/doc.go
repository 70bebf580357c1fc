// Package roce is the tests of whole engines over RDMA devices; all of it is tests, built with the tag vm ("make test-verbs"), and run
// in the virtual machines of internal/vmtest, whose devices are soft-RoCE. They change devices and cables, so they run nowhere else.
//
// Files: smoke_test.go the devices themselves, without Hawser.
package roce
