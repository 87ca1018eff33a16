// One worker's side of a benchmark of steps: it does what the conductor
// (conductor.py) says, so that several systems can take turns within one run.
//
// The conductor's socket carries lines:
//
//   worker                 conductor
//   ready RANK PID
//                          fill        write this rank's contribution, whole
//   ok
//                          run STEPS
//   done START END ...     one pair for each step, in ns of the monotonic clock
//                          check       compare the whole result
//   ok
//
// and "wrong TEXT" in place of an answer when a result is not the mean. Between
// steps a worker touches and checks some hundred elements, so that a step that
// returned an old result would be noticed, and waits otherwise for nothing.

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

// What one rank contributes and what it must get. `result` may be
// `contribution`. Contributions are small integers, so that a mean over 2, 4, 8,
// … members is exact in float32, and over others within 1e-4.
class Values {
 public:
  Values(float* contribution, const float* result, size_t elements, uint32_t rank,
         uint32_t world_size);

  // The result lies in these pieces from now on, in order.
  void SetResult(std::vector<absl::Span<const float>> pieces) { result_ = std::move(pieces); }

  // How far a result may be from the mean; infinite: it is not looked at.
  void SetTolerance(float tolerance) { tolerance_ = tolerance; }

  void Fill();
  void Touch(uint64_t step);
  // Empty, or says which element is wrong.
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

// Follows the conductor at the unix socket `path` until it hangs up. `step`
// contributes and returns when the result is there. Returns the exit code.
int FollowConductor(const std::string& path, uint32_t rank, Values& values,
                    const std::function<void()>& step);

}  // namespace syncgrads::bench

#endif  // SYNCGRADS_BENCH_CONDUCTED_H_
