package proto

import (
	"errors"
	"testing"
)

// TestLateIsTheDeadline: a deadline that the prefiller noticed first is one all the same.
func TestLateIsTheDeadline(t *testing.T) {
	for _, err := range []error{&FailedError{Code: CodeLate}, &RejectedError{Code: CodeLate}} {
		if !errors.Is(err, ErrDeadline) {
			t.Errorf("%v is not the deadline", err)
		}
	}
	for _, err := range []error{&FailedError{Code: CodeEngine}, &RejectedError{Code: CodeClosed}} {
		if errors.Is(err, ErrDeadline) {
			t.Errorf("%v is the deadline", err)
		}
	}
}
