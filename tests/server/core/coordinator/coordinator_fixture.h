// A fixture for coordinator tests, in which the test controls the members, the servers and the
// clock.

#ifndef SYNCGRADS_TESTS_SERVER_CORE_COORDINATOR_COORDINATOR_FIXTURE_H_
#define SYNCGRADS_TESTS_SERVER_CORE_COORDINATOR_COORDINATOR_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/signals/protocol.h"
#include "gtest/gtest.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan/store.h"
#include "tests/server/core/coordinator/applied_coordinator.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {

// A member's Join stream, which records the signals that are sent to the member.
class FakeMember : public MemberLink {
 public:
  void Send(Generation generation, const JobSignal::Kind& signal) override {
    generations.push_back(generation);
    signals.push_back(signal);
  }
  bool has_unread() const override { return unread; }
  template <typename Kind>
  std::vector<Kind> All() const {
    std::vector<Kind> all;
    if constexpr (std::is_same_v<Kind, Epoch>) {
      for (const EpochBegun& begun : All<EpochBegun>()) all.push_back(*begun.epoch);
    } else {
      for (const JobSignal::Kind& signal : signals) {
        if (const auto* kind = std::get_if<Kind>(&signal)) all.push_back(*kind);
      }
    }
    return all;
  }
  template <typename Kind>
  Kind Last() const {
    const std::vector<Kind> all = All<Kind>();
    EXPECT_FALSE(all.empty());
    return all.empty() ? Kind{} : all.back();
  }
  template <typename Kind>
  size_t Count() const {
    return All<Kind>().size();
  }

  std::vector<Generation> generations;
  std::vector<JobSignal::Kind> signals;
  // The member has not read the signals.
  bool unread = false;
};

// Another server, which queues the changes that it is sent until the test applies them.
class FakeServer : public ServerLink {
 public:
  FakeServer(uint32_t index, uint64_t incarnation, const Clock& clock)
      : identity{ServerIndex{index}, "10.0.0." + std::to_string(index) + ":7000",
                 Incarnation{incarnation}, 0},
        jobs(ServerIndex{index}, clock) {}

  void Send(const PlanChange& change) override { waiting.push_back(change); }
  void Prepare(const GroupPreparation& preparation) override { asked.push_back(preparation); }

  // Applies all queued changes and reports them to the coordinator as applied.
  void Apply(AppliedCoordinator& coordinator) {
    while (!waiting.empty() || answered_ < asked.size()) {
      while (!waiting.empty()) ApplyOne(coordinator);
      if (answered_ < asked.size()) Prepare(asked[answered_++], coordinator);
    }
  }
  void ApplyOne(AppliedCoordinator& coordinator) {
    const PlanChange change = waiting.front();
    waiting.erase(waiting.begin());
    const std::vector<GroupRound> open = jobs.Apply(change);
    if (std::holds_alternative<EpochProposed>(change.kind)) {
      coordinator.OpenRounds(identity.index, change.sequence, open);
    }
    identity.plan = change.plan;
    coordinator.Applied(identity.index, this, change.sequence);
  }

  ServerIdentity identity;
  Jobs jobs;
  std::vector<PlanChange> waiting;
  std::vector<GroupPreparation> asked;

 private:
  // Answers a preparation if its memory is allocated synchronously. For larger groups, the test
  // reports the result.
  void Prepare(const GroupPreparation& preparation, AppliedCoordinator& coordinator) {
    if (preparation.plan == nullptr ||
        preparation.plan->layout.total_bytes() >= kMinBackgroundBytes) {
      return;
    }
    std::optional<GroupPrepared> state;
    jobs.prepared().SetSink([&state](const GroupPrepared& prepared) { state = prepared; });
    jobs.Prepare(preparation);
    jobs.prepared().SetSink(nullptr);
    if (state.has_value()) coordinator.Prepared(identity.index, *state);
  }

  size_t answered_ = 0;
};

// A store that keeps the records in memory.
class KeptRecords : public Store {
 public:
  absl::Status Append(const Stored& record) override {
    const auto* change = std::get_if<PlanChange>(&record);
    const bool closes = change != nullptr && std::holds_alternative<JobClosed>(change->kind);
    if (full && !closes) return absl::ResourceExhaustedError("the disk is full");
    records.push_back(record);
    return absl::OkStatus();
  }
  absl::Status Reset(const PlanStart&) override { return absl::OkStatus(); }

  bool HasClosing() const {
    return std::any_of(records.begin(), records.end(), [](const Stored& record) {
      const auto* change = std::get_if<PlanChange>(&record);
      return change != nullptr && std::holds_alternative<JobClosed>(change->kind);
    });
  }
  std::vector<Stored> records;
  // If true, only the closing of a job can be stored.
  bool full = false;
};

