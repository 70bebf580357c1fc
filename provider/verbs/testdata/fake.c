// A libibverbs whose cards are a thread of this process, for tests without a device. It executes reliable connections as the
// specification has it, and is as strict: a completion queue that overruns, a receive that is missing and an object that is left behind
// abort the process. What libibverbs leaves open it does as mlx5 does: destroying or resetting a queue pair drops its completions. With
// soft-RoCE's FAKE_VENDOR it does as that does: no event tells of the last receive, a queue pair that has failed gives its requests back
// later, and by the end of its destruction, which drops nothing.
//
// Faults come from the environment, read at each call: FAKE_<CALL>=<errno> makes a call fail; FAKE_DEVICES is their number (2);
// FAKE_PORT_STATE, FAKE_VENDOR, FAKE_MAX_CQE, FAKE_MAX_MSG what they say of themselves; FAKE_POST_AFTER=n makes post_send fail
// after n more requests; FAKE_WC_STATUS=s gives the next write of 200 bytes this status, FAKE_WC_AGAIN=1 each; FAKE_INVALID=n finds every
// n-th write of more than 64 KiB invalid, as soft-RoCE does with some on a machine that is slow to answer; FAKE_POLL_EMPTY=1 makes it fail
// to poll an empty completion queue; FAKE_LINK_LAYER is that of the ports, FAKE_GRH=n the card that needs a global header; FAKE_EVENT=e has
// a registration raise an event of a port; FAKE_LATE=n has a queue pair that has failed give back its last receive n polls later, and abort
// when it is destroyed before.
#define _GNU_SOURCE
#include "../abi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { MAX_QP = 1 << 13, MAX_MR = 1 << 13, RETRY_MS = 300, MAX_EVENTS = 1 << 12, SOFT_VENDOR = 0xFFFFFF };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct card {
	struct abi_context c;
	struct abi_device dev;
	int objects;
	int head, tail;
	struct abi_async_event events[MAX_EVENTS];
};

struct channel {
	struct abi_comp_channel c;
	struct abi_cq *events[MAX_EVENTS];
	int head, tail;
};

struct cq {
	struct abi_cq c;
	struct abi_wc *ring;
	int head, n, armed;
};

struct srq {
	struct abi_srq c;
	int posted, max;
};

struct req {
	struct abi_send_wr wr;
	struct abi_sge sge;
};

struct qp {
	struct abi_qp c;
	struct req *sq;
	unsigned head, tail, max;
	uint32_t dest, rq_psn, sq_psn;
	union abi_gid gid;
	int last_wqe, listed, global, got, late;
	int64_t since; // when the oldest request was tried first
};

struct mr {
	struct abi_mr m;
	int access;
};

static struct qp *qps[MAX_QP];
static struct qp *todo[MAX_QP]; // those with requests
static int todos;
static struct mr *mrs[MAX_MR];
static uint32_t next_qpn = 17, next_key = 1;

static int env(const char *name, int otherwise)
{
	const char *v = getenv(name);
	return v && *v ? atoi(v) : otherwise;
}

static int soft(void) { return env("FAKE_VENDOR", 0) == SOFT_VENDOR; }

