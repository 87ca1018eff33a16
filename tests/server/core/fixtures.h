// Shared fixtures of the tests of server/core: a clock that the test sets, pushes, and a sink that
// records the answers.

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
#include "common/group/group.h"
#include "common/mutex.h"
#include "common/signals/membership.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"
#include "server/core/closing/payload.h"
#include "server/core/plan/journal.h"
#include "server/core/rounds/round_result.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {

// A clock that only the test advances. Thread-safe.
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

// Returns a payload that consists of several pieces, cut at the offsets `cuts`. Every piece is its
// own allocation, so that the address sanitizer detects an access one byte past its end.
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

// Returns the group "model" with one tensor, "w".
inline GroupPlan OneTensor(DType dtype, int64_t elements, UpdateRule rule) {
  return PlanOf({"model", {{"w", dtype, {elements}}}, std::move(rule), 0});
}

inline Incarnation IncarnationOf(uint32_t member) { return Incarnation{1000 + member}; }

// Returns epoch 1 with the members 0 to `members`-1, named w0, w1, and so on. The rank of each is
// its number.
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

// Records the lines and the events. Thread-safe.
class LineJournal : public Journal {
 public:
  void Debug(const std::string& line) override { Add("debug: " + line); }
  void Note(const std::string& line) override { Add("note: " + line); }
  void Warn(const std::string& line) override { Add("warning: " + line); }
  void Record(const Event& event) override {
    {
      MutexLock lock(mutex_);
      events_.push_back(event);
    }
    Journal::Record(event);
  }

  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }
  std::vector<Event> events() const {
    MutexLock lock(mutex_);
    return events_;
  }

 private:
  void Add(const std::string& line) {
    MutexLock lock(mutex_);
    lines_.push_back(line);
  }

  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
};

struct Answered {
  UpdateHeader header;
  std::string payload;
};

// Decodes each answer as a worker would, and records it. Thread-safe.
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

  // Waits for the answer number `seen`, counted from 0, and returns it.
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
