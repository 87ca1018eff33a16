// A gRPC server that passes every call on to another one, message by message, and
// loses, repeats and swaps some of them.

#ifndef SYNCGRADS_TESTS_FAULT_MESSAGE_RELAY_H_
#define SYNCGRADS_TESTS_FAULT_MESSAGE_RELAY_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <condition_variable>
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

// What becomes of one message.
enum class Fate {
  kPassed,
  kDropped,     // and with it its stream: both ends see it break
  kDuplicated,  // sent twice
  kHeld,        // overtaken by those that come in the next moment
};

// Decides it, for the message `number` (from 0) of one direction of a call of `method`.
using FateOfMessage = std::function<Fate(const std::string& method, uint64_t number)>;

// By chance, as the probabilities say. The first message of a stream, which says whose
// it is, is only ever dropped; and only pushes and updates, which have no order, are
// held. Thread-safe.
FateOfMessage RandomFates(const MessageFaults& faults, uint64_t seed);

// Thread-safe.
class MessageRelay : private grpc::CallbackGenericService {
 public:
  // Listens on a port of its own. Unavailable if there is none.
  static absl::StatusOr<std::unique_ptr<MessageRelay>> Start(FateOfMessage fate);
  // Cancels all calls.
  ~MessageRelay() override;

  uint16_t port() const { return port_; }
  // Where calls go from now on; before it is called, they are UNAVAILABLE.
  void SetUpstream(uint16_t port);

 private:
  class Call;

  explicit MessageRelay(FateOfMessage fate);
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
  void RunTimers();
  void CallAt(absl::Time time, std::function<void()> call);

  const FateOfMessage fate_;
  uint16_t port_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<grpc::Channel> upstream_;                  // guarded by mutex_
  std::multimap<absl::Time, std::function<void()>> timers_;  // guarded by mutex_
  bool stopped_ = false;                                     // guarded by mutex_

  std::unique_ptr<grpc::Server> server_;
  std::thread timer_thread_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_MESSAGE_RELAY_H_