// A coordinator with its own server 0, on a clock that the test advances.
class CoordinatorTest : public testing::Test {
 protected:
  explicit CoordinatorTest(uint32_t servers = 1, CoordinatorOptions options = Options())
      : own_(ServerIndex{0}, clock_),
        coordinator_(std::move(options), PlanLog(servers, "10.0.0.0:7000"), own_, clock_,
                     journal_) {
    coordinator_.Start();
  }

  // Tests advance the clock by more than a tick. With an infinite longest_gap, all of that time
  // counts.
  static CoordinatorOptions Options() { return {.longest_gap = absl::InfiniteDuration()}; }

  struct Joined {
    std::shared_ptr<FakeMember> link = std::make_shared<FakeMember>();
    absl::StatusOr<Coordinator::MemberKey> key;
    Hello hello;
  };

  static Hello NewHello(const std::string& name, uint32_t world_size) {
    static uint64_t next_incarnation = 100;
    Hello hello;
    hello.protocol_version = kProtocolVersion;
    hello.job = "iris";
    hello.token = "secret";
    hello.name = name;
    hello.incarnation = Incarnation{next_incarnation++};
    hello.world_size = world_size;
    hello.host = "host-of-" + name;
    return hello;
  }

  Joined Join(const Hello& hello) {
    Joined joined;
    joined.hello = hello;
    joined.key = coordinator_.Admit(hello, joined.link);
    return joined;
  }
  Joined Join(const std::string& name, uint32_t world_size,
              std::optional<uint32_t> rank = std::nullopt) {
    Hello hello = NewHello(name, world_size);
    hello.rank = rank;
    return Join(hello);
  }
  // Joins again as the same process on a new stream.
  Joined Rejoin(const Joined& before) {
    Hello hello = before.hello;
    hello.generation = before.link->generations.back();
    return Join(hello);
  }

  static GroupSpec Model() { return {"model", {{"kernel", DType::kF32, {4}}}, Reduction::kSum, 0}; }
  // Pushes to server 0 as a worker would.
  std::shared_ptr<RecordingSink> Push(const Joined& joined, uint64_t round) {
    PushHeader header;
    header.generation = own_.Find("iris")->generation();
    header.round = Round{round};
    header.member = joined.key->member;
    header.incarnation = joined.hello.incarnation;
    auto sink = std::make_shared<RecordingSink>();
    own_.Find("iris")->Push(header, PayloadOf(std::string(16, '\0')), sink);
    return sink;
  }

  static std::vector<std::string> NamesOf(const Epoch& epoch) {
    std::vector<std::string> names;
    for (const Member& member : epoch.members) names.push_back(member.name);
    return names;
  }
  std::string Journal() const {
    std::string text;
    for (const std::string& line : journal_.lines()) text += line + "\n";
    return text;
  }

  FakeClock clock_;
  LineJournal journal_;
  Jobs own_;
  AppliedCoordinator coordinator_;
};

// A coordinator with its own server and one other server. The group of the job "iris" has a chunk
// on each.
class TwoServersTest : public CoordinatorTest {
 protected:
  TwoServersTest() : CoordinatorTest(2) {
    EXPECT_THAT(coordinator_.AttachServer(other_->identity, other_), IsOk());
  }

  Jobs& JobsOf(uint32_t server) { return server == 0 ? own_ : other_->jobs; }

  // Registers the group by all members.
  void Register(const GroupSpec& spec) {
    for (const Joined& member : members_) coordinator_.Register(*member.key, 1, spec);
    other_->Apply(coordinator_);
    ASSERT_EQ(members_[0].link->Count<Registered>(), 1u);
  }

  PushHeader HeaderTo(uint32_t server, uint32_t member, uint64_t round) const {
    PushHeader header;
    header.generation = own_.Find("iris")->generation();
    header.chunk = ChunkId{server};
    header.round = Round{round};
    header.member = members_[member].key->member;
    header.incarnation = members_[member].hello.incarnation;
    return header;
  }
  std::shared_ptr<RecordingSink> Push(uint32_t server, const PushHeader& header, Payload payload) {
    auto sink = std::make_shared<RecordingSink>();
    JobsOf(server).Find("iris")->Push(header, std::move(payload), sink);
    return sink;
  }
  uint64_t OpenRound(uint32_t server) {
    return ToNumber(JobsOf(server).Find("iris")->Progress().at(0).open);
  }
  // Returns the changes of the kind `Change` that were sent to the other server and that it has not
  // applied.
  template <typename Change>
  std::vector<Change> Sent() const {
    std::vector<Change> sent;
    for (const PlanChange& change : other_->waiting) {
      if (const auto* one = std::get_if<Change>(&change.kind)) sent.push_back(*one);
    }
    return sent;
  }

  std::shared_ptr<FakeServer> other_ = std::make_shared<FakeServer>(1, 11, clock_);
  std::vector<Joined> members_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_TESTS_SERVER_CORE_COORDINATOR_COORDINATOR_FIXTURE_H_
