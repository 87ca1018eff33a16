#include "tests/sim/network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncgrads::sim {

Stream::Stream(Network& network, Process& client, std::string address, bool loose, ClientEnd end)
    : network_(network),
      client_(client),
      address_(std::move(address)),
      loose_(loose),
      end_(std::move(end)) {}

void Stream::Start(std::function<std::shared_ptr<ServerEnd>(std::shared_ptr<Stream>)> accept) {
  started_ = true;
  network_.open_.push_back(shared_from_this());
  World& world = network_.world_;
  last_to_server_ = last_to_client_ = world.Now();
  world.After(NextDelay(last_to_server_, false), [self = shared_from_this(), accept] {
    if (self->client_closed_ || self->broken_) return;
    World& world = self->network_.world_;
    Process* const server = self->network_.At(self->address_);
    if (server == nullptr || self->network_.IsCutOff(*server) ||
        self->network_.IsCutOff(self->client_)) {
      self->broken_ = true;
      self->server_closed_ = true;
      world.After(self->client_, self->NextDelay(self->last_to_client_, false), [self] {
        self->CloseClient(absl::UnavailableError(absl::StrCat("nobody at ", self->address_)));
      });
      return;
    }
    self->server_ = server;
    // A stopped server accepts the stream when it continues. Until then the kernel keeps the
    // connection.
    if (server->frozen()) {
      world.After(*server, absl::ZeroDuration(), [self, accept] { self->Accept(accept); });
    } else {
      self->Accept(accept);
    }
  });
}

void Stream::Accept(
    const std::function<std::shared_ptr<ServerEnd>(std::shared_ptr<Stream>)>& accept) {
  if (client_closed_ || broken_) return;
  connected_ = true;
  server_end_ = accept(shared_from_this());
  for (std::shared_ptr<Freight>& message : std::exchange(early_, {})) {
    DeliverToServer(std::move(message));
  }
}

absl::Duration Stream::NextDelay(absl::Time& last, bool loose) {
  World& world = network_.world_;
  const NetworkOptions& options = network_.options_;
  const absl::Time at =
      world.Now() + world.random().Between(options.least_delay, options.most_delay);
  if (loose && world.random().Chance(options.out_of_order)) {
    const absl::Duration late =
        world.random().Between(absl::ZeroDuration(), 4 * options.most_delay);
    // The first message opens the stream, so no other message is delivered before it.
    return std::max(at + late, opened_at_) - world.Now();
  }
  last = std::max(at, last);
  return last - world.Now();
}

void Stream::Write(std::shared_ptr<Freight> message) {
  if (client_closed_) return;
  std::erase_if(from_client_, [](const auto& one) { return one.expired(); });
  from_client_.push_back(message);
  if (connected_) {
    DeliverToServer(std::move(message));
  } else {
    early_.push_back(std::move(message));
  }
}

void Stream::DeliverToServer(std::shared_ptr<Freight> message) {
  World& world = network_.world_;
  // On a connection that is broken, but whose break has not been detected, the write never
  // completes, as with a full socket buffer.
  if (broken_) return;
  const bool loose = loose_ && opened_at_ != absl::InfinitePast();
  const int copies = loose && world.random().Chance(network_.options_.repeated) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    const absl::Duration delay = NextDelay(last_to_server_, loose);
    if (opened_at_ == absl::InfinitePast()) opened_at_ = world.Now() + delay;
    world.After(*server_, delay, [self = shared_from_this(), message] {
      if (self->server_closed_) return;
      // Keeps the end alive during the call, in which it may be closed.
      const std::shared_ptr<ServerEnd> end = self->server_end_;
      end->OnMessage(*message);
    });
  }
  world.After(client_, world.random().Between(absl::ZeroDuration(), network_.options_.least_delay),
              [self = shared_from_this()] {
                if (!self->client_closed_) self->end_.on_written();
              });
}

void Stream::Send(std::shared_ptr<Freight> message) {
  if (server_closed_ || broken_ || finished_) return;
  std::erase_if(from_server_, [](const auto& one) { return one.expired(); });
  from_server_.push_back(message);
  DeliverToClient(std::move(message));
}

void Stream::DeliverToClient(std::shared_ptr<Freight> message) {
  World& world = network_.world_;
  const int copies = loose_ && world.random().Chance(network_.options_.repeated) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    world.After(client_, NextDelay(last_to_client_, loose_), [self = shared_from_this(), message] {
      if (!self->client_closed_) self->end_.on_message(*message);
    });
  }
}

void Stream::Finish(const absl::Status& status) {
  if (server_closed_ || finished_) return;
  finished_ = true;
  if (broken_) return;
  network_.world_.After(client_, NextDelay(last_to_client_, false),
                        [self = shared_from_this(), status] { self->CloseClient(status); });
}

