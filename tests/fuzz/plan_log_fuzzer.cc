// Opens arbitrary bytes as the log of a server's plan. The first byte of an input is its kind:
// even, the rest is the file; odd, the rest is a list of records, which the target writes as a log
// with valid checksums. A plan that is read can be stored again, and then has the same records.

#include <google/protobuf/stubs/logging.h>

#include <string>
#include <vector>

#include "server/service/control/plan_store.h"
#include "server/state/record_log.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"

namespace syncgrads::fuzz {
namespace {

using server::PlanStart;
using server::PlanStore;
using server::PlanStoreOptions;
using server::RecordLog;
using server::StoredPlan;

// The log allocates no space ahead.
const PlanStoreOptions kOptions = {.run = [](const std::function<void()>& run) { run(); },
                                   .log = {.reserve = 0}};

std::vector<std::string> Written(const StoredPlan& plan, const std::string& path) {
  const auto store = PlanStore::Create(path, plan.start, kOptions);
  Require(store.ok(), "a plan can be stored again");
  for (const server::Stored& record : plan.records) {
    Require((*store)->Append(record).ok(), "a record can be stored again");
  }
  absl::StatusOr<std::vector<std::string>> records = RecordLog::Read(path);
  Require(records.ok(), "a log that was written is read");
  // The first record has a map, whose order is arbitrary.
  records->erase(records->begin());
  return *std::move(records);
}

std::vector<server::Stored> Examples() {
  server::MemberAdmitted admitted;
  admitted.hello.job = "iris";
  admitted.hello.name = "w0";
  admitted.hello.rank = 1;
  admitted.generation = Generation{7};
  admitted.name = "w0";
  GroupSpec spec{"model", {{"kernel", DType::kF32, {3, 4}}}, Reduction::kAverage, 0};
  Layout layout = *LayoutOf(spec);
  const auto plan = std::make_shared<const GroupPlan>(
      GroupPlan{GroupId{2}, spec, std::move(layout), {ServerIndex{0}}});
  Epoch epoch;
  epoch.number = 1;
  epoch.members = {{MemberId{0}, "w0", Incarnation{5}}};
  epoch.first_rounds = {{GroupId{2}, Round{1}}};
  const auto change = [](uint64_t sequence, auto kind) {
    return server::PlanChange{sequence, "iris", Generation{7}, std::move(kind), 77};
  };
  return {admitted,
          change(1, server::JobOpened{"token"}),
          change(2, plan),
          change(3, server::EpochProposed{1, "w0"}),
          change(4, epoch),
          change(5, server::MemberEnded{MemberId{0}, GroupId{2}, Round{9}, true}),
          change(6, server::StepNorms{GroupId{2}, Round{3}, 1, 0.5, {1, 2}}),
          change(7, server::MemberGone{MemberId{0}, Incarnation{5}, "left", true, {}, false}),
          change(8, server::JobClosed{"done", true, false}),
          server::MemberReady{"iris", Generation{7}, MemberId{0}, GroupId{2}},
          server::MemberWithdrawn{"iris", Generation{7}, MemberId{1}},
          server::WorkerReadmitted{"iris", Generation{7}, "w1"},
          server::LearningRateSet{"iris", Generation{7}, 0.1},
          server::ServerSeen{ServerIndex{1}, "10.0.0.1:7000", Incarnation{6}}};
}

}  // namespace

void Fuzz(absl::string_view input) {
  // Protobuf would log each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  static const ScratchDirectory scratch;
  Choices choices(input);
  const bool is_list = choices.Byte() % 2 == 1;
  const std::string path = scratch.PathOf("plan");
  if (is_list) {
    std::vector<std::string> records;
    while (!choices.empty()) records.emplace_back(choices.Take(choices.Number(2)));
    if (records.empty()) return;
    Require(RecordLog::Create(path, records).ok(), "a log is written");
    const absl::StatusOr<std::vector<std::string>> read = RecordLog::Read(path);
    Require(read.ok() && *read == records, "the records of a log are read as written");
  } else {
    scratch.Write("plan", choices.Rest());
    RequireExplained(RecordLog::Read(path).status());
  }
  StoredPlan plan;
  const absl::Status opened = PlanStore::Open(path, plan, kOptions).status();
  RequireExplained(opened);
  if (!opened.ok()) return;
  const std::vector<std::string> written = Written(plan, scratch.PathOf("again"));
  StoredPlan again;
  Require(PlanStore::Open(scratch.PathOf("again"), again, kOptions).ok(),
          "a plan that is stored again is accepted");
  Require(Written(again, scratch.PathOf("third")) == written,
          "a plan is stored with the records that were read");
}

std::vector<std::string> Seeds() {
  const ScratchDirectory scratch;
  PlanStart start;
  start.plan = 77;
  start.generations = {{"iris", Generation{7}}};
  start.servers = {{ServerIndex{1}, "10.0.0.1:7000", Incarnation{5}}};
  const std::string path = scratch.PathOf("plan");
  std::vector<std::string> seeds;
  const auto store = PlanStore::Create(path, start, kOptions);
  Require(store.ok(), "a plan can be stored");
  for (const server::Stored& record : Examples()) {
    Require((*store)->Append(record).ok(), "a record can be stored");
  }
  seeds.push_back(Encoded(0, 1) + scratch.Read("plan"));
  const absl::StatusOr<std::vector<std::string>> records = RecordLog::Read(path);
  Require(records.ok(), "a log that was written is read");
  // Each record in a log of its own, after the first.
  std::string all = Encoded(1, 1);
  for (size_t i = 0; i < records->size(); ++i) {
    const std::string& record = (*records)[i];
    const std::string entry = Encoded(record.size(), 2) + record;
    all += entry;
    if (i == 0) continue;
    const std::string& first = (*records)[0];
    seeds.push_back(Encoded(1, 1) + Encoded(first.size(), 2) + first + entry);
  }
  seeds.push_back(all);
  return seeds;
}

}  // namespace syncgrads::fuzz
