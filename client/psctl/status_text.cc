#include "client/psctl/status_text.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/psctl/job_view.h"

namespace syncgrads::client {
namespace {

using PayloadCounts = google::protobuf::RepeatedPtrField<v1::PayloadBytes>;

std::string TrafficText(const PayloadCounts& counts) {
  std::vector<std::string> texts;
  for (const v1::PayloadBytes& one : counts) {
    if (one.bytes() == 0) continue;
    texts.push_back(absl::StrCat(BytesText(one.bytes()), " by ", one.path()));
    if (one.codec() != "raw") absl::StrAppend(&texts.back(), " as ", one.codec());
  }
  return texts.empty() ? "nothing" : absl::StrJoin(texts, " and ");
}

uint64_t Sum(const PayloadCounts& counts) {
  uint64_t sum = 0;
  for (const v1::PayloadBytes& one : counts) sum += one.bytes();
  return sum;
}

std::string TrafficRateText(const PayloadCounts& now, const PayloadCounts& before, double seconds) {
  const uint64_t earlier = std::min(Sum(before), Sum(now));
  return BytesText(static_cast<uint64_t>(static_cast<double>(Sum(now) - earlier) / seconds));
}

// Returns a number of steps per second.
std::string RateText(double rate) {
  return absl::StrFormat("%.*f", rate > 0 && rate < 1 ? 3 : 1, rate);
}

// Returns the number of chunks that the server has of the groups of all jobs.
uint64_t ChunksOf(const v1::GetStatusReply& reply) {
  uint64_t chunks = 0;
  for (const v1::JobStatus& job : reply.jobs()) {
    for (const v1::GroupStatus& group : job.groups()) chunks += group.chunks();
  }
  return chunks;
}

std::string VersionText(const v1::ServerStatus& server) {
  const bool has_commit = !server.commit().empty() && server.commit() != "unknown";
  return absl::StrCat(server.version(),
                      has_commit ? absl::StrCat(" of commit ", server.commit()) : "");
}

void PrintServer(const Answer& answer, const std::vector<Answer>* before, std::ostream& out) {
  out << NameOf(answer) << ": ";
  if (!answer.reply.ok()) {
    out << "DOES NOT ANSWER: " << answer.reply.status().message() << "\n";
    return;
  }
  const v1::ServerStatus& server = answer.reply->server();
  if (answer.reply->server_index() == 0) out << "coordinator, ";
  if (!server.version().empty()) out << "version " << VersionText(server) << ", ";
  out << "up " << DurationText(absl::Milliseconds(static_cast<int64_t>(server.uptime_ms()))) << ", "
      << server.connections() << " of " << server.max_connections() << " connections, "
      << ChunksOf(*answer.reply) << " chunks, memory " << BytesText(server.memory_bytes()) << " of "
      << BytesText(server.memory_bytes() + server.memory_free_bytes()) << ", received "
      << TrafficText(server.received()) << ", sent " << TrafficText(server.sent());
  if (const Answer* const earlier = FindAnswer(before, answer)) {
    const double seconds = std::max(absl::ToDoubleSeconds(answer.at - earlier->at), 1e-9);
    out << ", now "
        << TrafficRateText(server.received(), earlier->reply->server().received(), seconds)
        << "/s in and " << TrafficRateText(server.sent(), earlier->reply->server().sent(), seconds)
        << "/s out";
  }
  if (server.draining()) out << ", DRAINED: it refuses new jobs";
  if (!server.coordinator_reached()) out << ", has NO CONNECTION to the coordinator";
  out << "\n";
}

// Prints rows with columns of equal width.
void PrintTable(const std::vector<std::vector<std::string>>& rows, std::ostream& out) {
  std::vector<size_t> widths(rows[0].size());
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const std::vector<std::string>& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, " ", absl::StrFormat("%-*s", static_cast<int>(widths[i]), row[i]));
    }
    out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

std::string Optional(const std::optional<absl::Duration>& duration) {
  return duration.has_value() ? DurationText(*duration) : "-";
}

std::string StateOf(const WorkerView& worker) {
  if (worker.gone) return "gone";
  if (!worker.rank.has_value()) return "waits to enter";
  return worker.follows ? "its data has ended" : "";
}

std::string DeviceOf(const WorkerView& worker) {
  return worker.figures.has_value() && !worker.figures->device().empty() ? worker.figures->device()
                                                                         : "-";
}

std::string LossOf(const WorkerView& worker) {
  if (!worker.figures.has_value() || !worker.figures->has_loss()) return "-";
  return absl::StrFormat("%.4g", worker.figures->loss());
}

void PrintWorkers(const JobView& job, bool first_is_slow, std::ostream& out) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "worker", "host", "device", "step", "loss", "lag", "silent", "lease", ""}};
  for (const WorkerView& worker : job.workers) {
    const bool is_slow = first_is_slow && rows.size() == 1;
    rows.push_back({worker.rank.has_value() ? absl::StrCat(*worker.rank) : "-", worker.name,
                    worker.host.empty() ? "-" : worker.host, DeviceOf(worker),
                    absl::StrCat(worker.step), LossOf(worker), Optional(worker.lag),
                    Optional(worker.silent), Optional(worker.lease),
                    is_slow ? "<- SLOWEST" : StateOf(worker)});
  }
  PrintTable(rows, out);
}

