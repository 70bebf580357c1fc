// A library to preload: every TCP socket that the program makes uses the congestion control named in HAWSER_CONGESTION. Most peers
// have no setting for it, and one that runs with the system's default, such as bbr, would not do the same work as one with cubic.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol) {
	static int (*real)(int, int, int);
	if (!real) *(void **)&real = dlsym(RTLD_NEXT, "socket");
	int fd = real(domain, type, protocol);
	const char *name = getenv("HAWSER_CONGESTION");
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	// What a listener accepts inherits it.
	if (fd >= 0 && name && kind == SOCK_STREAM && (domain == AF_INET || domain == AF_INET6))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
	return fd;
}
