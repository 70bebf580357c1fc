// What all drivers share: the conversation with the program that measures (see ../README.md), the two processes, the pools and
// their content. A driver fills a struct peer and calls drive.
#ifndef HAWSER_DRIVER_H
#define HAWSER_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum { SENDER, RECEIVER };

// The wait between two looks at something that another process will change.
#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX() __asm__ volatile("" ::: "memory")
#endif

struct slot {
	uint32_t src, dst; // little-endian in the file, as on every machine that this runs on
};

struct run {
	// From the request "open".
	char scenario[16], transport[16], congestion[16];
	uint64_t size, pool, seed; // bytes of a block, bytes of the pool of each side
	long count, depth, batch, pings;

	struct slot *order;
	uint64_t slots;
	int role; // SENDER or RECEIVER
	int pair; // stream between the two processes, for what is not measured
	char *src, *dst; // the sender's pool, the receiver's; the other one is NULL unless there is one process
	void *state;     // the driver's own

	char settings[512]; // for the reader of the table: what the driver chose
	char why[512];      // the reason when a function below returned -1
};

// A driver. Every function returns 0, or -1 after fail().
struct peer {
	const char *name;
	int alone; // one process does all: memcpy
	const char *(*version)(void);
	void *(*memory)(struct run *, size_t bytes); // of a pool, NULL for anonymous pages
	int (*open)(struct run *);                   // in both processes: connect, exchange addresses, register pools

	// One sample of blocks: send returns when it knows that the receiver's application, in receive, has everything.
	int (*send)(struct run *, uint64_t first);
	int (*receive)(struct run *);
	// Latency: one message and its answer; NULL when the driver has no such scenario.
	int (*ping)(struct run *);
	int (*pong)(struct run *);
	// Rate: count messages of 8 bytes; NULL likewise.
	int (*flood)(struct run *);
	int (*drain)(struct run *);

	void (*close)(struct run *);
};

// drive serves requests on standard input until its end, and returns the exit status. It forks the receiver.
int drive(const struct peer *);

// drive_as does the same for a process whose counterpart exists already, at the other end of pair.
int drive_as(const struct peer *, int role, int pair);

// fail notes a reason and returns -1.
int fail(struct run *, const char *format, ...) __attribute__((format(printf, 2, 3)));

// swap sends the other process n bytes and receives as many.
int swap(struct run *, const void *mine, void *theirs, size_t n);

// gone reports whether the other process has ended or this one was asked to: to be looked at in every loop that waits.
int gone(void);

// block is the slot of the k-th block of the run.
static inline struct slot block(const struct run *r, uint64_t k) { return r->order[k % r->slots]; }

#endif
