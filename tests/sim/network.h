// A simulated network between processes. Its streams delay messages and can break, and the two ends
// detect a break at different times.
//
// A stream has the properties of a gRPC stream: it delivers in order and without loss until it
// breaks. When it breaks, some of the messages in flight are lost. Until the server detects the
// break, it continues to read messages that were in flight, while the client may already use a new
// stream.
//
// A `loose` stream also reorders and duplicates messages. The reason is that a member's messages
// arrive in any order if they are sent over several connections and retried on new ones.
//
// Not thread-safe: everything runs in events of one World.

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
  // The longest time until an end detects that its stream is broken.
  absl::Duration most_notice = absl::Milliseconds(500);
  // Loose streams only: the probabilities that a message is duplicated or reordered.
  double repeated = 0.02;
  double out_of_order = 0.1;
};

// A message in flight. Its bytes may be in the sender's memory until it has been delivered, or
// until Keep() is called.
class Freight {
 public:
  virtual ~Freight() = default;
  // Copies the bytes. Called when the message has left the sender and the sender's memory may be
  // freed.
  virtual void Keep() {}
};

class Network;

// The server's end of a stream. Methods are called in events of the server's process.
class ServerEnd {
 public:
  virtual ~ServerEnd() = default;
  virtual void OnMessage(Freight& message) = 0;
  virtual void OnOver() = 0;
  // The server has died. Releases the resources that the kernel would release, and notifies no
  // object.
  virtual void OnDied() {}
};

// One stream between a client and a server. Both ends hold a reference while it is open. The client
// opens it.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  struct ClientEnd {
    std::function<void()> on_written;
    std::function<void(Freight&)> on_message;
    std::function<void(absl::Status)> on_closed;
  };

  Stream(Network& network, Process& client, std::string address, bool loose, ClientEnd end);

  // These are called by the client.
  void Start(std::function<std::shared_ptr<ServerEnd>(std::shared_ptr<Stream>)> accept);
  void Write(std::shared_ptr<Freight> message);
  void Cancel();
  // The client's process has died. If `tell` is true, the client's end is still notified, at once,
  // that the stream is closed.
  void ClientDied(bool tell);

  // These are called by the server.
  void Send(std::shared_ptr<Freight> message);
  // Closes the stream after all messages that were sent have been delivered.
  void Finish(const absl::Status& status);
  void ServerDied();

  // Called by the network: breaks the connection.
  void Break();

  Process& client() const { return client_; }
  Process* server() const { return server_; }

 private:
  // The server creates its end of the stream.
  void Accept(const std::function<std::shared_ptr<ServerEnd>(std::shared_ptr<Stream>)>& accept);
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
  Process* server_ = nullptr;  // null until a listening server is reached
  std::shared_ptr<ServerEnd> server_end_;
  // Messages that were written before the server was reached.
  std::vector<std::shared_ptr<Freight>> early_;
  std::vector<std::weak_ptr<Freight>> from_client_, from_server_;
  absl::Time last_to_server_, last_to_client_;
  bool started_ = false, connected_ = false, broken_ = false, finished_ = false;
  bool client_closed_ = false, server_closed_ = false;
  // The time at which the first message is delivered.
  absl::Time opened_at_ = absl::InfinitePast();
};

class Network {
 public:
  Network(World& world, NetworkOptions options) : world_(world), options_(options) {}

  World& world() { return world_; }
  const NetworkOptions& options() const { return options_; }

  // Sets the process that listens at an address. Null: no process listens there from now on.
  void Listen(const std::string& address, Process* server);
  Process* At(const std::string& address) const;

  // CutOff() breaks all streams of a process, and no new stream from or to it can be opened until
  // Reconnect() is called.
  void CutOff(Process& process);
  void Reconnect(Process& process) { cut_off_.erase(&process); }
  bool IsCutOff(const Process& process) const { return cut_off_.contains(&process); }

  // Breaks one open stream, chosen at random, if there is any.
  void BreakAny();
  // Closes all streams of a process that has died: those that it has accepted, and those that it
  // has opened.
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
