package proto

// ControllerStatus is a snapshot.
type ControllerStatus struct {
	Term    Term    // zero until it begins
	Running Key     // the epoch that is under way; zero: none
	Version Version // of the last commit
	Waits   string  // what an operation that has not begun waits for
	Members []Join  // what each member has said last, in the order in which they joined. Lists in it must not be changed
}

// Status returns a snapshot.
func (c *Controller) Status() ControllerStatus {
	s := ControllerStatus{Term: c.term, Version: c.version}
	if c.epoch != nil {
		s.Running = c.epoch.key
	}
	if c.op != nil && c.epoch == nil {
		s.Waits = c.op.why
	}
	for _, p := range c.peers {
		s.Members = append(s.Members, *p.join)
	}
	return s
}
