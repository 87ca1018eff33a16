#include "tests/testing/cluster.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncgrads::testing {

void RecordingJournal::Note(const std::string& line) {
  MutexLock lock(mutex_);
  lines_.push_back(line);
  added_.NotifyAll();
}

void RecordingJournal::Debug(const std::string& line) { Note(line); }

void RecordingJournal::Warn(const std::string& line) { Note(line); }

std::string RecordingJournal::WaitForLine(const std::vector<std::string>& parts,
                                          absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  MutexLock lock(mutex_);
  for (size_t next = 0;;) {
    for (; next < lines_.size(); ++next) {
      const std::string& line = lines_[next];
      if (std::all_of(parts.begin(), parts.end(),
                      [&line](const std::string& part) { return absl::StrContains(line, part); })) {
        return line;
      }
    }
    if (!added_.WaitUntil(mutex_, deadline) && next == lines_.size()) return "";
  }
}

std::string RecordingJournal::Text() const {
  MutexLock lock(mutex_);
  return absl::StrJoin(lines_, "\n");
}

Cluster::Cluster(uint32_t servers, server::ServerOptions options, const Clock& clock) {
  for (uint32_t index = 0; index < servers; ++index) {
    options.bind = "127.0.0.1";
    options.port = 0;
    options.index = index;
    options.servers = servers;
    options.coordinator = coordinator_;
    absl::StatusOr<std::unique_ptr<server::Server>> started =
        server::Server::Start(options, journal_, clock);
    if (!started.ok()) {
      std::fprintf(stderr, "server %u: %s\n", index, started.status().ToString().c_str());
      std::abort();
    }
    if (index == 0) coordinator_ = absl::StrCat("127.0.0.1:", (*started)->port());
    servers_.push_back(*std::move(started));
  }
}

}  // namespace syncgrads::testing
