// Package model is a test: that the protocol between a decoder and its prefillers, written down once more in kv.pml, keeps its invariants
// in every order of everything that can happen, and that each of its guards is needed. The model checker spin, and a C compiler for
// what it generates, are wanted; README.md has the rest.
//
//	make model
package model
