// Counts things by a name, such as calls by the network of their callers.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_COUNTS_BY_NAME_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_COUNTS_BY_NAME_H_

#include <cstddef>
#include <map>
#include <string>

namespace syncgrads::server {

// Holds only names whose count is not 0, so that names which peers choose do not pile up.
// Thread-compatible.
class CountsByName {
 public:
  size_t Of(const std::string& name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }
  void Up(const std::string& name) { ++counts_[name]; }
  // The count must not be 0.
  void Down(const std::string& name) {
    const auto found = counts_.find(name);
    if (--found->second == 0) counts_.erase(found);
  }

 private:
  std::map<std::string, size_t> counts_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_COUNTS_BY_NAME_H_
