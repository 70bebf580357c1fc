//go:build cgo

package ofi_test

const cgo = true
