// Merges what servers and workers have recorded into one file in the Trace Event Format, which
// ui.perfetto.dev and Chromium's developer tools open.

#ifndef SYNCGRADS_CLIENT_PSCTL_TIMELINE_H_
#define SYNCGRADS_CLIENT_PSCTL_TIMELINE_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "proto/trace.pb.h"

namespace syncgrads::client {

// Each process has a track for each of its threads. Events that overlap others of their thread
// (rounds, writes) have tracks of their own. For each member and each round of a chunk, arrows lead
// from the worker's push to its seat on the server, to the reduction, and to the worker's result.
//
// Times are those of the clock of server 0. Not thread-safe.
class Timeline {
 public:
  // `job` is the name of the job.
  explicit Timeline(std::string job) : job_(std::move(job)) {}

  // A server or a worker.
  struct Origin {
    std::string name;
    // Processes are shown in ascending order.
    uint32_t place = 0;
    // In nanoseconds: what to add to its times, and by how much the sum may be wrong.
    int64_t clock_offset = 0;
    uint64_t clock_error = 0;
  };
  // Adds a part of what `origin` has recorded. Parts with the same `process` number are in one
  // process, which has the names of all of them, and the clock with the smallest error.
  void Add(const Origin& origin, uint64_t process, v1::TracePart part);
  // Adds a line for people: what is missing from the timeline, and why.
  void AddMissing(std::string line) { missing_.push_back(std::move(line)); }

  const std::vector<std::string>& missing() const { return missing_; }
  uint64_t events() const { return events_; }
  uint64_t lost_events() const { return lost_; }
  // In nanoseconds: the largest error of a process's clock.
  uint64_t clock_error() const;

  // Writes the file.
  void Write(std::ostream& out) const;

 private:
  struct Process {
    // By place.
    std::map<uint32_t, std::string> names;
    int64_t clock_offset = 0;
    uint64_t clock_error = 0;
    std::vector<v1::TracePart> parts;
  };

  const std::string job_;
  std::map<uint64_t, Process> processes_;
  std::vector<std::string> missing_;
  uint64_t events_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_TIMELINE_H_
