// libfabric: one fi_writemsg with remote CQ data per block, counted by the receiver from its completion queue; the answer is a write
// with remote CQ data, too. Two reliable-datagram endpoints, no threads, both sides poll.
#include "driver.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	ENTRIES = 64,   // completions of one look at a queue
	MESSAGE = 8,    // bytes of latency and rate
	ADDRESS = 256,  // longest address of an endpoint
	WORDS = 4096,   // bytes that small messages come from and go to
};

struct fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *tx, *rx;
	struct fid_av *av;
	struct fid_mr *pool, *words;
	char *word;
	fi_addr_t peer;
	uint64_t pool_key, pool_base, word_key, word_base; // of the other side
	long in_flight;
	uint64_t arrived; // immediates
};

// What the two sides tell each other.
struct hello {
	char address[ADDRESS];
	size_t length;
	uint64_t pool_key, pool_base, word_key, word_base;
};

static const char *version(void) {
	static char text[32];
	snprintf(text, sizeof text, "api %u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	return text;
}

static int check(struct run *r, const char *call, long result) {
	return result < 0 ? fail(r, "%s: %s", call, fi_strerror((int)-result)) : 0;
}

// reap takes what one look at the queue of transmissions brings.
static int reap(struct run *r, struct fabric *f) {
	struct fi_cq_data_entry done[ENTRIES];
	ssize_t n = fi_cq_read(f->tx, done, ENTRIES);
	if (n == -FI_EAGAIN) return gone() ? fail(r, "the other process is gone") : 0;
	if (n < 0) {
		struct fi_cq_err_entry e = {0};
		fi_cq_readerr(f->tx, &e, 0);
		return fail(r, "write: %s", fi_strerror(e.err));
	}
	f->in_flight -= n;
	return 0;
}

// await waits for n more immediates.
static int await(struct run *r, struct fabric *f, uint64_t n) {
	struct fi_cq_data_entry done[ENTRIES];
	while (f->arrived < n) {
		ssize_t k = fi_cq_read(f->rx, done, ENTRIES);
		if (k == -FI_EAGAIN) {
			if (gone()) return fail(r, "the other process is gone");
			// Some providers move the sender's operations only when its own queue is read.
			if (f->in_flight > 0 && reap(r, f) < 0) return -1;
			continue;
		}
		if (k < 0) {
			struct fi_cq_err_entry e = {0};
			fi_cq_readerr(f->rx, &e, 0);
			return fail(r, "receive: %s", fi_strerror(e.err));
		}
		for (ssize_t i = 0; i < k; i++) f->arrived += (done[i].flags & FI_REMOTE_CQ_DATA) != 0;
	}
	f->arrived -= n;
	return 0;
}

static int write_block(struct run *r, struct fabric *f, const void *from, uint64_t to, uint64_t key, size_t n, int more) {
	struct iovec iov = {(void *)from, n};
	struct fi_rma_iov rma = {to, n, key};
	void *desc = key == f->word_key ? fi_mr_desc(f->words) : fi_mr_desc(f->pool);
	struct fi_msg_rma m = {&iov, &desc, 1, f->peer, &rma, 1, NULL, 1};
	for (;;) {
		ssize_t e = fi_writemsg(f->ep, &m, FI_REMOTE_CQ_DATA | FI_COMPLETION | (more ? FI_MORE : 0));
		if (e == 0) return f->in_flight++, 0;
		if (e != -FI_EAGAIN) return check(r, "fi_writemsg", e);
		if (reap(r, f) < 0) return -1;
	}
}

// small sends 8 bytes and an immediate without a completion.
static int small(struct run *r, struct fabric *f) {
	for (;;) {
		ssize_t e = fi_inject_writedata(f->ep, f->word, MESSAGE, 1, f->peer, f->word_base + WORDS / 2, f->word_key);
		if (e != -FI_EAGAIN) return check(r, "fi_inject_writedata", e);
		struct fi_cq_data_entry done[ENTRIES];
		ssize_t n = fi_cq_read(f->tx, done, ENTRIES); // progress
		if (n > 0) f->in_flight -= n;
		if (gone()) return fail(r, "the other process is gone");
	}
}

static int send_(struct run *r, uint64_t first) {
	struct fabric *f = r->state;
	long window = r->depth * r->batch;
	for (long i = 0; i < r->count; i++) {
		if (i % r->batch == 0)
			while (f->in_flight > window - r->batch)
				if (reap(r, f) < 0) return -1;
		struct slot s = block(r, first + (uint64_t)i);
		int last = (i + 1) % r->batch == 0 || i + 1 == r->count;
		if (write_block(r, f, r->src + s.src * r->size, f->pool_base + s.dst * r->size, f->pool_key, r->size, !last) < 0) return -1;
	}
	while (f->in_flight > 0)
		if (reap(r, f) < 0) return -1;
	return await(r, f, 1);
}

static int receive(struct run *r) {
	if (await(r, r->state, (uint64_t)r->count) < 0) return -1;
	return small(r, r->state);
}

static int ping(struct run *r) { return small(r, r->state) < 0 ? -1 : await(r, r->state, 1); }

static int pong(struct run *r) { return await(r, r->state, 1) < 0 ? -1 : small(r, r->state); }

static int flood(struct run *r) {
	for (long i = 0; i < r->count; i++)
		if (small(r, r->state) < 0) return -1;
	return await(r, r->state, 1);
}

static struct fi_info *find(struct run *r, const char *provider) {
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->caps = FI_RMA | FI_MSG;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->fabric_attr->prov_name = strdup(provider);
	int shm = strcmp(r->transport, "shm") == 0;
	int e = fi_getinfo(FI_VERSION(1, 17), shm ? NULL : "127.0.0.1", NULL, shm ? 0 : FI_SOURCE, hints, &info);
	if (e) fail(r, "fi_getinfo(%s): %s", provider, fi_strerror(-e));
	fi_freeinfo(hints);
	return info;
}

// Opened in both processes.
static int connect_(struct run *r, struct fabric *f) {
	long window = r->depth * r->batch;
	if ((long)f->info->tx_attr->size > window) window = (long)f->info->tx_attr->size;
	struct fi_cq_attr cq = {.size = (size_t)window * 2, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 1};
	uint64_t access = FI_WRITE | FI_REMOTE_WRITE;
	char *pool = r->src ? r->src : r->dst;
	f->word = aligned_alloc(WORDS, WORDS);
	memset(f->word, 0, WORDS);
	if (check(r, "fi_fabric", fi_fabric(f->info->fabric_attr, &f->fabric, NULL)) < 0 ||
	    check(r, "fi_domain", fi_domain(f->fabric, f->info, &f->domain, NULL)) < 0 ||
	    check(r, "fi_cq_open", fi_cq_open(f->domain, &cq, &f->tx, NULL)) < 0 ||
	    check(r, "fi_cq_open", fi_cq_open(f->domain, &cq, &f->rx, NULL)) < 0 ||
	    check(r, "fi_av_open", fi_av_open(f->domain, &av, &f->av, NULL)) < 0 ||
	    check(r, "fi_endpoint", fi_endpoint(f->domain, f->info, &f->ep, NULL)) < 0 ||
	    check(r, "fi_ep_bind", fi_ep_bind(f->ep, &f->av->fid, 0)) < 0 ||
	    check(r, "fi_ep_bind", fi_ep_bind(f->ep, &f->tx->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION)) < 0 ||
	    check(r, "fi_ep_bind", fi_ep_bind(f->ep, &f->rx->fid, FI_RECV)) < 0 ||
	    check(r, "fi_enable", fi_enable(f->ep)) < 0 ||
	    check(r, "fi_mr_reg", fi_mr_reg(f->domain, pool, r->pool, access, 0, 1, 0, &f->pool, NULL)) < 0 ||
	    check(r, "fi_mr_reg", fi_mr_reg(f->domain, f->word, WORDS, access, 0, 2, 0, &f->words, NULL)) < 0)
		return -1;
	struct hello mine = {.length = ADDRESS, .pool_key = fi_mr_key(f->pool), .word_key = fi_mr_key(f->words)}, theirs;
	if (f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) mine.pool_base = (uintptr_t)pool, mine.word_base = (uintptr_t)f->word;
	if (check(r, "fi_getname", fi_getname(&f->ep->fid, mine.address, &mine.length)) < 0 || swap(r, &mine, &theirs, sizeof mine) < 0) return -1;
	if (fi_av_insert(f->av, theirs.address, 1, &f->peer, 0, NULL) != 1) return fail(r, "fi_av_insert: the address was refused");
	f->pool_key = theirs.pool_key, f->pool_base = theirs.pool_base;
	f->word_key = theirs.word_key, f->word_base = theirs.word_base;
	return 0;
}

static int open_(struct run *r) {
	const char *provider = strcmp(r->transport, "shm") == 0 ? "shm" : getenv("HAWSER_OFI_TCP");
	struct fabric *f = r->state = calloc(1, sizeof *f);
	if (!provider) provider = "tcp";
	if (!(f->info = find(r, provider)) || connect_(r, f) < 0) return -1;
	snprintf(r->settings, sizeof r->settings, "provider %s, FI_EP_RDM, %s, manual progress, both poll", f->info->fabric_attr->prov_name,
	         strcmp(r->scenario, "pages") == 0 ? "fi_writemsg with remote CQ data, FI_MORE within a batch" : "fi_inject_writedata");
	// A connection is made by the first message: one each way, so that no sample pays for it.
	return r->role == SENDER ? ping(r) : pong(r);
}

static void close_(struct run *r) {
	struct fabric *f = r->state;
	struct fid *all[] = {f->ep ? &f->ep->fid : NULL,       f->pool ? &f->pool->fid : NULL,     f->words ? &f->words->fid : NULL,
	                     f->tx ? &f->tx->fid : NULL,       f->rx ? &f->rx->fid : NULL,         f->av ? &f->av->fid : NULL,
	                     f->domain ? &f->domain->fid : NULL, f->fabric ? &f->fabric->fid : NULL};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i]) fi_close(all[i]);
	if (f->info) fi_freeinfo(f->info);
}

int main(void) {
	return drive(&(struct peer){.name = "libfabric",
	                            .version = version,
	                            .open = open_,
	                            .send = send_,
	                            .receive = receive,
	                            .ping = ping,
	                            .pong = pong,
	                            .flood = flood,
	                            .drain = receive,
	                            .close = close_});
}
