// Package cpu is how workers spend processor time: where they run, where they sleep and how they are woken.
package cpu
