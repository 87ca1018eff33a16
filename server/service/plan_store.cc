#include "server/service/plan_store.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/service/signals.h"
#include "server/service/stored.pb.h"

namespace syncgrads::server {
namespace {

constexpr uint64_t kMostSteps = 4096;
constexpr uint64_t kMostStepBytes = 8 << 20;

v1::StoredServer ServerToProto(const ServerSeen& seen) {
  v1::StoredServer out;
  out.set_index(ToNumber(seen.server));
  out.set_address(seen.address);
  out.set_incarnation(ToNumber(seen.incarnation));
  return out;
}

ServerSeen ServerFromProto(const v1::StoredServer& seen) {
  return {ServerIndex{seen.index()}, seen.address(), Incarnation{seen.incarnation()}};
}

// Of the kinds of which only the newest of a group matters.
bool IsOfStep(const v1::PlanSignal& change) { return change.has_quorum() || change.has_norms(); }

std::string Encode(const PlanStart& start) {
  v1::StoredRecord record;
  v1::StoredStart& out = *record.mutable_start();
  out.set_plan(start.plan);
  out.set_incarnation(ToNumber(start.incarnation));
  out.set_applied(start.applied);
  out.set_all_done(start.all_done);
  for (const auto& [job, generation] : start.generations) {
    (*out.mutable_generations())[job] = ToNumber(generation);
  }
  for (const ServerSeen& seen : start.servers) *out.add_servers() = ServerToProto(seen);
  return record.SerializeAsString();
}

struct RecordWriter {
  v1::StoredRecord& out;

  void operator()(const PlanChange& change) const { *out.mutable_change() = ToProto(change); }
  void operator()(const MemberAdmitted& admitted) const {
    v1::StoredMember& proto = *out.mutable_admitted();
    *proto.mutable_introduction() = ToProto(admitted.introduction);
    proto.set_generation(ToNumber(admitted.generation));
    proto.set_member(ToNumber(admitted.member));
    proto.set_name(admitted.name);
    proto.set_shares_memory(admitted.introduction.shares_memory);
  }
  void operator()(const MemberWithdrawn& withdrawn) const {
    v1::StoredWithdrawal& proto = *out.mutable_withdrawn();
    proto.set_job(withdrawn.job);
    proto.set_generation(ToNumber(withdrawn.generation));
    proto.set_member(ToNumber(withdrawn.member));
  }
  void operator()(const MemberReady& ready) const {
    v1::StoredReady& proto = *out.mutable_ready();
    proto.set_job(ready.job);
    proto.set_generation(ToNumber(ready.generation));
    proto.set_member(ToNumber(ready.member));
    proto.set_group(ToNumber(ready.group));
  }
  void operator()(const ServerSeen& seen) const { *out.mutable_seen() = ServerToProto(seen); }
};

PlanStart StartFromProto(const v1::StoredStart& start) {
  PlanStart out;
  out.plan = start.plan();
  out.incarnation = Incarnation{start.incarnation()};
  out.applied = start.applied();
  out.all_done = start.all_done();
  for (const auto& [job, generation] : start.generations()) {
    out.generations[job] = Generation{generation};
  }
  for (const v1::StoredServer& seen : start.servers()) {
    out.servers.push_back(ServerFromProto(seen));
  }
  return out;
}

absl::StatusOr<Stored> RecordFromProto(const v1::StoredRecord& record) {
  switch (record.kind_case()) {
    case v1::StoredRecord::kChange:
      return FromProto(record.change());
    case v1::StoredRecord::kAdmitted: {
      const v1::StoredMember& admitted = record.admitted();
      Introduction introduction = FromProto(admitted.introduction());
      introduction.shares_memory = admitted.shares_memory();
      return MemberAdmitted{std::move(introduction), Generation{admitted.generation()},
                            MemberId{admitted.member()}, admitted.name()};
    }
    case v1::StoredRecord::kWithdrawn: {
      const v1::StoredWithdrawal& withdrawn = record.withdrawn();
      return MemberWithdrawn{withdrawn.job(), Generation{withdrawn.generation()},
                             MemberId{withdrawn.member()}};
    }
    case v1::StoredRecord::kReady: {
      const v1::StoredReady& ready = record.ready();
      return MemberReady{ready.job(), Generation{ready.generation()}, MemberId{ready.member()},
                         GroupId{ready.group()}};
    }
    case v1::StoredRecord::kSeen:
      return ServerFromProto(record.seen());
    case v1::StoredRecord::kStart:
    case v1::StoredRecord::KIND_NOT_SET:
      break;
  }
  return absl::DataLossError("a record of no kind that this version has written");
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanStore>> PlanStore::Create(const std::string& path,
                                                             const PlanStart& start) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<RecordLog> log,
                             RecordLog::Create(path, Encode(start)));
  return std::unique_ptr<PlanStore>(new PlanStore(path, std::move(log), start.incarnation));
}

absl::StatusOr<std::unique_ptr<PlanStore>> PlanStore::Open(const std::string& path,
                                                           StoredPlan& plan) {
  std::vector<std::string> records;
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<RecordLog> log, RecordLog::Open(path, records));
  for (size_t i = 0; i < records.size(); ++i) {
    v1::StoredRecord record;
    if (!record.ParseFromString(records[i]) || record.has_start() != (i == 0)) {
      return absl::DataLossError(absl::StrCat(path, ": record ", i, " is not what it should be"));
    }
    if (i == 0) {
      plan.start = StartFromProto(record.start());
      continue;
    }
    absl::StatusOr<Stored> stored = RecordFromProto(record);
    if (!stored.ok()) {
      return absl::DataLossError(
          absl::StrCat(path, ": record ", i, ": ", stored.status().message()));
    }
    plan.records.push_back(*std::move(stored));
  }
  return std::unique_ptr<PlanStore>(new PlanStore(path, std::move(log), plan.start.incarnation));
}

