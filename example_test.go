package hawser_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/hawser-project/hawser"
)

// must and check keep examples short; a program handles its errors.
func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Two engines, here in one process: one owns memory and hands out a descriptor, the other one writes to it. The README shows this.
func Example() {
	ctx := context.Background()

	// The receiver owns memory and hands out a capability to write into it.
	receiver := must(hawser.Open(ctx, hawser.Options{Name: "receiver"}))
	defer receiver.Close(ctx)
	memory := must(receiver.Alloc(1<<20, hawser.MemOptions{}))
	text := must(memory.Descriptor(memory.All(), hawser.RightWrite).MarshalText()) // send it by any means

	// The sender, mostly another process.
	sender := must(hawser.Open(ctx, hawser.Options{Name: "sender"}))
	defer sender.Close(ctx)
	var descriptor hawser.Descriptor
	check(descriptor.UnmarshalText(text))
	remote := must(sender.Import(ctx, descriptor)) // connects: shared memory on one host, else TCP
	source := must(sender.Alloc(4096, hawser.MemOptions{}))
	copy(source.Bytes(), "hello")
	transfer := must(sender.Write(hawser.Write{
		Src: source.Slice(0, 5),
		Dst: remote.Slice(4096, 5),
		Imm: hawser.Imm(7), // counted at the receiver when the bytes are there
	}))
	check(transfer.Wait(ctx)) // the source may be used again

	// The receiver: no message, no order, a count.
	check(receiver.Counter(7).Wait(ctx, 1))
	fmt.Printf("%s\n", memory.Bytes()[4096:4101])
	// Output: hello
}

// What the README shows is the example above, which is compiled and run.
func TestReadmeShowsTheExample(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(source), "func Example() {\n")
	body, _, found := strings.Cut(body, "\t// Output:")
	if !found {
		t.Fatal("the example is not there")
	}
	want := "```go\n" + strings.ReplaceAll("\n"+body, "\n\t", "\n")[1:] + "```\n"
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not have this block:\n%s", want)
	}
}
