// The server's log: events for people to read, one line each.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_
#define SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/log_level.h"

namespace syncgrads::server {

// What has happened to a job, to one of its workers, or to a server.
enum class EventKind : uint8_t {
  kOpened,    // the job
  kRestored,  // the job, after the coordinator was started again
  kWaiting,   // the job trains no further: workers are missing
  kContinues,
  kClosed,
  kJoined,  // the worker
  kReady,   // the worker has received the job's state
  kDisconnected,
  kReconnected,
  kLeft,
  kDropped,
  kEvicted,
  kReadmitted,
  kEpoch,
  kCheckpoint,
  kCheckpointFailed,
  kLearningRate,  // the job's learning rate factor was set, or has begun to apply
  kStalled,       // a step has been open for long
  kNonFinite,     // a contribution that is not finite
  kServerConnected,
  kServerLost,
  kDraining,
  kLeftOut,  // more events of the job than are logged
};

inline constexpr size_t kEventKinds = 23;

// Returns the kind as one word, for example "joined". docs/psctl.md lists the words.
inline const char* ToString(EventKind kind) {
  constexpr std::array<const char*, kEventKinds> kWords = {
      "opened",        "restored", "waiting",    "continues",
      "closed",        "joined",   "ready",      "disconnected",
      "reconnected",   "left",     "dropped",    "evicted",
      "readmitted",    "epoch",    "checkpoint", "checkpoint_failed",
      "learning_rate", "stalled",  "non_finite", "server_connected",
      "server_lost",   "draining", "left_out"};
  return kWords[static_cast<size_t>(kind)];
}

struct Event {
  EventKind kind;
  // Empty if the event concerns the server.
  std::string job;
  // The worker's name; empty if the event concerns no single worker.
  std::string worker;
  // The line of the log without `detail`.
  std::string text;
  // Follows `text` in the log, and in events for callers who may operate the job. Paths, and errors
  // that contain them, belong here.
  std::string detail = {};
  LogLevel level = LogLevel::kInfo;
};

// Thread-safe. The methods must not block or call back: callers hold locks, for example
// Coordinator::mutex_.
class Journal {
 public:
  virtual ~Journal() = default;
  // Logs a detail for the diagnosis of a problem.
  virtual void Debug(const std::string& line) = 0;
  // Logs something of general interest.
  virtual void Note(const std::string& line) = 0;
  // Logs something that may need attention.
  virtual void Warn(const std::string& line) = 0;
  // Logs something about a job that may need attention. An EventLog limits how often.
  virtual void WarnAbout(const std::string& /*job*/, const std::string& line) { Warn(line); }
  // Logs an event at its level. An EventLog keeps it too.
  virtual void Record(const Event& event) {
    const std::string line = absl::StrCat(event.text, event.detail);
    switch (event.level) {
      case LogLevel::kDebug:
        return Debug(line);
      case LogLevel::kInfo:
        return Note(line);
      case LogLevel::kWarning:
        return Warn(line);
    }
  }
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_JOURNAL_H_