static void dead(const char *what)
{
	fprintf(stderr, "fake libibverbs: %s\n", what);
	abort();
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void raise_event(struct card *c, int type, struct abi_qp *qp)
{
	if (c->tail - c->head == MAX_EVENTS)
		dead("asynchronous events overrun");
	struct abi_async_event *e = &c->events[c->tail++ % MAX_EVENTS];
	e->event_type = type;
	if (qp)
		e->element.qp = qp;
	else
		e->element.port_num = 1;
	eventfd_write(c->c.async_fd, 1);
}

static void complete(struct abi_cq *to, struct abi_wc wc)
{
	struct cq *q = (struct cq *)to;
	if (q->n == to->cqe)
		dead("a completion queue overruns");
	q->ring[(q->head + q->n++) % to->cqe] = wc;
	if (q->armed) {
		struct channel *ch = (struct channel *)to->channel;
		q->armed = 0;
		ch->events[ch->tail++ % MAX_EVENTS] = to;
		eventfd_write(ch->c.fd, 1);
	}
}

static void finish(struct qp *q, int status)
{
	struct req *r = &q->sq[q->head++ % q->max];
	if (status || r->wr.send_flags & ABI_SEND_SIGNALED)
		complete(q->c.send_cq, (struct abi_wc){.wr_id = r->wr.wr_id, .status = status, .qp_num = q->c.qp_num, .opcode = status ? 77 : 1});
	q->since = 0;
}

static void flush(struct qp *q)
{
	while (q->head != q->tail)
		finish(q, ABI_WC_WR_FLUSH_ERR);
}

static void list(struct qp *q)
{
	if (!q->listed && q->head != q->tail) {
		q->listed = 1;
		todo[todos++] = q;
	}
}

static void to_error(struct qp *q)
{
	q->c.state = ABI_QPS_ERR;
	if (soft()) {
		list(q); // for the cards' thread, or ibv_destroy_qp
		pthread_cond_signal(&work);
		return;
	}
	flush(q);
	if (q->last_wqe)
		return;
	q->last_wqe = 1;
	q->late = q->got ? env("FAKE_LATE", 0) : 0;
	if (!q->late)
		raise_event((struct card *)q->c.context, ABI_EVENT_QP_LAST_WQE_REACHED, &q->c);
}

static struct mr *find_mr(uint32_t key, struct abi_pd *pd, uint64_t addr, uint64_t n, int access)
{
	struct mr *m = mrs[key % MAX_MR];
	if (!m || m->m.rkey != key || m->m.pd != pd || (m->access & access) != access)
		return NULL;
	uint64_t base = (uintptr_t)m->m.addr;
	return addr >= base && addr - base <= m->m.length && n <= m->m.length - (addr - base) ? m : NULL;
}

static int card_number(struct abi_context *c) { return ((struct card *)c)->dev.name[4] - '0'; }
static int needs_grh(struct abi_context *c) { return card_number(c) == env("FAKE_GRH", -1); }

// One request, if the other end is there. Returns whether it was done.
static int execute(struct qp *q)
{
	struct req *r = &q->sq[q->head % q->max];
	struct qp *to = qps[q->dest % MAX_QP];
	if (r->wr.num_sge && !find_mr(r->sge.lkey, q->c.pd, r->sge.addr, r->sge.length, 0)) {
		finish(q, ABI_WC_LOC_PROT_ERR);
		to_error(q);
		return 1;
	}
	if (r->wr.num_sge && r->sge.length == 200 && env("FAKE_WC_STATUS", 0)) {
		finish(q, env("FAKE_WC_STATUS", 0));
		if (!env("FAKE_WC_AGAIN", 0))
			unsetenv("FAKE_WC_STATUS");
		to_error(q);
		return 1;
	}
	int lost = !to || to->c.qp_num != q->dest || (to->c.state != ABI_QPS_RTR && to->c.state != ABI_QPS_RTS) ||
		   to->dest != q->c.qp_num || ((q->sq_psn - to->rq_psn) & 0xFFFFFF) != 0 || (needs_grh(to->c.context) && !q->global);
	if (lost) {
		int64_t t = now_ms();
		if (!q->since)
			q->since = t;
		if (t - q->since < RETRY_MS)
			return 0;
		finish(q, ABI_WC_RETRY_EXC_ERR);
		to_error(q);
		return 1;
	}
	uint32_t n = r->wr.num_sge ? r->sge.length : 0;
	static unsigned longs;
	static uint64_t disputed;
	int every = env("FAKE_INVALID", 0);
	if (every && n > 65536 && r->wr.wr_id != disputed && ++longs % every == 0) {
		disputed = r->wr.wr_id;
		finish(q, ABI_WC_REM_INV_REQ_ERR);
		to_error(q);
		to_error(to);
		return 1;
	}
	if (n && !find_mr(r->wr.wr.rdma.rkey, to->c.pd, r->wr.wr.rdma.remote_addr, n, ABI_ACCESS_REMOTE_WRITE)) {
		finish(q, ABI_WC_REM_ACCESS_ERR);
		to_error(q);
		to_error(to);
		return 1;
	}
	if (n)
		memcpy((void *)(uintptr_t)r->wr.wr.rdma.remote_addr, (void *)(uintptr_t)r->sge.addr, n);
	if (r->wr.opcode == ABI_WR_RDMA_WRITE_WITH_IMM) {
		struct srq *s = (struct srq *)to->c.srq;
		if (!s->posted)
			dead("receiver not ready");
		s->posted--;
		to->got = 1;
		complete(to->c.recv_cq, (struct abi_wc){.opcode = ABI_WC_RECV_RDMA_WITH_IMM, .byte_len = n, .imm_data = r->wr.imm_data,
							.qp_num = to->c.qp_num, .wc_flags = ABI_WC_WITH_IMM});
	}
	q->sq_psn = (q->sq_psn + 1) & 0xFFFFFF;
	to->rq_psn = (to->rq_psn + 1) & 0xFFFFFF;
	finish(q, ABI_WC_SUCCESS);
	return 1;
}

static void unlist(int i)
{
	todo[i]->listed = 0;
	todo[i] = todo[--todos];
}

// The cards' thread: queue pairs by turns, a few requests each.
static void *run(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&mu);
	for (;;) {
		int moved = 0, waits = 0;
		for (int i = todos - 1; i >= 0; i--) {
			struct qp *q = todo[i];
			if (q->c.state == ABI_QPS_ERR)
				flush(q);
			if (q->head == q->tail || q->c.state != ABI_QPS_RTS) {
				unlist(i);
				continue;
			}
			for (int k = 0; k < 8 && q->head != q->tail && q->c.state == ABI_QPS_RTS; k++) {
				if (!execute(q)) {
					waits = 1;
					break;
				}
				moved = 1;
			}
		}
		if (moved) { // let others have the lock
			pthread_mutex_unlock(&mu);
			sched_yield();
			pthread_mutex_lock(&mu);
			continue;
		}
		struct timespec t;
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += waits ? 1000000 : 100000000;
		if (t.tv_nsec >= 1000000000)
			t.tv_nsec -= 1000000000, t.tv_sec++;
		pthread_cond_timedwait(&work, &mu, &t);
	}
	return NULL;
}

