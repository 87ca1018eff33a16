#include "worker/train/resume.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/base/string_list.h"
#include "worker/job/schedule.h"

namespace syncgrads {
namespace {

constexpr uint32_t kUsuallyKept = 3;

template <typename Value>
absl::Status CheckSame(const char* what, const Value& checkpoint, const Value& job) {
  if (checkpoint == job) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", checkpoint, ", but the job's is ", job));
}

// Returns an error if the job's schedule counts epochs, and a step had another number of rows than
// it has in the job. The steps so far would then be another number of epochs.
absl::Status CheckEpochs(const std::vector<DataSegment>& history, const v1::JobFile& job,
                         uint32_t workers) {
  if (!CountsEpochs(job.schedule())) return absl::OkStatus();
  const bool each_has_all = job.data().partition() == v1::DataSpec::ALL;
  for (const DataSegment& segment : history) {
    const uint64_t then = uint64_t{segment.batch_size} * (each_has_all ? 1 : segment.workers);
    const uint64_t now = uint64_t{job.batch_size()} * (each_has_all ? 1 : workers);
    if (segment.steps == 0 || then == now) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the job's schedule has numbers of epochs, but an epoch would have another number of "
        "steps: ",
        segment.steps, " steps were made by ", segment.workers, " workers with batch_size ",
        segment.batch_size, ", and the job has ", workers, " workers with batch_size ",
        job.batch_size(), "; choose batch_size so that a step has ", then,
        " rows in total, or give the schedule in steps"));
  }
  return absl::OkStatus();
}

uint64_t StepsOf(const std::vector<DataSegment>& history) {
  uint64_t steps = 0;
  for (const DataSegment& segment : history) steps += segment.steps;
  return steps;
}

absl::Status CheckShards(const Manifest& manifest, const v1::JobFile& job, uint32_t workers) {
  if (StepsOf(manifest.data) != manifest.step) {
    return absl::InvalidArgumentError("its data.mode was DYNAMIC, but the job's is SHARDS");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckSame("its data.partition", manifest.partition,
                                      v1::DataSpec::Partition_Name(job.data().partition())));
  if (job.data().shards() > 0 && job.data().shards() != manifest.shards) {
    return absl::InvalidArgumentError(absl::StrCat("its data was in ", manifest.shards,
                                                   " shards, but the job's data.shards is ",
                                                   job.data().shards()));
  }
  if (job.has_elastic()) {
    // A worker that joins later has only the job file, not this history of the data.
    const DataSegment& last = manifest.data.back();
    const uint32_t owners = std::max(job.elastic().max_workers(), workers);
    if (manifest.data.size() > 1 || last.batch_size != job.batch_size() || last.workers != owners) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its shards were used by at most ", last.workers, " workers with batch_size ",
          last.batch_size, ", but the job has ", owners, " workers with batch_size ",
          job.batch_size(), "; in an elastic job with data.mode SHARDS both must be the same"));
    }
  } else if (job.data().partition() != v1::DataSpec::ALL && manifest.shards < workers) {
    return absl::FailedPreconditionError(
        absl::StrCat("its data was in ", manifest.shards, " shards, which are too few for ",
                     workers, " workers: start at most ", manifest.shards,
                     " workers, or start a new run with data.shards not less than the largest "
                     "number of workers"));
  }
  return CheckEpochs(manifest.data, job, workers);
}

