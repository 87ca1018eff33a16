#include "server/metrics/server_metrics.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncgrads::server {
namespace {

// By the number of a member.
using MemberNames = std::map<uint32_t, std::string>;

double Seconds(uint64_t milliseconds) { return static_cast<double>(milliseconds) * 1e-3; }

HistogramSample Sample(const v1::Histogram& histogram) {
  HistogramSample sample;
  double bound = 0.001;
  for (int i = 0; i + 1 < histogram.counts_size(); ++i) {
    sample.buckets.push_back({bound, histogram.counts(i)});
    bound *= 4;
  }
  if (histogram.counts_size() > 0) sample.above = histogram.counts(histogram.counts_size() - 1);
  sample.sum = static_cast<double>(histogram.sum_us()) * 1e-6;
  return sample;
}

// Adds the metrics of a server that keeps a state.
void AddState(const v1::ServerStatus& server, MetricFamilies& families) {
  families.Gauge("syncgrads_starts", "Starts of servers on the state directory, this one included.",
                 {}, static_cast<double>(server.starts()));
  families.Gauge("syncgrads_state_bytes", "Size of the files in the state directory.", {},
                 static_cast<double>(server.state_bytes()));
  families.Gauge("syncgrads_state_free_bytes",
                 "Space that files in the state directory may still take.", {},
                 static_cast<double>(server.state_free_bytes()));
  if (server.state_total_bytes() > 0) {
    families.Gauge("syncgrads_state_filesystem_bytes",
                   "Size of the file system of the state directory.", {},
                   static_cast<double>(server.state_total_bytes()));
  }
  families.Gauge("syncgrads_recovered_jobs",
                 "Jobs that this start has read from the state directory.", {},
                 server.recovered_jobs());
  families.Gauge("syncgrads_recovery_duration_seconds",
                 "Time from this start until a round of one of these jobs closed; 0 if none has.",
                 {}, Seconds(server.recovery_ms()));
}

// Adds the contributions that were not finite. A worker whose contribution is refused ends, so its
// count is kept when it has left the epoch. A member that has none has a count too: an increase
// from a count that was missing would not be seen.
void AddNonFinite(const v1::JobStatus& job, const MetricLabels& labels, MetricFamilies& families) {
  std::map<std::string, uint64_t> counts;
  for (const v1::Member& member : job.epoch().members()) counts[member.name()] = 0;
  for (const v1::NonFiniteCount& one : job.non_finite()) counts[one.worker()] = one.count();
  for (const auto& [worker, count] : counts) {
    MetricLabels of_member = labels;
    of_member.emplace_back("member", worker);
    families.Counter("syncgrads_non_finite_contributions_total",
                     "Contributions of the worker in which an element was NaN or infinite.",
                     of_member, static_cast<double>(count));
  }
}

void AddServer(const v1::ServerStatus& server, MetricFamilies& families) {
  families.Gauge("syncgrads_draining", "1 if the server refuses new jobs, otherwise 0.", {},
                 server.draining());
  families.Gauge("syncgrads_coordinator_reached",
                 "0 on a server that has no connection to the coordinator, otherwise 1.", {},
                 server.coordinator_reached());
  families.Gauge("syncgrads_connections", "Open connections of workers and servers.", {},
                 server.connections());
  families.Gauge("syncgrads_max_connections", "Limit of open connections.", {},
                 server.max_connections());
  for (const v1::PayloadBytes& one : server.received()) {
    families.Counter("syncgrads_received_bytes_total",
                     "Payloads of contributions that were received, by their path and codec.",
                     {{"path", one.path()}, {"codec", one.codec()}},
                     static_cast<double>(one.bytes()));
  }
  for (const v1::PayloadBytes& one : server.sent()) {
    families.Counter("syncgrads_sent_bytes_total",
                     "Payloads of results that were sent, by their path and codec.",
                     {{"path", one.path()}, {"codec", one.codec()}},
                     static_cast<double>(one.bytes()));
  }
  families.Gauge("syncgrads_memory_bytes",
                 "Most memory that the groups of all jobs take on this server: their results, and "
                 "one contribution of each member to each chunk.",
                 {}, static_cast<double>(server.memory_bytes()));
  families.Gauge("syncgrads_memory_limit_bytes",
                 "syncgrads_memory_bytes and the memory that is free for more.", {},
                 static_cast<double>(server.memory_bytes() + server.memory_free_bytes()));
  families.Counter("syncgrads_wrong_tokens_total", "Wrong tokens that were sent to this server.",
                   {}, static_cast<double>(server.wrong_tokens()));
  if (server.starts() > 0) AddState(server, families);
}

// Adds what a member has reported of its training.
void AddFigures(const v1::TrainingFigures& figures, const MetricLabels& labels,
                MetricFamilies& families) {
  families.Gauge("syncgrads_member_step", "Number of the last step that the member has reported.",
                 labels, static_cast<double>(figures.step()));
  if (figures.has_loss()) {
    families.Gauge("syncgrads_member_loss", "Loss of the member's last batch, as it has reported.",
                   labels, figures.loss());
  }
  if (figures.has_learning_rate()) {
    families.Gauge("syncgrads_member_learning_rate",
                   "Learning rate of the member's last step, as it has reported.", labels,
                   figures.learning_rate());
  }
  if (!figures.has_times()) return;
  const v1::StepTimes& times = figures.times();
  for (const auto& [phase, us] : {std::pair{"read", times.read_us()},
                                  {"compute", times.compute_us()},
                                  {"push", times.push_us()},
                                  {"wait", times.wait_us()},
                                  {"apply", times.apply_us()}}) {
    MetricLabels of_phase = labels;
    of_phase.emplace_back("phase", phase);
    families.Counter("syncgrads_member_phase_seconds_total",
                     "Time that the member's steps were in each phase, as it has reported.",
                     of_phase, static_cast<double>(us) * 1e-6);
  }
}

// Adds the metrics that only the coordinator has.
void AddMembers(const v1::JobStatus& job, uint64_t date_ms, const MetricLabels& labels,
                MetricFamilies& families) {
  // A worker that was restarted is a new member with the same name.
  std::set<std::string> added;
  for (const v1::MemberStatus& member : job.members()) {
    if (member.gone() || !added.insert(member.name()).second) continue;
    MetricLabels of_member = labels;
    of_member.emplace_back("member", member.name());
    families.Gauge("syncgrads_member_last_heartbeat_timestamp_seconds",
                   "Time of the member's last heartbeat, in seconds since 1970-01-01 UTC.",
                   of_member, Seconds(date_ms - std::min<uint64_t>(date_ms, member.silent_ms())));
    families.Gauge("syncgrads_member_lease_seconds",
                   "The member is dropped this long after its last heartbeat.", of_member,
                   Seconds(member.lease_ms()));
    families.Gauge("syncgrads_member_follows",
                   "1 after the end of the member's own data, otherwise 0.", of_member,
                   member.follows());
    if (member.has_figures()) AddFigures(member.figures(), of_member, families);
    of_member.emplace_back("host", member.host());
    of_member.emplace_back("rank", member.has_rank() ? absl::StrCat(member.rank()) : "");
    families.Gauge("syncgrads_member_info", "Always 1. The labels describe the member.", of_member,
                   1);
  }
}

void AddChanges(const v1::JobStatus& job, const MetricLabels& labels, MetricFamilies& families) {
  families.Counter("syncgrads_joins_total", "Workers that have joined the job.", labels,
                   static_cast<double>(job.joins()));
  families.Counter("syncgrads_reconnects_total",
                   "Reconnections of workers whose stream broke, or whose coordinator restarted.",
                   labels, static_cast<double>(job.reconnects()));
  for (const v1::DropCount& drop : job.drops()) {
    MetricLabels of_reason = labels;
    of_reason.emplace_back("reason", drop.reason());
    families.Counter("syncgrads_members_dropped_total",
                     "Members that the job has dropped, by the reason.", of_reason,
                     static_cast<double>(drop.count()));
  }
  for (const bool written : {true, false}) {
    MetricLabels of_result = labels;
    of_result.emplace_back("result", written ? "written" : "failed");
    families.Counter(
        "syncgrads_checkpoints_total", "Checkpoints that workers have reported, by their result.",
        of_result,
        static_cast<double>(written ? job.checkpoints().written() : job.checkpoints().failed()));
  }
  if (job.checkpoints().written() > 0) {
    families.Gauge("syncgrads_last_checkpoint_step",
                   "Step of the newest checkpoint that was written.", labels,
                   static_cast<double>(job.checkpoints().last_step()));
  }
}

void AddContributors(const v1::GroupStatus& group, const MemberNames& names,
                     const MetricLabels& labels, MetricFamilies& families) {
  for (const v1::ContributorStatus& contributor : group.contributors()) {
    const auto name = names.find(contributor.member());
    if (name == names.end()) continue;
    MetricLabels of_member = labels;
    of_member.emplace_back("member", name->second);
    families.Gauge("syncgrads_member_round", "Newest round that the member has contributed to.",
                   of_member, static_cast<double>(contributor.round()));
    families.Histogram(
        "syncgrads_member_arrival_lag_seconds",
        "Delay of the member's contributions after the first contribution to the same round, of "
        "the group's first chunk on this server.",
        of_member, Sample(contributor.arrival_lag()));
  }
}

void AddGroup(const v1::GroupStatus& group, uint64_t date_ms, const MemberNames& names,
              const MetricLabels& of_job, MetricFamilies& families) {
  MetricLabels labels = of_job;
  labels.emplace_back("group", group.name());
  families.Gauge("syncgrads_open_round", "Every round before this one has closed on this server.",
                 labels, static_cast<double>(group.open_round()));
  families.Gauge("syncgrads_chunks", "Chunks of the group on this server.", labels, group.chunks());
  families.Gauge("syncgrads_open_rounds",
                 "Rounds that have contributions and are not closed, counted over chunks.", labels,
                 group.open_chunks());
  families.Gauge("syncgrads_oldest_open_round_seconds",
                 "How long the oldest of the open rounds has been open; 0 if there is none.",
                 labels, Seconds(group.oldest_open_ms()));
  families.Counter("syncgrads_rounds_closed_total", "Rounds that have closed, summed over chunks.",
                   labels, static_cast<double>(group.rounds_closed()));
  families.Histogram("syncgrads_round_duration_seconds",
                     "Time from a round's first contribution until it closed, of the group's first "
                     "chunk on this server.",
                     labels, Sample(group.round_duration()));
  if (group.rounds_closed() > 0) {
    families.Gauge("syncgrads_last_round_closed_timestamp_seconds",
                   "Time at which the last round closed, in seconds since 1970-01-01 UTC.", labels,
                   Seconds(date_ms - std::min<uint64_t>(date_ms, group.since_last_round_ms())));
  }
  families.Counter("syncgrads_late_contributions_total",
                   "Contributions that arrived too late to count, of the chunk that has most.",
                   labels, static_cast<double>(group.late_contributions()));
  AddContributors(group, names, labels, families);
}

// Returns the groups that have metrics, by their number.
std::vector<const v1::GroupStatus*> ShownGroups(const v1::JobStatus& job) {
  std::vector<const v1::GroupStatus*> groups;
  for (const v1::GroupStatus& group : job.groups()) groups.push_back(&group);
  if (groups.size() > kMostGroupsInMetrics) {
    std::stable_sort(groups.begin(), groups.end(),
                     [](const v1::GroupStatus* a, const v1::GroupStatus* b) {
                       return a->open_round() > b->open_round();
                     });
    groups.resize(kMostGroupsInMetrics);
    std::sort(groups.begin(), groups.end(), [](const v1::GroupStatus* a, const v1::GroupStatus* b) {
      return a->group() < b->group();
    });
  }
  return groups;
}

}  // namespace

