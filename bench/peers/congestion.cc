// A library for LD_PRELOAD. It sets the congestion control named by $TCP_CONGESTION on every TCP
// socket that the program creates, so that systems are compared with the same one. If the kernel
// refuses it, the program ends.

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" int socket(int domain, int type, int protocol) noexcept {
  using Function = int (*)(int, int, int);
  static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "socket"));
  static const char* const name = std::getenv("TCP_CONGESTION");
  const int fd = next(domain, type, protocol);
  if (fd >= 0 && name != nullptr && (domain == AF_INET || domain == AF_INET6) &&
      (type & SOCK_STREAM) != 0 && (type & SOCK_DGRAM) == 0 &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, std::strlen(name)) != 0) {
    std::perror(name);
    std::_Exit(1);
  }
  return fd;
}