void PrintHead(const JobView& job, std::ostream& out) {
  const auto is_member = [](const WorkerView& worker) { return worker.rank.has_value(); };
  std::vector<std::string> names;
  if (job.coordinator.has_value()) {
    for (const v1::Member& member : job.coordinator->epoch().members()) {
      names.push_back(member.name());
    }
  } else {
    for (const WorkerView& worker : job.workers) {
      if (is_member(worker)) names.push_back(worker.name);
    }
  }
  out << "job \"" << job.name << "\", generation " << job.generation << ", epoch " << job.epoch
      << " of " << names.size() << " workers: " << absl::StrJoin(names, ", ") << "\n";
  if (job.group.empty()) return;
  out << "  group \"" << job.group << "\": step " << job.open_round << " is open, ";
  if (job.steps_per_second.has_value()) {
    out << RateText(*job.steps_per_second) << " steps/s, ";
  }
  out << job.chunks << " chunks, " << job.late_contributions << " late contributions";
  if (job.open_chunks > 0) {
    out << ", " << job.open_chunks << " chunks wait, for " << DurationText(job.oldest_open);
  }
  if (job.other_groups > 0) out << "; " << job.other_groups << " other groups";
  out << "\n";
  if (job.coordinator.has_value() && RateFactorOf(*job.coordinator) != 1) {
    out << "  " << RateFactorText(*job.coordinator) << "\n";
  }
}

void PrintCheckpoints(const v1::CheckpointStatus& checkpoints, std::ostream& out) {
  out << "  checkpoints: " << checkpoints.written() << " written";
  if (checkpoints.written() > 0) {
    out << ", the last after step " << checkpoints.last_step() << ": " << checkpoints.last_path();
  }
  out << "; " << checkpoints.failed() << " failed";
  if (checkpoints.failed() > 0) out << ", the last: " << checkpoints.last_error();
  out << "\n";
}

void PrintMembership(const v1::JobStatus& job, std::ostream& out) {
  uint64_t dropped = 0;
  std::vector<std::string> reasons;
  for (const v1::DropCount& drops : job.drops()) {
    dropped += drops.count();
    if (drops.count() > 0) reasons.push_back(absl::StrCat(drops.count(), " ", drops.reason()));
  }
  out << "  workers: " << job.joins() << " joined, " << dropped << " dropped";
  if (dropped > 0) out << " (" << absl::StrJoin(reasons, ", ") << ")";
  if (job.reconnects() > 0) out << ", " << job.reconnects() << " reconnections";
  out << "\n";
}

void PrintJobs(const std::vector<Answer>& now, const std::vector<Answer>* before, bool by_lag,
               std::ostream& out) {
  std::vector<JobView> jobs = JobsOf(now, before);
  const bool any_answer =
      std::any_of(now.begin(), now.end(), [](const Answer& answer) { return answer.reply.ok(); });
  if (jobs.empty() && any_answer) out << "no job is open\n";
  for (JobView& job : jobs) {
    const bool first_is_slow = by_lag && SortSlowestFirst(job);
    PrintHead(job, out);
    PrintWorkers(job, first_is_slow, out);
    if (by_lag || !job.coordinator.has_value()) continue;
    PrintMembership(*job.coordinator, out);
    PrintCheckpoints(job.coordinator->checkpoints(), out);
  }
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return absl::StrFormat("%.*f %s", unit == 0 || value >= 100 ? 0 : 1, value, kUnits[unit]);
}

std::string DurationText(absl::Duration duration) {
  const auto text = [](double value, const char* unit) {
    return absl::StrFormat("%.*f %s", value >= 100 ? 0 : 1, value, unit);
  };
  if (duration < absl::Seconds(1)) return text(absl::ToDoubleMilliseconds(duration), "ms");
  if (duration < absl::Minutes(2)) return text(absl::ToDoubleSeconds(duration), "s");
  if (duration < absl::Hours(2)) return text(absl::ToDoubleMinutes(duration), "min");
  return text(absl::ToDoubleHours(duration), "h");
}

void PrintStatus(const std::vector<Answer>& now, const std::vector<Answer>* before,
                 std::ostream& out) {
  for (const Answer& answer : now) PrintServer(answer, before, out);
  PrintJobs(now, before, /*by_lag=*/false, out);
}

void PrintTop(const std::vector<Answer>& now, const std::vector<Answer>* before,
              std::ostream& out) {
  PrintJobs(now, before, /*by_lag=*/true, out);
  for (const Answer& answer : now) PrintServer(answer, before, out);
}

}  // namespace syncgrads::client
