// Shared memory with one server, if it is on this host.
//
// A server that is says in its welcome where it hands memory over. From then on a
// thread of this object's own offers it every region and asks it for the results
// of every group that is wanted. Until that is done, and wherever it fails,
// payloads go over the stream:
//
//   unknown ── welcome with a socket ──▶ connecting ──▶ connected
//      │                                  ▲    │           │
//      │              another process's ──┘    ▼ any error ▼
//      └────── welcome with a refusal ──────▶ refused

#ifndef SYNCGRADS_CLIENT_MEMORY_LINK_H_
#define SYNCGRADS_CLIENT_MEMORY_LINK_H_

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
#include "absl/time/time.h"
#include "client/shared_buffers.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/shm/fd_socket.h"
#include "common/shm/region.h"
#include "common/wire/frame.h"

namespace syncgrads::client {

// Thread-safe.
class MemoryLink {
 public:
  // `buffers` must outlive this object.
  MemoryLink(DataHello hello, const SharedBuffers& buffers);
  // Stops.
  ~MemoryLink();

  // Both are told without locks: that memory is shared by way of `socket`; that it is not,
  // or no more, and why. To be called before the first welcome.
  void SetListener(std::function<void(const std::string& socket)> on_shared,
                   std::function<void(const std::string& reason)> on_refused);

  // Gives up what is shared. The listeners hear of nothing more from the thread.
  void Stop();

  // The server's answer to the hello of a data stream. Of a second answer, to a
  // stream that was opened again, only a new socket counts: it is another process,
  // to which everything is offered anew.
  void OnWelcome(const DataWelcome& welcome);

  // There is a new region, or the results of `group` are wanted.
  void Offer();
  void Want(GroupId group);
  // Waits until regions and results that were offered and wanted are there, or
  // will not be; or `deadline`.
  void AwaitSettled(absl::Time deadline) const;

  // Whether the server can be told where something lies, instead of being sent it.
  bool is_shared() const;
  // Whether it has mapped the region.
  bool Has(uint32_t region) const;
  // The results of a group; null if they are not mapped here.
  std::shared_ptr<const PeerRegion> Results(GroupId group) const;

 private:
  enum class State { kUnknown, kConnecting, kConnected, kRefused };

  void Run();
  // Shares memory with the process behind `address`, until there is an error or
  // another one.
  absl::Status ShareWith(const std::string& address);
  // Whether there is nothing to do for the thread.
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
  // Regions below this number have been taken.
  uint32_t offered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<GroupId> wanted_ ABSL_GUARDED_BY(mutex_);  // and not asked for yet
  std::set<GroupId> asked_for_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupId, std::shared_ptr<const PeerRegion>> results_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_MEMORY_LINK_H_
