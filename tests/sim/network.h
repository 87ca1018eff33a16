// A network between processes: streams that deliver late, break, and tell their two
// ends so at different times.
//
// A stream is what gRPC makes of a connection: in order and without loss for as long
// as it lives. When it breaks, what is under way is lost in part, and each end
// hears of that in its own time: until it does, the server goes on reading what was
// under way, while the client may be back on a new stream. A `loose` stream
// besides delivers out of order and twice: with several connections, and with
// repetitions on new ones, a protocol's messages come in any order.

#ifndef SYNCGRADS_TESTS_SIM_NETWORK_H_
#define SYNCGRADS_TESTS_SIM_NETWORK_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/sim/world.h"

namespace syncgrads::sim {

struct NetworkOptions {
  absl::Duration least_delay = absl::Microseconds(100);
  absl::Duration most_delay = absl::Milliseconds(5);
  // How long an end may take to notice that its stream is broken.
  absl::Duration most_notice = absl::Milliseconds(500);
  // Of a message on a loose stream.
  double repeated = 0.02;
  double out_of_order = 0.1;
};

// What is sent. Its bytes may lie in the sender's memory until it has been
// delivered, or Kept.
class Freight {
 public:
  virtual ~Freight() = default;
  // It has left the sender, whose memory may be gone now.
  virtual void Keep() {}
};

class Network;

// The server's end of a stream.
class ServerEnd {
 public:
  virtual ~ServerEnd() = default;
  virtual void OnMessage(Freight& message) = 0;
  virtual void OnOver() = 0;
  // Its server has died: lets go of what the kernel would take, and tells nobody.
  virtual void OnDied() {}
};

// One stream, held by both ends while it is open. The client's end comes first.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  struct ClientEnd {
    std::function<void()> on_written;
    std::function<void(Freight&)> on_message;
    std::function<void(absl::Status)> on_closed;
  };

  Stream(Network& network, Process& client, std::string address, bool loose, ClientEnd end);

  // Of the client.
  void Start(std::function<std::shared_ptr<ServerEnd>(std::shared_ptr<Stream>)> accept);
  void Write(std::shared_ptr<Freight> message);
  void Cancel();
  // The client's process has died. With `tell`, its end still hears that the stream
  // is closed, at once.
  void ClientDied(bool tell);

  // Of the server.
  void Send(std::shared_ptr<Freight> message);
  // Closes the stream once everything that was sent has been delivered.
  void Finish(const absl::Status& status);
  void ServerDied();

  // Of the network.
  void Break();

  Process& client() const { return client_; }
  Process* server() const { return server_; }

 private:
  absl::Duration NextDelay(absl::Time& last, bool loose);
  void DeliverToServer(std::shared_ptr<Freight> message);
  void DeliverToClient(std::shared_ptr<Freight> message);
  void CloseClient(const absl::Status& status);
  void CloseServer();
  void Forget();

  Network& network_;
  Process& client_;
  const std::string address_;
  const bool loose_;
  ClientEnd end_;
  Process* server_ = nullptr;  // null until it is reached, and where none is
  std::shared_ptr<ServerEnd> server_end_;
  // Messages that were written before the server was reached.
  std::vector<std::shared_ptr<Freight>> early_;
  std::vector<std::weak_ptr<Freight>> from_client_, from_server_;
  absl::Time last_to_server_, last_to_client_;
  bool started_ = false, connected_ = false, broken_ = false, finished_ = false;
  bool client_closed_ = false, server_closed_ = false;
  // When its first message is delivered.
  absl::Time opened_at_ = absl::InfinitePast();
};

class Network {
 public:
  Network(World& world, NetworkOptions options) : world_(world), options_(options) {}

  World& world() { return world_; }
  const NetworkOptions& options() const { return options_; }

  // Who listens at an address; null: nobody does any more.
  void Listen(const std::string& address, Process* server);
  Process* At(const std::string& address) const;

  // Whether a process is cut off from all others. Its streams break.
  void CutOff(Process& process);
  void Reconnect(Process& process) { cut_off_.erase(&process); }
  bool IsCutOff(const Process& process) const { return cut_off_.contains(&process); }

  // Breaks one stream that is open, if there is one.
  void BreakAny();
  // All of a process that has died.
  void ServerDied(Process& process);
  void ClientDied(Process& process, bool tell);

 private:
  friend class Stream;

  World& world_;
  const NetworkOptions options_;
  std::map<std::string, Process*> listeners_;
  std::set<const Process*> cut_off_;
  std::vector<std::shared_ptr<Stream>> open_;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_NETWORK_H_
