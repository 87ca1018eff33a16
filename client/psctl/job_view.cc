#include "client/psctl/job_view.h"

#include <algorithm>
#include <compare>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace syncgrads::client {
namespace {

// The jobs in the answers of two queries. An answer of a hostile server may have a million.
class JobIndex {
 public:
  // The answers must outlive this object. `before` may be null.
  JobIndex(const std::vector<Answer>& now, const std::vector<Answer>* before) {
    Add(now);
    if (before != nullptr) Add(*before);
  }

  // `answer` is one of those given to the constructor. Returns null if it does not have the job.
  const v1::JobStatus* Find(const Answer& answer, const JobView& job) const {
    const auto it = jobs_.find({&answer, job.name, job.generation});
    return it == jobs_.end() ? nullptr : it->second;
  }

 private:
  void Add(const std::vector<Answer>& answers) {
    for (const Answer& answer : answers) {
      if (!answer.reply.ok()) continue;
      for (const v1::JobStatus& job : answer.reply->jobs()) {
        jobs_.emplace(Key(&answer, job.job(), job.generation()), &job);
      }
    }
  }

  using Key = std::tuple<const Answer*, absl::string_view, uint64_t>;
  std::map<Key, const v1::JobStatus*> jobs_;
};

const v1::GroupStatus* Find(const v1::JobStatus* job, uint32_t group) {
  if (job == nullptr) return nullptr;
  for (const v1::GroupStatus& one : job->groups()) {
    if (one.group() == group) return &one;
  }
  return nullptr;
}

const v1::ContributorStatus* FindMember(const v1::GroupStatus* group, uint32_t member) {
  if (group == nullptr) return nullptr;
  for (const v1::ContributorStatus& one : group->contributors()) {
    if (one.member() == member) return &one;
  }
  return nullptr;
}

uint64_t CountOf(const v1::Histogram& histogram) {
  uint64_t count = 0;
  for (const uint64_t bucket : histogram.counts()) count += bucket;
  return count;
}

// One server's sample of the training group: its status now and before. `before` may be null.
struct Sample {
  const v1::GroupStatus* now;
  const v1::GroupStatus* before;
};

// Returns the mean lag of a member on one server since the previous sample; nullopt if it has not
// contributed since.
std::optional<absl::Duration> MeanLag(const Sample& sample, uint32_t member) {
  const v1::ContributorStatus* const now = FindMember(sample.now, member);
  if (now == nullptr) return std::nullopt;
  uint64_t count = CountOf(now->arrival_lag()), sum_us = now->arrival_lag().sum_us();
  const v1::ContributorStatus* const before = FindMember(sample.before, member);
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
void AddWait(const v1::GroupStatus& group, WorkerView& worker) {
  const auto& contributors = group.contributors();
  const bool has_rounds =
      std::any_of(contributors.begin(), contributors.end(),
                  [](const v1::ContributorStatus& one) { return CountOf(one.arrival_lag()) > 0; });
  if (!has_rounds || group.open_chunks() == 0 || worker.follows || worker.gone) return;
  const v1::ContributorStatus* const own = FindMember(&group, worker.member);
  if (!worker.rank.has_value() || (own != nullptr && own->round() >= group.open_round())) return;
  const auto waited = absl::Milliseconds(static_cast<int64_t>(group.oldest_open_ms()));
  worker.lag = std::max(worker.lag.value_or(waited), waited);
}

void AddSample(const Sample& sample, WorkerView& worker) {
  const v1::ContributorStatus* const now = FindMember(sample.now, worker.member);
  if (now != nullptr) worker.step = std::max(worker.step, now->round());
  if (const auto lag = MeanLag(sample, worker.member)) {
    worker.lag = std::max(worker.lag.value_or(*lag), *lag);
  }
  AddWait(*sample.now, worker);
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

JobView ViewOf(const v1::JobStatus& job, bool from_coordinator, const JobIndex& jobs,
               const std::vector<Answer>& now, const std::vector<Answer>* before) {
  JobView view;
  view.name = job.job();
  view.generation = job.generation();
  view.epoch = job.epoch().number();
  if (from_coordinator) view.coordinator = job;
  view.workers = WorkersOf(job, from_coordinator);
  std::map<uint32_t, Activity> groups;
  for (const Answer& answer : now) {
    const v1::JobStatus* const here = jobs.Find(answer, view);
    if (here == nullptr) continue;
    for (const v1::GroupStatus& group : here->groups()) groups[group.group()].Add(group);
  }
  if (groups.empty()) return view;
  const auto most =
      std::max_element(groups.begin(), groups.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const uint32_t id = most->first;
  view.chunks = most->second.chunks;
  view.other_groups = groups.size() - 1;
  std::optional<uint64_t> open;
  for (const Answer& answer : now) {
    Sample sample{Find(jobs.Find(answer, view), id), nullptr};
    if (sample.now == nullptr) continue;
    view.group = sample.now->name();
    if (sample.now->chunks() == 0) continue;
    open = std::min(open.value_or(sample.now->open_round()), sample.now->open_round());
    view.late_contributions = std::max(view.late_contributions, sample.now->late_contributions());
    view.open_chunks += sample.now->open_chunks();
    view.oldest_open = std::max(
        view.oldest_open, absl::Milliseconds(static_cast<int64_t>(sample.now->oldest_open_ms())));
    if (const Answer* const earlier = FindAnswer(before, answer)) {
      sample.before = Find(jobs.Find(*earlier, view), id);
      const double seconds = absl::ToDoubleSeconds(answer.at - earlier->at);
      if (sample.before != nullptr && sample.before->open_round() <= sample.now->open_round()) {
        const uint64_t steps = sample.now->open_round() - sample.before->open_round();
        const double rate = static_cast<double>(steps) / std::max(seconds, 1e-9);
        view.steps_per_second = std::min(view.steps_per_second.value_or(rate), rate);
      }
    }
    if (before == nullptr) {
      const double rate = sample.now->rounds_per_second();
      view.steps_per_second = std::min(view.steps_per_second.value_or(rate), rate);
    }
    for (WorkerView& worker : view.workers) AddSample(sample, worker);
  }
  // The others may wait for a worker in a collective too.
  for (const Answer& answer : now) {
    const v1::JobStatus* const here = jobs.Find(answer, view);
    if (here == nullptr) continue;
    for (const v1::GroupStatus& group : here->groups()) {
      if (IsTraining(group)) continue;
      for (WorkerView& worker : view.workers) AddWait(group, worker);
    }
  }
  view.open_round = open.value_or(0);
  return view;
}

}  // namespace

std::vector<JobView> JobsOf(const std::vector<Answer>& now, const std::vector<Answer>* before) {
  const JobIndex jobs(now, before);
  std::set<std::pair<absl::string_view, uint64_t>> known;
  std::vector<JobView> views;
  for (const Answer& answer : now) {
    if (!answer.reply.ok()) continue;
    const bool from_coordinator = answer.reply->server_index() == 0;
    for (const v1::JobStatus& job : answer.reply->jobs()) {
      // The coordinator's answer comes first.
      if (known.emplace(job.job(), job.generation()).second) {
        views.push_back(ViewOf(job, from_coordinator, jobs, now, before));
      }
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
