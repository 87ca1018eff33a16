#include "client/psctl/job_view.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace syncgrads::client {
namespace {

// A job in the answer of one server, and in the answer of the same server before: null if there is
// none.
struct JobOfServer {
  const Answer* answer;
  const v1::JobStatus* job;
  const Answer* earlier_answer;
  const v1::JobStatus* earlier;
};

// All jobs, by name and generation. An answer of a hostile server may have a million, of a million
// workers each, so nothing is searched for in a list.
using JobIndex = std::map<std::pair<absl::string_view, uint64_t>, std::vector<JobOfServer>>;

// The answers must outlive the result. `before` may be null.
JobIndex IndexOf(const std::vector<Answer>& now, const std::vector<Answer>* before) {
  JobIndex jobs;
  for (const Answer& answer : now) {
    if (!answer.reply.ok()) continue;
    const Answer* const earlier = FindAnswer(before, answer);
    std::map<std::pair<absl::string_view, uint64_t>, const v1::JobStatus*> earlier_jobs;
    if (earlier != nullptr && earlier->reply.ok()) {
      for (const v1::JobStatus& job : earlier->reply->jobs()) {
        earlier_jobs.emplace(std::pair(absl::string_view(job.job()), job.generation()), &job);
      }
    }
    for (const v1::JobStatus& job : answer.reply->jobs()) {
      const std::pair key(absl::string_view(job.job()), job.generation());
      std::vector<JobOfServer>& of_servers = jobs[key];
      // A server has a job once.
      if (!of_servers.empty() && of_servers.back().answer == &answer) continue;
      const auto before_now = earlier_jobs.find(key);
      of_servers.push_back({&answer, &job, earlier,
                            before_now == earlier_jobs.end() ? nullptr : before_now->second});
    }
  }
  return jobs;
}

const v1::GroupStatus* Find(const v1::JobStatus* job, uint32_t group) {
  if (job == nullptr) return nullptr;
  for (const v1::GroupStatus& one : job->groups()) {
    if (one.group() == group) return &one;
  }
  return nullptr;
}

uint64_t CountOf(const v1::Histogram& histogram) {
  uint64_t count = 0;
  for (const uint64_t bucket : histogram.counts()) count += bucket;
  return count;
}

// The contributors to a group on one server.
class Contributors {
 public:
  // `group` must outlive this object. It may be null: there are none.
  explicit Contributors(const v1::GroupStatus* group) {
    if (group == nullptr) return;
    for (const v1::ContributorStatus& one : group->contributors()) {
      by_member_.emplace(one.member(), &one);
      has_rounds_ = has_rounds_ || CountOf(one.arrival_lag()) > 0;
    }
  }

  // Returns null if the member has not contributed.
  const v1::ContributorStatus* Find(uint32_t member) const {
    const auto it = by_member_.find(member);
    return it == by_member_.end() ? nullptr : it->second;
  }
  // Whether all members share the rounds.
  bool has_rounds() const { return has_rounds_; }

