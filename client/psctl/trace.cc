#include "client/psctl/trace.h"

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/psctl/admin.h"
#include "client/psctl/cluster_query.h"
#include "client/psctl/timeline.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/mutex.h"
#include "common/names.h"
#include "common/status_macros.h"
#include "common/trace/clock_offset.h"

namespace syncgrads::client {
namespace {

constexpr absl::Duration kPatienceWithEach = absl::Seconds(2);
// Workers are shown after all servers.
constexpr uint32_t kPlaceOfWorkers = uint32_t{1} << 24;

// The memory that the replies of all servers may take together: a server that never stops sending
// must not take all of this host's. Thread-safe.
class ReplyBudget {
 public:
  explicit ReplyBudget(size_t bytes) : bytes_(bytes) {}

  // Errors:
  //   ResourceExhausted  there is no room for the reply
  absl::Status Take(const v1::TraceReply& reply) {
    if (taken_ += reply.SpaceUsedLong(); taken_ <= bytes_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the events of all processes take more than ", bytes_,
                     " bytes, and the rest of this server's is left out: use a smaller --seconds"));
  }

 private:
  const size_t bytes_;
  std::atomic<size_t> taken_ = 0;
};

// The trace of one server, which a thread reads. Thread-safe.
class ServerTrace {
 public:
  ServerTrace(const TraceOptions& options, uint32_t index, const std::string& address,
              std::shared_ptr<ReplyBudget> budget)
      : index_(index),
        budget_(std::move(budget)),
        admin_({.server = address,
                .job = options.job,
                .caller = options.caller,
                .timeout = options.timeout,
                .wait_for_connection = false}) {}

  // Begins to read, on a thread. Call it once.
  void Start(absl::Duration length) {
    thread_ = std::thread([this, length] {
      absl::Status status = Read(length);
      MutexLock lock(mutex_);
      status_ = std::move(status);
      changed_.NotifyAll();
    });
  }
  // Waits until the server records, but no longer than until MonotonicNow() is `deadline`. Returns
  // why it does not record.
  absl::Status AwaitBegun(absl::Time deadline) {
    MutexLock lock(mutex_);
    while (!begun_ && !status_.has_value()) {
      if (!changed_.WaitUntil(mutex_, deadline)) return absl::DeadlineExceededError("no answer");
    }
    return begun_ ? absl::OkStatus() : *status_;
  }
  // Waits until everything has been read. Then nobody else uses this object.
  absl::Status Finish() {
    thread_.join();
    MutexLock lock(mutex_);
    return *status_;
  }

  uint32_t index() const { return index_; }
  // After Finish.
  const ClockOffset& clock() const { return clock_; }
  std::vector<v1::TraceReply>& replies() { return replies_; }

 private:
  absl::Status Read(absl::Duration length) {
    for (int i = 0; i < kClockReadings; ++i) SYNCGRADS_RETURN_IF_ERROR(admin_.ReadClock(clock_));
    return admin_.Trace(length, [this](v1::TraceReply reply) {
      if (!reply.has_begun()) return Keep(std::move(reply));
      MutexLock lock(mutex_);
      begun_ = true;
      changed_.NotifyAll();
      return absl::OkStatus();
    });
  }

  absl::Status Keep(v1::TraceReply reply) {
    SYNCGRADS_RETURN_IF_ERROR(budget_->Take(reply));
    replies_.push_back(std::move(reply));
    return absl::OkStatus();
  }