void AddServerMetrics(const v1::GetStatusReply& status, MetricFamilies& families) {
  const bool coordinates = status.server_index() == 0;
  families.Gauge("syncgrads_server_info", "Always 1. The labels describe the server.",
                 {{"server_index", absl::StrCat(status.server_index())}}, 1);
  families.Gauge("syncgrads_jobs", "Open jobs.", {}, status.jobs_size());
  AddServer(status.server(), families);
  const uint64_t date_ms = status.server().date_ms();
  for (const v1::JobStatus& job : status.jobs()) {
    const MetricLabels labels = {{"training_job", job.job()}};
    families.Gauge("syncgrads_generation", "Generation of the job.", labels,
                   static_cast<double>(job.generation()));
    families.Gauge("syncgrads_epoch", "Number of the newest epoch, the job's membership.", labels,
                   static_cast<double>(job.epoch().number()));
    families.Gauge("syncgrads_members", "Members of the newest epoch.", labels,
                   job.epoch().members_size());
    families.Gauge("syncgrads_groups",
                   "Groups of the job. Only the groups with the most rounds have metrics.", labels,
                   job.groups_size());
    AddNonFinite(job, labels, families);
    if (coordinates) {
      AddMembers(job, date_ms, labels, families);
      AddChanges(job, labels, families);
    }
    MemberNames names;
    for (const v1::Member& member : job.epoch().members()) names[member.member()] = member.name();
    for (const v1::GroupStatus* group : ShownGroups(job)) {
      AddGroup(*group, date_ms, names, labels, families);
    }
  }
}

absl::Status ReadinessOf(const v1::GetStatusReply& status) {
  const absl::Duration idle = absl::Milliseconds(status.server().idle_ms());
  if (idle >= kMostIdle) {
    return absl::UnavailableError(absl::StrCat("server ", status.server_index(),
                                               " has not looked after its jobs for ",
                                               absl::FormatDuration(idle)));
  }
  if (status.server_index() > 0 && !status.server().coordinator_reached()) {
    return absl::UnavailableError(
        absl::StrCat("server ", status.server_index(), " has no connection to the coordinator"));
  }
  if (status.server().draining()) {
    return absl::UnavailableError(
        absl::StrCat("server ", status.server_index(), " is about to stop and refuses new jobs"));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::server
