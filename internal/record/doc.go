// Package record keeps what happened for those who look later: histograms of durations, and rings of the last events.
// Nothing in it allocates after it was made, and nothing in it is locked: who owns a value says when others may look.
package record
