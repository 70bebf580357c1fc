// memcpy: the same blocks in the same order, copied by the C library in one process. Nobody has to be told.
#include "driver.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>

static const char *version(void) { return gnu_get_libc_version(); }

static int open_(struct run *r) {
	snprintf(r->settings, sizeof r->settings, "one process, memcpy of the C library, no notification");
	return 0;
}

static int send_(struct run *r, uint64_t first) {
	for (uint64_t k = first; k < first + (uint64_t)r->count && !gone(); k++) {
		struct slot s = block(r, k);
		memcpy(r->dst + s.dst * r->size, r->src + s.src * r->size, r->size);
	}
	return gone() ? fail(r, "stopped") : 0;
}

int main(void) {
	return drive(&(struct peer){.name = "memcpy", .alone = 1, .version = version, .open = open_, .send = send_});
}