// Returns OK if the job can resume from the checkpoint of this manifest.
absl::Status CheckFits(const Manifest& manifest, const v1::JobFile& job, uint32_t workers) {
  SYNCGRADS_RETURN_IF_ERROR(CheckSame("its job", manifest.job, job.name()));
  SYNCGRADS_RETURN_IF_ERROR(CheckSame("its dtype", manifest.dtype, v1::DType_Name(job.dtype())));
  SYNCGRADS_RETURN_IF_ERROR(CheckSame("its seed", manifest.seed, job.seed()));
  SYNCGRADS_RETURN_IF_ERROR(
      CheckSame("its optimizer", manifest.optimizer, OptimizerName(job.optimizer())));
  if (job.data().mode() == v1::DataSpec::SHARDS && manifest.step > 0) {
    return CheckShards(manifest, job, workers);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Snapshot>> Read(const Job& job, bool resume, uint32_t workers,
                                             const std::function<void(const std::string&)>& note) {
  const CheckpointDirectory directory(CheckpointOptionsOf(job));
  if (!resume) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, directory.Steps());
    if (steps.empty()) return std::optional<Snapshot>();
    return absl::FailedPreconditionError(
        absl::StrCat(directory.path(), " has checkpoints of an earlier run, the newest after step ",
                     steps.back(),
                     ": use --resume to resume from it; to start a new run, remove the directory "
                     "or give another one"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::optional<Checkpoint> newest, directory.ReadNewest([&note](const absl::Status& fault) {
        note(absl::StrCat("skipping a damaged checkpoint: ", fault.message()));
      }));
  if (!newest.has_value()) {
    note(absl::StrCat("no checkpoint in ", directory.path(),
                      ": training starts from the beginning"));
    return std::optional<Snapshot>();
  }
  const std::string path = newest->path;
  const absl::Status fits = CheckFits(newest->manifest, job.file, workers);
  if (!fits.ok()) {
    return absl::Status(fits.code(),
                        absl::StrCat("cannot resume from ", path, ": ", fits.message()));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(Snapshot snapshot, SnapshotOf(*std::move(newest)));
  note(absl::StrCat("resuming after step ", snapshot.manifest.step, ", from ", path));
  return std::optional<Snapshot>(std::move(snapshot));
}

// Returns the lowest rank of those that have kept the newest state; nullopt if no worker
// has kept one. A collective.
absl::StatusOr<std::optional<uint32_t>> FindFurthest(const std::optional<Snapshot>& kept,
                                                     Team& team) {
  const uint64_t own = kept.has_value() ? 1 + kept->manifest.step : 0;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                             team.Gather("resume/kept", EncodeNumber(own)));
  uint64_t newest = 0;
  std::optional<uint32_t> furthest;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof(uint64_t)) {
      return absl::DataLossError(absl::StrCat("malformed number of steps from rank ", rank, ": ",
                                              all[rank].size(), " bytes"));
    }
    const uint64_t steps = DecodeNumber(all[rank]);
    if (steps <= newest) continue;
    newest = steps;
    furthest = rank;
  }
  return furthest;
}

}  // namespace

CheckpointDirectory::Options CheckpointOptionsOf(const Job& job) {
  const v1::Checkpoint& checkpoint = job.file.checkpoint();
  CheckpointDirectory::Options options;
  options.path = PathFrom(job.directory, checkpoint.directory());
  options.keep = checkpoint.keep() == 0 ? kUsuallyKept : checkpoint.keep();
  options.keep_best = checkpoint.best() != v1::Checkpoint::NONE;
  return options;
}

std::string OptimizerName(const v1::Optimizer& optimizer) {
  const auto* kinds = optimizer.GetDescriptor()->oneof_decl(0);
  const auto* kind = optimizer.GetReflection()->GetOneofFieldDescriptor(optimizer, kinds);
  return kind == nullptr ? "" : kind->name();
}

std::string EncodeStatus(const absl::Status& status) {
  return EncodeStrings(
      {absl::StrCat(static_cast<int>(status.code())), std::string(status.message())});
}

absl::Status DecodeStatus(absl::string_view bytes) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> parts, DecodeStrings(bytes));
  int code = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &code)) {
    return absl::DataLossError("malformed status from another worker");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), parts[1]);
}

absl::StatusOr<std::optional<Resumption>> FindResumption(
    const Job& job, bool resume, std::optional<Snapshot> kept, Team& team,
    const std::function<void(const std::string&)>& note) {
  Resumption resumption;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<uint32_t> furthest, FindFurthest(kept, team));
  resumption.root = furthest.value_or(0);
  std::vector<std::string> said;
  if (team.rank() == resumption.root) {
    absl::StatusOr<std::optional<Snapshot>> state = std::optional<Snapshot>();
    if (furthest.has_value()) {
      note(absl::StrCat("resuming after step ", kept->manifest.step,
                        ", from the state in this worker's memory"));
      state = std::move(kept);
    } else if (job.file.has_checkpoint()) {
      state = Read(job, resume, team.world_size(), note);
    }
    said.push_back(EncodeStatus(state.status()));
    if (state.ok() && state->has_value()) {
      resumption.snapshot = *std::move(*state);
      said.push_back(ToJson(resumption.snapshot->manifest));
    }
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                             team.Gather("resume/found", EncodeStrings(said)));
  if (resumption.root >= all.size())
    return absl::AbortedError("the worker that has the state has left");
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> heard,
                             DecodeStrings(all[resumption.root]));
  if (heard.empty()) return absl::AbortedError("a worker left before the run started");
  SYNCGRADS_RETURN_IF_ERROR(DecodeStatus(heard[0]));
  if (heard.size() == 1) return std::optional<Resumption>();
  SYNCGRADS_ASSIGN_OR_RETURN(resumption.manifest,
                             ParseManifest(heard[1], "the manifest of another worker"));
  return std::optional<Resumption>(std::move(resumption));
}

Job JobFor(const Job& job, const Manifest& manifest) {
  Job same_shards = job;
  const bool is_dynamic = job.file.data().mode() == v1::DataSpec::DYNAMIC;
  if (!is_dynamic) same_shards.file.mutable_data()->set_shards(manifest.shards);
  return same_shards;
}

}  // namespace syncgrads
