// UCX: a ucp_put for each block, a flush, then an active message that tells the receiver; it answers with another. Latency is a put
// of 8 bytes into memory that the other side looks at; rate is active messages of 8 bytes that the receiver's handler counts.
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum {
	NOTICE = 1,     // number of the only active message
	MESSAGE = 8,    // bytes of latency and rate
	WORDS = 4096,   // bytes that puts of 8 bytes come from and go to
	ADDRESS = 2048, // longest address of a worker
	KEY = 1024,     // longest packed key
};

struct ucx {
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h ep;
	ucp_mem_h pool, words;
	ucp_rkey_h pool_key, word_key; // of the other side
	uint64_t pool_base, word_base;
	volatile uint64_t *word; // [0] is what the other side writes, [1] where ours come from
	uint64_t turn;           // of latency
	long in_flight;          // puts and messages
	uint64_t arrived;        // messages
	ucs_status_t status;     // of the first operation that failed
};

// What the two sides tell each other.
struct hello {
	char address[ADDRESS], pool_key[KEY], word_key[KEY];
	uint64_t length, pool_base, word_base;
};

static const char *version(void) {
	unsigned major, minor, patch;
	static char text[32];
	ucp_get_version(&major, &minor, &patch);
	snprintf(text, sizeof text, "%u.%u.%u", major, minor, patch);
	return text;
}

static int check(struct run *r, const char *call, ucs_status_t s) {
	return s == UCS_OK ? 0 : fail(r, "%s: %s", call, ucs_status_string(s));
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param) {
	(void)header, (void)header_length, (void)data, (void)length, (void)param;
	((struct ucx *)arg)->arrived++;
	return UCS_OK;
}

static void on_done(void *request, ucs_status_t status, void *arg) {
	struct ucx *u = arg;
	u->in_flight--;
	if (status != UCS_OK && u->status == UCS_OK) u->status = status;
	ucp_request_free(request);
}

static ucp_request_param_t notify(struct ucx *u) {
	return (ucp_request_param_t){
	    .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_done, .user_data = u};
}

// submitted takes the result of a non-blocking call.
static int submitted(struct run *r, struct ucx *u, const char *call, ucs_status_ptr_t p) {
	if (UCS_PTR_IS_ERR(p)) return check(r, call, UCS_PTR_STATUS(p));
	u->in_flight += p != NULL;
	return 0;
}

static int progress(struct run *r, struct ucx *u) {
	ucp_worker_progress(u->worker);
	if (u->status != UCS_OK) return check(r, "operation", u->status);
	return gone() ? fail(r, "the other process is gone") : 0;
}

static int room(struct run *r, struct ucx *u, long most) {
	while (u->in_flight > most)
		if (progress(r, u) < 0) return -1;
	return 0;
}

static int flush(struct run *r, struct ucx *u) {
	ucp_request_param_t param = notify(u);
	return submitted(r, u, "ucp_ep_flush", ucp_ep_flush_nbx(u->ep, &param)) < 0 ? -1 : room(r, u, 0);
}

// message sends an active message of 8 bytes.
static int message(struct run *r, struct ucx *u) {
	ucp_request_param_t param = notify(u);
	return submitted(r, u, "ucp_am_send", ucp_am_send_nbx(u->ep, NOTICE, NULL, 0, (void *)&u->word[1], MESSAGE, &param));
}

// await waits for n more messages.
static int await(struct run *r, struct ucx *u, uint64_t n) {
	while (u->arrived < n)
		if (progress(r, u) < 0) return -1;
	u->arrived -= n;
	return 0;
}

static int send_(struct run *r, uint64_t first) {
	struct ucx *u = r->state;
	ucp_request_param_t param = notify(u);
	for (long i = 0; i < r->count; i++) {
		struct slot s = block(r, first + (uint64_t)i);
		if (submitted(r, u, "ucp_put",
		              ucp_put_nbx(u->ep, r->src + s.src * r->size, r->size, u->pool_base + s.dst * r->size, u->pool_key, &param)) < 0 ||
		    room(r, u, r->depth * r->batch - 1) < 0)
			return -1;
	}
	return flush(r, u) < 0 || message(r, u) < 0 ? -1 : await(r, u, 1);
}

static int receive(struct run *r) {
	struct ucx *u = r->state;
	return await(r, u, 1) < 0 || message(r, u) < 0 ? -1 : room(r, u, 0);
}

static int put_word(struct run *r, struct ucx *u) {
	ucp_request_param_t param = notify(u);
	u->word[1] = u->turn;
	return submitted(r, u, "ucp_put", ucp_put_nbx(u->ep, (void *)&u->word[1], MESSAGE, u->word_base, u->word_key, &param));
}

static int await_word(struct run *r, struct ucx *u) {
	while (u->word[0] != u->turn)
		if (progress(r, u) < 0) return -1;
	return room(r, u, 0);
}

static int ping(struct run *r) {
	struct ucx *u = r->state;
	u->turn++;
	return put_word(r, u) < 0 ? -1 : await_word(r, u);
}

static int pong(struct run *r) {
	struct ucx *u = r->state;
	u->turn++;
	return await_word(r, u) < 0 || put_word(r, u) < 0 ? -1 : room(r, u, 0);
}

