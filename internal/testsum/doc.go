// Command testsum runs "go test -json" and counts what happened.
//
//	go run ./internal/testsum [-name NAME] [-counts FILE] [-live PREFIX] -- [go test arguments]
//	go run ./internal/testsum -total FILE
//
// It prints one line per package, the whole output of each test that failed, and each skipped test with its reason, so that
// no skip goes unseen; with -live also lines of tests that start with PREFIX, as they come. With -counts it appends the numbers to FILE (also set by the environment variable
// HAWSER_TEST_COUNTS); -total adds up such a file and prints the closing line of a run:
//
//	N passed, N failed, N skipped
//
// Tests and subtests both count. It owns no state but that file.
package main
