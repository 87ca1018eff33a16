// What tests of the server's core are made of: a clock that is set by hand, pushes,
// and a sink that keeps the answers.

#ifndef SYNCGRADS_TESTS_SERVER_CORE_FIXTURES_H_
#define SYNCGRADS_TESTS_SERVER_CORE_FIXTURES_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group.h"
#include "common/membership.h"
#include "common/mutex.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"
#include "server/core/journal.h"
#include "server/core/payload.h"
#include "server/core/round_result.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {

// Thread-safe.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixNanos(now_); }
  void Advance(absl::Duration time) { now_ += absl::ToInt64Nanoseconds(time); }

 private:
  std::atomic<int64_t> now_{1'700'000'000'000'000'000};
};

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> ValuesOf(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// A payload that is cut at these bytes; every piece is memory of its own, so that
// the address sanitizer sees one byte too many.
inline Payload PayloadOf(const std::string& bytes, std::vector<size_t> cuts = {}) {
  auto memory = std::make_shared<std::vector<std::unique_ptr<std::byte[]>>>();
  Payload payload;
  cuts.push_back(bytes.size());
  size_t begin = 0;
  for (size_t cut : cuts) {
    const size_t length = cut - begin;
    memory->push_back(std::make_unique<std::byte[]>(length));
    if (length > 0) std::memcpy(memory->back().get(), bytes.data() + begin, length);
    payload.pieces.push_back({memory->back().get(), length});
    begin = cut;
  }
  payload.owner = memory;
  return payload;
}

inline GroupPlan PlanOf(GroupSpec spec, std::vector<ServerIndex> servers = {}) {
  absl::StatusOr<Layout> layout = LayoutOf(spec);
  EXPECT_THAT(layout, IsOk());
  servers.resize(layout->chunks().size());
  return {GroupId{}, std::move(spec), *std::move(layout), std::move(servers)};
}

// The group "model" of one tensor, "w".
inline GroupPlan OneTensor(DType dtype, int64_t elements, UpdateRule rule) {
  return PlanOf({"model", {{"w", dtype, {elements}}}, std::move(rule), 0});
}

inline Incarnation IncarnationOf(uint32_t member) { return Incarnation{1000 + member}; }

// Members 0 to `members`-1 by the names w0, w1, ... in this order.
inline Epoch EpochOfSize(uint32_t members) {
  Epoch epoch;
  epoch.number = 1;
  for (uint32_t id = 0; id < members; ++id) {
    epoch.members.push_back({MemberId{id}, "w" + std::to_string(id), IncarnationOf(id)});
  }
  return epoch;
}

inline PushHeader PushOf(uint32_t member, uint64_t round, uint32_t chunk = 0) {
  PushHeader header;
  header.generation = Generation{1};
  header.chunk = ChunkId{chunk};
  header.round = Round{round};
  header.member = MemberId{member};
  header.incarnation = IncarnationOf(member);
  header.epoch = 1;
  return header;
}

inline PushHeader SkipOf(uint32_t member, uint64_t round, uint32_t chunk = 0) {
  PushHeader header = PushOf(member, round, chunk);
  header.skip = true;
  return header;
}

// Keeps the lines. Thread-safe.
class LineJournal : public Journal {
 public:
  void Note(const std::string& line) override { Add("note: " + line); }
  void Warn(const std::string& line) override { Add("warning: " + line); }

  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  void Add(const std::string& line) {
    MutexLock lock(mutex_);
    lines_.push_back(line);
  }

  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

struct Answered {
  UpdateHeader header;
  std::string payload;
};

// Reads each answer as a worker would. Thread-safe.
class RecordingSink : public AnswerSink {
 public:
  void Send(std::shared_ptr<const RoundResult> result, bool with_payload) override {
    with_payload = with_payload && !result->payload.empty();
    const std::string& encoded = with_payload ? result->header : result->bare_header;
    Pieces message = {{reinterpret_cast<const std::byte*>(encoded.data()), encoded.size()}};
    if (with_payload) message.push_back(result->payload);
    absl::StatusOr<UpdateFrame> frame = DecodeUpdate(message);
    EXPECT_THAT(frame.status(), IsOk());
    Answered answer{std::move(frame->header), ""};
    for (absl::Span<const std::byte> piece : frame->payload) {
      answer.payload.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    MutexLock lock(mutex_);
    answers_.push_back(std::move(answer));
    arrived_.NotifyAll();
  }

  std::vector<Answered> answers() const {
    MutexLock lock(mutex_);
    return answers_;
  }
  size_t count() const {
    MutexLock lock(mutex_);
    return answers_.size();
  }
  Answered last() const {
    MutexLock lock(mutex_);
    EXPECT_FALSE(answers_.empty());
    return answers_.empty() ? Answered{} : answers_.back();
  }
  absl::Status error() const { return last().header.error; }
  template <typename T>
  std::vector<T> values() const {
    return ValuesOf<T>(last().payload);
  }

  // The answer after `seen` others.
  Answered Wait(size_t seen) {
    MutexLock lock(mutex_);
    while (answers_.size() <= seen) arrived_.WaitUntil(mutex_, absl::InfiniteFuture());
    return answers_[seen];
  }

 private:
  mutable Mutex mutex_;
  CondVar arrived_;
  std::vector<Answered> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_TESTS_SERVER_CORE_FIXTURES_H_