static int flood(struct run *r) {
	struct ucx *u = r->state;
	for (long i = 0; i < r->count; i++)
		if (message(r, u) < 0 || room(r, u, r->depth - 1) < 0) return -1;
	return room(r, u, 0) < 0 ? -1 : await(r, u, 1);
}

static int drain(struct run *r) {
	struct ucx *u = r->state;
	return await(r, u, (uint64_t)r->count) < 0 || message(r, u) < 0 ? -1 : room(r, u, 0);
}

// map makes memory that UCX may place where the transport likes it: in shared memory.
static void *map(struct run *r, struct ucx *u, size_t n, ucp_mem_h *handle) {
	ucp_mem_map_params_t p = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
	                          .length = n,
	                          .flags = UCP_MEM_MAP_ALLOCATE};
	ucp_mem_attr_t a = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
	if (check(r, "ucp_mem_map", ucp_mem_map(u->context, &p, handle)) < 0 ||
	    check(r, "ucp_mem_query", ucp_mem_query(*handle, &a)) < 0)
		return NULL;
	return a.address;
}

static void *memory(struct run *r, size_t bytes) {
	struct ucx *u = r->state = calloc(1, sizeof *u);
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA | UCP_FEATURE_AM};
	ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_am_handler_param_t am = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
	                             .id = NOTICE,
	                             .cb = on_message,
	                             .arg = u};
	if (check(r, "ucp_init", ucp_init(&params, NULL, &u->context)) < 0 ||
	    check(r, "ucp_worker_create", ucp_worker_create(u->context, &worker, &u->worker)) < 0 ||
	    check(r, "ucp_worker_set_am_recv_handler", ucp_worker_set_am_recv_handler(u->worker, &am)) < 0)
		return NULL;
	u->word = map(r, u, WORDS, &u->words);
	if (!u->word) return NULL;
	memset((void *)u->word, 0, WORDS);
	return map(r, u, bytes, &u->pool);
}

static int pack(struct run *r, struct ucx *u, ucp_mem_h m, char *to) {
	void *key;
	size_t n;
	if (check(r, "ucp_rkey_pack", ucp_rkey_pack(u->context, m, &key, &n)) < 0) return -1;
	if (n > KEY) return fail(r, "ucp_rkey_pack: a key of %zu bytes, want at most %d", n, KEY);
	memcpy(to, key, n);
	ucp_rkey_buffer_release(key);
	return 0;
}

static int open_(struct run *r) {
	struct ucx *u = r->state;
	static struct hello mine, theirs;
	ucp_address_t *address;
	size_t length;
	if (check(r, "ucp_worker_get_address", ucp_worker_get_address(u->worker, &address, &length)) < 0) return -1;
	if (length > ADDRESS) return fail(r, "an address of %zu bytes, want at most %d", length, ADDRESS);
	memcpy(mine.address, address, length);
	ucp_worker_release_address(u->worker, address);
	mine.length = length, mine.pool_base = (uintptr_t)(r->src ? r->src : r->dst), mine.word_base = (uintptr_t)u->word;
	if (pack(r, u, u->pool, mine.pool_key) < 0 || pack(r, u, u->words, mine.word_key) < 0 || swap(r, &mine, &theirs, sizeof mine) < 0)
		return -1;
	ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)theirs.address};
	if (check(r, "ucp_ep_create", ucp_ep_create(u->worker, &ep, &u->ep)) < 0 ||
	    check(r, "ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(u->ep, theirs.pool_key, &u->pool_key)) < 0 ||
	    check(r, "ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(u->ep, theirs.word_key, &u->word_key)) < 0)
		return -1;
	u->pool_base = theirs.pool_base, u->word_base = theirs.word_base;
	const char *how = strcmp(r->scenario, "pages") == 0 ? "ucp_put, flush, active message" : strcmp(r->scenario, "rate") == 0
	                      ? "active messages" : "ucp_put, memory polled";
	const char *tls = getenv("UCX_TLS");
	snprintf(r->settings, sizeof r->settings, "UCX_TLS=%s, %s, memory of ucp_mem_map, both poll", tls ? tls : "all", how);
	// A connection is made by the first message: one each way, so that no sample pays for it.
	return r->role == SENDER ? (message(r, u) < 0 ? -1 : await(r, u, 1)) : receive(r);
}

static void close_(struct run *r) {
	struct ucx *u = r->state;
	if (u->pool_key) ucp_rkey_destroy(u->pool_key);
	if (u->word_key) ucp_rkey_destroy(u->word_key);
	if (u->worker) ucp_worker_destroy(u->worker); // with its endpoints
	if (u->pool) ucp_mem_unmap(u->context, u->pool);
	if (u->words) ucp_mem_unmap(u->context, u->words);
	if (u->context) ucp_cleanup(u->context);
}

int main(void) {
	return drive(&(struct peer){.name = "ucx",
	                            .version = version,
	                            .memory = memory,
	                            .open = open_,
	                            .send = send_,
	                            .receive = receive,
	                            .ping = ping,
	                            .pong = pong,
	                            .flood = flood,
	                            .drain = drain,
	                            .close = close_});
}
