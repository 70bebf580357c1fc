// Package cpu is how workers spend processor time: where they sleep and how they are woken.
package cpu
