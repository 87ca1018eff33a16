#include "third_party/grpc/socket_mutator.h"

#include <grpc/support/sync.h>
#include <grpcpp/version_info.h>

#include <functional>
#include <utility>

// The declarations below. gRPC's library exports them, and its public headers take a pointer to a
// grpc_socket_mutator, but the header that declares them is not installed.
static_assert(GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51,
              "compare these with src/core/lib/iomgr/socket_mutator.h of this version");

struct grpc_mutate_socket_info;

struct grpc_socket_mutator_vtable {
  // Called for sockets that connect or listen.
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* mutator);
  // If it is not null, it is called instead of mutate_fd, and also for accepted sockets.
  bool (*mutate_fd_2)(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator);
};

struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};

void grpc_socket_mutator_init(grpc_socket_mutator* mutator,
                              const grpc_socket_mutator_vtable* vtable);

namespace syncgrads {
namespace {

struct SocketMutator : grpc_socket_mutator {
  std::function<void(int)> set;
};

bool Mutate(int fd, grpc_socket_mutator* mutator) {
  static_cast<SocketMutator*>(mutator)->set(fd);
  return true;
}

int Compare(grpc_socket_mutator* a, grpc_socket_mutator* b) {
  return std::less<>()(a, b) ? -1 : a == b ? 0 : 1;
}

void Destroy(grpc_socket_mutator* mutator) { delete static_cast<SocketMutator*>(mutator); }

constexpr grpc_socket_mutator_vtable kVtable = {Mutate, Compare, Destroy, nullptr};

}  // namespace

grpc_socket_mutator* NewSocketMutator(std::function<void(int socket)> set) {
  auto* mutator = new SocketMutator;
  mutator->set = std::move(set);
  grpc_socket_mutator_init(mutator, &kVtable);
  return mutator;
}

}  // namespace syncgrads
