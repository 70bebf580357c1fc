//go:build cgo

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int most(int a, int b) { return a < b ? a : b; }

int hv_device(struct hv_table *lib, int i, char *out)
{
	int n = 0;
	errno = 0;
	struct abi_device **list = lib->get_device_list(&n);
	if (!list)
		return errno ? -errno : -ENOSYS;
	if (i < n) {
		memcpy(out, list[i]->name, ABI_NAME_MAX);
		out[ABI_NAME_MAX - 1] = 0;
	}
	lib->free_device_list(list);
	return n;
}

struct hv_card *hv_open(struct hv_table *lib, const char *name)
{
	struct hv_card *c = calloc(1, sizeof *c);
	int n = 0, err = ENODEV;
	if (!c)
		return NULL;
	c->lib = lib;
	struct abi_device **list = lib->get_device_list(&n);
	for (int i = 0; list && i < n; i++) {
		if (strncmp(list[i]->name, name, ABI_NAME_MAX))
			continue;
		errno = 0;
		c->ctx = lib->open_device(list[i]);
		err = c->ctx ? 0 : errno ? errno : EIO;
		break;
	}
	if (list)
		lib->free_device_list(list);
	if (!err)
		err = lib->query_device(c->ctx, &c->device);
	if (err) {
		if (c->ctx)
			lib->close_device(c->ctx);
		free(c);
		errno = err;
		return NULL;
	}
	return c;
}

int hv_query_port(struct hv_card *c, int port, struct abi_port_attr *out)
{
	memset(out, 0, sizeof *out);
	return c->lib->query_port(c->ctx, port, out);
}

int hv_query_gid(struct hv_card *c, int port, int index, uint8_t *out)
{
	union abi_gid gid;
	memset(&gid, 0, sizeof gid);
	int err = c->lib->query_gid(c->ctx, port, index, &gid);
	memcpy(out, gid.raw, sizeof gid.raw);
	return err;
}

int hv_query_gids(struct hv_card *c, struct abi_gid_entry *out, int max)
{
	if (!c->lib->query_gid_table)
		return -ENOSYS;
	ssize_t n = c->lib->query_gid_table(c->ctx, out, max, 0, sizeof *out);
	return n == -EOPNOTSUPP ? -ENOSYS : (int)n;
}

// All receives are alike: no bytes, no name.
static int post_receives(struct hv_card *c, int n)
{
	struct abi_recv_wr wrs[HV_MOST_CHAIN], *bad;
	while (n > 0) {
		int k = most(n, HV_MOST_CHAIN);
		for (int i = 0; i < k; i++)
			wrs[i] = (struct abi_recv_wr){.next = i + 1 < k ? &wrs[i + 1] : NULL};
		int err = c->ctx->ops.post_srq_recv(c->srq, wrs, &bad);
		if (err)
			return err;
		n -= k;
	}
	return 0;
}

static int nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

static int failed(void) { return errno ? errno : EIO; }

int hv_start(struct hv_card *c, int sends, int recvs, int depth, const char **what)
{
	struct abi_srq_init_attr srq = {.attr = {.max_wr = depth, .max_sge = 1}};
	int err;
	errno = 0;
	*what = "ibv_alloc_pd";
	if (!(c->pd = c->lib->alloc_pd(c->ctx)))
		return failed();
	*what = "ibv_create_comp_channel";
	if (!(c->channel = c->lib->create_comp_channel(c->ctx)))
		return failed();
	*what = "fcntl";
	if ((err = nonblocking(c->channel->fd)) || (err = nonblocking(c->ctx->async_fd)))
		return err;
	*what = "ibv_create_cq";
	if (!(c->sends = c->lib->create_cq(c->ctx, sends, NULL, c->channel, 0)))
		return failed();
	if (!(c->recvs = c->lib->create_cq(c->ctx, recvs, NULL, c->channel, 0)))
		return failed();
	*what = "ibv_create_srq";
	if (!(c->srq = c->lib->create_srq(c->pd, &srq)))
		return failed();
	*what = "ibv_post_srq_recv";
	return post_receives(c, depth);
}

int hv_close(struct hv_card *c, const char **what)
{
	int first = 0, err;
#define CLOSE(name, object) \
	if ((object) && (err = c->lib->name(object)) && !first) \
		first = err, *what = "ibv_" #name
	CLOSE(destroy_srq, c->srq);
	CLOSE(destroy_cq, c->recvs);
	CLOSE(destroy_cq, c->sends);
	CLOSE(destroy_comp_channel, c->channel);
	CLOSE(dealloc_pd, c->pd);
	CLOSE(close_device, c->ctx);
#undef CLOSE
	free(c);
	return first;
}

