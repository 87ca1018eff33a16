// A fixture for tests of DataPlane over a fake transport, with helpers that make group plans and
// the servers' answers.

#ifndef SYNCGRADS_TESTS_CLIENT_SESSION_DATA_PLANE_FIXTURE_H_
#define SYNCGRADS_TESTS_CLIENT_SESSION_DATA_PLANE_FIXTURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/session/data_plane.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {

// Makes the plan of a group of f32 tensors with these lengths. The chunks are distributed over
// `servers` servers.
inline GroupPlan Plan(const std::vector<int64_t>& lengths, uint32_t chunk_bytes,
                      UpdateRule rule = Reduction::kAverage, uint32_t servers = 1) {
  GroupSpec spec;
  spec.name = "model";
  for (size_t t = 0; t < lengths.size(); ++t) {
    spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {lengths[t]}});
  }
  spec.rule = rule;
  spec.chunk_bytes = chunk_bytes;
  Layout layout = *Layout::Create(spec.tensors, chunk_bytes, spec.compression);
  std::vector<uint64_t> bytes(servers);
  std::vector<ServerIndex> placement = PlaceChunks(layout, bytes);
  return {GroupId{3}, std::move(spec), std::move(layout), std::move(placement)};
}

inline absl::Span<const std::byte> In(const std::vector<float>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                             values.size() * sizeof(float));
}
inline absl::Span<std::byte> Out(std::vector<float>& values) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float));
}

// Makes the answer to a push, with these values as the result. The contributors are of the ranks
// from 0 on.
inline std::string Answer(const PushHeader& push, std::vector<uint32_t> counts,
                          const std::vector<float>& result) {
  UpdateHeader header;
  header.generation = push.generation;
  header.group = push.group;
  header.chunk = push.chunk;
  header.round = push.round;
  header.contributors.resize(*std::max_element(counts.begin(), counts.end()));
  std::iota(header.contributors.begin(), header.contributors.end(), 0);
  header.counts = std::move(counts);
  const std::string bytes(reinterpret_cast<const char*>(result.data()),
                          result.size() * sizeof(float));
  return EncodeHeader(header, bytes.size()) + bytes;
}

inline std::string Refusal(const PushHeader& push, absl::Status error) {
  UpdateHeader header;
  header.generation = push.generation;
  header.group = push.group;
  header.chunk = push.chunk;
  header.round = push.round;
  header.epoch = push.epoch;
  header.error = std::move(error);
  return EncodeHeader(header, 0);
}

class DataPlaneTest : public ::testing::Test {
 protected:
  // Make creates the data plane. Start also opens its streams. Connect also completes the writes of
  // their hellos.
  void Start(uint32_t servers = 1, int connections = 1) {
    Make(servers, connections);
    plane_->Start();
  }
  void Make(uint32_t servers = 1, int connections = 1) {
    DataPlane::Options options;
    for (uint32_t s = 0; s < servers; ++s) options.servers.push_back(absl::StrCat("server", s));
    options.connections_per_server = connections;
    options.hello.protocol_version = 1;
    options.hello.job = "job";
    options.hello.member = MemberId{5};
    options.hello.incarnation = Incarnation{77};
    options.generation = Generation{2};
    options.server_timeout = absl::Seconds(30);
    options.on_lost = [this](absl::Status status) { lost_ = status; };
    options.world_size_of = [](uint64_t epoch) {
      return epoch == 9 ? std::optional<size_t>(3) : std::nullopt;
    };
    plane_ = std::make_unique<DataPlane>(std::move(options), transport_, timers_);
    plane_->SetEpoch(9);
  }
  void Connect(uint32_t servers = 1, int connections = 1) {
    Start(servers, connections);
    for (const auto& stream : transport_.data) stream->Accept();
  }
  std::shared_ptr<GroupRounds> Add(GroupPlan plan) {
    return *plane_->AddGroup(std::make_shared<const GroupPlan>(std::move(plan)));
  }
  FakeDataStream& stream(size_t i = 0) { return *transport_.data[i]; }

  void TearDown() override {
    if (plane_ == nullptr) return;
    plane_->Fail(absl::CancelledError("over"));
    plane_->Close();
    for (const auto& stream : transport_.data) {
      stream->held.clear();
      if (!stream->closed && stream->started) stream->Close(absl::CancelledError(""));
    }
    plane_->AwaitClosed();
  }

  FakeTransport transport_;
  FakeTimers timers_;
  std::unique_ptr<DataPlane> plane_;
  absl::Status lost_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_TESTS_CLIENT_SESSION_DATA_PLANE_FIXTURE_H_
