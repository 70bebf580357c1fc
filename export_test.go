package hawser

import "time"

// SetRevokeTime changes how long a peer may take to give a region back. For tests on machines that are busy with others.
func (e *Engine) SetRevokeTime(d time.Duration) { e.revokeTime = d }
