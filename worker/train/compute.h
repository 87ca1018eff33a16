// The device that a worker computes on.

#ifndef SYNCGRADS_WORKER_TRAIN_COMPUTE_H_
#define SYNCGRADS_WORKER_TRAIN_COMPUTE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "worker/nn/accelerators.h"
#include "worker/nn/device.h"

namespace syncgrads {

struct DeviceChoice {
  // Its number; the processor without.
  std::optional<int> accelerator;
  MatrixPrecision precision = MatrixPrecision::kF32;
  // Outlives the choice.
  const Accelerators* accelerators = &NoAccelerators();
};

// What the flags --device and --matrix_products say:
//
//   cpu         the processor
//   cuda        the accelerator `local_rank` modulo how many there are
//   cuda:2      that one
//   cuda:0,2,3  of the list, the one at `local_rank` modulo its length
//
// and f32, tf32 or bf16.
//
// Errors:
//   InvalidArgument  neither is it; an accelerator that is not there; or a precision
//                    other than f32 on the processor
//   Unimplemented    as Accelerators::Count, with --device
absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view device,
                                          absl::string_view matrix_products, uint32_t local_rank,
                                          const Accelerators& accelerators);

// How many threads each worker computes with on the processor.
int ThreadsOf(const v1::JobFile& job, uint32_t world_size);

// How many threads of each worker read images ahead. Beside an accelerator, unless the job
// says it, the machine's processors divided by its accelerators.
int ReadersOf(const v1::JobFile& job, uint32_t world_size, const DeviceChoice& choice);

// On the processor, with the job's threads; see proto/job.proto. Errors: as
// Accelerators.
template <typename T>
absl::StatusOr<std::unique_ptr<Device<T>>> MakeDevice(const v1::JobFile& job, uint32_t world_size,
                                                      const DeviceChoice& choice);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_COMPUTE_H_