 private:
  std::map<uint32_t, const v1::ContributorStatus*> by_member_;
  bool has_rounds_ = false;
};

// One server's sample of the training group: its status and contributors now, and those before.
struct Sample {
  const v1::GroupStatus* group;
  Contributors now;
  Contributors before;
};

// Returns the mean lag of a member on one server since the previous sample; nullopt if it has not
// contributed since.
std::optional<absl::Duration> MeanLag(const Sample& sample, uint32_t member) {
  const v1::ContributorStatus* const now = sample.now.Find(member);
  if (now == nullptr) return std::nullopt;
  uint64_t count = CountOf(now->arrival_lag()), sum_us = now->arrival_lag().sum_us();
  const v1::ContributorStatus* const before = sample.before.Find(member);
  // After a restart, a server counts from 0 again.
  if (before != nullptr && CountOf(before->arrival_lag()) <= count &&
      before->arrival_lag().sum_us() <= sum_us) {
    count -= CountOf(before->arrival_lag());
    sum_us -= before->arrival_lag().sum_us();
  }
  if (count == 0) return std::nullopt;
  return absl::Microseconds(static_cast<int64_t>(sum_us)) / static_cast<int64_t>(count);
}

// With rounds that all members share, the open one waits for those that have not contributed.
void AddWait(const v1::GroupStatus& group, const Contributors& contributors, WorkerView& worker) {
  if (!contributors.has_rounds() || group.open_chunks() == 0) return;
  if (!worker.rank.has_value() || worker.follows || worker.gone) return;
  const v1::ContributorStatus* const own = contributors.Find(worker.member);
  if (own != nullptr && own->round() >= group.open_round()) return;
  const auto waited = absl::Milliseconds(static_cast<int64_t>(group.oldest_open_ms()));
  worker.lag = std::max(worker.lag.value_or(waited), waited);
}

void AddSample(const Sample& sample, WorkerView& worker) {
  const v1::ContributorStatus* const now = sample.now.Find(worker.member);
  if (now != nullptr) worker.step = std::max(worker.step, now->round());
  if (const auto lag = MeanLag(sample, worker.member)) {
    worker.lag = std::max(worker.lag.value_or(*lag), *lag);
  }
  AddWait(*sample.group, sample.now, worker);
}

// The members, from the coordinator's answer if there is one, and otherwise from the epoch.
std::vector<WorkerView> WorkersOf(const v1::JobStatus& job, bool from_coordinator) {
  std::vector<WorkerView> workers;
  for (const v1::MemberStatus& member : job.members()) {
    WorkerView& worker = workers.emplace_back();
    worker.member = member.member();
    worker.name = member.name();
    worker.host = member.host();
    if (member.has_rank()) worker.rank = member.rank();
    worker.silent = absl::Milliseconds(static_cast<int64_t>(member.silent_ms()));
    worker.lease = absl::Milliseconds(static_cast<int64_t>(member.lease_ms()));
    worker.follows = member.follows();
    worker.gone = member.gone();
    if (member.has_figures()) worker.figures = member.figures();
  }
  if (from_coordinator) return workers;
  for (int rank = 0; rank < job.epoch().members_size(); ++rank) {
    const v1::Member& member = job.epoch().members(rank);
    workers.push_back({member.member(), member.name(), "", static_cast<uint32_t>(rank)});
  }
  return workers;
}

// The maximum number of collectives of a job in which waits are looked for. A worker is in one at a
// time, or in a few that it has started together.
constexpr size_t kMostCollectives = 64;

// The client library begins the names of the groups that it makes with these.
constexpr const char* kNotTraining[] = {"all_gather/", "all_reduce/", "all_reduce_with/",
                                        "barrier/",    "broadcast/",  "broadcast_all/",
                                        "reduce/",     "state/"};

bool IsTraining(const v1::GroupStatus& group) {
  return std::none_of(
      std::begin(kNotTraining), std::end(kNotTraining),
      [&group](const char* prefix) { return absl::StartsWith(group.name(), prefix); });
}

// How likely a group is the training group.
struct Activity {
  bool is_training = false;
  // Summed over servers.
  uint64_t rounds_closed = 0;
  uint32_t chunks = 0;

