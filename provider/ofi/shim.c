//go:build cgo

#include "shim.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(struct hw_op) == 128, "an operation is two cache lines");
_Static_assert(sizeof(struct hw_dest) == 32, "Go mirrors it");

static void copy(char *to, const char *from) {
	strncpy(to, from ? from : "", HW_NAME - 1);
	to[HW_NAME - 1] = 0;
}

// The interface that is asked for: what the library has, up to 2.0.
static uint32_t wanted(const struct hf_api *api) {
	uint32_t has = api->version(), most = HF_VERSION(2, 0);
	return has < most ? has : most;
}

static struct sigaction kept[NSIG];

void hw_keep_signals(void) {
	for (int s = 1; s < NSIG; s++) (void)sigaction(s, NULL, &kept[s]);
}

void hw_restore_signals(void) {
	for (int s = 1; s < NSIG; s++)
		if (s != SIGKILL && s != SIGSTOP) (void)sigaction(s, &kept[s], NULL);
}

int hw_getinfo(const struct hf_api *api, const char *provider, const char *node, int hmem, int source, struct hf_info **out) {
	struct hf_info *hints = api->dupinfo(NULL);
	if (!hints) return -ENOMEM;
	hints->caps = HF_MSG | HF_RMA | (hmem ? HF_HMEM : 0) | (source ? HF_SOURCE : 0);
	hints->mode = HF_CONTEXT | HF_CONTEXT2;
	hints->ep_attr->type = HF_EP_RDM;
	hints->domain_attr->mr_mode = HF_MR_LOCAL | HF_MR_VIRT_ADDR | HF_MR_ALLOCATED | HF_MR_PROV_KEY | (hmem ? HF_MR_HMEM : 0);
	hints->domain_attr->threading = HF_THREAD_DOMAIN;
	hints->domain_attr->control_progress = hints->domain_attr->data_progress = HF_PROGRESS_MANUAL;
	hints->domain_attr->resource_mgmt = HF_RM_ENABLED;
	hints->domain_attr->av_type = HF_AV_TABLE;
	hints->domain_attr->cq_data_size = 4;
	if (provider && *provider) hints->fabric_attr->prov_name = strdup(provider); // freed with the hints
	int e = api->getinfo(wanted(api), node, NULL, node ? HF_SOURCE_FLAG : 0, hints, out);
	api->freeinfo(hints);
	return e;
}

void hw_describe(const struct hf_info *i, struct hw_desc *d) {
	memset(d, 0, sizeof *d);
	copy(d->provider, i->fabric_attr->prov_name);
	copy(d->fabric, i->fabric_attr->name);
	copy(d->domain, i->domain_attr->name);
	d->caps = i->caps;
	d->mode = i->mode;
	d->tx_size = i->tx_attr->size;
	d->rx_size = i->rx_attr->size;
	d->max_msg = i->ep_attr->max_msg_size;
	d->inject = i->tx_attr->inject_size;
	d->key_size = i->domain_attr->mr_key_size;
	d->data_size = i->domain_attr->cq_data_size;
	d->msg_order = i->tx_attr->msg_order;
	d->mr_mode = i->domain_attr->mr_mode;
	d->has_nic = i->nic != NULL;
	if (i->nic && i->nic->link_attr) d->link_bits = i->nic->link_attr->speed;
	if (i->nic && i->nic->bus_attr && i->nic->bus_attr->bus_type == HF_BUS_PCI) {
		d->has_pci = 1;
		d->pci_domain = i->nic->bus_attr->pci.domain_id;
		d->pci_bus = i->nic->bus_attr->pci.bus_id;
		d->pci_device = i->nic->bus_attr->pci.device_id;
		d->pci_function = i->nic->bus_attr->pci.function_id;
	}
	if (i->src_addr && i->src_addrlen <= sizeof d->addr) {
		d->addr_len = (uint32_t)i->src_addrlen;
		memcpy(d->addr, i->src_addr, i->src_addrlen);
	}
}

struct hf_info *hw_next(struct hf_info *i) { return i->next; }

void hw_freeinfo(const struct hf_api *api, struct hf_info *i) { api->freeinfo(i); }

struct hf_info *hw_dupinfo(const struct hf_api *api, struct hf_info *i) { return api->dupinfo(i); }

const char *hw_strerror(const struct hf_api *api, int e) { return api->strerror(e); }

uint32_t hw_version(const struct hf_api *api) { return api->version(); }

static int end(struct hf_fid *f) { return f->ops->close(f); }

