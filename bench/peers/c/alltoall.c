// OpenMPI moving the rows of MoE layers: MPI_Alltoall of the numbers of rows for each expert, MPI_Alltoallv of the rows, MPI_Alltoallv of
// what comes back. mpirun starts the ranks; the first one speaks with the program that measures. Rows for the own rank are not moved.
#define _GNU_SOURCE
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LEADER = 0, MOST_STEPS = 1 << 16 };

struct order {
	char op; // r: run, v: verify, q: quit
	int warm, steps;
};

static struct {
	int rank, ranks, local; // experts of a rank
	uint64_t seed;
	int out_row, back_row;                  // bytes
	int *counts, *announced;                // rows of each expert of each rank, sent and received
	int *out, *out_at, *in, *in_at;         // bytes of rows, by rank
	int *back_out, *back_out_at, *back_in, *back_in_at;
	char *send, *receive, *results, *returned;
	double *forth, *back; // of each step
	int *line;            // of the leader: sockets to the others; else the first is that to the leader
} m;

static void die(const char *format, ...) {
	va_list args;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1); // mpirun ends the others
}

static void *make(size_t bytes) {
	void *p = aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);
	if (!p) die("no memory for %zu bytes", bytes);
	memset(p, 0, bytes);
	return p;
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double cpu(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static const char *value(const char *line, const char *key) {
	char quoted[64];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *at = strstr(line, quoted);
	if (!at) die("the request has no %s: %s", key, line);
	return at + strlen(quoted);
}

static uint64_t number(const char *line, const char *key) { return strtoull(value(line, key), NULL, 10); }

// read_counts fills the counts that this rank sends from the file of the routing: see ../README.md.
static void read_counts(const char *path) {
	FILE *f = fopen(path, "rb");
	struct {
		char magic[4];
		uint32_t version, ranks, tokens, experts, topk;
		uint64_t seed;
		char name[32];
	} __attribute__((packed)) head;
	if (!f || fread(&head, sizeof head, 1, f) != 1 || memcmp(head.magic, "HWMR", 4) != 0 || head.version != 1) die("%s is no routing", path);
	if ((int)head.ranks != m.ranks) die("%s is for %u ranks, not %d", path, head.ranks, m.ranks);
	m.local = (int)((head.experts + head.ranks - 1) / head.ranks);
	m.counts = make(sizeof(int) * (size_t)(m.ranks * m.local));
	uint32_t n[head.ranks];
	int32_t ids[head.topk];
	if (fread(n, 4, head.ranks, f) != head.ranks || n[m.rank] > head.tokens) die("%s ends early", path);
	fseek(f, (long)(4UL * (size_t)m.rank * head.tokens * head.topk), SEEK_CUR);
	for (uint32_t t = 0; t < n[m.rank]; t++) {
		if (fread(ids, 4, head.topk, f) != head.topk) die("%s ends early", path);
		for (uint32_t j = 0; j < head.topk; j++)
			if (ids[j] >= 0) m.counts[ids[j]]++;
	}
	fclose(f);
}

static int rows(const int *counts, int rank) {
	int n = 0;
	if (rank == m.rank) return 0;
	for (int e = 0; e < m.local; e++) n += counts[rank * m.local + e];
	return n;
}

// place makes byte counts and offsets of the rows of each rank, and returns their sum.
static size_t place(const int *counts, int row, int *bytes, int *at) {
	size_t sum = 0;
	for (int r = 0; r < m.ranks; r++) {
		bytes[r] = rows(counts, r) * row;
		at[r] = (int)sum;
		sum += (size_t)bytes[r];
		if (sum > INT32_MAX) die("more than 2 GiB of rows");
	}
	return sum;
}

static uint64_t word(int back, int from, int to, uint64_t at) {
	return m.seed << 48 ^ (uint64_t)back << 63 ^ (uint64_t)from << 40 ^ (uint64_t)to << 32 ^ at / 8;
}

static void fill(char *pool, int back, const int *bytes, const int *at) {
	for (int r = 0; r < m.ranks; r++)
		for (int o = 0; o < bytes[r]; o += 8) *(uint64_t *)(pool + at[r] + o) = word(back, m.rank, r, (uint64_t)o);
}

static uint64_t wrong(const char *pool, int back, const int *bytes, const int *at) {
	uint64_t n = 0;
	for (int r = 0; r < m.ranks; r++)
		for (int o = 0; o < bytes[r]; o += 8)
			if (*(const uint64_t *)(pool + at[r] + o) != word(back, r, m.rank, (uint64_t)o)) n += 8;
	return n;
}

static void set_up(const char *line) {
	char path[4096];
	if (sscanf(value(line, "routing"), " \"%4095[^\"]", path) != 1) die("the request has no path of a routing");
	m.seed = number(line, "seed") & 0x7fff;
	m.out_row = (int)number(line, "dispatch");
	m.back_row = (int)number(line, "combine");
	if (m.out_row % 8 || m.back_row % 8) die("rows of %d and %d bytes are no multiples of 8", m.out_row, m.back_row);
	read_counts(path);
	size_t ints = sizeof(int) * (size_t)m.ranks;
	int **all[] = {&m.out, &m.out_at, &m.in, &m.in_at, &m.back_out, &m.back_out_at, &m.back_in, &m.back_in_at};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] = make(ints);
	m.announced = make(ints * (size_t)m.local);
	MPI_Alltoall(m.counts, m.local, MPI_INT, m.announced, m.local, MPI_INT, MPI_COMM_WORLD);
	m.send = make(place(m.counts, m.out_row, m.out, m.out_at));
	m.receive = make(place(m.announced, m.out_row, m.in, m.in_at));
	m.results = make(place(m.announced, m.back_row, m.back_out, m.back_out_at));
	m.returned = make(place(m.counts, m.back_row, m.back_in, m.back_in_at));
	m.forth = make(sizeof(double) * MOST_STEPS);
	m.back = make(sizeof(double) * MOST_STEPS);
	fill(m.send, 0, m.out, m.out_at);
	fill(m.results, 1, m.back_out, m.back_out_at);
}

