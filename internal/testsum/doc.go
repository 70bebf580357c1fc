// Command testsum runs "go test -json" and counts what happened.
//
//	go run ./internal/testsum [-name NAME] [-counts FILE] [-live PREFIX] -- [go test arguments]
//	go run ./internal/testsum -failure NAME [-counts FILE] < OUTPUT
//	go run ./internal/testsum -total FILE
//
// It prints one line per package, under it the tests that were skipped, by reason, so that no skip goes unseen, and the whole output
// of each test that failed; with -live also lines of tests that start with PREFIX, as they come. With -counts it appends the
// numbers, and what failures said, to FILE (also set by the environment variable HAWSER_TEST_COUNTS). With -failure it appends the
// failure of something else than a test. With -total it adds up such a file and prints the end of a run: skips by reason, the output
// of what failed, cut to its beginning and its end, what failed by name, and the closing line:
//
//	N passed, N failed, N skipped
//
// With -again, a few tests that failed run once more by themselves; those that pass then are named as flaky, and do not fail the run.
//
// Tests and subtests both count. It owns no state but that file.
package main
