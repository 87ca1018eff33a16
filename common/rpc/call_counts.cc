#include "common/rpc/call_counts.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/numbers.h"
#include "common/rpc/peer_address.h"

namespace syncgrads {
namespace {

using nlohmann::json;

// The maximum number of connections in one answer of gRPC.
constexpr intptr_t kAtOnce = 500;

// Returns the parsed answer of one of gRPC's functions; an empty object if there is none.
json Parsed(char* answer) {
  if (answer == nullptr) return json::object();
  const std::unique_ptr<char, decltype(&gpr_free)> text(answer, &gpr_free);
  json parsed = json::parse(text.get(), nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : json::object();
}

// Returns the member at the path; null if there is none.
const json& At(const json& object, std::initializer_list<const char*> path) {
  static const json& none = *new json();
  const json* at = &object;
  for (const char* name : path) {
    if (!at->is_object() || !at->contains(name)) return none;
    at = &at->at(name);
  }
  return *at;
}

// gRPC writes numbers as texts, and leaves out those that are 0.
int64_t NumberAt(const json& object, std::initializer_list<const char*> path) {
  const json& value = At(object, path);
  int64_t number = 0;
  if (value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &number)) return number;
  return 0;
}

int64_t NewestServer() {
  int64_t newest = 0;
  while (true) {
    const json answer = Parsed(grpc_channelz_get_servers(newest + 1));
    const int64_t before = newest;
    for (const json& server : At(answer, {"server"})) {
      newest = std::max(newest, NumberAt(server, {"ref", "serverId"}));
    }
    if (newest == before) return newest;
  }
}

int64_t OpenCalls(int64_t server) {
  const json answer = Parsed(grpc_channelz_get_server(server));
  const json& data = At(answer, {"server", "data"});
  return NumberAt(data, {"callsStarted"}) - NumberAt(data, {"callsSucceeded"}) -
         NumberAt(data, {"callsFailed"});
}

std::map<std::string, int64_t> BegunCalls(int64_t server) {
  std::map<std::string, int64_t> begun;
  int64_t last = 0;
  while (true) {
    const json answer = Parsed(grpc_channelz_get_server_sockets(server, last + 1, kAtOnce));
    const int64_t before = last;
    for (const json& socket : At(answer, {"socketRef"})) {
      last = std::max(last, NumberAt(socket, {"socketId"}));
      const json& name = At(socket, {"name"});
      if (!name.is_string()) continue;
      // The name ends with the peer: "chttp2 ipv4:10.0.0.1:5000".
      const std::string text = name.get<std::string>();
      const json details = Parsed(grpc_channelz_get_socket(NumberAt(socket, {"socketId"})));
      begun[EndpointOfPeer(text.substr(text.rfind(' ') + 1))] =
          NumberAt(details, {"socket", "data", "streamsStarted"});
    }
    if (last == before) return begun;
  }
}

}  // namespace

void CountCalls(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);
  // gRPC would write a trace of events into each of its answers, which takes most of their time.
  builder.AddChannelArgument(GRPC_ARG_MAX_CHANNEL_TRACE_EVENT_MEMORY_PER_NODE, 0);
}

CallsOfGrpc CallsOfNewestServer() {
  const int64_t server = NewestServer();
  return {[server] { return OpenCalls(server); }, [server] { return BegunCalls(server); }};
}

}  // namespace syncgrads
