// Aborts where our own code calls a kernel in a way that its header excludes.
// Never for what comes from a peer or a file: callers check that before.

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
