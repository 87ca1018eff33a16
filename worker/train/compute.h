// Chooses the device that a worker computes on.

#ifndef SYNCGRADS_WORKER_TRAIN_COMPUTE_H_
#define SYNCGRADS_WORKER_TRAIN_COMPUTE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/device.h"

namespace syncgrads {

// A device and its precision, from flags.
struct DeviceChoice {
  // The accelerator's number; nullopt: the CPU.
  std::optional<int> accelerator;
  MatrixPrecision precision = MatrixPrecision::kF32;
  // Outlives this object.
  const Accelerators* accelerators = &NoAccelerators();
  // The number of workers on this host, which share its processors. 0: unknown; all workers of the
  // job are assumed to be here.
  uint32_t local_workers = 0;
};

// Parses the flags --device and --precision. --device is one of
//
//   cpu         the CPU
//   cuda        the accelerator number `local_rank` modulo the number of accelerators
//   cuda:2      this accelerator
//   cuda:0,2,3  the entry of the list at `local_rank` modulo its length
//
// and --precision is f32, tf32, bf16, or empty: then it is tf32 on an accelerator and f32 on the
// CPU.
//
// Errors:
//   InvalidArgument  a flag has no such form; the accelerator does not exist; or the
//                    precision is not f32 on the CPU
//   Unimplemented    no accelerator can be used (Accelerators::Count); names --device
absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view device, absl::string_view precision,
                                          uint32_t local_rank, const Accelerators& accelerators);

// Returns "cpu", or the name of the accelerator; "cuda:2" if it does not report one.
std::string NameOf(const DeviceChoice& choice);

// Returns a line about the accelerator, its precision and libraries for whoever starts a job, or ""
// if the choice is the CPU.
std::string DescriptionOf(const DeviceChoice& choice);

// Returns the number of threads that each worker computes with on the CPU: the job's, or else an
// equal share of the processors that this process may use (AvailableProcessors).
int ThreadsOf(const v1::JobFile& job, uint32_t world_size, const DeviceChoice& choice);

// Returns the number of threads with which each worker reads images ahead. Default beside
// an accelerator: the processors that this process may use, divided by the workers on this host, or
// by its accelerators if there are more of them or if the number of workers is unknown. `source` is
// the data that is read: the job's, or that of its validation.
int ReadersOf(const v1::JobFile& job, const v1::DataSpec& source, uint32_t world_size,
              const DeviceChoice& choice);

// Creates the chosen device; the CPU uses ThreadsOf threads. Errors: ResourceExhausted if the
// system does not start the threads; those of Accelerators::MakeFloat and MakeDouble.
template <typename T>
absl::StatusOr<std::unique_ptr<Device<T>>> MakeDevice(const v1::JobFile& job, uint32_t world_size,
                                                      const DeviceChoice& choice);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_COMPUTE_H_
