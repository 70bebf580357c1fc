// Command vmtest runs programs in virtual machines that have RDMA devices: soft-RoCE (rdma_rxe) under the stock kernel of Debian 12,
// in qemu, with neither KVM nor RDMA hardware nor modules on the machine itself.
//
//	vmtest missing                       says what this machine lacks for that, exit status 3 if it lacks something
//	vmtest image                         makes the image unless the cache has it
//	vmtest up [flags] -- COMMAND...      boots, runs COMMAND on this machine, ends the VMs; COMMAND's exit status
//	vmtest exec [flags] PROGRAM ARGS...  runs PROGRAM in the VMs of the "vmtest up" around it, or in VMs of its own
//
// So one boot serves many packages:
//
//	vmtest up -- go test -exec "vmtest exec" ./provider/verbs ./internal/...
//
// # What a program finds
//
// It runs as root in the folder that it was started in, if that is below the module's root, which VMs see read-only under its
// own path. PROGRAM is copied in when it is a file of this machine; programs of the image are named without a slash: ip, tc, rdma,
// ibv_devinfo, ib_write_bw, busybox and its tools. Variables of the environment that start with HAWSER_ or GO go along. In addition:
//
//	HAWSER_VM_RANK, HAWSER_VM_COUNT   which VM this is (the first is 0), of how many
//	HAWSER_VM_PAIRS                   devices that reach each other within the VM: "rxe0=rxe1 rxe2=rxe3"
//	HAWSER_VM_LINKS                   devices that reach the other VM: "rxe4=10.78.0.2": rxe4 and the other's address
//
// The devices of pair i lie on the two ends a<i> and b<i> of a veth cable, with the addresses 10.77.<i>.1 and .2; the device of link i
// on eth<i> with 10.78.<i>.<rank+1>. SIGUSR1 to process 1 cuts the power of a VM at once, as a test of a lost host wants it; vmtest
// takes that for no failure.
//
// # Ends
//
// The exit status is that of the program; 97 if the image or the boot failed, 98 if a VM died, 124 after a time-out. The console of
// a VM that died is printed. Nothing of a run lies on the disk, and the kernel ends the VMs with vmtest, however that ends: all that is
// shared with qemu is sockets without names and memory files.
//
// Files: image.go, recipe.go, kernel.go, cpio.go the image; machine.go qemu; session.go the owner of VMs, client.go who uses them,
// frame.go what they and the VMs say to each other; guest.go and guestnet.go process 1 of the VMs, which is this program, too.
package main
