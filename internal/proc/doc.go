// Package proc starts processes of this program that end when it ends.
//
// A [Child] and its [Parent] talk in JSON lines over the child's standard input and output. The parent owns the child: it waits for it
// by its process handle and calls Stop. Three things end a child whose parent is gone: the kernel's parent-death signal, the end of
// its standard input, and SIGPIPE. Terminal interrupts are the parent's to handle; a child ignores them.
//
// In the parent:
//
//	c, err := proc.Start(proc.Spec{Name: "decoder", Args: []string{"kv", "decode"}})
//	defer c.Stop(time.Second)
//	m, err := c.Next(ctx)          // m.Kind, m.Decode(&v)
//
// In the child:
//
//	p, ctx := proc.Attach(ctx)     // ctx ends when the parent is gone
//	err := p.Send("ready", addr)
package proc
