// The settings of a trainer.

#ifndef SYNCGRADS_WORKER_TRAINER_TRAINER_OPTIONS_H_
#define SYNCGRADS_WORKER_TRAINER_TRAINER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/base/trace.h"
#include "worker/batches/data_set.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/report/event_log.h"
#include "worker/report/progress.h"
#include "worker/train/compute.h"
#include "worker/train/extensions.h"
#include "worker/train/resume.h"

namespace syncgrads {

// The settings of a Trainer. Pointers are not owned; unless noted, they outlive the
// trainer.
struct TrainerOptions {
  // How long to wait for the other workers in each step.
  absl::Duration step_timeout = absl::Minutes(5);
  // Called before each step; training stops if it returns true. May be empty.
  std::function<bool()> should_stop;
  // Receives the progress of the run.
  Progress* progress = nullptr;
  // Null: no event log is written.
  EventLog* event_log = nullptr;
  // The data of `validation.data` (LoadValidationData). Null: the validation evaluates the held-out
  // rows of the training data.
  const DataSet* validation = nullptr;
  // Data mode SHARDS, in jobs in which every worker reads all data: the rank whose shards
  // this worker uses.
  std::optional<uint32_t> rank;
  // Elastic jobs only: the number of workers among which the shards are divided.
  uint32_t owners = 0;
  // Called with a message about a step that this worker skips. May be empty.
  std::function<void(const std::string&)> warn;
  // Layers, losses, readers and callbacks that the program adds.
  const Extensions* extensions = &NoExtensions();
  // The clock for the schedule of checkpoints.
  const Clock* clock = &Clock::Real();
  // Whether to resume from the newest checkpoint, if there is one; see FindResumption.
  bool resume = false;
  // The state that this worker has kept from an earlier attempt at the same run, after
  // the servers lost theirs. If an attempt fails, the state is stored here. May be null.
  std::optional<Snapshot>* kept = nullptr;
  // Jobs with checkpoints only, on every worker: writes the checkpoints of this worker. If
  // it is null, RunTraining and RunElasticTraining make one.
  CheckpointWriter* checkpoints = nullptr;
  // The state from which the run resumes; null: it starts from the beginning. Create
  // frees its snapshot when it has restored the state.
  Resumption* resumption = nullptr;
  // Called with a line for people to read. May be empty.
  std::function<void(const std::string&)> note;
  DeviceChoice device;
  // Records where this worker's time goes in its first `trace_steps` steps. Null: no
  // trace.
  Trace* trace = nullptr;
  uint64_t trace_steps = 0;
  // Which of the job's initialisations, from 0, is trained. Each has its own group on the
  // servers.
  uint32_t initialisation = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_TRAINER_OPTIONS_H_
