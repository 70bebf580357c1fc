package record

import "time"

// base is when the process started, for the clock that cannot be set back.
var base = time.Now()

// Now is the time in nanoseconds since the process started. It costs half of time.Now.
func Now() int64 { return int64(time.Since(base)) }

// Time is when Now returned ns.
func Time(ns int64) time.Time { return base.Add(time.Duration(ns)) }
