#include "server/core/coordinator/generations.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace syncgrads::server {

Generation Generations::Next(const std::string& name, absl::Time now,
                             absl::FunctionRef<bool(const std::string&)> is_open) {
  // Forget looks at every name, so it is not called each time.
  if (now - last_forget_ >= options_.keep / 24 || names_.size() >= options_.max_names) {
    Forget(now, is_open);
    last_forget_ = now;
  }
  const auto found = names_.find(name);
  // A name that is not remembered may be any of the forgotten ones.
  const Generation before = found == names_.end() ? forgotten_ : found->second.newest;
  const Generation next = std::max(Generation{ToNumber(before) + 1}, options_.first);
  names_[name] = {next, now};
  return next;
}

void Generations::Restore(const std::string& name, Generation generation, absl::Time now) {
  Name& known = names_[name];
  known.newest = std::max(known.newest, generation);
  known.used = now;
}

void Generations::Close(const std::string& name, absl::Time now) {
  const auto found = names_.find(name);
  if (found != names_.end()) found->second.used = now;
}

Generation Generations::Newest(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? Generation{} : found->second.newest;
}

std::map<std::string, Generation> Generations::All() const {
  std::map<std::string, Generation> all;
  for (const auto& [name, known] : names_) all[name] = known.newest;
  return all;
}

void Generations::Forget(absl::Time now, absl::FunctionRef<bool(const std::string&)> is_open) {
  std::vector<std::pair<absl::Time, std::string>> closed;  // by time of last use
  for (const auto& [name, known] : names_) {
    if (!is_open(name)) closed.push_back({known.used, name});
  }
  std::sort(closed.begin(), closed.end());
  // Removes a tenth more than necessary, so that this is not repeated for every new name.
  const size_t too_many = names_.size() >= options_.max_names
                              ? names_.size() - options_.max_names + options_.max_names / 10 + 1
                              : 0;
  for (size_t i = 0; i < closed.size(); ++i) {
    if (i >= too_many && now - closed[i].first < options_.keep) break;
    const auto name = names_.find(closed[i].second);
    forgotten_ = std::max(forgotten_, name->second.newest);
    names_.erase(name);
  }
}

}  // namespace syncgrads::server
