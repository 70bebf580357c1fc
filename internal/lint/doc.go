// Package lint holds the rules of what may import what, as a test.
//
// The test reads the import graph from the go command, on every platform and with every build tag that changes it, so it also sees
// what a linter's configuration can miss: an import through a dependency, a file behind a tag. The same rules stand in
// .golangci.yml, where an editor shows them while one types. To allow an import, change [rules] and that file together.
package lint