void Stream::Cancel() {
  if (client_closed_ || !started_) return;
  network_.world_.After(client_, absl::ZeroDuration(), [self = shared_from_this()] {
    self->CloseClient(absl::CancelledError("the stream was cancelled"));
  });
}

void Stream::CloseClient(const absl::Status& status) {
  if (client_closed_) return;
  client_closed_ = true;
  early_.clear();
  World& world = network_.world_;
  if (connected_ && !server_closed_) {
    world.After(*server_,
                world.random().Between(network_.options_.least_delay, network_.options_.most_delay),
                [self = shared_from_this()] { self->CloseServer(); });
  }
  // Some time later, the transport releases the messages that it was given.
  world.After(world.random().Between(absl::ZeroDuration(), 2 * network_.options_.most_delay),
              [self = shared_from_this()] {
                for (const auto& one : self->from_client_) {
                  if (const std::shared_ptr<Freight> message = one.lock()) message->Keep();
                }
              });
  ClientEnd end = std::exchange(end_, {});
  end.on_closed(status);
  Forget();
}

void Stream::CloseServer() {
  if (server_closed_) return;
  server_closed_ = true;
  const std::shared_ptr<ServerEnd> end = std::exchange(server_end_, nullptr);
  if (end != nullptr) end->OnOver();
  if (!client_closed_ && !broken_) {
    broken_ = true;
    network_.world_.After(client_, NextDelay(last_to_client_, false), [self = shared_from_this()] {
      self->CloseClient(absl::UnavailableError("the server went away"));
    });
  }
  Forget();
}

void Stream::Forget() {
  if (!client_closed_ || (connected_ && !server_closed_)) return;
  std::erase(network_.open_, shared_from_this());
}

void Stream::Break() {
  if (broken_ || !started_) return;
  broken_ = true;
  World& world = network_.world_;
  const auto notice = [&] {
    return world.random().Between(absl::ZeroDuration(), network_.options_.most_notice);
  };
  world.After(client_, notice(), [self = shared_from_this()] {
    self->CloseClient(absl::UnavailableError("the connection broke"));
  });
  if (connected_) {
    world.After(*server_, notice(), [self = shared_from_this()] { self->CloseServer(); });
  }
}

void Stream::ServerDied() {
  for (const auto& one : from_server_) {
    if (const std::shared_ptr<Freight> message = one.lock()) message->Keep();
  }
  server_closed_ = true;
  if (server_end_ != nullptr) server_end_->OnDied();
  server_end_ = nullptr;
  if (!client_closed_) {
    broken_ = true;
    World& world = network_.world_;
    // Messages that were in flight before still arrive.
    world.After(client_, world.random().Between(absl::ZeroDuration(), network_.options_.most_delay),
                [self = shared_from_this()] {
                  self->CloseClient(absl::UnavailableError("the server's connection was reset"));
                });
  }
  Forget();
}

void Stream::ClientDied(bool tell) {
  for (const auto& one : from_client_) {
    if (const std::shared_ptr<Freight> message = one.lock()) message->Keep();
  }
  early_.clear();
  if (connected_ && !server_closed_) {
    World& world = network_.world_;
    world.After(*server_,
                world.random().Between(absl::ZeroDuration(), network_.options_.most_notice),
                [self = shared_from_this()] { self->CloseServer(); });
  }
  broken_ = true;
  if (client_closed_) return;
  client_closed_ = true;
  if (tell) {
    network_.world_.After(client_, absl::ZeroDuration(), [end = std::move(end_)] {
      end.on_closed(absl::UnavailableError("the process is dying"));
    });
  }
  end_ = {};
  Forget();
}

void Network::Listen(const std::string& address, Process* server) {
  if (server == nullptr) {
    listeners_.erase(address);
  } else {
    listeners_[address] = server;
  }
}

Process* Network::At(const std::string& address) const {
  const auto found = listeners_.find(address);
  return found == listeners_.end() ? nullptr : found->second;
}

void Network::CutOff(Process& process) {
  cut_off_.insert(&process);
  for (const std::shared_ptr<Stream>& stream : std::vector<std::shared_ptr<Stream>>(open_)) {
    if (&stream->client() == &process || stream->server() == &process) stream->Break();
  }
}

void Network::BreakAny() {
  if (open_.empty()) return;
  const std::shared_ptr<Stream> stream = open_[world_.random().Below(open_.size())];
  stream->Break();
}

void Network::ServerDied(Process& process) {
  for (const std::shared_ptr<Stream>& stream : std::vector<std::shared_ptr<Stream>>(open_)) {
    if (stream->server() == &process) stream->ServerDied();
  }
}

void Network::ClientDied(Process& process, bool tell) {
  for (const std::shared_ptr<Stream>& stream : std::vector<std::shared_ptr<Stream>>(open_)) {
    if (&stream->client() == &process) stream->ClientDied(tell);
  }
}

}  // namespace syncgrads::sim
