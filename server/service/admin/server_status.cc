#include "server/service/admin/server_status.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/contract/contract.h"
#include "common/contract/figures.h"
#include "common/rpc/build_info.h"
#include "common/shm/host.h"
#include "common/signals/protocol.h"
#include "common/signals/round_wait.h"

namespace syncgrads::server {
namespace {

// See JobStatus.waits.
constexpr absl::Duration kLongWait = absl::Seconds(1);
constexpr size_t kMostWaits = 4;

uint64_t Milliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(duration));
}

uint64_t AgeMs(absl::Time at, absl::Time now) {
  return Milliseconds(std::max(absl::ZeroDuration(), now - at));
}

void Fill(const DurationCounts& counts, v1::Histogram& histogram) {
  histogram.mutable_counts()->Add(counts.counts.begin(), counts.counts.end());
  histogram.set_sum_us(counts.sum_us);
}

void Fill(const PayloadBytes& counts, google::protobuf::RepeatedPtrField<v1::PayloadBytes>& out) {
  for (const PayloadPath path : kPayloadPaths) {
    for (const Codec codec : kKnownCodecs) {
      const uint64_t bytes = counts.of(path, codec);
      if (bytes == 0 && codec != Codec::kRaw) continue;
      v1::PayloadBytes& one = *out.Add();
      one.set_path(ToString(path));
      one.set_codec(NameOf(codec));
      one.set_bytes(bytes);
    }
  }
}

uint64_t Sum(const PayloadBytes& counts) {
  uint64_t sum = 0;
  for (const PayloadPath path : kPayloadPaths) {
    for (const Codec codec : kKnownCodecs) sum += counts.of(path, codec);
  }
  return sum;
}

void Fill(const GroupProgress& progress, v1::GroupStatus& group) {
  group.set_group(ToNumber(progress.group));
  group.set_name(progress.name);
  group.set_chunks(progress.chunks);
  group.set_open_round(ToNumber(progress.open));
  group.set_late_contributions(progress.late_contributions);
  group.set_open_chunks(progress.open_chunks);
  group.set_oldest_open_ms(Milliseconds(progress.oldest_open));
  group.set_rounds_closed(progress.rounds_closed);
  Fill(progress.round_duration, *group.mutable_round_duration());
  group.set_since_last_round_ms(Milliseconds(progress.since_last_round));
  group.set_rounds_per_second(progress.rounds_per_second);
  for (const ContributorCounts& counts : progress.contributors) {
    v1::ContributorStatus& contributor = *group.add_contributors();
    contributor.set_member(ToNumber(counts.member));
    contributor.set_round(ToNumber(counts.round));
    Fill(counts.arrival_lag, *contributor.mutable_arrival_lag());
    contributor.set_non_finite(counts.non_finite);
  }
}

void Fill(const CheckpointCount& count, v1::CheckpointStatus& checkpoints) {
  checkpoints.set_written(count.written);
  checkpoints.set_failed(count.failed);
  checkpoints.set_last_step(count.last_step);
  checkpoints.set_last_path(count.last_path);
  checkpoints.set_last_error(count.last_error);
}

// Fills in the fields that only the coordinator has.
void Fill(const JobReport& report, v1::JobStatus& status) {
  for (const MemberReport& member : report.members) {
    v1::MemberStatus& one = *status.add_members();
    one.set_member(ToNumber(member.member));
    one.set_name(member.name);
    one.set_host(member.host);
    if (member.rank.has_value()) one.set_rank(*member.rank);
    one.set_silent_ms(Milliseconds(member.silent));
    one.set_lease_ms(Milliseconds(report.lease));
    one.set_follows(member.follows);
    one.set_gone(member.gone);
    if (member.figures.has_value()) {
      *one.mutable_figures() = syncgrads::ToProto(*member.figures);
    }
  }
  Fill(report.checkpoints, *status.mutable_checkpoints());
  status.set_joins(report.joins);
  status.set_reconnects(report.reconnects);
  for (size_t i = 0; i < kDropReasons; ++i) {
    const auto reason = static_cast<DropReason>(i);
    v1::DropCount& drops = *status.add_drops();
    drops.set_reason(ToString(reason));
    drops.set_count(report.drops.of(reason));
  }
}

