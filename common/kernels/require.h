// Require aborts if our own code calls a kernel in a way that the kernel's header forbids. It is
// never used for data from a peer or a file: callers check such data first.

#ifndef SYNCGRADS_COMMON_KERNELS_REQUIRE_H_
#define SYNCGRADS_COMMON_KERNELS_REQUIRE_H_

#include <cstdio>
#include <cstdlib>

namespace syncgrads {

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken invariant: %s\n", what);
  std::abort();
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_REQUIRE_H_
