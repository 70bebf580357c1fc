// Package doctor says what keeps this host from being fast, or from using a network at all, and what to do about it.
package doctor
