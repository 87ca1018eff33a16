// Assigns generations to jobs. A later job of the same name has a larger generation, so that it
// is not confused with an earlier one.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_GENERATIONS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_GENERATIONS_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/ids.h"

namespace syncgrads::server {

struct GenerationsOptions {
  // The smallest generation that is assigned.
  Generation first{1};
  // How long the name of a closed job is remembered.
  absl::Duration keep = absl::Hours(24);
  // If there are more names than this, the least recently used ones are forgotten earlier.
  size_t max_names = 10000;
};

// Not thread-safe; owned by the Coordinator and protected by Coordinator::mutex_.
class Generations {
 public:
  explicit Generations(const GenerationsOptions& options) : options_(options) {}

  // The generation of a new job of this name. It is larger than that of any earlier job of this
  // name, also if the name was forgotten. Forgets old names, except those for which `is_open`
  // returns true.
  Generation Next(const std::string& name, absl::Time now,
                  absl::FunctionRef<bool(const std::string&)> is_open);
  // Records the generation that a job of this name had before a restart.
  void Restore(const std::string& name, Generation generation, absl::Time now);
  // Records that a job of this name was closed at `now`.
  void Close(const std::string& name, absl::Time now);

  // The newest generation of this name; 0 if the name is not remembered.
  Generation Newest(const std::string& name) const;
  // The largest generation among the forgotten names; 0 if no name was forgotten.
  Generation forgotten() const { return forgotten_; }
  // The newest generation of each remembered name.
  std::map<std::string, Generation> All() const;

 private:
  struct Name {
    Generation newest{};
    absl::Time used;
  };

  // Forgets closed jobs' names that are too old, and the oldest ones if there are too many.
  void Forget(absl::Time now, absl::FunctionRef<bool(const std::string&)> is_open);

  const GenerationsOptions options_;
  std::map<std::string, Name> names_;
  Generation forgotten_{};
  // When Forget last ran.
  absl::Time last_forget_ = absl::InfinitePast();
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_GENERATIONS_H_