struct abi_qp *hv_qp(struct hv_card *c, int depth)
{
	struct abi_qp_init_attr attr = {
		.send_cq = c->sends,
		.recv_cq = c->recvs,
		.srq = c->srq,
		.cap = {.max_send_wr = depth, .max_send_sge = 1},
		.qp_type = ABI_QPT_RC,
	};
	errno = 0;
	struct abi_qp *qp = c->lib->create_qp(c->pd, &attr);
	if (!qp)
		errno = failed();
	return qp;
}

uint32_t hv_qpn(struct abi_qp *qp) { return qp->qp_num; }

int hv_qp_destroy(struct hv_card *c, struct abi_qp *qp) { return c->lib->destroy_qp(qp); }

int hv_qp_init(struct hv_card *c, struct abi_qp *qp, int port, int pkey_index, int access)
{
	struct abi_qp_attr attr = {
		.qp_state = ABI_QPS_INIT,
		.qp_access_flags = access,
		.pkey_index = pkey_index,
		.port_num = port,
	};
	return c->lib->modify_qp(qp, &attr, ABI_QP_STATE | ABI_QP_ACCESS_FLAGS | ABI_QP_PKEY_INDEX | ABI_QP_PORT);
}

static int to_state(struct hv_card *c, struct abi_qp *qp, int state)
{
	struct abi_qp_attr attr = {.qp_state = state};
	return c->lib->modify_qp(qp, &attr, ABI_QP_STATE);
}

int hv_qp_reset(struct hv_card *c, struct abi_qp *qp) { return to_state(c, qp, ABI_QPS_RESET); }
int hv_qp_fail(struct hv_card *c, struct abi_qp *qp) { return to_state(c, qp, ABI_QPS_ERR); }

int hv_qp_ready_to_receive(struct hv_card *c, struct abi_qp *qp, const struct hv_route *to)
{
	struct abi_qp_attr attr = {
		.qp_state = ABI_QPS_RTR,
		.path_mtu = to->mtu,
		.rq_psn = to->rq_psn,
		.dest_qp_num = to->qpn,
		.ah_attr = {
			.dlid = to->lid,
			.sl = to->sl,
			.is_global = to->global,
			.port_num = to->port,
		},
		// 82 ms. Credits make it that nobody waits for a receive; when a peer takes more than it was given, the others outlast that.
		.min_rnr_timer = 26,
	};
	if (to->global) {
		memcpy(attr.ah_attr.grh.dgid.raw, to->gid, sizeof to->gid);
		attr.ah_attr.grh.sgid_index = to->sgid_index;
		attr.ah_attr.grh.hop_limit = to->hop_limit;
		attr.ah_attr.grh.traffic_class = to->traffic_class;
	}
	return c->lib->modify_qp(qp, &attr, ABI_QP_STATE | ABI_QP_AV | ABI_QP_PATH_MTU | ABI_QP_DEST_QPN | ABI_QP_RQ_PSN |
						    ABI_QP_MAX_DEST_RD_ATOMIC | ABI_QP_MIN_RNR_TIMER);
}

int hv_qp_ready_to_send(struct hv_card *c, struct abi_qp *qp, const struct hv_route *to)
{
	struct abi_qp_attr attr = {
		.qp_state = ABI_QPS_RTS,
		.sq_psn = to->sq_psn,
		.timeout = to->timeout,
		.retry_cnt = to->retries,
		.rnr_retry = to->rnr_retries,
	};
	return c->lib->modify_qp(qp, &attr, ABI_QP_STATE | ABI_QP_SQ_PSN | ABI_QP_TIMEOUT | ABI_QP_RETRY_CNT | ABI_QP_RNR_RETRY |
						    ABI_QP_MAX_QP_RD_ATOMIC);
}

struct abi_mr *hv_register(struct hv_card *c, void *addr, size_t len, int access, int relaxed)
{
	errno = 0;
	struct abi_mr *mr = relaxed && c->lib->reg_mr_iova2
		? c->lib->reg_mr_iova2(c->pd, addr, len, (uintptr_t)addr, access | ABI_ACCESS_RELAXED_ORDERING)
		: c->lib->reg_mr(c->pd, addr, len, access);
	if (!mr)
		errno = failed();
	return mr;
}

struct abi_mr *hv_register_dmabuf(struct hv_card *c, uint64_t offset, size_t len, uint64_t iova, int fd, int access, int relaxed)
{
	if (!c->lib->reg_dmabuf_mr) {
		errno = ENOSYS;
		return NULL;
	}
	errno = 0;
	struct abi_mr *mr = c->lib->reg_dmabuf_mr(c->pd, offset, len, iova, fd, access | (relaxed ? ABI_ACCESS_RELAXED_ORDERING : 0));
	if (!mr)
		errno = failed();
	return mr;
}

