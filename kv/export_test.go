package kv

// Unwatch takes back what the engine was asked to say of a request's writes: only who looks learns that they are here.
func (p *Pending) Unwatch() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if a := p.at.Load(); a != nil && a.stop != nil {
		a.stop()
		a.stop = nil
	}
}
