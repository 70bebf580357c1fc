//go:build vm

package hawser_test

import (
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// overDevices are the tests that are repeated in a virtual machine, over its soft-RoCE devices (-worlds verbs): those in which the network
// decides. What the engine does by itself is the same over every network, and an emulated machine is slow. Not there: files that are mapped
// for reading, which kernels before 6.2 do not register (they ask for pages to write to, whatever the access).
var overDevices = []func(*testing.T){
	TestWriteLandsAndIsCounted, TestZeroPagesAndZeroLengthComplete, TestPartsBeyondTheLengthAreSentEmpty,
	TestImmNotLostBeforeSomebodyAsks, TestMessagesBothWaysWithSender, TestManyGoroutinesSubmit, TestQueueReportsEachCookieOnce,
	TestDescriptorsAreBoundedAndCannotBeForged, TestFencedPeerCannotWrite, TestEnginesLeaveNothingBehind,
	TestForeignMemoryIsMemory, TestForeignMemoryIsTakenBack,
	TestNothingLandsAfterRevoke, TestRevokeIsNarrow, TestImportOutlivesASessionThatEnds,
	TestConnectIsSharedAndIdempotent, TestClosedPeerIsDownAndOperationsSaySo, TestCloseEndsWhatIsInFlight, TestLostPeerComesBack,
	TestUnreadMessagesHoldUpNothingElse, TestReceiveTouchesNoFreedBuffer,
	TestScatterFailsByTarget, TestScatterWhilePeersDie,
	TestNobodyLeavesABarrierBeforeAllHaveEntered, TestDeadPeerEndsExpect,
	TestDefect01LastByteOverTwoRails, TestDefect02RailUsesAnotherRailsKeys, TestDefect05DeregistrationForOneDeviceOnly,
	TestDefect07ErrorWhileSiblingsAreInFlight, TestDefect13WaitOnADeadPeerHangs, TestDefect16TwoEnginesInOneProcessInterfere,
	TestTakenValuesDoNotMix, TestOperationsAgainstAModel, TestStress,
}

func TestOverDevices(t *testing.T) {
	for _, f := range overDevices {
		name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
		t.Run(name[strings.LastIndex(name, ".Test")+len(".Test"):], f)
	}
}
