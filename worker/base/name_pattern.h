// Patterns of parameters' names in a job file.

#ifndef SYNCGRADS_WORKER_BASE_NAME_PATTERN_H_
#define SYNCGRADS_WORKER_BASE_NAME_PATTERN_H_

#include <fnmatch.h>

#include <string>

namespace syncgrads {

// Returns whether a parameter's name matches a pattern such as "block1/*". See fnmatch(3).
inline bool MatchesName(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_NAME_PATTERN_H_
