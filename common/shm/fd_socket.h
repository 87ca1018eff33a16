// A small unix socket over which two processes hand each other descriptors.
//
// Messages keep their bounds (SOCK_SEQPACKET), and each may carry a descriptor.
// Addresses are in the abstract namespace: they need no file, go with their
// owner, and are out of reach from another network namespace.

#ifndef SYNCGRADS_COMMON_SHM_FD_SOCKET_H_
#define SYNCGRADS_COMMON_SHM_FD_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/shm/region.h"

namespace syncgrads {

// One end of a connection. Moveable; used by one thread at a time.
class FdSocket {
 public:
  struct Message {
    std::string text;
    // Invalid if none came.
    FileDescriptor descriptor;
  };

  // Errors: Unavailable if nobody listens there.
  static absl::StatusOr<FdSocket> Connect(const std::string& address);

  // The user id of the process at the other end.
  absl::StatusOr<unsigned> PeerUser() const;

  // `text` is at most kMaxText bytes. With a `descriptor`, the peer gets its own
  // of the same file.
  //
  // Errors: Unavailable if the peer has closed; DeadlineExceeded.
  absl::Status Send(absl::string_view text, const FileDescriptor* descriptor,
                    absl::Time deadline);
  absl::StatusOr<Message> Receive(absl::Time deadline);

  // Makes pending and later calls of another thread return.
  void Shutdown();

  static constexpr size_t kMaxText = 64 << 10;

 private:
  friend class FdListener;
  explicit FdSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

// Thread-safe but for destruction.
class FdListener {
 public:
  // Errors: AlreadyExists if another process listens there.
  static absl::StatusOr<FdListener> Listen(const std::string& address);

  // Errors: Cancelled after Shutdown.
  absl::StatusOr<FdSocket> Accept();
  void Shutdown();

 private:
  explicit FdListener(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_FD_SOCKET_H_
