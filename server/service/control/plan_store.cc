#include "server/service/control/plan_store.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "server/service/control/signals.h"
#include "server/service/control/stored.pb.h"

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
  void operator()(const LearningRateSet& rate) const {
    v1::StoredLearningRate& proto = *out.mutable_learning_rate();
    proto.set_job(rate.job);
    proto.set_generation(ToNumber(rate.generation));
    proto.set_factor(rate.factor);
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
    case v1::StoredRecord::kLearningRate:
      return LearningRateSet{record.learning_rate().job(),
                             Generation{record.learning_rate().generation()},
                             record.learning_rate().factor()};
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

// The file of a compaction of the log at `path`.
std::string CompactedPath(const std::string& path) { return path + ".compacted"; }

}  // namespace

// A compaction that runs in the background. Thread-safe, except for what is marked otherwise.
class PlanStore::Compaction {
 public:
  // Compacts the first `records` records of the log at `path`.
  Compaction(std::string path, size_t records, JobsNow now, const RecordLogOptions& options)
      : path_(std::move(path)), records_(records), now_(std::move(now)), options_(options) {}

  // Writes the compacted log to a temporary file. To be called once.
  void Run() {
    absl::StatusOr<std::unique_ptr<RecordLog>> log = Compacted();
    MutexLock lock(mutex_);
    log_ = std::move(log);
  }

  // Returns the compacted log or an error, once; nullopt before Run has ended.
  std::optional<absl::StatusOr<std::unique_ptr<RecordLog>>> Take() {
    MutexLock lock(mutex_);
    return std::exchange(log_, std::nullopt);
  }

  // The closed jobs whose records are removed.
  const std::set<JobKey>& forgotten() const { return now_.forgotten; }
  // The records that were appended since the compaction began. Used by the store only.
  std::vector<std::string>& later() { return later_; }

 private:
  absl::StatusOr<std::unique_ptr<RecordLog>> Compacted() const {
    SYNCGRADS_ASSIGN_OR_RETURN(std::vector<std::string> records, RecordLog::Read(path_));
    records.resize(std::min(records.size(), records_));
    SYNCGRADS_ASSIGN_OR_RETURN(StoredPlan plan, Decode(path_, records));
    CompactPlan(plan.start, plan.records, now_);
    records = {Encode(plan.start)};
    for (const Stored& record : plan.records) records.push_back(Encode(record));
    return RecordLog::CreateTemporary(CompactedPath(path_), records, options_);
  }

  const std::string path_;
  const size_t records_;
  const JobsNow now_;
  const RecordLogOptions options_;
  std::vector<std::string> later_;
  Mutex mutex_;
  std::optional<absl::StatusOr<std::unique_ptr<RecordLog>>> log_ ABSL_GUARDED_BY(mutex_);
};

PlanStore::PlanStore(std::string path, std::unique_ptr<RecordLog> log, Incarnation incarnation,
                     const PlanStoreOptions& options)
    : path_(std::move(path)),
      options_(options),
      log_(std::move(log)),
      incarnation_(incarnation),
      thread_(options.run == nullptr ? std::make_unique<SerialThread>() : nullptr) {
  SetNextCompaction(0);
  // A process that died during a compaction has left them.
  unlink(CompactedPath(path_).c_str());
  unlink((CompactedPath(path_) + ".copy").c_str());
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
  plan.replaced = log->replaced();
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
  if (compaction_ == nullptr) {
    CompactIfLong();
  } else {
    compaction_->later().push_back(bytes);
  }
  if (compaction_ != nullptr) FinishCompaction();
  return absl::OkStatus();
}

void PlanStore::Forget(const std::string& job, Generation generation) {
  forgotten_.insert({job, generation});
}

void PlanStore::CompactIfLong() {
  if (log_->bytes() < compact_at_ && steps_ < options_.max_steps) return;
  steps_ = 0;
  JobsNow now = {.forgotten = forgotten_};
  if (options_.oldest_epochs != nullptr) now.oldest_epochs = options_.oldest_epochs();
  compaction_ = std::make_shared<Compaction>(path_, log_->records(), std::move(now), options_.log);
  const auto run = [compaction = compaction_] { compaction->Run(); };
  thread_ == nullptr ? options_.run(run) : thread_->Run(run);
}

void PlanStore::FinishCompaction() {
  auto log = compaction_->Take();
  if (!log.has_value()) return;
  const std::shared_ptr<Compaction> compaction = std::exchange(compaction_, nullptr);
  absl::Status complete = log->status();
  for (const std::string& record : compaction->later()) {
    if (complete.ok()) complete = (**log)->Append(record);
  }
  if (complete.ok()) complete = (**log)->MoveTo(path_);
  if (complete.ok()) {
    log_ = **std::move(log);
    for (const JobKey& job : compaction->forgotten()) forgotten_.erase(job);
  }
  // A failure is no error, because all records are in the old log. Compaction is tried again when
  // the log has grown.
  SetNextCompaction(log_->bytes());
}

void PlanStore::SetNextCompaction(uint64_t bytes) {
  compact_at_ = options_.growth * bytes + options_.slack;
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
  compaction_ = nullptr;  // its log is deleted
  forgotten_.clear();
  seen_.clear();
  for (const ServerSeen& seen : start.servers) seen_[seen.server] = seen;
  incarnation_ = with_incarnation.incarnation;
  return absl::OkStatus();
}

}  // namespace syncgrads::server
