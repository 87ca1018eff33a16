// Connections whose peers have not shown yet that they may do anything.
//
// A connection is a stranger from the moment when it is accepted until a call on it has been
// admitted. What it may cost until then is limited: the bytes that it may send, the streams that it
// may begin, and the time that it has. The kernel's buffer of what was not read does not grow
// meanwhile: gRPC reads all of it at once, and begins all calls in it before any of them reaches
// our code (CVE-2023-44487). This also bounds what gRPC 1.51 does with headers that never end, for
// which it takes time in proportion to the square of their size (CVE-2023-33953), and what it
// parses before a call reaches our code.

#ifndef SYNCGRADS_COMMON_NET_STRANGERS_H_
#define SYNCGRADS_COMMON_NET_STRANGERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "common/file_descriptor.h"
#include "common/mutex.h"

namespace syncgrads {

// Ends a connection for all who have a descriptor of it. What was received and not read yet is
// dropped; after shutdown() it could still be read.
void ResetConnection(int connection);

// A user of this host whom the kernel does not name, for example because the peer has closed its
// socket. What it has sent before may still be read.
inline constexpr unsigned kUnknownUser = ~0u;

// Returns "user 1001 of this host", or "an unknown user of this host".
std::string DescribeUser(unsigned user);

struct StrangerLimits {
  // The bytes that a connection may send while no stream has begun on it: a TLS handshake, and a
  // first call's headers and request.
  int64_t bytes = 96 << 10;
  // The same when a stream has begun. A member may push right after its hello, as many bytes as the
  // stream's window has.
  int64_t bytes_with_stream = 5 << 20;
  // The streams that may begin on a connection, whether they have ended or not. It must be more
  // than HTTP/2 permits at a time.
  uint32_t streams = 400;
  absl::Duration time = absl::Seconds(60);
  // How long a connection may have sent too many bytes. A stream whose hello and first pushes have
  // been read has begun only when a thread of gRPC says so.
  absl::Duration grace = absl::Milliseconds(30);
  // How long a connection on which a stream has begun may have sent more than `bytes`. A thread of
  // gRPC goes on reading while there is something to read: connections that begin calls without a
  // pause, one more than there are threads, would keep all hellos waiting.
  absl::Duration grace_with_stream = absl::Milliseconds(500);
};

// Thread-safe. An endpoint is the peer's address and port: "10.0.0.1:5000" or "[::1]:5000".
class Strangers {
 public:
  explicit Strangers(StrangerLimits limits = {}) : limits_(limits) {}

  // Adds a connection. It is watched by a copy of its descriptor. `network` is the text by which
  // the connections of one peer are counted. `other_user`: the user at its other end, if that is
  // neither this process's user nor root; kUnknownUser if it is not known. Returns false if there
  // is no descriptor for the copy, or if too many connections of other users have ended lately.
  bool Add(const FileDescriptor& connection, const std::string& endpoint,
           const std::string& network, std::optional<unsigned> other_user);
  // A stream has begun on the connection. If there are too many, the connection is reset.
  void Begin(const std::string& endpoint);
  // A call on the connection was admitted: it is a stranger no more.
  void Admit(const std::string& endpoint);

  // The user given to Add; nullopt if the connection was admitted. It is known for a while after
  // the connection has ended: what it has sent may be handled later.
  std::optional<unsigned> OtherUserOf(const std::string& endpoint) const;
  size_t size() const;

  // Resets the connections that have exceeded a limit, and forgets those that have ended.
  // `elapsed` is the time since the last call. Returns a text about each, for the log.
  std::vector<std::string> Cut(absl::Duration elapsed);
  // Resets the oldest stranger of the network that has most strangers. Returns a text about it;
  // nullopt if there is none.
  std::optional<std::string> CutOldest();

 private:
  struct Stranger {
    FileDescriptor copy;
    std::string network;
    std::optional<unsigned> other_user;
    uint64_t number = 0;  // in the order of their additions
    absl::Duration age;
    uint32_t streams = 0;
    // The age at which it was first seen to have sent more than `bytes`, and too many bytes.
    absl::Duration much_since = absl::InfiniteDuration();
    absl::Duration excess_since = absl::InfiniteDuration();
  };

  // A connection of another user that has ended, without having been admitted.
  struct Ended {
    unsigned user = 0;
    absl::Duration age;
  };
  // The maximum number of those. If there are more, no connection of another user is added.
  static constexpr size_t kMostEnded = 100'000;
  using Map = std::unordered_map<std::string, Stranger>;

  void EraseLocked(Map::iterator ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes since when the connection has sent so many bytes, and returns which limit it has
  // exceeded; empty if none. `bytes` are those that were read from it; nullopt if it has ended.
  std::string CheckLimits(Stranger& stranger, std::optional<int64_t> bytes) const;

  const StrangerLimits limits_;
  mutable Mutex mutex_;
  Map strangers_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Ended> ended_ ABSL_GUARDED_BY(mutex_);
  uint64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_STRANGERS_H_
