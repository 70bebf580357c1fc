#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// What the sender asks of the receiver, over the pair.
enum command { OPEN = 1, RUN, VERIFY };

struct order_message {
	enum command command;
	uint64_t moved;
};

// What the receiver answers at the end of a command.
struct answer {
	int failed;
	double cpu;
	uint64_t corrupt;
	char why[512];
};

static volatile sig_atomic_t stopped; // by a signal, or because the other process ended

static void on_stop(int signal) {
	(void)signal;
	stopped = 1;
}

int gone(void) { return stopped; }

int fail(struct run *r, const char *format, ...) {
	va_list args;
	va_start(args, format);
	vsnprintf(r->why, sizeof r->why, format, args);
	va_end(args);
	for (char *c = r->why; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = '\'';
	return -1;
}

static int put(int fd, const void *data, size_t n) {
	for (const char *p = data; n > 0;) {
		ssize_t k = write(fd, p, n);
		if (k < 0 && errno == EINTR && !stopped) continue;
		if (k <= 0) return -1;
		p += k, n -= (size_t)k;
	}
	return 0;
}

static int take(int fd, void *data, size_t n) {
	for (char *p = data; n > 0;) {
		ssize_t k = read(fd, p, n);
		if (k < 0 && errno == EINTR && !stopped) continue;
		if (k <= 0) return -1;
		p += k, n -= (size_t)k;
	}
	return 0;
}

int swap(struct run *r, const void *mine, void *theirs, size_t n) {
	if (put(r->pair, mine, n) < 0 || take(r->pair, theirs, n) < 0) return fail(r, "the other process is gone");
	return 0;
}

// value finds a key of a flat JSON object.
static const char *value(const char *line, const char *key) {
	char quoted[64];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *at = strstr(line, quoted);
	return at ? at + strlen(quoted) : "";
}

static uint64_t number(const char *line, const char *key) { return strtoull(value(line, key), NULL, 10); }

static void text(const char *line, const char *key, char *out, size_t n) {
	const char *v = value(line, key);
	size_t k = *v == '"' ? strcspn(v + 1, "\"") : 0;
	snprintf(out, n, "%.*s", (int)k, v + (k > 0));
}

static double cpu_now(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static uint64_t nanoseconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// word is the content of a source slot at a byte offset, which is a multiple of 8.
static uint64_t word(uint64_t seed, uint64_t slot, uint64_t offset) { return seed << 48 | slot << 24 | offset / 8; }

static uint64_t corrupt(const struct run *r, uint64_t moved) {
	uint64_t bad = 0;
	if (moved > r->slots) moved = r->slots;
	for (uint64_t k = 0; k < moved; k++) {
		struct slot s = block(r, k);
		const char *at = r->dst + s.dst * r->size;
		for (uint64_t o = 0; o + 8 <= r->size; o += 8) {
			uint64_t have, want = word(r->seed, s.src, o);
			memcpy(&have, at + o, 8);
			if (have != want) bad += 8;
		}
	}
	return bad;
}

static int read_order(struct run *r, const char *path) {
	FILE *f = fopen(path, "rb");
	if (!f) return fail(r, "%s: %s", path, strerror(errno));
	r->order = malloc(r->slots * sizeof *r->order);
	size_t n = r->order ? fread(r->order, sizeof *r->order, r->slots, f) : 0;
	fclose(f);
	if (n != r->slots) return fail(r, "%s: %zu slots, want %llu", path, n, (unsigned long long)r->slots);
	for (uint64_t k = 0; k < r->slots; k++)
		if (r->order[k].src >= r->slots || r->order[k].dst >= r->slots) return fail(r, "%s: slot beyond the pool", path);
	return 0;
}

// pool makes the memory of one side and writes to all of it.
static char *pool(struct run *r, const struct peer *p, int source) {
	// The same kind of pages as the memory of ours: a shared mapping.
	char *at = p->memory ? p->memory(r, r->pool)
	                     : mmap(NULL, r->pool, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!at || at == MAP_FAILED) {
		if (!*r->why) fail(r, "memory: %s", strerror(errno));
		return NULL;
	}
	if (!source) return memset(at, 0xff, r->pool);
	for (uint64_t s = 0; s < r->slots; s++)
		for (uint64_t o = 0; o + 8 <= r->size; o += 8) {
			uint64_t w = word(r->seed, s, o);
			memcpy(at + s * r->size + o, &w, 8);
		}
	return at;
}

static int is(const struct run *r, const char *scenario) { return strcmp(r->scenario, scenario) == 0; }

static int set_up(struct run *r, const struct peer *p) {
	if ((r->role == SENDER || p->alone) && !(r->src = pool(r, p, 1))) return -1;
	if ((r->role == RECEIVER || p->alone) && !(r->dst = pool(r, p, 0))) return -1;
	if (is(r, "latency") ? !p->ping : is(r, "rate") ? !p->flood : !is(r, "pages")) return fail(r, "no scenario %s", r->scenario);
	return p->open(r);
}

static int receive(struct run *r, const struct peer *p) {
	if (is(r, "rate")) return p->drain(r);
	if (!is(r, "latency")) return p->receive(r);
	for (long i = 0; i < r->pings; i++)
		if (p->pong(r) < 0) return -1;
	return 0;
}

// serve is the receiving process: it does what the sender asks until the sender is gone.
static int serve(struct run *r, const struct peer *p) {
	struct order_message m;
	for (int opened = 0; take(r->pair, &m, sizeof m) == 0;) {
		struct answer a = {0};
		if (m.command == OPEN) {
			char path[4096];
			int pair = r->pair;
			if (take(pair, r, sizeof *r) < 0 || take(pair, path, sizeof path) < 0) break;
			r->pair = pair, r->role = RECEIVER;
			a.failed = read_order(r, path) < 0 || set_up(r, p) < 0;
			opened = !a.failed;
		} else if (!opened) {
			break;
		} else if (m.command == RUN) {
			char ready = 1;
			double cpu = cpu_now();
			if (put(r->pair, &ready, 1) < 0) break;
			a.failed = receive(r, p) < 0;
			a.cpu = cpu_now() - cpu;
		} else {
			a.corrupt = corrupt(r, m.moved);
		}
		snprintf(a.why, sizeof a.why, "%s", r->why);
		if (put(r->pair, &a, sizeof a) < 0) break;
	}
	if (p->close && r->state) p->close(r);
	return 0;
}

static int ask(struct run *r, struct order_message m) {
	if (put(r->pair, &m, sizeof m) < 0) return fail(r, "the receiver is gone");
	return 0;
}

static int answer(struct run *r, struct answer *a) {
	if (take(r->pair, a, sizeof *a) < 0) return fail(r, "the receiver is gone");
	if (a->failed) return fail(r, "receiver: %s", a->why);
	return 0;
}

static int compare(const void *a, const void *b) {
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

// one_way is a quantile of sorted round trips, halved, in microseconds.
static double one_way(const uint64_t *trips, long n, double q) {
	long i = (long)(q * (double)n);
	return (double)trips[i < n ? i : n - 1] / 2e3;
}

static int sample(struct run *r, const struct peer *p, uint64_t first) {
	struct answer a = {0};
	uint64_t *trips = NULL;
	if (is(r, "latency") && !(trips = malloc((size_t)r->pings * sizeof *trips))) return fail(r, "out of memory");
	if (!p->alone) {
		char ready;
		if (ask(r, (struct order_message){RUN, 0}) < 0 || take(r->pair, &ready, 1) < 0) return fail(r, "the receiver is gone");
	}
	double cpu = cpu_now();
	uint64_t start = nanoseconds();
	int result = 0;
	if (trips)
		for (long i = 0; i < r->pings && result == 0; i++) {
			uint64_t began = nanoseconds();
			result = p->ping(r);
			trips[i] = nanoseconds() - began;
		}
	else
		result = is(r, "rate") ? p->flood(r) : p->send(r, first);
	double seconds = (double)(nanoseconds() - start) / 1e9;
	cpu = cpu_now() - cpu;
	if (result < 0 || (!p->alone && answer(r, &a) < 0)) return -1;
	printf("{\"ok\":true,\"seconds\":%.9f,\"cpu\":%.6f", seconds, cpu + a.cpu);
	if (trips) {
		qsort(trips, (size_t)r->pings, sizeof *trips, compare);
		printf(",\"p50\":%.4f,\"p99\":%.4f,\"p999\":%.4f", one_way(trips, r->pings, .5), one_way(trips, r->pings, .99),
		       one_way(trips, r->pings, .999));
		free(trips);
	}
	printf("}\n");
	return 0;
}

static int do_open(struct run *r, const struct peer *p, const char *line) {
	char path[4096] = "";
	text(line, "scenario", r->scenario, sizeof r->scenario);
	text(line, "transport", r->transport, sizeof r->transport);
	text(line, "congestion", r->congestion, sizeof r->congestion);
	text(line, "order", path, sizeof path);
	r->size = number(line, "size"), r->pool = number(line, "pool"), r->seed = number(line, "seed");
	r->count = (long)number(line, "count"), r->depth = (long)number(line, "depth");
	r->batch = (long)number(line, "batch"), r->pings = (long)number(line, "pings");
	if (r->size == 0 || r->size % 8 || r->pool < r->size || r->count < 1 || r->depth < 1 || r->batch < 1 || r->pings < 1)
		return fail(r, "open: size, pool, count, depth, batch or pings is out of bounds");
	r->slots = r->pool / r->size;
	struct answer a = {0};
	if (!p->alone) {
		struct run copy = *r;
		if (ask(r, (struct order_message){OPEN, 0}) < 0 || put(r->pair, &copy, sizeof copy) < 0 || put(r->pair, path, sizeof path) < 0)
			return fail(r, "the receiver is gone");
	}
	if (read_order(r, path) < 0 || set_up(r, p) < 0) return -1;
	if (!p->alone && answer(r, &a) < 0) return -1;
	printf("{\"ok\":true,\"name\":\"%s\",\"version\":\"%s\",\"settings\":\"%s\"}\n", p->name, p->version(), r->settings);
	return 0;
}

// lead is the sending process: it answers requests until the end of its input.
static int lead(struct run *r, const struct peer *p) {
	char *line = NULL;
	size_t room = 0;
	int failed = 0;
	while (!failed && !stopped && getline(&line, &room, stdin) > 0) {
		char op[16];
		struct answer a = {0};
		text(line, "op", op, sizeof op);
		if (strcmp(op, "open") == 0 && !r->order) {
			failed = do_open(r, p, line) < 0;
		} else if (strcmp(op, "run") == 0 && r->order) {
			failed = sample(r, p, number(line, "first")) < 0;
		} else if (strcmp(op, "verify") == 0 && r->order) {
			uint64_t moved = number(line, "moved");
			if (p->alone)
				a.corrupt = corrupt(r, moved);
			else
				failed = ask(r, (struct order_message){VERIFY, moved}) < 0 || answer(r, &a) < 0;
			if (!failed) printf("{\"ok\":true,\"corrupt\":%llu}\n", (unsigned long long)a.corrupt);
		} else {
			failed = fail(r, "unexpected request");
		}
		if (failed) printf("{\"ok\":false,\"why\":\"%s\"}\n", r->why);
		fflush(stdout);
	}
	if (!p->alone) shutdown(r->pair, SHUT_WR); // the receiver closes, too: some peers do it together
	if (p->close && r->state) p->close(r);
	free(line);
	return failed != 0;
}

static void handle(int signal, void (*handler)(int)) {
	// No SA_RESTART: reads end. A receiver that is stopped between two samples has not ended.
	struct sigaction a = {.sa_handler = handler, .sa_flags = SA_NOCLDSTOP};
	sigaction(signal, &a, NULL);
}

int drive_as(const struct peer *p, int role, int pair) {
	static struct run r;
	r.role = role, r.pair = pair;
	handle(SIGTERM, on_stop);
	handle(SIGINT, on_stop);
	handle(SIGHUP, on_stop);
	handle(SIGPIPE, SIG_IGN);
	return role == RECEIVER ? serve(&r, p) : lead(&r, p);
}

int drive(const struct peer *p) {
	int pair[2] = {-1, -1};
	pid_t child = 0;
	if (!p->alone) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) return perror("socketpair"), 1;
		pid_t self = getpid();
		child = fork();
		if (child < 0) return perror("fork"), 1;
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGTERM);
			if (getppid() != self) return 1;
			close(pair[0]);
			close(STDIN_FILENO);
			return drive_as(p, RECEIVER, pair[1]);
		}
		close(pair[1]);
		handle(SIGCHLD, on_stop); // a sender that waits for it would wait for ever
	}
	int status = drive_as(p, SENDER, pair[0]);
	if (child > 0) {
		close(pair[0]);
		kill(child, SIGCONT);
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
		}
	}
	return status;
}