absl::Status PlanStore::Append(const Stored& record) {
  v1::StoredRecord out;
  std::visit(RecordWriter{out}, record);
  const std::string bytes = out.SerializeAsString();
  SYNCGRADS_RETURN_IF_ERROR(log_->Append(bytes));
  if (!IsOfStep(out.change())) return absl::OkStatus();
  step_bytes_ += bytes.size();
  return ++steps_ >= kMostSteps || step_bytes_ >= kMostStepBytes ? Compact() : absl::OkStatus();
}

absl::Status PlanStore::Compact() {
  std::vector<std::string> records;
  SYNCGRADS_RETURN_IF_ERROR(RecordLog::Open(path_, records).status());
  // Of each group, the last that there is.
  std::map<std::tuple<std::string, uint64_t, bool, uint32_t>, size_t> newest;
  std::vector<std::string> kept;
  const auto key = [](const v1::PlanSignal& change) {
    const bool norms = change.has_norms();
    return std::make_tuple(change.job(), change.generation(), norms,
                           norms ? change.norms().group() : change.quorum().group());
  };
  std::vector<v1::StoredRecord> parsed(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    if (!parsed[i].ParseFromString(records[i])) {
      return absl::DataLossError(absl::StrCat(path_, ": record ", i, " is not what it was"));
    }
    if (IsOfStep(parsed[i].change())) newest[key(parsed[i].change())] = i;
  }
  for (size_t i = 0; i < records.size(); ++i) {
    const v1::PlanSignal& change = parsed[i].change();
    if (!IsOfStep(change) || newest.at(key(change)) == i) kept.push_back(std::move(records[i]));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(log_, RecordLog::Create(path_, kept));
  steps_ = 0;
  step_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status PlanStore::StartAfresh(const PlanStart& start) {
  PlanStart with_incarnation = start;
  if (start.incarnation == Incarnation{}) with_incarnation.incarnation = incarnation_;
  SYNCGRADS_ASSIGN_OR_RETURN(log_, RecordLog::Create(path_, Encode(with_incarnation)));
  steps_ = 0;
  step_bytes_ = 0;
  incarnation_ = with_incarnation.incarnation;
  return absl::OkStatus();
}

}  // namespace syncgrads::server