  const uint32_t index_;
  const std::shared_ptr<ReplyBudget> budget_;
  Admin admin_;
  ClockOffset clock_;                    // used by the thread until Finish
  std::vector<v1::TraceReply> replies_;  // used by the thread until Finish
  Mutex mutex_;
  CondVar changed_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Returns `job`, or the only job of server 0 if it is empty.
absl::StatusOr<std::string> FindJob(const std::string& job, const v1::GetStatusReply& coordinator) {
  if (!job.empty()) return job;
  std::vector<std::string> names;
  for (const v1::JobStatus& one : coordinator.jobs()) names.push_back(one.job());
  if (names.size() == 1) return names[0];
  return absl::InvalidArgumentError(absl::StrCat("trace: --job is missing, and ", names.size(),
                                                 " jobs are open: ", absl::StrJoin(names, ", ")));
}

// Adds what one server has sent: its own events, and if it is server 0 those of the workers.
void AddTo(Timeline& timeline, const ClockOffset& first, ServerTrace& server) {
  Timeline::Origin own{absl::StrCat("server ", server.index()), server.index()};
  if (server.index() != 0) {
    own.clock_offset = first.offset() - server.clock().offset();
    own.clock_error = first.error() + server.clock().error();
  }
  for (v1::TraceReply& reply : server.replies()) {
    if (!reply.has_process()) {
      timeline.AddMissing(Printable(reply.missing()));
      continue;
    }
    v1::ProcessTrace& process = *reply.mutable_process();
    const Timeline::Origin origin =
        process.worker().empty()
            ? own
            : Timeline::Origin{absl::StrCat("worker ", process.rank(), " (", process.worker(), ")"),
                               kPlaceOfWorkers + process.rank(), process.clock_offset_ns(),
                               process.clock_error_ns()};
    timeline.Add(origin, process.process(), std::move(*process.mutable_part()));
  }
}

// The servers of a job.
struct Servers {
  std::string job;
  // Server 0 is the first.
  std::vector<std::unique_ptr<ServerTrace>> traces;
  // A line for each server that does not answer.
  std::vector<std::string> silent;
};

absl::StatusOr<Servers> FindServers(TraceOptions options) {
  Servers servers;
  const auto budget = std::make_shared<ReplyBudget>(options.max_bytes);
  for (const Answer& answer :
       ClusterQuery(options.server, kPatienceWithEach, options.caller).Ask()) {
    if (!answer.reply.ok()) {
      servers.silent.push_back(absl::StrCat(NameOf(answer), ": ", answer.reply.status().message()));
      continue;
    }
    const uint32_t index = answer.reply->server_index();
    if (index == 0) {
      SYNCGRADS_ASSIGN_OR_RETURN(options.job, FindJob(options.job, *answer.reply));
    } else if (servers.traces.empty()) {
      servers.silent.push_back(absl::StrCat(NameOf(answer), ": cannot be traced without server 0"));
      continue;
    }
    servers.traces.push_back(std::make_unique<ServerTrace>(options, index, answer.address, budget));
  }
  if (servers.traces.empty()) return absl::UnavailableError(absl::StrJoin(servers.silent, "; "));
  servers.job = options.job;
  return servers;
}

// Records on all servers, and waits until everything has been read. If server 0 refuses, the others
// do not begin.
absl::Status Record(Servers& servers, absl::Duration length, Timeline& timeline,
                    const std::function<void(const std::string&)>& on_begun) {
  ServerTrace& first = *servers.traces[0];
  first.Start(length);
  if (const absl::Status begun = first.AwaitBegun(absl::InfiniteFuture()); !begun.ok()) {
    first.Finish().IgnoreError();
    return begun;
  }
  for (size_t i = 1; i < servers.traces.size(); ++i) servers.traces[i]->Start(length);
  // `psctl trace stop` ends what is being recorded when it comes. So nobody is told of the
  // recording before all servers record, except those that do not answer.
  const absl::Time deadline = MonotonicNow() + kPatienceWithEach;
  for (size_t i = 1; i < servers.traces.size(); ++i) {
    servers.traces[i]->AwaitBegun(deadline).IgnoreError();
  }
  on_begun(servers.job);
  for (const std::string& line : servers.silent) timeline.AddMissing(line);
  for (const std::unique_ptr<ServerTrace>& server : servers.traces) {
    const absl::Status read = server->Finish();
    if (!read.ok()) {
      timeline.AddMissing(absl::StrCat("server ", server->index(), ": ", read.message()));
    }
    AddTo(timeline, first.clock(), *server);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TraceSummary> RecordTimeline(
    const TraceOptions& options, const std::function<void(const std::string&)>& on_begun) {
  const absl::Status cannot_write =
      absl::PermissionDeniedError(absl::StrCat("cannot write the trace ", options.path));
  // A trace that is refused leaves an earlier file as it is.
  if (!std::ofstream(options.path, std::ios::app)) return cannot_write;
  SYNCGRADS_ASSIGN_OR_RETURN(Servers servers, FindServers(options));
  Timeline timeline(servers.job);
  SYNCGRADS_RETURN_IF_ERROR(Record(servers, options.length, timeline, on_begun));
  std::ofstream file(options.path, std::ios::trunc);
  timeline.Write(file);
  file.close();
  if (!file) return cannot_write;
  return TraceSummary{options.path, timeline.events(), timeline.lost_events(),
                      timeline.clock_error(), timeline.missing()};
}

absl::StatusOr<std::optional<std::string>> StopTimeline(const TraceOptions& options) {
  std::optional<std::string> job;
  if (!options.job.empty()) job = options.job;
  bool any_stopped = false;
  std::vector<std::string> silent;
  for (const Answer& answer :
       ClusterQuery(options.server, kPatienceWithEach, options.caller).Ask()) {
    if (!answer.reply.ok()) {
      silent.push_back(absl::StrCat(NameOf(answer), ": ", answer.reply.status().message()));
      continue;
    }
    if (!job.has_value() && answer.reply->server_index() == 0) {
      SYNCGRADS_ASSIGN_OR_RETURN(job, FindJob(options.job, *answer.reply));
    }
    if (!job.has_value()) continue;
    Admin admin({.server = answer.address,
                 .job = *job,
                 .caller = options.caller,
                 .timeout = options.timeout,
                 .wait_for_connection = false});
    const absl::StatusOr<bool> stopped = admin.StopTrace();
    // A server that has just been started may not have the job yet, or not any more.
    if (!stopped.ok() && answer.reply->server_index() == 0) return stopped.status();
    any_stopped |= stopped.ok() && *stopped;
  }
  if (!job.has_value()) return absl::UnavailableError(absl::StrJoin(silent, "; "));
  return any_stopped ? job : std::nullopt;
}

std::string TextOf(const TraceSummary& summary) {
  std::string text = absl::StrFormat("%s: %d events, %d lost; clocks agree within %.1f us\n",
                                     summary.path, summary.events, summary.lost_events,
                                     static_cast<double>(summary.clock_error_ns) / 1e3);
  for (const std::string& line : summary.missing) absl::StrAppend(&text, "missing: ", line, "\n");
  return text;
}

std::string JsonOf(const TraceSummary& summary) {
  const auto quoted = [](std::string* text, const std::string& line) {
    absl::StrAppend(text, JsonString(line));
  };
  return absl::StrCat("{\"path\":", JsonString(summary.path), ",\"events\":", summary.events,
                      ",\"lost_events\":", summary.lost_events,
                      ",\"clock_error_us\":", static_cast<double>(summary.clock_error_ns) / 1e3,
                      ",\"missing\":[", absl::StrJoin(summary.missing, ",", quoted), "]}\n");
}

absl::Status CheckComplete(const TraceSummary& summary) {
  if (summary.missing.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the trace is incomplete: ", absl::StrJoin(summary.missing, "; ")));
}

}  // namespace syncgrads::client
