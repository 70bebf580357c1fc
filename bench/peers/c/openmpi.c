// OpenMPI: an MPI_Put for each block into a window of MPI_Win_allocate, a flush, then a message that tells the receiver, which
// answers with another. mpirun starts two ranks; the first one speaks with the program that measures.
#include "driver.h"

#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <unistd.h>

enum { NOTICE = 1, TARGET = 1 }; // tag of the messages, rank of the receiver

struct mpi {
	MPI_Win window;
};

static const char *version(void) {
	static char text[32];
	snprintf(text, sizeof text, "%d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
	return text;
}

static void *memory(struct run *r, size_t bytes) {
	struct mpi *m = r->state = calloc(1, sizeof *m);
	void *at = NULL;
	int e;
	if (strcmp(r->transport, "shm") == 0) {
		e = MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &at, &m->window);
	} else { // what MPI_Win_allocate makes on one host is shared memory, whatever the network
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		e = MPI_Win_create(at, (MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &m->window);
	}
	if (e != MPI_SUCCESS) {
		fail(r, "MPI window");
		return NULL;
	}
	MPI_Win_lock_all(MPI_MODE_NOCHECK, m->window);
	return at;
}

static int open_(struct run *r) {
	const char *how = getenv("HAWSER_MPI");
	snprintf(r->settings, sizeof r->settings, "%s; lock_all, MPI_Put, MPI_Win_flush, message", how ? how : "");
	MPI_Barrier(MPI_COMM_WORLD);
	return 0;
}

static int tell(int rank) {
	char c = 0;
	MPI_Send(&c, 1, MPI_CHAR, rank, NOTICE, MPI_COMM_WORLD);
	return 0;
}

static int hear(int rank) {
	char c;
	MPI_Recv(&c, 1, MPI_CHAR, rank, NOTICE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return 0;
}

static int send_(struct run *r, uint64_t first) {
	struct mpi *m = r->state;
	for (long i = 0; i < r->count; i++) {
		struct slot s = block(r, first + (uint64_t)i);
		MPI_Put(r->src + s.src * r->size, (int)r->size, MPI_BYTE, TARGET, (MPI_Aint)(s.dst * r->size), (int)r->size, MPI_BYTE, m->window);
		// The window of the others, in blocks: what is outstanding stays in a cache.
		if ((i + 1) % (r->depth * r->batch) == 0) MPI_Win_flush_local(TARGET, m->window);
	}
	MPI_Win_flush(TARGET, m->window);
	tell(TARGET);
	return hear(TARGET);
}

static int receive(struct run *r) {
	struct mpi *m = r->state;
	hear(SENDER);
	MPI_Win_sync(m->window);
	return tell(SENDER);
}

static void close_(struct run *r) {
	struct mpi *m = r->state;
	MPI_Win_unlock_all(m->window);
	MPI_Win_free(&m->window);
}

// meet connects the two ranks by a socket of their own, so that the one that waits between samples sleeps.
static int meet(int rank) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char *name = a.sun_path + 1; // abstract
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), pair = s;
	if (rank == SENDER) snprintf(name, sizeof a.sun_path - 1, "hawser-peers-%d", getpid());
	if (rank == SENDER && (bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, 1) < 0)) return -1;
	MPI_Bcast(a.sun_path, sizeof a.sun_path, MPI_CHAR, SENDER, MPI_COMM_WORLD);
	if (rank == SENDER) {
		pair = accept(s, NULL, NULL);
		close(s);
	} else if (connect(s, (struct sockaddr *)&a, sizeof a) < 0) {
		return -1;
	}
	return pair;
}

int main(int argc, char **argv) {
	static const struct peer mpi = {
	    .name = "openmpi", .version = version, .memory = memory, .open = open_, .send = send_, .receive = receive, .close = close_};
	int rank, size;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2) return fprintf(stderr, "%d ranks, want 2\n", size), 1;
	if (rank == SENDER) { // mpirun hands on what comes, but not the end: take its standard input itself
		char path[64];
		snprintf(path, sizeof path, "/proc/%d/fd/0", getppid());
		if (!freopen(path, "r", stdin)) return perror(path), 1;
	}
	int pair = meet(rank);
	if (pair < 0) return perror("socket between the ranks"), 1;
	// A rank that fails ends the other one: mpirun sees to that.
	if (drive_as(&mpi, rank, pair) != 0 || gone()) _exit(1);
	MPI_Finalize();
	return 0;
}