void Fill(const TrainingCurves& curves, absl::Time now, v1::JobCurves& out) {
  for (const TrainingPoint& point : curves.training()) {
    v1::TrainingPoint& one = *out.add_training();
    one.set_age_ms(AgeMs(point.at, now));
    one.set_step(point.step);
    one.set_loss(point.loss);
    one.set_steps_per_second(point.steps_per_second);
  }
  for (const ValidationPoint& point : curves.validation()) {
    v1::ValidationPoint& one = *out.add_validation();
    one.set_age_ms(AgeMs(point.at, now));
    *one.mutable_validation() = syncgrads::ToProto(*point.validation);
  }
}

void FillState(const StateDirectory& state, v1::ServerStatus& status) {
  status.set_state_directory(state.path());
  status.set_starts(state.start());
  status.set_state_free_bytes(state.room());
  status.set_state_total_bytes(state.file_system_bytes());
  status.set_state_bytes(state.bytes());
}

// Returns sentences about what the oldest open round of each group waits for, of the rounds that
// have been open for kLongWait or longer.
std::vector<std::string> WaitsOf(const Job& job, std::vector<GroupProgress> groups) {
  std::erase_if(groups, [](const GroupProgress& group) { return group.oldest_open < kLongWait; });
  std::stable_sort(
      groups.begin(), groups.end(),
      [](const GroupProgress& a, const GroupProgress& b) { return a.oldest_open > b.oldest_open; });
  if (groups.size() > kMostWaits) groups.resize(kMostWaits);
  std::vector<std::string> sentences;
  for (const GroupProgress& group : groups) {
    // The round may have closed meanwhile.
    for (const RoundWait& wait : job.Explain(group.group)) {
      if (wait.open_for < kLongWait) continue;
      sentences.push_back(ToString(wait));
      break;
    }
  }
  return sentences;
}

}  // namespace

StatusReport::StatusReport(StatusSources sources)
    : sources_(std::move(sources)), started_(sources_.clock.Now()), ticked_at_(started_) {}

void StatusReport::SetConnections(const OpenConnections* connections, const Follower* follower) {
  MutexLock lock(mutex_);
  connections_ = connections;
  follower_ = follower;
}

bool StatusReport::SetDraining() {
  MutexLock lock(mutex_);
  return !std::exchange(draining_, true);
}

void StatusReport::Ticked() {
  MutexLock lock(mutex_);
  ticked_at_ = sources_.clock.Now();
}

void HidePaths(v1::GetStatusReply& reply) {
  reply.mutable_server()->clear_state_directory();
  for (v1::JobStatus& job : *reply.mutable_jobs()) {
    if (!job.has_checkpoints()) continue;
    job.mutable_checkpoints()->clear_last_path();
    job.mutable_checkpoints()->clear_last_error();
  }
}

void StatusReport::FillStatus(v1::GetStatusReply& reply) const {
  reply.set_protocol_version(kProtocolVersion);
  FillReadiness(reply);
  FillServer(*reply.mutable_server());
  for (const std::shared_ptr<Job>& job : sources_.jobs.All()) FillJob(*job, *reply.add_jobs());
}

v1::ServerLoad StatusReport::Load() const {
  v1::ServerLoad load;
  load.set_uptime_ms(Milliseconds(sources_.clock.Now() - started_));
  load.set_memory_bytes(sources_.jobs.MemoryBytes());
  load.set_memory_free_bytes(sources_.memory_free());
  load.set_received_bytes(Sum(sources_.traffic.received));
  load.set_sent_bytes(Sum(sources_.traffic.sent));
  MutexLock lock(mutex_);
  if (connections_ != nullptr) load.set_connections(connections_->size());
  return load;
}

double StatusReport::StepsPerSecond(const std::string& name) const {
  const std::shared_ptr<Job> job = sources_.jobs.Find(name);
  if (job == nullptr) return 0;
  // Members make collectives now and then, and train in every round.
  Round most{};
  double rate = 0;
  for (const GroupProgress& group : job->Progress()) {
    if (group.open < most) continue;
    most = group.open;
    rate = group.rounds_per_second;
  }
  return rate;
}

