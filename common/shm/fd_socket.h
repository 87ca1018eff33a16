// A unix socket over which two processes send each other short messages and file descriptors.
//
// Messages keep their bounds (SOCK_SEQPACKET), and each may carry one descriptor. Addresses are in
// the abstract namespace: they need no file, disappear with their owner, and cannot be reached from
// another network namespace. Any user may listen at an address that is free, so whoever sends a
// secret checks the peer's user first.

#ifndef SYNCGRADS_COMMON_SHM_FD_SOCKET_H_
#define SYNCGRADS_COMMON_SHM_FD_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/shm/region.h"

namespace syncgrads {

// One end of a connection. Moveable. One thread at a time may use it; only Shutdown may be called
// from another thread.
class FdSocket {
 public:
  struct Message {
    std::string text;
    // Invalid if the message had no descriptor.
    FileDescriptor descriptor;
  };

  // Connects to a listener without waiting.
  //
  // Errors:
  //   Unavailable        no process listens at the address, or no socket can be created
  //   ResourceExhausted  the listener's queue of connections is full; a retry may succeed
  //   InvalidArgument    the address is too long
  static absl::StatusOr<FdSocket> Connect(const std::string& address);

  // Returns the user id of the process at the other end.
  //
  // Errors:
  //   Unavailable  the kernel does not report it
  absl::StatusOr<unsigned> PeerUser() const;

  // Send sends one message; Receive waits for one message. `text` has at least one byte and at most
  // kMaxText bytes. If `descriptor` is not null, the peer receives its own descriptor of the same
  // file.
  //
  // Errors:
  //   Unavailable       the peer has closed the connection, or Shutdown was called
  //   DeadlineExceeded  the deadline has passed
  //   InvalidArgument   Receive only: the message is too long, or has more than one descriptor;
  //                     its descriptors have been closed
  absl::Status Send(absl::string_view text, const FileDescriptor* descriptor, absl::Time deadline);
  absl::StatusOr<Message> Receive(absl::Time deadline);

  // Shuts the connection down: pending and later calls return. Any thread may call it.
  void Shutdown();

  static constexpr size_t kMaxText = 64 << 10;

 private:
  friend class FdListener;
  explicit FdSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

// Returns the user of the process at the other end of a connected unix socket: the one that has
// connected, or the one that listened. Unavailable if the kernel does not report it.
absl::StatusOr<unsigned> PeerUserOf(const FileDescriptor& socket);

// Connects to a byte stream (SOCK_STREAM) at an abstract address, without waiting, and returns the
// non-blocking socket. Nothing has been sent on it.
//
// Errors:
//   PermissionDenied  a process of another user listens at the address; has both users
//   Unavailable       the kernel does not report the user
//   and those of FdSocket::Connect
absl::StatusOr<FileDescriptor> ConnectToOwnStream(const std::string& address);

// A socket that accepts connections. Thread-safe, except for destruction.
class FdListener {
 public:
  // Listens at an abstract address.
  //
  // Errors:
  //   AlreadyExists    another process listens at the address
  //   Unavailable      no socket can be created or bound
  //   InvalidArgument  the address is too long
  static absl::StatusOr<FdListener> Listen(const std::string& address);

  // Waits for a connection and accepts it.
  //
  // Errors:
  //   DeadlineExceeded   the deadline has passed
  //   ResourceExhausted  this process or the system has no descriptors or no memory for the
  //                      connection; it stays in the queue for a later call
  //   Cancelled          Shutdown was called, or the socket has failed
  //   Unavailable        waiting for the socket failed
  absl::StatusOr<FdSocket> Accept(absl::Time deadline);
  void Shutdown();

 private:
  explicit FdListener(FileDescriptor socket) : socket_(std::move(socket)) {}

  FileDescriptor socket_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_FD_SOCKET_H_
