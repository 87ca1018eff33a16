#include "client/grpc/grpc_connections.h"

#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "client/grpc/grpc_channel.h"
#include "common/shm/fd_socket.h"

namespace syncgrads::client {
namespace {

bool CannotConnect(grpc::Channel& channel) {
  const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/false);
  return state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN;
}

constexpr absl::string_view kAbstract = "unix-abstract:";

bool HasDescriptor(const Connections::Route& route) {
  return absl::StartsWith(route.address, kAbstract);
}

}  // namespace

std::unique_ptr<ConnectionUse> Connections::Take(const void* client, const Route& route) {
  std::shared_ptr<grpc::Channel> replaced;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  std::vector<Connection>& connections = routes_[route];
  size_t number = 0;
  while (number < connections.size() && connections[number].clients.contains(client)) ++number;
  if (number == connections.size()) connections.emplace_back();
  Connection& connection = connections[number];
  std::shared_ptr<grpc::Channel> channel = connection.channel.lock();
  absl::Status refusal;
  if (HasDescriptor(route)) {
    if (channel == nullptr) {
      absl::StatusOr<FileDescriptor> socket =
          ConnectToOwnStream(route.address.substr(kAbstract.size()));
      refusal = socket.status();
      if (socket.ok()) {
        channel = NewChannelOver(*std::move(socket));
        connection.channel = channel;
      } else {
        channel = NewFailedChannel();
      }
    }
  } else {
    if (channel != nullptr && CannotConnect(*channel)) replaced = std::move(channel);
    if (channel == nullptr) {
      channel = NewChannel(route.address, security_, route.congestion_control);
      connection.channel = channel;
    }
  }
  connection.clients.insert(client);
  return std::unique_ptr<ConnectionUse>(new ConnectionUse(shared_from_this(), client, route, number,
                                                          std::move(channel), std::move(refusal)));
}

void Connections::End(const void* client, const Route& route, size_t number) {
  MutexLock lock(mutex_);
  const auto found = routes_.find(route);
  std::vector<Connection>& connections = found->second;
  Connection& connection = connections[number];
  connection.clients.erase(client);
  // The channel may live a little longer, or be broken; the next stream gets a new one.
  if (connection.clients.empty() || HasDescriptor(route)) connection.channel.reset();
  while (!connections.empty() && connections.back().clients.empty()) connections.pop_back();
  if (connections.empty()) routes_.erase(found);
}

ConnectionUse::ConnectionUse(std::shared_ptr<Connections> connections, const void* client,
                             Connections::Route route, size_t number,
                             std::shared_ptr<grpc::Channel> channel, absl::Status refusal)
    : connections_(std::move(connections)),
      client_(client),
      route_(std::move(route)),
      number_(number),
      channel_(std::move(channel)),
      refusal_(std::move(refusal)) {}

ConnectionUse::~ConnectionUse() {
  End();
  if (HasDescriptor(route_)) return;
  // gRPC 1.51 leaks the socket of a channel that is destroyed while the connection is established.
  if (channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_CONNECTING) return;
  channel_->WaitForStateChange(GRPC_CHANNEL_CONNECTING,
                               std::chrono::system_clock::now() + std::chrono::milliseconds(250));
}

void ConnectionUse::End() {
  if (!std::exchange(ended_, true)) connections_->End(client_, route_, number_);
}

}  // namespace syncgrads::client