// step is one layer: what arrives is known only when the counts are.
static void step(double *forth, double *back) {
	double began = now();
	MPI_Alltoall(m.counts, m.local, MPI_INT, m.announced, m.local, MPI_INT, MPI_COMM_WORLD);
	place(m.announced, m.out_row, m.in, m.in_at);
	MPI_Alltoallv(m.send, m.out, m.out_at, MPI_BYTE, m.receive, m.in, m.in_at, MPI_BYTE, MPI_COMM_WORLD);
	double between = now();
	place(m.announced, m.back_row, m.back_out, m.back_out_at);
	MPI_Alltoallv(m.results, m.back_out, m.back_out_at, MPI_BYTE, m.returned, m.back_in, m.back_in_at, MPI_BYTE, MPI_COMM_WORLD);
	*back = now() - between;
	*forth = between - began;
}

// print_max prints, in the leader, the longest of all ranks in each step. own has room for it behind the steps.
static void print_max(const char *name, double *own, int steps) {
	double *longest = own + MOST_STEPS / 2;
	MPI_Reduce(own, longest, steps, MPI_DOUBLE, MPI_MAX, LEADER, MPI_COMM_WORLD);
	if (m.rank != LEADER) return;
	printf(",\"%s\":[", name);
	for (int i = 0; i < steps; i++) printf("%s%.3f", i ? "," : "", longest[i]);
	printf("]");
}

static void run(int warm, int steps) {
	double used = 0, sum = 0, began = 0;
	double *whole = make(sizeof(double) * MOST_STEPS);
	for (int i = -warm; i < steps; i++) {
		double forth, back;
		if (i == 0) used = cpu(), began = now();
		MPI_Barrier(MPI_COMM_WORLD);
		step(&forth, &back);
		if (i < 0) continue;
		m.forth[i] = forth, m.back[i] = back, whole[i] = forth + back;
	}
	double took = now() - began;
	used = cpu() - used;
	MPI_Reduce(&used, &sum, 1, MPI_DOUBLE, MPI_SUM, LEADER, MPI_COMM_WORLD);
	if (m.rank == LEADER) printf("{\"ok\":true,\"seconds\":%.9f,\"cpu\":%.6f", took / 1e6, sum);
	print_max("us", whole, steps);
	print_max("forth_us", m.forth, steps);
	print_max("back_us", m.back, steps);
	if (m.rank == LEADER) printf("}\n");
	free(whole);
}

