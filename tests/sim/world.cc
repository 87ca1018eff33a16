#include "tests/sim/world.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncgrads::sim {

World::World(uint64_t seed, bool trace) : trace_(trace), random_(seed) {}

void World::After(absl::Duration delay, std::function<void()> call) {
  queue_.push({now_ + delay, added_++, std::move(call)});
}

void World::After(Process& process, absl::Duration delay, std::function<void()> call) {
  After(delay, [&process, life = process.life_, call = std::move(call)]() mutable {
    if (process.life_ != life) return;
    if (process.frozen_) {
      process.waiting_.push_back(std::move(call));
    } else {
      call();
    }
  });
}

void World::Thaw(Process& process) {
  process.frozen_ = false;
  for (std::function<void()>& call : std::exchange(process.waiting_, {})) {
    After(process, absl::ZeroDuration(), std::move(call));
  }
}

bool World::Run(absl::Duration limit, const std::function<bool()>& done) {
  const absl::Time end = now_ + limit;
  while (failure_.empty() && !done()) {
    if (queue_.empty() || queue_.top().at > end) return false;
    // Moves the event out of the queue. The order of the queue does not depend on `call`.
    Event event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    now_ = event.at;
    ++made_;
    Process* died = nullptr;
    try {
      event.call();
    } catch (const ProcessDied& death) {
      died = death.process;
    }
    if (died != nullptr) died->OnDied();
  }
  return true;
}

void World::Fail(const std::string& what) {
  Trace(absl::StrCat("FAILURE: ", what));
  if (!failure_.empty()) return;
  failure_ = absl::StrFormat("after %.3f s: %s", absl::ToDoubleSeconds(now_ - start_), what);
}

void World::Trace(const std::string& line) const {
  if (!trace_) return;
  absl::FPrintF(stderr, "%10.6f %s\n", absl::ToDoubleSeconds(now_ - start_), line);
}

}  // namespace syncgrads::sim