static void begin(void)
{
	pthread_t t;
	if (pthread_create(&t, NULL, run, NULL))
		dead("pthread_create");
	pthread_detach(t);
}

// Gives back the last receives of failed queue pairs, after so many polls.
static void late(struct abi_cq *c)
{
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_QP; i++)
		if (qps[i] && qps[i]->c.recv_cq == c && qps[i]->late && !--qps[i]->late)
			raise_event((struct card *)c->context, ABI_EVENT_QP_LAST_WQE_REACHED, &qps[i]->c);
	pthread_mutex_unlock(&mu);
}

static int poll_cq(struct abi_cq *c, int max, struct abi_wc *out)
{
	struct cq *q = (struct cq *)c;
	int n = 0;
	if (env("FAKE_POLL_CQ", 0))
		return -1;
	if (env("FAKE_LATE", 0))
		late(c);
	if (!__atomic_load_n(&q->n, __ATOMIC_ACQUIRE)) // whoever spins does not keep the lock from the cards
		return -env("FAKE_POLL_EMPTY", 0);
	pthread_mutex_lock(&mu);
	for (; n < max && q->n > 0; n++, q->n--)
		out[n] = q->ring[q->head++ % c->cqe];
	q->head %= c->cqe;
	pthread_mutex_unlock(&mu);
	return n;
}

