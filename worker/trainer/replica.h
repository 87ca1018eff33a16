// This worker's replica of the model: parameters, gradients, the optimizer's slots, layer states.

#ifndef SYNCGRADS_WORKER_TRAINER_REPLICA_H_
#define SYNCGRADS_WORKER_TRAINER_REPLICA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/group/layout.h"
#include "common/optim/clip.h"
#include "common/optim/optimizer.h"
#include "common/update_rule.h"
#include "proto/job.pb.h"
#include "worker/batches/data_set.h"
#include "worker/evaluation/evaluation.h"
#include "worker/team/replicas.h"
#include "worker/team/team.h"

namespace syncgrads {

// A parameter on the host.
struct HostParameter {
  TensorSpec spec;
  void* values;
  MutableTensor gradient;
};

// The parts of a replica that the host fetches from the device.
enum class ReplicaPart {
  kValues,   // the parameters
  kTrained,  // the parameters, their averages and the optimizer's slots
  kStates,   // the layer states
  kAll,
};

// What is on the host is stale until it has been fetched, and what is written there reaches the
// device by an upload. A parameter is identified by its number in the model. Unless a comment lists
// others, the errors of a method are those of DeviceMemory::Wait.
//
// The implementation knows the dtype (ModelReplica); users of this interface need not. Not
// thread-safe.
class Replica {
 public:
  virtual ~Replica() = default;

  // The host's memory, in the model's order. The slots are those of an optimizer on this worker:
  // each parameter's, one parameter after the other.
  absl::Span<const HostParameter> parameters() const { return parameters_; }
  absl::Span<const NamedTensor> slots() const { return slots_; }
  absl::Span<const NamedTensor> states() const { return states_; }
  // Parameters that are frozen: they are not among parameters().
  absl::Span<const NamedTensor> frozen() const { return frozen_; }
  // The moving average of each of parameters(); empty if the job has none.
  absl::Span<const NamedTensor> averages() const { return averages_; }
  // The factors of the optimizer's hyperparameters for each of parameters(); empty if all are 1.
  absl::Span<const TensorFactors> factors() const { return factors_; }
  // A number 0 of the model's dtype, behind the gradients in the memory that they share.
  void* zero() const { return zero_; }

  // Moves the gradients to memory that servers on this host can read. Errors: those of
  // GradientMemory::Create.
  virtual absl::Status ShareGradients(Team& team) = 0;
  // Creates the optimizer of this worker. Errors: those of ModelOptimizer::Create.
  virtual absl::Status CreateOptimizer(const Optimizer& rule) = 0;
  virtual bool has_optimizer() const = 0;

  // Updates `parameters` with the gradients on the host, at `rate_factor` times the optimizer's
  // learning rate.
  virtual absl::Status Apply(absl::Span<const size_t> parameters, double rate_factor) = 0;
  // Whether Apply can take gradients that lie elsewhere on the host. If so, SetGradient tells where
  // the gradient of the parameter's next update lies, in pieces of whole aligned elements. They
  // must not change before the parameter's next gradient is on the host.
  virtual bool takes_pieces() const = 0;
  virtual void SetGradient(size_t parameter, std::vector<absl::Span<const std::byte>> pieces) = 0;
  // From now on, pieces may lie in memory of servers on this host that holds results of `group`,
  // which outlives their use.
  virtual void UseResultsOf(const Group& group) = 0;
  // Whether Apply copies gradients to a device. UploadGradient then queues the copy of one before
  // Apply does, after what the device has to do for this step; the gradient must not change until
  // then.
  virtual bool uploads_gradients() const = 0;
  virtual void UploadGradient(size_t parameter) = 0;
  virtual bool is_uploaded(size_t parameter) const = 0;
  // The gradient that will be applied is another one than SetGradient or UploadGradient had.
  virtual void ForgetGradient(size_t parameter) = 0;
  // The number of updates of a parameter; 0 without an optimizer on this worker.
  virtual uint64_t updates(size_t parameter) const = 0;
  virtual void set_updates(size_t parameter, uint64_t updates) = 0;
  // Keep copies a parameter and its slots, which Undo restores until ForgetKept. Keep returns false
  // if there is no memory for the copy. They do nothing without an optimizer on this worker.
  virtual bool Keep(size_t parameter) = 0;
  virtual void Undo() = 0;
  virtual void ForgetKept() = 0;

  // BeginFetch queues the copies that Fetch waits for, of the parameters and slots. In between, the
  // host must neither read nor write them.
  virtual void BeginFetch() = 0;
  virtual absl::Status Fetch(ReplicaPart part) = 0;
  // Queue the upload of parameters and of layer states. The host must not change them until Finish
  // has returned.
  virtual void Upload(absl::Span<const size_t> parameters) = 0;
  virtual void UploadStates() = 0;
  // Uploads everything and waits for it.
  virtual absl::Status UploadAll() = 0;
  // Waits for the device.
  virtual absl::Status Finish() = 0;
  // The first error of the device, and the end of an error for lack of memory.
  virtual absl::Status status() const = 0;
  virtual void ForgetExhaustion() = 0;

  // Moving averages; these do nothing in jobs without them. BeginAverage sets the averages to the
  // device's parameters. UpdateAverage is called after each step, counted from 1. UseAverage,
  // called after the last one, exchanges averages and parameters if the averages are the job's
  // model.
  virtual void BeginAverage() = 0;
  virtual void UpdateAverage(uint64_t step) = 0;
  virtual absl::Status UseAverage() = 0;

  // Evaluates the job's model: the parameters, or their averages; see syncgrads::Evaluate. `spec`
  // is where `data` comes from. If it fails for lack of memory, the replica is as before, and can
  // be used. A collective of `team`.
  virtual absl::StatusOr<Evaluation> Evaluate(absl::string_view name, const v1::DataSpec& spec,
                                              const DataSet& data, absl::Span<const RowId> rows,
                                              Team& team, const EvaluationOptions& options) = 0;
  // Compares the parameters of all workers; see CompareReplicas. A collective.
  virtual absl::StatusOr<ReplicaCheck> Compare(Team& team) = 0;
  // Writes the model to a file. Errors: those of SaveModel.
  virtual absl::Status Save(const std::string& path) = 0;

  // The tensor that a slot of an optimizer has in snapshots, for this parameter.
  static TensorSpec SlotSpec(const TensorSpec& parameter, int slot);
  // Returns the values of the parameters as tensors.
  std::vector<NamedTensor> Values() const;

 protected:
  std::vector<HostParameter> parameters_;
  std::vector<NamedTensor> slots_;
  std::vector<NamedTensor> states_;
  std::vector<NamedTensor> frozen_;
  std::vector<NamedTensor> averages_;
  std::vector<TensorFactors> factors_;
  void* zero_ = nullptr;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_REPLICA_H_
