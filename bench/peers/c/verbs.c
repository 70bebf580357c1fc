// The pages scenario as a loop over libibverbs, with nothing around it: what Hawser's verbs provider is measured against.
//
//	verbs WRITER READER SIZE POOL WINDOW BATCH COUNT
//
// Two processes on one host: one on the device WRITER writes COUNT blocks of SIZE bytes with an immediate each from one pool of POOL
// bytes to another, of one on the device READER, WINDOW of them in flight at most, BATCH in a chain with one doorbell, of which
// the last is signaled. The reader counts immediates on a shared receive queue of twice WINDOW, which it refills BATCH at a time, and
// says so with a write of its own. Prints bytes per second, from the first post to that answer.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 1, MOST_BATCH = 256, TIMEOUT = 14, RETRIES = 6, ANSWER = 7 };

static void die(const char *fmt, ...) {
	va_list args;
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

// What one side must know of the other.
struct card {
	union ibv_gid gid;
	uint32_t qpn, psn, rkey, mtu;
	uint64_t addr;
};

struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *pool;
	struct card own, other;
	int gid_index;
};

static size_t size, pool, count;
static int window, batch;

static struct ibv_context *find(const char *name) {
	int n;
	struct ibv_device **all = ibv_get_device_list(&n);
	for (int i = 0; all && i < n; i++) {
		if (strcmp(ibv_get_device_name(all[i]), name) == 0) {
			return ibv_open_device(all[i]);
		}
	}
	return NULL;
}

// The entry that stands for an IPv4 address.
static int mapped(struct ibv_context *ctx, union ibv_gid *gid) {
	static const uint8_t prefix[12] = {[10] = 0xff, 0xff};
	for (int i = 0; ibv_query_gid(ctx, PORT, i, gid) == 0; i++) {
		if (memcmp(gid->raw, prefix, sizeof(prefix)) == 0) return i;
	}
	die("no GID with an IPv4 address");
	return -1;
}

static void refill(struct side *s, int n) {
	struct ibv_recv_wr wr[MOST_BATCH], *bad;
	memset(wr, 0, sizeof(wr[0]) * (size_t)n);
	for (int i = 0; i < n; i++) wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	if (ibv_post_srq_recv(s->srq, wr, &bad)) die("ibv_post_srq_recv");
}

static void open_side(struct side *s, const char *name) {
	struct ibv_context *ctx = find(name);
	if (!ctx) die("%s: no such device", name);
	struct ibv_port_attr port;
	if (ibv_query_port(ctx, PORT, &port)) die("%s: ibv_query_port", name);
	s->pd = ibv_alloc_pd(ctx);
	s->cq = ibv_create_cq(ctx, 4 * window + 1, NULL, NULL, 0);
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = (uint32_t)(2 * window), .max_sge = 1}};
	s->srq = ibv_create_srq(s->pd, &srq);
	if (!s->srq || !s->cq) die("%s: no queues", name);
	struct ibv_qp_init_attr qp = {
		.send_cq = s->cq, .recv_cq = s->cq, .srq = s->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = (uint32_t)(window + 1), .max_send_sge = 1},
	};
	s->qp = ibv_create_qp(s->pd, &qp);
	s->pool = mmap(NULL, pool, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (!s->qp || s->pool == MAP_FAILED) die("%s: no queue pair, or no memory", name);
	s->mr = ibv_reg_mr(s->pd, s->pool, pool, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!s->mr) die("%s: ibv_reg_mr", name);
	s->own = (struct card){.qpn = s->qp->qp_num, .psn = (uint32_t)getpid() & 0xffffff, .rkey = s->mr->rkey, .mtu = port.active_mtu, .addr = (uintptr_t)s->pool};
	s->gid_index = mapped(ctx, &s->own.gid);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	if (ibv_modify_qp(s->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("%s: INIT", name);
	for (int left = 2 * window; left > 0; left -= MOST_BATCH) refill(s, left < MOST_BATCH ? left : MOST_BATCH);
}

static void join(struct side *s, int fd) {
	if (write(fd, &s->own, sizeof(s->own)) != sizeof(s->own)) die("the other side has gone");
	if (recv(fd, &s->other, sizeof(s->other), MSG_WAITALL) != sizeof(s->other)) die("the other side has gone");
	uint32_t mtu = s->own.mtu < s->other.mtu ? s->own.mtu : s->other.mtu;
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = (enum ibv_mtu)mtu, .dest_qp_num = s->other.qpn, .rq_psn = s->other.psn, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = s->other.gid, .sgid_index = (uint8_t)s->gid_index, .hop_limit = 64}},
	};
	if (ibv_modify_qp(s->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("RTR");
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = RETRIES, .sq_psn = s->own.psn};
	if (ibv_modify_qp(s->qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) die("RTS");
	// Both are ready to receive before one sends.
	char c = 0;
	if (write(fd, &c, 1) != 1 || read(fd, &c, 1) != 1) die("the other side has gone");
}

static int poll(struct side *s, struct ibv_wc *wc, int most) {
	int n = ibv_poll_cq(s->cq, most, wc);
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) die("completion: %s", ibv_wc_status_str(wc[i].status));
	}
	if (n < 0) die("ibv_poll_cq");
	return n;
}

