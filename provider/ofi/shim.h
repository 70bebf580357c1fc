// The C side of this package: everything that calls libfabric. It keeps no state of its own.
#ifndef HAWSER_OFI_SHIM_H
#define HAWSER_OFI_SHIM_H

#include "abi.h"

enum { HW_NAME = 128 }; // longest text or endpoint name, with its end

// What one entry of fi_getinfo's list says.
struct hw_desc {
	char provider[HW_NAME], fabric[HW_NAME], domain[HW_NAME];
	uint64_t caps, mode, link_bits;
	uint64_t tx_size, rx_size, max_msg, inject, key_size, data_size, msg_order;
	int32_t mr_mode;
	int32_t has_nic;
	uint32_t pci_domain, pci_bus, pci_device, pci_function, has_pci;
	uint32_t addr_len;
	uint8_t addr[HW_NAME]; // of the source, as the library keeps it
};

// One open device.
struct hw_rail {
	struct hf_fabric *fabric;
	struct hf_domain *domain;
	struct hf_cq *cq;
	struct hf_av *av;
	int32_t wait_fd; // -1: the provider has none
	int32_t failed;  // the call that failed, for hw_call
};

// Where an operation goes.
struct hw_dest {
	struct hf_ep *ep;
	hf_addr_t addr;
	uint64_t stuck; // the library took no more; for the caller to clear
	uint64_t owed;  // the caller's
};

// HW_WRITE_QUIET: with data, and without a completion. HW_WRITE_COVER: with data, and delivered when it ends.
enum { HW_WRITE = 1, HW_WRITE_DATA = 2, HW_WRITE_QUIET = 3, HW_WRITE_COVER = 4, HW_SEND = 5, HW_RECV = 6 };
enum { HW_POSTED = 0, HW_WAITS = 1, HW_FAILED = 2 };

// One operation, two cache lines: the library's context, and ours.
struct hw_op {
	struct hf_context2 context;
	struct hw_dest *dest;
	void *buf, *desc;
	uint64_t raddr, rkey, data, token;
	uint32_t len;
	uint16_t peer;
	uint8_t kind, outcome; // outcome: of hw_step
};

struct hw_error {
	void *context;
	uint64_t flags, data;
	int32_t err, prov_errno;
};

// What hw_step did.
struct hw_result {
	int64_t now;      // CLOCK_MONOTONIC_COARSE, nanoseconds
	int64_t entries;  // read from the completion queue, or a negative error that is fatal
	int64_t failed;   // the error of the last operation with HW_FAILED
	int64_t has_error;
	struct hw_error error;
};

// Signal handlers of the process: libraries that libfabric brings install their own when they are loaded.
void hw_keep_signals(void);
void hw_restore_signals(void);

int hw_getinfo(const struct hf_api *, const char *provider, const char *node, int hmem, int source, struct hf_info **);
void hw_describe(const struct hf_info *, struct hw_desc *);
struct hf_info *hw_next(struct hf_info *);
void hw_freeinfo(const struct hf_api *, struct hf_info *);
struct hf_info *hw_dupinfo(const struct hf_api *, struct hf_info *);
const char *hw_strerror(const struct hf_api *, int);
uint32_t hw_version(const struct hf_api *);

int hw_open(const struct hf_api *, struct hf_info *, uint64_t depth, uint64_t peers, int wait, struct hw_rail *);
int hw_close(struct hw_rail *);
int hw_trywait(struct hw_rail *);

int hw_endpoint(struct hw_rail *, struct hf_info *, int hardware, int quiet, struct hf_ep **, void *name, uint64_t *name_len); // quiet: for HW_WRITE_QUIET
int hw_close_endpoint(struct hf_ep *);
int hw_emulates_writes(struct hf_ep *);

int hw_insert(struct hw_rail *, const void *name, hf_addr_t *);
int hw_remove(struct hw_rail *, hf_addr_t);

int hw_register(struct hw_rail *, const void *buf, uint64_t len, uint64_t access, uint64_t key, struct hf_mr **, uint64_t *out_key, void **desc);
int hw_register_dmabuf(struct hw_rail *, int fd, uint64_t offset, uint64_t len, uint64_t base, uint64_t access, uint64_t key,
                       struct hf_mr **, uint64_t *out_key, void **desc);
int hw_deregister(struct hf_mr *);

// Posts ops, skipping those whose dest is stuck, then reads up to max entries. What the names say are addresses: of a struct hw_rail, of struct
// hw_op *, of struct hf_cq_data_entry, of hf_addr_t (or 0), of a struct hw_result. Pointers would be looked up by Go in each call.
void hw_step(uintptr_t rail, uintptr_t ops, int64_t n, uint64_t write_flags, uintptr_t entries, uintptr_t src, int64_t max, uintptr_t result);

#endif
