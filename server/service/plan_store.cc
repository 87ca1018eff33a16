#include "server/service/plan_store.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "common/status_macros.h"
#include "server/service/signals.h"
#include "server/service/stored.pb.h"

namespace syncgrads::server {
namespace {

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

bool IsOfStep(const v1::PlanSignal& change) { return change.has_quorum() || change.has_norms(); }

// Whether a record must be stored even on a full disk. Records that end a job or a membership
// let a later compaction free space.
bool EndsSomething(const v1::StoredRecord& record) {
  return record.change().has_closed() || record.has_withdrawn();
}

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
    *proto.mutable_hello() = syncgrads::ToProto(admitted.hello);
    // What it is needed for is stored in shares_memory.
    proto.mutable_hello()->clear_host_id();
    proto.set_generation(ToNumber(admitted.generation));
    proto.set_member(ToNumber(admitted.member));
    proto.set_name(admitted.name);
    proto.set_shares_memory(admitted.shares_memory);
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
  void operator()(const WorkerReadmitted& readmitted) const {
    v1::StoredReadmission& proto = *out.mutable_readmitted();
    proto.set_job(readmitted.job);
    proto.set_generation(ToNumber(readmitted.generation));
    proto.set_worker(readmitted.worker);
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
      return MemberAdmitted{syncgrads::FromProto(admitted.hello()),
                            Generation{admitted.generation()}, MemberId{admitted.member()},
                            admitted.name(), admitted.shares_memory()};
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
    case v1::StoredRecord::kReadmitted:
      return WorkerReadmitted{record.readmitted().job(),
                              Generation{record.readmitted().generation()},
                              record.readmitted().worker()};
    case v1::StoredRecord::kSeen:
      return ServerFromProto(record.seen());
    case v1::StoredRecord::kStart:
    case v1::StoredRecord::KIND_NOT_SET:
      break;
  }
  return absl::DataLossError("the record has an unknown kind");
}

std::string Encode(const Stored& record) {
  v1::StoredRecord out;
  std::visit(RecordWriter{out}, record);
  return out.SerializeAsString();
}

absl::StatusOr<StoredPlan> Decode(const std::string& path,
                                  const std::vector<std::string>& records) {
  StoredPlan plan;
  for (size_t i = 0; i < records.size(); ++i) {
    v1::StoredRecord record;
    if (!record.ParseFromString(records[i]) || (i == 0 && !record.has_start())) {
      return absl::DataLossError(absl::StrCat(path, ": record ", i, " is malformed"));
    }
    if (record.has_start()) {
      // A later start replaces all records before it. Reset appends one if there is no
      // space for a new log.
      plan = {StartFromProto(record.start()), {}};
      continue;
    }
    absl::StatusOr<Stored> stored = RecordFromProto(record);
    if (!stored.ok()) {
      return absl::DataLossError(
          absl::StrCat(path, ": record ", i, ": ", stored.status().message()));
    }
    plan.records.push_back(*std::move(stored));
  }
  return plan;
}

}  // namespace

PlanStore::PlanStore(std::string path, std::unique_ptr<RecordLog> log, Incarnation incarnation,
                     const PlanStoreOptions& options)
    : path_(std::move(path)), options_(options), log_(std::move(log)), incarnation_(incarnation) {
  now_.oldest_epoch = options_.oldest_epoch;
  SetNextCompaction(0);
}

absl::StatusOr<std::unique_ptr<PlanStore>> PlanStore::Create(const std::string& path,
                                                             const PlanStart& start,
                                                             const PlanStoreOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<RecordLog> log,
                             RecordLog::Create(path, Encode(start), options.log));
  return std::unique_ptr<PlanStore>(
      new PlanStore(path, std::move(log), start.incarnation, options));
}

absl::StatusOr<std::unique_ptr<PlanStore>> PlanStore::Open(const std::string& path,
                                                           StoredPlan& plan,
                                                           const PlanStoreOptions& options) {
  std::vector<std::string> records;
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<RecordLog> log,
                             RecordLog::Open(path, records, options.log));
  SYNCGRADS_ASSIGN_OR_RETURN(plan, Decode(path, records));
  std::unique_ptr<PlanStore> store(
      new PlanStore(path, std::move(log), plan.start.incarnation, options));
  for (const ServerSeen& seen : plan.start.servers) store->seen_[seen.server] = seen;
  for (const Stored& record : plan.records) {
    if (const auto* seen = std::get_if<ServerSeen>(&record)) store->seen_[seen->server] = *seen;
  }
  return store;
}

absl::Status PlanStore::Append(const Stored& record) {
  if (const auto* seen = std::get_if<ServerSeen>(&record)) {
    // The coordinator appends this record whenever a stream of the server begins.
    const auto known = seen_.find(seen->server);
    if (known != seen_.end() && known->second.address == seen->address &&
        known->second.incarnation == seen->incarnation) {
      return absl::OkStatus();
    }
  }
  v1::StoredRecord out;
  std::visit(RecordWriter{out}, record);
  const std::string bytes = out.SerializeAsString();
  SYNCGRADS_RETURN_IF_ERROR(EndsSomething(out) ? log_->AppendFromReserve(bytes)
                                               : log_->Append(bytes));
  if (const auto* seen = std::get_if<ServerSeen>(&record)) seen_[seen->server] = *seen;
  if (IsOfStep(out.change())) ++steps_;
  CompactIfLong();
  return absl::OkStatus();
}

void PlanStore::Forget(const std::string& job, Generation generation) {
  now_.forgotten.insert({job, generation});
}

void PlanStore::CompactIfLong() {
  if (log_->bytes() < compact_at_ && steps_ < options_.max_steps) return;
  steps_ = 0;
  // A failure is no error: the record is stored in the old log. Compaction is tried again when
  // the log has grown.
  if (!Compact().ok()) SetNextCompaction(log_->bytes());
}

void PlanStore::SetNextCompaction(uint64_t bytes) {
  compact_at_ = options_.growth * bytes + options_.slack;
}

absl::Status PlanStore::Compact() {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> whole, RecordLog::Read(path_));
  SYNCGRADS_ASSIGN_OR_RETURN(StoredPlan plan, Decode(path_, whole));
  CompactPlan(plan.start, plan.records, now_);
  std::vector<std::string> records = {Encode(plan.start)};
  for (const Stored& record : plan.records) records.push_back(Encode(record));
  SYNCGRADS_ASSIGN_OR_RETURN(log_, RecordLog::Create(path_, records, options_.log));
  now_.forgotten.clear();
  SetNextCompaction(log_->bytes());
  return absl::OkStatus();
}

absl::Status PlanStore::Reset(const PlanStart& start) {
  PlanStart with_incarnation = start;
  if (start.incarnation == Incarnation{}) with_incarnation.incarnation = incarnation_;
  const std::string record = Encode(with_incarnation);
  absl::StatusOr<std::unique_ptr<RecordLog>> log = RecordLog::Create(path_, record, options_.log);
  if (log.ok()) {
    log_ = *std::move(log);
  } else {
    // Appended to the old log, where it replaces all records before it.
    SYNCGRADS_RETURN_IF_ERROR(log_->AppendFromReserve(record));
  }
  SetNextCompaction(log_->bytes());
  steps_ = 0;
  now_.forgotten.clear();
  seen_.clear();
  for (const ServerSeen& seen : start.servers) seen_[seen.server] = seen;
  incarnation_ = with_incarnation.incarnation;
  return absl::OkStatus();
}

}  // namespace syncgrads::server
