#include "client/session/path_summary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::client {

std::optional<std::string> PathSummary::Set(size_t server, absl::string_view path) {
  MutexLock lock(mutex_);
  paths_[server] = std::string(path);
  if (std::count(paths_.begin(), paths_.end(), "") > 0) return std::nullopt;
  const std::string line = LineLocked();
  if (line == reported_) return std::nullopt;
  reported_ = line;
  return line;
}

std::string PathSummary::LineLocked() const {
  const size_t servers = paths_.size();
  std::vector<std::string> paths = paths_;
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  if (paths.size() == 1) {
    return absl::StrCat("payloads to ",
                        servers == 1 ? "the server" : absl::StrCat("all ", servers, " servers"),
                        " go ", paths[0]);
  }
  std::vector<std::string> parts;
  for (const std::string& path : paths) {
    std::vector<size_t> with;
    for (size_t server = 0; server < servers; ++server) {
      if (paths_[server] == path) with.push_back(server);
    }
    parts.push_back(absl::StrCat("payloads to server", with.size() == 1 ? " " : "s ",
                                 absl::StrJoin(with, ", "), " go ", path));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace syncgrads::client