int hv_deregister(struct hv_card *c, struct abi_mr *mr) { return c->lib->dereg_mr(mr); }

int hv_post(struct hv_send *sends, int n, int *posted, int *doorbells)
{
	struct abi_send_wr wrs[HV_MOST_CHAIN], *bad;
	struct abi_sge sges[HV_MOST_CHAIN];
	*posted = *doorbells = 0;
	for (int at = 0; at < n;) {
		int k = 0;
		struct abi_qp *qp = (struct abi_qp *)(uintptr_t)sends[at].qp;
		for (; k < HV_MOST_CHAIN && at + k < n && sends[at + k].qp == sends[at].qp; k++) {
			struct hv_send *s = &sends[at + k];
			sges[k] = (struct abi_sge){.addr = s->local, .length = s->len, .lkey = s->lkey};
			wrs[k].wr_id = s->id;
			wrs[k].next = &wrs[k + 1];
			wrs[k].sg_list = &sges[k];
			wrs[k].num_sge = s->len > 0;
			wrs[k].opcode = s->flags & HV_IMM ? ABI_WR_RDMA_WRITE_WITH_IMM : ABI_WR_RDMA_WRITE;
			wrs[k].send_flags = s->flags & HV_SIGNALED ? ABI_SEND_SIGNALED : 0;
			wrs[k].imm_data = htonl(s->imm);
			wrs[k].wr.rdma.remote_addr = s->remote;
			wrs[k].wr.rdma.rkey = s->rkey;
		}
		wrs[k - 1].next = NULL;
		bad = NULL;
		int err = qp->context->ops.post_send(qp, wrs, &bad);
		++*doorbells;
		if (err) {
			*posted = at + (bad ? (int)(bad - wrs) : 0);
			return err < 0 ? -err : err;
		}
		at += k;
		*posted = at;
	}
	return 0;
}

static int take(struct abi_cq *cq, struct hv_done *out, int max, uint32_t flags)
{
	struct abi_wc wcs[HV_MOST_CHAIN];
	int n = cq->context->ops.poll_cq(cq, most(max, HV_MOST_CHAIN), wcs);
	for (int i = 0; i < n; i++)
		out[i] = (struct hv_done){
			.id = flags & HV_RECV ? 0 : wcs[i].wr_id,
			.qpn = wcs[i].qp_num,
			.status = wcs[i].status,
			.vendor = wcs[i].vendor_err,
			// The rest is defined for success alone.
			.len = wcs[i].status ? 0 : wcs[i].byte_len,
			.imm = wcs[i].status ? 0 : ntohl(wcs[i].imm_data),
			.flags = flags | (!wcs[i].status && wcs[i].wc_flags & ABI_WC_WITH_IMM ? HV_WITH_IMM : 0),
		};
	return n;
}

int hv_poll(struct hv_card *c, struct hv_done *out, int max)
{
	// Some room is for sends, however much is received.
	int n = take(c->recvs, out, max - max / 4, HV_RECV);
	if (n < 0)
		return n;
	if (n > 0) {
		int err = post_receives(c, n);
		if (err)
			c->fault = err < 0 ? err : -err;
	}
	int sends = take(c->sends, out + n, max - n, 0);
	if (sends < 0)
		c->fault = sends;
	else
		n += sends;
	return n > 0 ? n : c->fault; // what has come is there only once
}

int hv_arm(struct hv_card *c)
{
	int err = c->ctx->ops.req_notify_cq(c->recvs, 0);
	return err ? err : c->ctx->ops.req_notify_cq(c->sends, 0);
}

int hv_events(struct hv_card *c)
{
	int n = 0;
	struct abi_cq *cq;
	void *owner;
	for (; !c->lib->get_cq_event(c->channel, &cq, &owner); n++)
		c->lib->ack_cq_events(cq, 1);
	return n;
}

int hv_async(struct hv_card *c, uint32_t *subject)
{
	struct abi_async_event ev;
	struct pollfd fd = {.fd = c->ctx->async_fd, .events = POLLIN};
	if (poll(&fd, 1, 0) <= 0 || c->lib->get_async_event(c->ctx, &ev))
		return -1;
	switch (ev.event_type) {
	case ABI_EVENT_QP_FATAL:
	case ABI_EVENT_QP_REQ_ERR:
	case ABI_EVENT_QP_ACCESS_ERR:
	case ABI_EVENT_QP_LAST_WQE_REACHED:
		*subject = ev.element.qp->qp_num;
		break;
	default:
		*subject = ev.element.port_num;
	}
	c->lib->ack_async_event(&ev);
	return ev.event_type;
}