static int req_notify_cq(struct abi_cq *c, int solicited)
{
	(void)solicited;
	pthread_mutex_lock(&mu);
	((struct cq *)c)->armed = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

static int post_srq_recv(struct abi_srq *c, struct abi_recv_wr *wr, struct abi_recv_wr **bad)
{
	struct srq *s = (struct srq *)c;
	pthread_mutex_lock(&mu);
	for (; wr; wr = wr->next) {
		if (s->posted == s->max) {
			*bad = wr;
			pthread_mutex_unlock(&mu);
			return ENOMEM;
		}
		s->posted++;
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

static int post_send(struct abi_qp *c, struct abi_send_wr *wr, struct abi_send_wr **bad)
{
	struct qp *q = (struct qp *)c;
	int err = 0;
	pthread_mutex_lock(&mu);
	for (; wr; wr = wr->next) {
		int left = env("FAKE_POST_AFTER", -1);
		if (q->tail - q->head == q->max || left == 0 || (q->c.state != ABI_QPS_RTS && q->c.state != ABI_QPS_ERR)) {
			*bad = wr;
			err = left == 0 ? EINVAL : ENOMEM;
			break;
		}
		if (left > 0) {
			char text[16];
			snprintf(text, sizeof text, "%d", left - 1);
			setenv("FAKE_POST_AFTER", text, 1);
		}
		struct req *r = &q->sq[q->tail++ % q->max];
		r->wr = *wr;
		if (wr->num_sge)
			r->sge = wr->sg_list[0];
	}
	if (q->c.state == ABI_QPS_ERR)
		to_error(q);
	list(q);
	// Most requests are executed at once, so that tests are quick; the others by the thread, at any time later.
	static unsigned turn;
	if (++turn % 4)
		for (int k = 0; k < 8 && q->c.state == ABI_QPS_RTS && q->head != q->tail && execute(q); k++)
			;
	if (q->head != q->tail)
		pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return err;
}

struct abi_device **ibv_get_device_list(int *n)
{
	*n = env("FAKE_DEVICES", 2);
	if (env("FAKE_GET_DEVICE_LIST", 0)) {
		errno = env("FAKE_GET_DEVICE_LIST", 0);
		return NULL;
	}
	struct abi_device **list = calloc(*n + 1, sizeof *list);
	for (int i = 0; i < *n; i++) {
		list[i] = calloc(1, sizeof **list);
		snprintf(list[i]->name, sizeof list[i]->name, "fake%d", i);
	}
	return list;
}

void ibv_free_device_list(struct abi_device **list)
{
	for (int i = 0; list[i]; i++)
		free(list[i]);
	free(list);
}

struct abi_context *ibv_open_device(struct abi_device *dev)
{
	if ((errno = env("FAKE_OPEN_DEVICE", 0)))
		return NULL;
	pthread_once(&once, begin);
	struct card *c = calloc(1, sizeof *c);
	c->dev = *dev;
	c->c.device = &c->dev;
	c->c.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	c->c.ops.poll_cq = poll_cq;
	c->c.ops.req_notify_cq = req_notify_cq;
	c->c.ops.post_srq_recv = post_srq_recv;
	c->c.ops.post_send = post_send;
	return &c->c;
}

static void object(struct abi_context *c, int n) { ((struct card *)c)->objects += n; }

int ibv_close_device(struct abi_context *c)
{
	if (((struct card *)c)->objects)
		dead("a device is closed with objects left behind");
	close(c->async_fd);
	free(c);
	return 0;
}

int ibv_query_device(struct abi_context *c, struct abi_device_attr *a)
{
	(void)c;
	memset(a, 0, sizeof *a);
	a->vendor_id = env("FAKE_VENDOR", 0x15b3);
	a->phys_port_cnt = 1;
	a->max_qp = MAX_QP;
	a->max_qp_wr = 1024;
	a->max_cqe = env("FAKE_MAX_CQE", 1 << 20);
	a->max_srq_wr = 1 << 15;
	return 0;
}

int ibv_query_port(struct abi_context *c, uint8_t port, struct abi_port_attr *a)
{
	(void)port;
	a->state = env("FAKE_PORT_STATE", ABI_PORT_ACTIVE);
	a->link_layer = env("FAKE_LINK_LAYER", ABI_LINK_LAYER_ETHERNET);
	a->lid = a->link_layer == ABI_LINK_LAYER_INFINIBAND ? card_number(c) + 1 : 0;
	a->flags = needs_grh(c) ? ABI_QPF_GRH_REQUIRED : 0;
	a->active_mtu = ABI_MTU_4096;
	a->max_msg_sz = env("FAKE_MAX_MSG", 8 << 20);
	a->active_width = 2;
	a->active_speed = 128;
	a->gid_tbl_len = 4;
	return 0;
}

int ibv_query_gid(struct abi_context *c, uint8_t port, int index, union abi_gid *g)
{
	(void)port;
	(void)index;
	memset(g, 0, sizeof *g);
	g->raw[0] = 0xFE;
	g->raw[1] = 0x80;
	g->raw[15] = card_number(c) + 1;
	return 0;
}

struct abi_pd *ibv_alloc_pd(struct abi_context *c)
{
	struct abi_pd *p = calloc(1, sizeof *p);
	p->context = c;
	object(c, 1);
	return p;
}

int ibv_dealloc_pd(struct abi_pd *p)
{
	object(p->context, -1);
	free(p);
	return 0;
}

static struct abi_mr *new_mr(const char *call, struct abi_pd *pd, void *addr, size_t n, int access)
{
	if ((errno = env(call, 0)))
		return NULL;
	struct mr *m = calloc(1, sizeof *m);
	m->m = (struct abi_mr){.context = pd->context, .pd = pd, .addr = addr, .length = n};
	m->access = access;
	pthread_mutex_lock(&mu);
	while (mrs[next_key % MAX_MR])
		next_key++;
	m->m.lkey = m->m.rkey = next_key;
	mrs[next_key++ % MAX_MR] = m;
	if (env("FAKE_EVENT", 0))
		raise_event((struct card *)pd->context, env("FAKE_EVENT", 0), NULL);
	object(pd->context, 1);
	pthread_mutex_unlock(&mu);
	return &m->m;
}

struct abi_mr *ibv_reg_mr(struct abi_pd *pd, void *addr, size_t n, int access)
{
	return new_mr("FAKE_REG_MR", pd, addr, n, access);
}

struct abi_mr *ibv_reg_mr_iova2(struct abi_pd *pd, void *addr, size_t n, uint64_t iova, unsigned int access)
{
	if (iova != (uintptr_t)addr || !(access & ABI_ACCESS_RELAXED_ORDERING))
		dead("ibv_reg_mr_iova2: not what was expected");
	return new_mr("FAKE_REG_MR", pd, addr, n, access);
}

// The descriptor is that of a memfd here, whose bytes are mapped at iova already.
struct abi_mr *ibv_reg_dmabuf_mr(struct abi_pd *pd, uint64_t offset, size_t n, uint64_t iova, int fd, int access)
{
	if (fcntl(fd, F_GETFD) < 0 || offset % 4096 != iova % 4096) {
		errno = EINVAL;
		return NULL;
	}
	return new_mr("FAKE_REG_DMABUF_MR", pd, (void *)(uintptr_t)iova, n, access);
}

int ibv_dereg_mr(struct abi_mr *m)
{
	pthread_mutex_lock(&mu);
	mrs[m->rkey % MAX_MR] = NULL;
	object(m->context, -1);
	pthread_mutex_unlock(&mu);
	free(m);
	return env("FAKE_DEREG_MR", 0);
}

struct abi_comp_channel *ibv_create_comp_channel(struct abi_context *c)
{
	struct channel *ch = calloc(1, sizeof *ch);
	ch->c.context = c;
	ch->c.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	object(c, 1);
	return &ch->c;
}

int ibv_destroy_comp_channel(struct abi_comp_channel *ch)
{
	close(ch->fd);
	object(ch->context, -1);
	free(ch);
	return 0;
}

struct abi_cq *ibv_create_cq(struct abi_context *c, int cqe, void *owner, struct abi_comp_channel *ch, int vector)
{
	(void)vector;
	if ((errno = env("FAKE_CREATE_CQ", 0)))
		return NULL;
	struct cq *q = calloc(1, sizeof *q);
	q->c = (struct abi_cq){.context = c, .channel = ch, .cq_context = owner, .cqe = cqe};
	q->ring = calloc(cqe, sizeof *q->ring);
	object(c, 1);
	return &q->c;
}

int ibv_destroy_cq(struct abi_cq *c)
{
	object(c->context, -1);
	free(((struct cq *)c)->ring);
	free(c);
	return 0;
}

int ibv_get_cq_event(struct abi_comp_channel *c, struct abi_cq **cq, void **owner)
{
	struct channel *ch = (struct channel *)c;
	uint64_t one;
	if (read(c->fd, &one, sizeof one) != sizeof one)
		return -1;
	pthread_mutex_lock(&mu);
	*cq = ch->events[ch->head++ % MAX_EVENTS];
	pthread_mutex_unlock(&mu);
	*owner = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct abi_cq *cq, unsigned int n)
{
	(void)cq;
	(void)n;
}

struct abi_srq *ibv_create_srq(struct abi_pd *pd, struct abi_srq_init_attr *a)
{
	if ((errno = env("FAKE_CREATE_SRQ", 0)))
		return NULL;
	struct srq *s = calloc(1, sizeof *s);
	s->c.context = pd->context;
	s->c.pd = pd;
	s->max = a->attr.max_wr;
	object(pd->context, 1);
	return &s->c;
}

int ibv_destroy_srq(struct abi_srq *s)
{
	object(s->context, -1);
	free(s);
	return 0;
}

struct abi_qp *ibv_create_qp(struct abi_pd *pd, struct abi_qp_init_attr *a)
{
	if ((errno = env("FAKE_CREATE_QP", 0)))
		return NULL;
	struct qp *q = calloc(1, sizeof *q);
	q->c = (struct abi_qp){.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq, .qp_type = a->qp_type};
	q->max = a->cap.max_send_wr;
	q->sq = calloc(q->max, sizeof *q->sq);
	pthread_mutex_lock(&mu);
	while (qps[next_qpn % MAX_QP])
		next_qpn++;
	q->c.qp_num = next_qpn;
	qps[next_qpn++ % MAX_QP] = q;
	object(pd->context, 1);
	pthread_mutex_unlock(&mu);
	return &q->c;
}

// Drops the completions of a queue pair. A receive among them would be an immediate that is lost.
static void clean(struct abi_cq *c, uint32_t qpn)
{
	struct cq *q = (struct cq *)c;
	int kept = 0;
	if (soft())
		return;
	for (int i = 0; i < q->n; i++) {
		struct abi_wc wc = q->ring[(q->head + i) % c->cqe];
		if (wc.qp_num != qpn)
			q->ring[(q->head + kept++) % c->cqe] = wc;
		else if (wc.opcode == ABI_WC_RECV_RDMA_WITH_IMM)
			dead("a received immediate is dropped");
	}
	q->n = kept;
}

int ibv_modify_qp(struct abi_qp *c, struct abi_qp_attr *a, int mask)
{
	struct qp *q = (struct qp *)c;
	int err = env(a->qp_state == ABI_QPS_RTR ? "FAKE_MODIFY_RTR" : "FAKE_MODIFY", 0);
	if (err)
		return err;
	pthread_mutex_lock(&mu);
	int from = c->state;
	switch (a->qp_state) {
	case ABI_QPS_RESET:
		clean(c->send_cq, c->qp_num);
		clean(c->recv_cq, c->qp_num);
		q->head = q->tail = q->last_wqe = 0;
		break;
	case ABI_QPS_INIT:
		err = from != ABI_QPS_RESET;
		break;
	case ABI_QPS_RTR:
		err = from != ABI_QPS_INIT || !(mask & ABI_QP_AV) || (needs_grh(c->context) && !a->ah_attr.is_global) ||
		      (a->ah_attr.is_global && !a->ah_attr.grh.dgid.raw[15]);
		q->dest = a->dest_qp_num;
		q->rq_psn = a->rq_psn;
		q->gid = a->ah_attr.grh.dgid;
		q->global = a->ah_attr.is_global;
		break;
	case ABI_QPS_RTS:
		err = from != ABI_QPS_RTR;
		q->sq_psn = a->sq_psn;
		q->since = 0;
		break;
	}
	if (err) {
		pthread_mutex_unlock(&mu);
		return EINVAL;
	}
	c->state = a->qp_state;
	if (a->qp_state == ABI_QPS_ERR)
		to_error(q);
	pthread_mutex_unlock(&mu);
	return 0;
}

int ibv_destroy_qp(struct abi_qp *c)
{
	struct qp *q = (struct qp *)c;
	struct card *card = (struct card *)c->context;
	pthread_mutex_lock(&mu);
	if (q->c.state == ABI_QPS_ERR)
		flush(q);
	if (q->late)
		dead("a queue pair is destroyed before its last receive");
	clean(c->send_cq, c->qp_num);
	clean(c->recv_cq, c->qp_num);
	int kept = card->head;
	for (int i = card->head; i != card->tail; i++) {
		struct abi_async_event e = card->events[i % MAX_EVENTS];
		uint64_t one;
		if (e.event_type != ABI_EVENT_QP_LAST_WQE_REACHED || e.element.qp != c)
			card->events[kept++ % MAX_EVENTS] = e;
		else if (read(card->c.async_fd, &one, sizeof one) < 0)
			dead("read of an event");
	}
	card->tail = kept;
	for (int i = 0; i < todos; i++)
		if (todo[i] == q) {
			unlist(i);
			break;
		}
	qps[c->qp_num % MAX_QP] = NULL;
	object(c->context, -1);
	pthread_mutex_unlock(&mu);
	free(q->sq);
	free(q);
	return env("FAKE_DESTROY_QP", 0);
}

int ibv_get_async_event(struct abi_context *ctx, struct abi_async_event *e)
{
	struct card *c = (struct card *)ctx;
	uint64_t one;
	if (read(ctx->async_fd, &one, sizeof one) != sizeof one)
		return -1;
	pthread_mutex_lock(&mu);
	*e = c->events[c->head++ % MAX_EVENTS];
	pthread_mutex_unlock(&mu);
	return 0;
}

void ibv_ack_async_event(struct abi_async_event *e) { (void)e; }
