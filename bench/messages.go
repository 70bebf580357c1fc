package bench

// The conversation of the two processes, as messages of internal/proc. Each request of the sender names what the receiver does
// next; the receiver answers "go" when it is ready, so that its preparation is not measured, and "done" at the end.
const (
	msgOpen   = "open"   // openRequest -> openAnswer
	msgReady  = "ready"  // openAnswer
	msgWork   = "work"   // workRequest -> go, then done
	msgGo     = "go"     // null
	msgDone   = "done"   // workDone
	msgVerify = "verify" // number of blocks moved -> verified
	msgResult = "result" // corrupt bytes
)

// work is what the receiver does in one sample.
type work string

const (
	workOurs  work = "ours"  // count immediates, then signal
	workYard  work = "yard"  // read blocks from the stream, then confirm
	workPong  work = "pong"  // answer each write of ours with a write
	workEcho  work = "echo"  // answer each message of the stream
	workDrain work = "drain" // read small messages from the stream, then confirm
	workNone  work = "none"  // nothing: memcpy needs no receiver
)

// Names of the yardsticks in reports.
const (
	yardMemcpy = "memcpy"
	yardSocket = "go socket"
	yardPipe   = "pipe"
)

type openRequest struct {
	Config     Config `json:"config"`
	Descriptor string `json:"descriptor"` // of the sender's answer word
}

type openAnswer struct {
	Descriptor string `json:"descriptor"` // of the receiver's pool
	Stream     string `json:"stream"`     // address of the yardstick's listener, empty for pipes
}

type workRequest struct {
	Work  work   `json:"work"`
	First uint64 `json:"first"` // number of the first block since the start of the run
	Count int    `json:"count"` // blocks, messages or round trips
}

type workDone struct {
	CPU float64 `json:"cpu"` // seconds
}
