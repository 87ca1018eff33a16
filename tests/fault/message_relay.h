// A gRPC server that forwards every call to another server, message by message, and drops,
// duplicates and reorders some of the messages.

#ifndef SYNCGRADS_TESTS_FAULT_MESSAGE_RELAY_H_
#define SYNCGRADS_TESTS_FAULT_MESSAGE_RELAY_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/schedule.h"

namespace syncgrads::fault {

// The fault of one message.
enum class Fate {
  kPassed,
  kDropped,     // the stream breaks too, on both sides
  kDuplicated,  // sent twice
  kHeld,        // held back for a moment, so that later messages overtake it
};

// Chooses the fate of message `number` (from 0) in one direction of a call of `method`.
using FateOfMessage = std::function<Fate(const std::string& method, uint64_t number)>;

// Chooses fates at random, with the given probabilities. The first message of a stream, which
// identifies the sender, may only be dropped. Only pushes and updates, which have no order, are
// duplicated or held. The returned function is thread-safe.
FateOfMessage RandomFates(const MessageFaults& faults, uint64_t seed);

// The relay and its timers. Thread-safe: gRPC calls it on its own threads, and mutex_ protects the
// members that are marked.
class MessageRelay : private grpc::CallbackGenericService {
 public:
  // Listens on a free port of the loopback interface. A message that is held is sent after
  // `longest_hold` if no later message overtakes it before. Returns Unavailable if it cannot
  // listen.
  static absl::StatusOr<std::unique_ptr<MessageRelay>> Start(
      FateOfMessage fate, absl::Duration longest_hold = absl::Milliseconds(5));
  // Cancels all calls, and waits until both sides of each have ended.
  ~MessageRelay() override;

  uint16_t port() const { return port_; }
  // Sets the port on this machine that calls are forwarded to. Before the first call of this
  // function, calls are refused with UNAVAILABLE.
  void SetUpstream(uint16_t port);

 private:
  class Call;

  MessageRelay(FateOfMessage fate, absl::Duration longest_hold);
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
  void RunTimers();
  void CallAt(absl::Time time, std::function<void()> call);
  void CallBegins();
  void CallEnds();

  const FateOfMessage fate_;
  const absl::Duration longest_hold_;
  uint16_t port_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<grpc::Channel> upstream_;                  // guarded by mutex_
  std::multimap<absl::Time, std::function<void()>> timers_;  // guarded by mutex_
  // The number of Call objects. Each uses this relay as long as it exists.
  size_t calls_ = 0;      // guarded by mutex_
  bool stopped_ = false;  // guarded by mutex_

  std::unique_ptr<grpc::Server> server_;
  std::thread timer_thread_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_MESSAGE_RELAY_H_
