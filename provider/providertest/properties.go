package providertest

// properties is every property that Run checks. A name is stable: Factory.Except refers to it.
var properties = []property{
	{name: "CapsKeepTheContract", test: capsKeepTheContract},
	{name: "BadArgumentsAreErrors", test: badArgumentsAreErrors},

	{name: "WriteLandsWhereToldAndNowhereElse", test: writeLandsWhereTold},
	{name: "EveryLengthArrives", test: everyLengthArrives},
	{name: "LargestWriteArrives", test: largestWriteArrives},
	{name: "TooLongWriteIsLocalError", test: tooLongWriteIsLocalError},
	{name: "ZeroLengthNeedsNoMemory", test: zeroLengthNeedsNoMemory},
	{name: "QueueFullThenResume", test: queueFullThenResume},
	{name: "SilentPeerBlocksNobody", test: silentPeerBlocksNobody},
	{name: "ManyPeers", test: manyPeers},
	{name: "BothDirectionsAtOnce", test: bothDirectionsAtOnce},
	{name: "TwoRegistrationsOfOneSpan", test: twoRegistrationsOfOneSpan},

	{name: "CompletedWriteReadsNoMore", test: completedWriteReadsNoMore},
	{name: "FlushedWriteReadsNoMore", test: flushedWriteReadsNoMore},
	{name: "OrderedKeepsOrder", test: orderedKeepsOrder},

	{name: "EachImmediateOnce", test: eachImmediateOnce},
	{name: "CompletionsFitAnySlice", test: completionsFitAnySlice},
	{name: "ImmediateNeverBeforeItsBytes", test: immediateNeverBeforeItsBytes},
	{name: "ImmediateNamesValueLengthAndPeer", test: immediateNamesValueLengthAndPeer},

	{name: "MessagesArriveWhole", test: messagesArriveWhole},
	{name: "MessageWaitsForReceive", test: messageWaitsForReceive},
	{name: "WaitingMessageBlocksNoWrite", test: waitingMessageBlocksNoWrite},
	{name: "LongMessageIsTruncated", test: longMessageIsTruncated},
	{name: "ReceivesUpToRecvDepth", test: receivesUpToRecvDepth},

	{name: "BadAccessIsRefused", test: badAccessIsRefused},
	{name: "RefusalIsTold", test: refusalIsTold},
	{name: "RefusalsKeepOrder", test: refusalsKeepOrder},
	{name: "MissingRightIsRefused", test: missingRightIsRefused},
	{name: "KeyOfAnotherPeerIsRefused", test: keyOfAnotherPeerIsRefused},
	{name: "KeyEndsWithItsConnection", test: keyEndsWithItsConnection},
	{name: "GrantOfARange", test: grantOfARange},
	{name: "GrantIsEnforcedToItsRange", test: grantIsEnforcedToItsRange},
	{name: "BadWRIsLocalError", test: badWRIsLocalError},
	{name: "DeregisteredMemoryIsRefused", test: deregisteredMemoryIsRefused},
	{name: "DeregisterInFlight", test: deregisterInFlight},
	{name: "DeregisterWhileTheWriterRuns", test: deregisterWhileTheWriterRuns},
	{name: "RevokeEndsGrantsOfOnePeer", test: revokeEndsGrantsOfOnePeer},
	{name: "RevokeInFlight", test: revokeInFlight},
	{name: "NewMemoryHasNewKey", test: newMemoryHasNewKey},

	{name: "EitherSideMayComeFirst", test: eitherSideMayComeFirst},
	{name: "WrongAddrIsRefused", test: wrongAddrIsRefused},
	{name: "CrossedAddrsAreRefused", test: crossedAddrsAreRefused},
	{name: "AddrWorksOnce", test: addrWorksOnce},
	{name: "ConnectEndsInTime", test: connectEndsInTime, parallel: true},
	{name: "PeersUpToMaxPeers", test: peersUpToMaxPeers},
	{name: "DisconnectFlushesThenDown", test: disconnectFlushesThenDown},
	{name: "DisconnectDeliversWhatArrived", test: disconnectDeliversWhatArrived},
	{name: "ReconnectAfterDisconnect", test: reconnectAfterDisconnect},
	{name: "FenceStopsTheWriter", test: fenceStopsTheWriter},
	{name: "FenceWhileTheWriterRuns", test: fenceWhileTheWriterRuns},
	{name: "FenceNeedsNoHelpOfThePeer", test: fenceNeedsNoHelp},
	{name: "WhatEndedWellWasDelivered", test: whatEndedWellWasDelivered},
	{name: "FenceAfterPeerDown", test: fenceAfterPeerDown},
	{name: "SecondFenceWaitsForTheFirst", test: secondFenceWaits},

	{name: "NoWakeIsLost", test: noWakeIsLost},
	{name: "PeerUpAndDownWake", test: peerUpAndDownWake},
	{name: "OneBellForManyDomains", test: oneBellForManyDomains},
	{name: "OwnersOnManyGoroutines", test: ownersOnManyGoroutines},

	{name: "AnythingAtAnyTime", test: anythingAtAnyTime},

	{name: "CloseWithWorkOutstanding", test: closeWithWorkOutstanding},
	{name: "CloseLeavesNothing", test: closeLeavesNothing},
	{name: "SteadyStateAllocatesNothing", test: steadyStateAllocatesNothing},

	{name: "KilledProcess", test: killedProcess, parallel: true},
	{name: "StoppedProcess", test: stoppedProcess, parallel: true},
}
