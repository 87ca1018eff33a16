// Runs the body of a test on every instruction set that this machine has.

#ifndef SYNCGRADS_TESTS_COMMON_KERNELS_EVERY_TARGET_H_
#define SYNCGRADS_TESTS_COMMON_KERNELS_EVERY_TARGET_H_

#include <cstdint>

#include "gtest/gtest.h"
#include "hwy/highway.h"

namespace syncgrads {

template <typename Body>
void OnEveryTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
    if (testing::Test::HasFailure()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_KERNELS_EVERY_TARGET_H_