void StatusReport::FillReadiness(v1::GetStatusReply& reply) const {
  reply.set_server_index(ToNumber(sources_.self));
  v1::ServerStatus& status = *reply.mutable_server();
  MutexLock lock(mutex_);
  status.set_draining(draining_);
  status.set_idle_ms(Milliseconds(sources_.clock.Now() - ticked_at_));
  status.set_coordinator_reached(sources_.coordinator != nullptr ||
                                 (follower_ != nullptr && follower_->coordinator_reached()));
}

void StatusReport::FillCurves(v1::Curves& curves) const {
  if (sources_.coordinator == nullptr) return;
  const absl::Time now = sources_.clock.Now();
  for (const std::shared_ptr<Job>& job : sources_.jobs.All()) {
    v1::JobCurves& one = *curves.add_jobs();
    one.set_job(job->name());
    one.set_generation(ToNumber(job->generation()));
    Fill(sources_.coordinator->Curves(job->name()), now, one);
  }
}

void StatusReport::FillServer(v1::ServerStatus& status) const {
  status.set_date_ms(static_cast<uint64_t>(absl::ToUnixMillis(absl::Now())));
  const BuildInfo build = ThisBuild();
  status.set_version(build.version);
  status.set_commit(build.commit);
  status.set_grpc_version(build.grpc);
  const v1::ServerLoad own = Load();
  status.set_uptime_ms(own.uptime_ms());
  status.set_memory_bytes(own.memory_bytes());
  status.set_memory_free_bytes(own.memory_free_bytes());
  status.set_connections(own.connections());
  Fill(sources_.traffic.received, *status.mutable_received());
  Fill(sources_.traffic.sent, *status.mutable_sent());
  if (sources_.memory_total != nullptr) status.set_memory_total_bytes(sources_.memory_total());
  if (sources_.state != nullptr) FillState(*sources_.state, status);
  if (sources_.recovery != nullptr) {
    status.set_recovered_jobs(sources_.recovery->jobs());
    status.set_recovery_ms(Milliseconds(sources_.recovery->duration()));
  }
  status.set_coordinator(sources_.coordinator_address);
  status.set_host_id(HostId());
  status.set_user_id(geteuid());
  status.set_network_namespace(NetworkNamespace());
  status.set_shares_memory(sources_.shares_memory);
  status.set_congestion_control(sources_.congestion_control);
  if (sources_.wrong_tokens != nullptr) status.set_wrong_tokens(sources_.wrong_tokens());
  if (sources_.coordinator != nullptr) {
    const std::vector<ServerReport> servers = sources_.coordinator->Servers();
    for (uint32_t index = 0; index < servers.size(); ++index) {
      v1::ServerAddress& one = *status.add_servers();
      one.set_index(index);
      one.set_address(servers[index].address);
      one.set_connected(servers[index].connected);
      if (ServerIndex{index} == sources_.self) {
        *one.mutable_load() = own;
      } else if (std::optional<v1::ServerLoad> load = sources_.loads->of(ServerIndex{index})) {
        *one.mutable_load() = *std::move(load);
      }
    }
  }
  MutexLock lock(mutex_);
  if (connections_ != nullptr) status.set_max_connections(connections_->most());
}

void StatusReport::FillJob(const Job& job, v1::JobStatus& status) const {
  status.set_job(job.name());
  status.set_generation(ToNumber(job.generation()));
  if (const std::optional<Epoch> epoch = job.epoch(); epoch.has_value()) {
    *status.mutable_epoch() = syncgrads::ToProto(*epoch);
    // They would help to speak in the name of a member.
    for (v1::Member& member : *status.mutable_epoch()->mutable_members()) {
      member.clear_incarnation();
      member.clear_secret_hash();
    }
  }
  std::vector<GroupProgress> groups = job.Progress();
  for (const GroupProgress& progress : groups) Fill(progress, *status.add_groups());
  for (std::string& wait : WaitsOf(job, std::move(groups))) status.add_waits(std::move(wait));
  for (const auto& [worker, count] : job.alerts().NonFinite()) {
    v1::NonFiniteCount& one = *status.add_non_finite();
    one.set_worker(worker);
    one.set_count(count);
  }
  if (sources_.coordinator != nullptr) Fill(sources_.coordinator->Report(job.name()), status);
}

}  // namespace syncgrads::server