int hw_open(const struct hf_api *api, struct hf_info *i, uint64_t depth, uint64_t peers, int wait, struct hw_rail *r) {
	memset(r, 0, sizeof *r);
	r->wait_fd = -1;
	int e = api->fabric(i->fabric_attr, &r->fabric, NULL);
	if (e) return r->failed = 1, e;
	if ((e = r->fabric->ops->domain(r->fabric, i, &r->domain, NULL))) return r->failed = 2, e;
	struct hf_cq_attr cq = {.size = depth, .format = HF_CQ_FORMAT_DATA, .wait_obj = HF_WAIT_FD};
	e = wait ? r->domain->ops->cq_open(r->domain, &cq, &r->cq, NULL) : -ENOSYS;
	if (!e) {
		int fd = -1;
		if (r->fabric->ops->size > offsetof(struct hf_ops_fabric, trywait) && r->cq->fid.ops->control(&r->cq->fid, HF_GETWAIT, &fd) == 0)
			r->wait_fd = fd;
	} else {
		cq = (struct hf_cq_attr){.size = depth, .format = HF_CQ_FORMAT_DATA, .wait_obj = HF_WAIT_NONE};
		if ((e = r->domain->ops->cq_open(r->domain, &cq, &r->cq, NULL))) return r->failed = 3, e;
	}
	struct hf_av_attr av = {.type = HF_AV_TABLE, .count = peers < 64 ? peers : 64}; // a hint; shm refuses more than it can hold
	if ((e = r->domain->ops->av_open(r->domain, &av, &r->av, NULL))) return r->failed = 4, e;
	return 0;
}

int hw_close(struct hw_rail *r) {
	struct hf_fid *all[] = {r->av ? &r->av->fid : NULL, r->cq ? &r->cq->fid : NULL, r->domain ? &r->domain->fid : NULL,
	                        r->fabric ? &r->fabric->fid : NULL};
	int first = 0;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		int e = all[i] ? end(all[i]) : 0;
		if (!first) first = e;
	}
	memset(r, 0, sizeof *r);
	return first;
}

int hw_trywait(struct hw_rail *r) {
	struct hf_fid *f = &r->cq->fid;
	return r->fabric->ops->trywait(r->fabric, &f, 1);
}

// Options that only hardware knows; a provider that lacks one says so, and then has nothing to switch off.
static void tune(struct hf_ep *ep) {
	bool no = false;
	(void)ep->ops->setopt(&ep->fid, HF_OPT_ENDPOINT, HF_OPT_SHARED_MEMORY_PERMITTED, &no, sizeof no);
	(void)ep->ops->setopt(&ep->fid, HF_OPT_ENDPOINT, HF_OPT_CUDA_API_PERMITTED, &no, sizeof no);
}

int hw_endpoint(struct hw_rail *r, struct hf_info *i, int hardware, int quiet, struct hf_ep **out, void *name, uint64_t *name_len) {
	struct hf_ep *ep;
	size_t len = *name_len;
	uint64_t queue = HF_SEND | HF_RECV | (quiet ? HF_SELECTIVE_COMPLETION : 0);
	int e = r->domain->ops->endpoint(r->domain, i, &ep, NULL);
	if (e) return e;
	if (hardware) tune(ep);
	if ((e = ep->fid.ops->bind(&ep->fid, &r->av->fid, 0)) || (e = ep->fid.ops->bind(&ep->fid, &r->cq->fid, queue)) ||
	    (e = ep->fid.ops->control(&ep->fid, HF_ENABLE, NULL)) || (e = ep->cm->getname(&ep->fid, name, &len))) {
		(void)end(&ep->fid);
		return e;
	}
	*out = ep;
	*name_len = len;
	return 0;
}

int hw_close_endpoint(struct hf_ep *ep) { return end(&ep->fid); }

int hw_emulates_writes(struct hf_ep *ep) {
	bool yes = false;
	size_t len = sizeof yes;
	return ep->ops->getopt(&ep->fid, HF_OPT_ENDPOINT, HF_OPT_EFA_EMULATED_WRITE, &yes, &len) == 0 && yes;
}

int hw_insert(struct hw_rail *r, const void *name, hf_addr_t *out) {
	int n = r->av->ops->insert(r->av, name, 1, out, 0, NULL);
	return n == 1 ? 0 : n < 0 ? n : -EINVAL;
}

int hw_remove(struct hw_rail *r, hf_addr_t a) { return r->av->ops->remove(r->av, &a, 1, 0); }

static void tell(struct hf_mr *mr, struct hf_mr **out, uint64_t *key, void **desc) { *out = mr, *key = mr->key, *desc = mr->mem_desc; }

