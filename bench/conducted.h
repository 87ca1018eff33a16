// The worker's side of a step benchmark. It executes the commands of the conductor (conductor.py),
// so that several systems can take turns within one run.
//
// The messages on the conductor's socket are lines:
//
//   worker                 conductor
//   ready RANK PID
//                          fill        write this rank's whole contribution
//   ok
//                          run STEPS
//   done START END ...     one pair for each step, in ns of the monotonic clock
//                          check       compare the whole result
//   ok
//
// If a result is not the mean, the answer is "wrong TEXT" instead. Between steps, a worker changes
// and checks some hundred elements, so that a step that returned an old result is detected. It does
// nothing else between steps.

#ifndef SYNCGRADS_BENCH_CONDUCTED_H_
#define SYNCGRADS_BENCH_CONDUCTED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace syncgrads::bench {

// The contribution of one rank, and the result that it must receive. `result` may be
// `contribution`. Contributions are small integers: means over 2, 4, 8, … members are exact in
// float32, and others are exact within 1e-4.
class Values {
 public:
  Values(float* contribution, const float* result, size_t elements, uint32_t rank,
         uint32_t world_size);

  // From now on, the result is the concatenation of these pieces.
  void SetResult(std::vector<absl::Span<const float>> pieces) { result_ = std::move(pieces); }

  // How far a result may differ from the mean. Infinite: results are not checked.
  void SetTolerance(float tolerance) { tolerance_ = tolerance; }

  void Fill();
  void Touch(uint64_t step);
  // Return an empty string, or a text with the element that is wrong.
  std::string CheckTouched(uint64_t step) const;
  std::string CheckAll(uint64_t last_step) const;

 private:
  bool IsRight(size_t i, uint64_t step) const;
  std::string Describe(size_t i, uint64_t step) const;
  float Result(size_t i) const;

  float* const contribution_;
  std::vector<absl::Span<const float>> result_;
  const size_t elements_;
  const size_t stride_;
  const uint32_t rank_;
  const uint32_t world_size_;
  float tolerance_ = 1e-4f;
};

// Executes the commands of the conductor at the unix socket `path` until the conductor disconnects.
// `step` contributes, and returns when the result is complete. Returns the exit code.
int FollowConductor(const std::string& path, uint32_t rank, Values& values,
                    const std::function<void()>& step);

}  // namespace syncgrads::bench

#endif  // SYNCGRADS_BENCH_CONDUCTED_H_
