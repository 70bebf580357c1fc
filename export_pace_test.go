package hawser

// CountNewcomers makes e forgive nothing, and returns what it has had to do for strangers since.
func (e *Engine) CountNewcomers() (used func() float64) {
	p := &e.newcomers
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate, p.burst, p.used = 1e-9, 1e9, 0
	return func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.used
	}
}

// What newcomers are charged for.
const (
	SessionCost = sessionCost
	OffenceCost = offenceCost
)

// StopNewcomers makes e accept one more connection from strangers, and then none for hours.
func (e *Engine) StopNewcomers() {
	p := &e.newcomers
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate, p.burst, p.used = 1e-4, 1, 1
}