// verify compares what the last step brought, and overwrites it.
static void verify(void) {
	uint64_t n = wrong(m.receive, 0, m.in, m.in_at) + wrong(m.returned, 1, m.back_in, m.back_in_at), sum = 0;
	for (int r = 0; r < m.ranks; r++) {
		memset(m.receive + m.in_at[r], 0xa5, (size_t)m.in[r]);
		memset(m.returned + m.back_in_at[r], 0xa5, (size_t)m.back_in[r]);
	}
	MPI_Reduce(&n, &sum, 1, MPI_UINT64_T, MPI_SUM, LEADER, MPI_COMM_WORLD);
	if (m.rank == LEADER) printf("{\"ok\":true,\"corrupt\":%llu}\n", (unsigned long long)sum);
}

// meet connects all ranks to the leader by sockets, so that who waits between runs sleeps.
static void meet(void) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char *name = a.sun_path + 1; // abstract
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	m.line = make(sizeof(int) * (size_t)m.ranks);
	if (m.rank == LEADER) snprintf(name, sizeof a.sun_path - 1, "hawser-alltoall-%d", getpid());
	if (m.rank == LEADER && (bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, m.ranks) < 0)) die("no socket between the ranks");
	MPI_Bcast(a.sun_path, sizeof a.sun_path, MPI_CHAR, LEADER, MPI_COMM_WORLD);
	if (m.rank != LEADER) {
		if (connect(s, (struct sockaddr *)&a, sizeof a) < 0) die("no connection to the first rank");
		m.line[0] = s;
		return;
	}
	for (int r = 1; r < m.ranks; r++)
		if ((m.line[r] = accept(s, NULL, NULL)) < 0) die("a rank did not connect");
	close(s);
}

// next is the next order. The leader reads it and hands it on.
static struct order next(void) {
	struct order o = {0};
	char *line = NULL;
	size_t room = 0;
	if (m.rank != LEADER) {
		if (read(m.line[0], &o, sizeof o) != (ssize_t)sizeof o) o.op = 'q'; // the leader has ended
		return o;
	}
	if (getline(&line, &room, stdin) < 0) {
		o.op = 'q';
	} else if (strstr(line, "\"op\":\"run\"")) {
		o = (struct order){'r', strstr(line, "\"warm\":") ? (int)number(line, "warm") : 0, (int)number(line, "steps")};
		if (o.steps < 1 || o.steps > MOST_STEPS / 2) die("%d steps, want 1 .. %d", o.steps, MOST_STEPS / 2);
	} else if (strstr(line, "\"op\":\"verify\"")) {
		o.op = 'v';
	} else {
		die("unexpected request %s", line);
	}
	free(line);
	for (int r = 1; r < m.ranks; r++)
		if (write(m.line[r], &o, sizeof o) != (ssize_t)sizeof o) die("rank %d has ended", r);
	return o;
}

int main(int argc, char **argv) {
	char line[8192] = "";
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &m.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &m.ranks);
	if (m.rank == LEADER) { // mpirun hands on what comes, but not the end: take its standard input itself
		snprintf(line, sizeof line, "/proc/%d/fd/0", getppid());
		if (!freopen(line, "r", stdin)) die("no standard input");
		if (!fgets(line, sizeof line, stdin)) return MPI_Finalize();
	}
	MPI_Bcast(line, sizeof line, MPI_CHAR, LEADER, MPI_COMM_WORLD);
	set_up(line);
	meet();
	const char *how = getenv("HAWSER_MPI");
	if (m.rank == LEADER)
		printf("{\"ok\":true,\"name\":\"openmpi\",\"version\":\"%d.%d.%d\",\"settings\":\"%s; MPI_Alltoall, MPI_Alltoallv\"}\n",
		       OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION, how ? how : "");
	for (;;) {
		fflush(stdout);
		struct order o = next();
		if (o.op == 'q') break;
		if (o.op == 'r') run(o.warm, o.steps);
		if (o.op == 'v') verify();
	}
	MPI_Finalize();
	return 0;
}
