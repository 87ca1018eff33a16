#include "worker/launch/tally.h"

#include <string.h>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

int ShellCode(const End& end) { return end.signal.has_value() ? 128 + *end.signal : *end.code; }

bool Finished(const End& end) { return end.code == 0; }

bool Died(const End& end) { return ShellCode(end) >= 128; }

}  // namespace

std::string Describe(const End& end) {
  const std::string who = absl::StrCat(end.role == Role::kServer ? "server " : "worker ", end.rank);
  if (end.signal.has_value()) {
    return absl::StrCat(who, " was killed by signal ", *end.signal, " (", strsignal(*end.signal),
                        ")");
  }
  return absl::StrCat(who, " ended with exit code ", *end.code);
}

Tally::Tally(int workers, OnWorkerDeath on_worker_death)
    : on_worker_death_(on_worker_death), workers_running_(workers) {}

void Tally::Add(const End& end) {
  if (verdict_ != Verdict::kRunning) return;
  if (end.role == Role::kServer) {
    AddServer(end);
  } else {
    AddWorker(end);
  }
}

bool Tally::Restarts(const End& end) {
  if (on_worker_death_ != OnWorkerDeath::kRestart || verdict_ != Verdict::kRunning) return false;
  if (end.role != Role::kWorker || !Died(end) || any_worker_finished_) return false;
  return ++restarts_[end.rank] <= kMaxRestarts;
}

void Tally::AddServer(const End& end) {
  if (!Finished(end)) Fail(end);
}

void Tally::AddWorker(const End& end) {
  --workers_running_;
  if (Finished(end)) {
    any_worker_finished_ = true;
  } else if (!Died(end) || on_worker_death_ == OnWorkerDeath::kEndGroup) {
    return Fail(end);
  }
  if (workers_running_ > 0) return;
  if (!any_worker_finished_) return Fail(end);
  verdict_ = Verdict::kSucceeded;
}

void Tally::Fail(const End& end) {
  verdict_ = Verdict::kFailed;
  exit_code_ = ShellCode(end);
}

}  // namespace syncgrads
