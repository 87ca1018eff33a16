#include "server/service/events/trace_reports.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads::server {

TraceReports::TraceReports(const std::vector<MemberReport>& workers,
                           const std::map<MemberId, uint64_t>& traces) {
  MutexLock lock(mutex_);
  for (const MemberReport& worker : workers) {
    awaited_[worker.member] = {worker, traces.at(worker.member)};
  }
}

absl::Status TraceReports::Add(const v1::TraceReport& report) {
  MutexLock lock(mutex_);
  const auto awaited = awaited_.find(MemberId{report.member()});
  if (awaited == awaited_.end() || report.trace() != awaited->second.trace) {
    return absl::NotFoundError(absl::StrCat("member ", report.member(), " takes part in no trace ",
                                            report.trace(), " that is in progress"));
  }
  if (report.has_process()) {
    const size_t bytes = report.process().SpaceUsedLong();
    if (held_bytes_ + bytes > kMaxHeldTraceBytes) {
      return absl::UnavailableError(absl::StrCat(held_bytes_, " bytes of traces wait to be read, ",
                                                 bytes, " more exceed ", kMaxHeldTraceBytes));
    }
    held_bytes_ += bytes;
    Held& held = held_.emplace_back(Held{report.process(), bytes});
    held.process.set_worker(awaited->second.worker.name);
    held.process.set_rank(awaited->second.worker.rank.value_or(0));
  }
  if (report.last()) awaited_.erase(awaited);
  changed_.NotifyAll();
  return absl::OkStatus();
}

std::optional<v1::ProcessTrace> TraceReports::Next(absl::Time deadline) {
  MutexLock lock(mutex_);
  while (held_.empty() && !awaited_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  if (held_.empty()) return std::nullopt;
  Held next = std::move(held_.front());
  held_.pop_front();
  held_bytes_ -= next.bytes;
  return std::move(next.process);
}

std::vector<MemberReport> TraceReports::Awaited() const {
  MutexLock lock(mutex_);
  std::vector<MemberReport> workers;
  for (const auto& [member, awaited] : awaited_) workers.push_back(awaited.worker);
  return workers;
}

bool TraceReports::IsDone() const {
  MutexLock lock(mutex_);
  return held_.empty() && awaited_.empty();
}

void TraceReports::StopAwaiting(MemberId worker) {
  MutexLock lock(mutex_);
  awaited_.erase(worker);
}

}  // namespace syncgrads::server