  void Add(const v1::GroupStatus& group) {
    is_training = IsTraining(group);
    rounds_closed += group.rounds_closed();
    chunks += group.chunks();
  }
  friend auto operator<=>(const Activity&, const Activity&) = default;
};

// The collectives in which the others may wait for a worker: those that have been open for longest.
std::vector<const v1::GroupStatus*> OpenCollectives(const std::vector<JobOfServer>& servers) {
  std::vector<const v1::GroupStatus*> open;
  for (const JobOfServer& server : servers) {
    for (const v1::GroupStatus& group : server.job->groups()) {
      if (!IsTraining(group) && group.open_chunks() > 0) open.push_back(&group);
    }
  }
  const auto most = open.begin() + static_cast<ptrdiff_t>(std::min(open.size(), kMostCollectives));
  std::partial_sort(open.begin(), most, open.end(), [](const auto* a, const auto* b) {
    return a->oldest_open_ms() > b->oldest_open_ms();
  });
  open.erase(most, open.end());
  return open;
}

// `servers` are those that have the job. `has_before`: they were asked before.
JobView ViewOf(const v1::JobStatus& job, bool from_coordinator,
               const std::vector<JobOfServer>& servers, bool has_before) {
  JobView view;
  view.name = job.job();
  view.generation = job.generation();
  view.epoch = job.epoch().number();
  if (from_coordinator) view.coordinator = job;
  view.workers = WorkersOf(job, from_coordinator);
  std::map<uint32_t, Activity> groups;
  for (const JobOfServer& server : servers) {
    for (const v1::GroupStatus& group : server.job->groups()) groups[group.group()].Add(group);
  }
  if (groups.empty()) return view;
  const auto most =
      std::max_element(groups.begin(), groups.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const uint32_t id = most->first;
  view.chunks = most->second.chunks;
  view.other_groups = groups.size() - 1;
  std::optional<uint64_t> open;
  for (const JobOfServer& server : servers) {
    const v1::GroupStatus* const group = Find(server.job, id);
    if (group == nullptr) continue;
    view.group = group->name();
    if (group->chunks() == 0) continue;
    open = std::min(open.value_or(group->open_round()), group->open_round());
    view.late_contributions = std::max(view.late_contributions, group->late_contributions());
    view.open_chunks += group->open_chunks();
    view.oldest_open = std::max(view.oldest_open,
                                absl::Milliseconds(static_cast<int64_t>(group->oldest_open_ms())));
    const v1::GroupStatus* const earlier = Find(server.earlier, id);
    if (earlier != nullptr && earlier->open_round() <= group->open_round()) {
      const double seconds = absl::ToDoubleSeconds(server.answer->at - server.earlier_answer->at);
      const uint64_t steps = group->open_round() - earlier->open_round();
      const double rate = static_cast<double>(steps) / std::max(seconds, 1e-9);
      view.steps_per_second = std::min(view.steps_per_second.value_or(rate), rate);
    }
    if (!has_before) {
      const double rate = group->rounds_per_second();
      view.steps_per_second = std::min(view.steps_per_second.value_or(rate), rate);
    }
    const Sample sample{group, Contributors(group), Contributors(earlier)};
    for (WorkerView& worker : view.workers) AddSample(sample, worker);
  }
  for (const v1::GroupStatus* const group : OpenCollectives(servers)) {
    const Contributors contributors(group);
    for (WorkerView& worker : view.workers) AddWait(*group, contributors, worker);
  }
  view.open_round = open.value_or(0);
  return view;
}

}  // namespace

std::vector<JobView> JobsOf(const std::vector<Answer>& now, const std::vector<Answer>* before) {
  const JobIndex jobs = IndexOf(now, before);
  std::vector<JobView> views;
  for (const Answer& answer : now) {
    if (!answer.reply.ok()) continue;
    const bool from_coordinator = answer.reply->server_index() == 0;
    for (const v1::JobStatus& job : answer.reply->jobs()) {
      const std::vector<JobOfServer>& servers =
          jobs.at({absl::string_view(job.job()), job.generation()});
      // The coordinator's answer comes first.
      if (servers.front().job != &job) continue;
      views.push_back(ViewOf(job, from_coordinator, servers, before != nullptr));
    }
  }
  return views;
}

double RateFactorOf(const v1::JobStatus& job) {
  return job.epoch().has_learning_rate() ? job.epoch().learning_rate().factor() : 1;
}

std::string RateFactorText(const v1::JobStatus& job) {
  std::vector<std::string> since;
  for (const v1::GroupRound& first : job.epoch().learning_rate().since()) {
    const auto group =
        std::find_if(job.groups().begin(), job.groups().end(),
                     [&first](const v1::GroupStatus& one) { return one.group() == first.group(); });
    if (group == job.groups().end()) continue;
    since.push_back(absl::StrCat("step ", first.round(), " of group \"", group->name(), "\""));
  }
  std::string text = absl::StrCat("learning rate factor ", RateFactorOf(job));
  if (!since.empty()) absl::StrAppend(&text, " from ", absl::StrJoin(since, " and "), " on");
  return text;
}

bool SortSlowestFirst(JobView& job) {
  std::vector<WorkerView>& workers = job.workers;
  const bool any_lag = std::any_of(workers.begin(), workers.end(),
                                   [](const WorkerView& worker) { return worker.lag.has_value(); });
  // A round waits only for members of the epoch that neither follow nor have gone.
  const auto awaited = [](const WorkerView& worker) {
    return worker.rank.has_value() && !worker.follows && !worker.gone;
  };
  const auto lag = [](const WorkerView& worker) {
    return worker.lag.value_or(-absl::InfiniteDuration());
  };
  std::stable_sort(workers.begin(), workers.end(), [&](const WorkerView& a, const WorkerView& b) {
    if (awaited(a) != awaited(b)) return awaited(a);
    if (any_lag && lag(a) != lag(b)) return lag(a) > lag(b);
    return a.step < b.step;
  });
  if (workers.size() < 2 || !awaited(workers[0]) || !awaited(workers[1])) return false;
  if (any_lag)
    return lag(workers[0]) >= absl::Milliseconds(1) && lag(workers[0]) > 2 * lag(workers[1]);
  return workers[0].step < workers[1].step;
}

}  // namespace syncgrads::client
