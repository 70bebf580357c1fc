// Package doctor says what keeps this host from being fast, or from using a network at all, and what to do about it.
//
// [Gather] reads what there is to know into [Facts]; [Check] judges facts and does nothing else, so that a test, or a report of another
// machine, is judged as this machine is:
//
//	f, err := doctor.Gather("", 1<<30)
//	if err != nil {
//		return err // there is no such folder or archive
//	}
//	for _, l := range doctor.Check(f) {
//		fmt.Println(l.Status, l.Check, l.About, l.Found, l.Remedy)
//	}
//
// What could not be read is unknown, and its check is skipped. Nothing is changed, and root is not needed.
package doctor
