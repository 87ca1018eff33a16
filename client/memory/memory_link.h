// Shared memory with one server, if that server is on this host.
//
// The welcome of such a server names a unix socket. A thread of this object connects to it, offers
// every region to the server, and fetches the results of the groups passed to Fetch. Until this is
// done, and wherever it fails, payloads go over the stream:
//
//   unknown ── welcome with a socket ──▶ connecting ──▶ connected
//      │                                  ▲    │           │
//      │              another process's ──┘    ▼ any error ▼
//      └────── welcome with a refusal ──────▶ refused

#ifndef SYNCGRADS_CLIENT_MEMORY_MEMORY_LINK_H_
#define SYNCGRADS_CLIENT_MEMORY_MEMORY_LINK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/memory/mapped_results.h"
#include "client/memory/shared_buffers.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/shm/fd_socket.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Owned by one ServerLink and the DataPlane. Calls SharedBuffers with `mutex_` held, so that lock
// comes after it; calls no listener with it held. Thread-safe.
class MemoryLink {
 public:
  // `buffers` must outlive this object.
  MemoryLink(DataHello hello, const SharedBuffers& buffers);
  // Calls Stop.
  ~MemoryLink();

  // Sets the listeners. Call it before the first welcome. `on_shared`: memory is shared through
  // `socket`. `on_refused`: memory is not shared, or not any more, for `reason`. Both are called
  // without locks, on this object's thread or on the thread that calls OnWelcome.
  void SetListener(std::function<void(const std::string& socket)> on_shared,
                   std::function<void(const std::string& reason)> on_refused);

  // Stops sharing and joins the thread. It calls no listener any more. Several threads may call it
  // at once; each call returns when the thread has ended. Must not be called by a listener.
  void Stop();

  // Takes the server's answer to the hello of a data stream. When a stream is opened again, another
  // answer follows. It has an effect only if it has another socket: it then comes from another
  // process, to which everything is offered again.
  void OnWelcome(const DataWelcome& welcome);

  // Offer: offers regions that have been allocated since. Fetch: fetches the results of `group`.
  // Both only wake the thread.
  void Offer();
  void Fetch(GroupId group);
  // Waits until every region has been offered and the results of every group passed to Fetch have
  // been fetched or refused, or until memory is not shared, or until `deadline`.
  void AwaitSettled(absl::Time deadline) const;

  // True if messages to the server may refer to shared memory.
  bool is_shared() const;
  // True if the server has mapped the region.
  bool Has(uint32_t region) const;
  // Returns the results of a group; null if they are not mapped here.
  std::shared_ptr<const MappedResults> Results(GroupId group) const;

 private:
  enum class State { kUnknown, kConnecting, kConnected, kRefused };

  void Run();
  // Shares memory with the process behind `address`, until an error or until another address is
  // set.
  absl::Status ShareWith(const std::string& address);
  // Connects. If the server has too many connections waiting, retries for kTimeout.
  absl::StatusOr<FdSocket> Connect(const std::string& address);
  // True if the thread has nothing to do.
  bool SettledLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Greet(FdSocket& socket);
  absl::Status OfferTo(const std::string& address, FdSocket& socket,
                       const SharedBuffers::Region& region);
  absl::Status Fetch(const std::string& address, FdSocket& socket, GroupId group);
  void Refuse(const std::string& reason);

  const DataHello hello_;
  const SharedBuffers& buffers_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kUnknown;
  std::function<void(const std::string&)> on_shared_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const std::string&)> on_refused_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FdSocket> socket_ ABSL_GUARDED_BY(mutex_);
  // Regions with smaller numbers have been offered. The server has mapped them, except
  // `not_taken_`.
  uint32_t offered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<uint32_t> not_taken_ ABSL_GUARDED_BY(mutex_);
  std::set<GroupId> wanted_ ABSL_GUARDED_BY(mutex_);  // not fetched yet
  std::set<GroupId> asked_for_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupId, std::shared_ptr<const MappedResults>> results_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
  // Held while `thread_` is joined. Taken without `mutex_`.
  Mutex joining_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_MEMORY_MEMORY_LINK_H_