// Posts n blocks as one chain; the completion of the last carries n.
static void post(struct side *s, size_t first, int n, int imm) {
	struct ibv_send_wr wr[MOST_BATCH], *bad;
	struct ibv_sge sge[MOST_BATCH];
	memset(wr, 0, sizeof(wr[0]) * (size_t)n);
	size_t blocks = pool / size;
	for (int i = 0; i < n; i++) {
		// Two walks over the pool with odd steps: each block's source and destination differ.
		uint64_t from = (first + (size_t)i) * 7 % blocks * size, to = (first + (size_t)i) * 3 % blocks * size;
		sge[i] = (struct ibv_sge){.addr = (uintptr_t)s->pool + from, .length = (uint32_t)size, .lkey = s->mr->lkey};
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].wr_id = (uint64_t)n;
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = imm == ANSWER ? 0 : 1;
		wr[i].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr[i].send_flags = i + 1 < n ? 0 : IBV_SEND_SIGNALED;
		wr[i].imm_data = htonl((uint32_t)imm);
		wr[i].wr.rdma.remote_addr = s->other.addr + to;
		wr[i].wr.rdma.rkey = s->other.rkey;
	}
	if (ibv_post_send(s->qp, wr, &bad)) die("ibv_post_send");
}

static void reader(struct side *s) {
	struct ibv_wc wc[MOST_BATCH];
	size_t got = 0;
	int used = 0;
	while (got < count) {
		int n = poll(s, wc, batch);
		got += (size_t)n;
		used += n;
		if (used >= batch) {
			refill(s, used);
			used = 0;
		}
	}
	post(s, 0, 1, ANSWER);
	while (poll(s, wc, 1) == 0) continue;
}

static void writer(struct side *s) {
	struct ibv_wc wc[MOST_BATCH];
	struct timespec a, b;
	size_t sent = 0;
	int out = 0, answered = 0;
	clock_gettime(CLOCK_MONOTONIC, &a);
	while (!answered) {
		while (sent < count && window - out >= batch) {
			int n = count - sent < (size_t)batch ? (int)(count - sent) : batch;
			post(s, sent, n, 1);
			sent += (size_t)n;
			out += n;
		}
		int n = poll(s, wc, MOST_BATCH);
		for (int i = 0; i < n; i++) {
			if (wc[i].opcode & IBV_WC_RECV) answered = 1;
			else out -= (int)wc[i].wr_id;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
	printf("%.0f\n", (double)count * (double)size / seconds);
}

int main(int argc, char **argv) {
	if (argc != 8) die("usage: verbs WRITER READER SIZE POOL WINDOW BATCH COUNT");
	size = strtoull(argv[3], NULL, 10);
	pool = strtoull(argv[4], NULL, 10);
	window = atoi(argv[5]);
	batch = atoi(argv[6]);
	count = strtoull(argv[7], NULL, 10);
	if (!size || pool < size || batch < 1 || batch > MOST_BATCH || window < batch || !count) die("arguments out of range");
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) die("socketpair");
	pid_t child = fork();
	if (child < 0) die("fork");
	struct side s = {0};
	open_side(&s, argv[child ? 1 : 2]);
	close(fds[child ? 1 : 0]);
	join(&s, fds[child ? 0 : 1]);
	if (!child) {
		reader(&s);
		return 0;
	}
	writer(&s);
	int status;
	if (waitpid(child, &status, 0) != child || status) die("the reader failed");
	return 0;
}