int hw_register(struct hw_rail *r, const void *buf, uint64_t len, uint64_t access, uint64_t want, struct hf_mr **out, uint64_t *key, void **desc) {
	struct hf_mr *mr;
	int e = r->domain->mr->reg(&r->domain->fid, buf, len, access, 0, want, 0, &mr, NULL);
	if (!e) tell(mr, out, key, desc);
	return e;
}

int hw_register_dmabuf(struct hw_rail *r, int fd, uint64_t offset, uint64_t len, uint64_t base, uint64_t access, uint64_t want, struct hf_mr **out,
                       uint64_t *key, void **desc) {
	struct hf_mr_dmabuf buf = {.fd = fd, .offset = offset, .len = len, .base_addr = (void *)base};
	struct hf_mr_attr attr = {.dmabuf = &buf, .iov_count = 1, .access = access, .requested_key = want, .iface = HF_HMEM_CUDA};
	struct hf_mr *mr;
	int e = r->domain->mr->regattr(&r->domain->fid, &attr, HF_MR_DMABUF, &mr);
	if (!e) tell(mr, out, key, desc);
	return e;
}

int hw_deregister(struct hf_mr *mr) { return end(&mr->fid); }

static ssize_t post(struct hw_op *o, uint64_t flags) {
	struct hf_ep *ep = o->dest->ep;
	switch (o->kind) {
	case HW_SEND: return ep->msg->send(ep, o->buf, o->len, o->desc, o->dest->addr, o);
	case HW_RECV: return ep->msg->recv(ep, o->buf, o->len, o->desc, HF_ADDR_UNSPEC, o);
	}
	struct iovec iov = {o->buf, o->len};
	struct hf_rma_iov rma = {o->raddr, o->len, o->rkey};
	struct hf_msg_rma m = {&iov, &o->desc, 1, o->dest->addr, &rma, 1, o, o->data};
	if (o->kind >= HW_WRITE_DATA) flags |= HF_REMOTE_CQ_DATA;
	if (o->kind == HW_WRITE_COVER) flags |= HF_DELIVERY_COMPLETE;
	if (o->kind != HW_WRITE_QUIET) flags |= HF_COMPLETION;
	return ep->rma->writemsg(ep, &m, flags);
}

static void post_all(struct hw_op **ops, int64_t n, uint64_t flags, struct hw_result *res) {
	for (int64_t i = 0; i < n; i++) {
		struct hw_op *o = ops[i];
		if (o->dest->stuck) {
			o->outcome = HW_WAITS;
			continue;
		}
		int more = i + 1 < n && ops[i + 1]->dest == o->dest && ops[i + 1]->kind <= HW_WRITE_COVER && o->kind <= HW_WRITE_COVER;
		ssize_t e = post(o, flags | (more ? HF_MORE : 0));
		o->outcome = HW_POSTED;
		if (e == -EAGAIN) {
			o->outcome = HW_WAITS;
			o->dest->stuck = 1;
		} else if (e) {
			o->outcome = HW_FAILED;
			res->failed = e;
		}
	}
}

void hw_step(uintptr_t rail, uintptr_t ops, int64_t n, uint64_t write_flags, uintptr_t entries, uintptr_t from, int64_t max, uintptr_t result) {
	struct hw_rail *r = (struct hw_rail *)rail;
	struct hf_cq_data_entry *to = (struct hf_cq_data_entry *)entries;
	hf_addr_t *src = (hf_addr_t *)from;
	struct hw_result *res = (struct hw_result *)result;
	post_all((struct hw_op **)ops, n, write_flags, res);
	res->entries = res->has_error = 0;
	if (!max) return;
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	res->now = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
	errno = 0; // the tcp provider asks it why a socket ended that did so without an error; see accepted.go
	ssize_t k = src ? r->cq->ops->readfrom(r->cq, to, (size_t)max, src) : r->cq->ops->read(r->cq, to, (size_t)max);
	if (k >= 0) {
		res->entries = k;
	} else if (k == -HF_EAVAIL) {
		struct hf_cq_err_entry e;
		memset(&e, 0, sizeof e);
		ssize_t got = r->cq->ops->readerr(r->cq, &e, 0);
		if (got > 0) {
			res->has_error = 1;
			res->error = (struct hw_error){e.op_context, e.flags, e.data, e.err, e.prov_errno};
		} else if (got != -EAGAIN) {
			res->entries = got;
		}
	} else if (k != -EAGAIN && k != -EINTR) {
		res->entries = k;
	}
}
