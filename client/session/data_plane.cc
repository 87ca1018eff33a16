#include "client/session/data_plane.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/session/path_summary.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// Returns an error if a server gives one number to two groups: results of one of them would be
// written to the tensors of the other.
absl::Status CheckSameGroup(const GroupPlan& known, const GroupPlan& plan) {
  if (known.spec.name != plan.spec.name) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan of group \"", plan.spec.name, "\" has number ", ToNumber(plan.id),
                     ", which is that of group \"", known.spec.name, "\""));
  }
  return CheckAgreement(known.spec, plan.spec, "whose plan came before");
}

}  // namespace

DataPlane::DataPlane(Options options, Transport& transport, Timers& timers)
    : options_(std::move(options)),
      transport_(transport),
      timers_(timers),
      window_(std::make_shared<SendWindow>(timers)) {
  const auto summary = std::make_shared<PathSummary>(options_.servers.size());
  for (size_t s = 0; s < options_.servers.size(); ++s) {
    ServerLink::Options link;
    link.server = ServerIndex{static_cast<uint32_t>(s)};
    link.address = options_.servers[s];
    link.connections = options_.connections_per_server;
    link.hello = options_.hello;
    link.window = window_;
    link.server_timeout = options_.server_timeout;
    link.on_update = [this](const UpdateFrame& update, std::shared_ptr<const void> memory) {
      return OnUpdate(update, std::move(memory));
    };
    link.on_lost = options_.on_lost;
    link.unix_socket = options_.unix_socket;
    link.on_path = [one = options_.on_path, all = options_.on_paths, summary,
                    s](const PathReport& report) {
      if (one) one(absl::StrCat("server ", s, ": ", report.line));
      const std::optional<std::string> line = summary->Set(s, report.path);
      if (line.has_value() && all) all(*line);
    };
    if (options_.shared != nullptr) {
      link.memory = std::make_shared<MemoryLink>(options_.hello, *options_.shared);
      memory_.push_back(link.memory);
    }
    links_.push_back(std::make_shared<ServerLink>(std::move(link), transport, timers));
  }
  if (options_.shared != nullptr) options_.shared->SetListener([this] { OfferShared(); });
}

DataPlane::~DataPlane() {
  if (options_.shared != nullptr) options_.shared->SetListener(nullptr);
}

void DataPlane::Start() {
  for (const std::shared_ptr<ServerLink>& link : links_) link->Start();
}

void DataPlane::SetConnections(int connections) {
  for (const std::shared_ptr<ServerLink>& link : links_) link->SetConnections(connections);
}

absl::StatusOr<std::shared_ptr<GroupRounds>> DataPlane::AddGroup(
    std::shared_ptr<const GroupPlan> plan, std::optional<Round> first) {
  for (ServerIndex server : plan->servers) {
    if (ToNumber(server) >= links_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan of group \"", plan->spec.name, "\" names server ",
                       ToNumber(server), ", but the number of servers is ", links_.size()));
    }
  }
  if (!memory_.empty()) {
    for (ServerIndex server : std::set<ServerIndex>(plan->servers.begin(), plan->servers.end())) {
      memory_[ToNumber(server)]->Fetch(plan->id);
    }
  }
  const GroupId id = plan->id;
  std::shared_ptr<GroupRounds> rounds;
  absl::Status failure;
  {
    MutexLock lock(mutex_);
    const auto found = groups_.find(id);
    if (found != groups_.end()) rounds = found->second;
    failure = failure_;
  }
  if (rounds != nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(CheckSameGroup(rounds->plan(), *plan));
  } else {
    auto made = std::make_shared<GroupRounds>(
        std::move(plan),
        Identity{options_.generation, options_.hello.member, options_.hello.incarnation}, epoch_,
        *this);
    if (first.has_value()) {
      absl::Status begun = made->BeginAgain(*first, absl::InfinitePast());
      if (!begun.ok()) return begun;
    }
    MutexLock lock(mutex_);
    rounds = groups_.emplace(id, std::move(made)).first->second;
    failure = failure_;
  }
  if (!failure.ok()) rounds->Fail(failure);
  return rounds;
}

std::vector<std::shared_ptr<GroupRounds>> DataPlane::Groups() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<GroupRounds>> groups;
  groups.reserve(groups_.size());
  for (const auto& [id, rounds] : groups_) groups.push_back(rounds);
  return groups;
}

absl::Status DataPlane::CheckRanks(const GroupPlan& plan, const UpdateHeader& answer) const {
  const std::vector<uint32_t>& ranks = answer.contributors;
  if (!answer.error.ok() || ranks.empty() || options_.world_size_of == nullptr) {
    return absl::OkStatus();
  }
  const uint32_t highest = *std::max_element(ranks.begin(), ranks.end());
  const std::optional<size_t> world_size = options_.world_size_of(answer.epoch);
  if (!world_size.has_value() || highest < *world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("answer for chunk ", ToNumber(answer.chunk), " of group \"", plan.spec.name,
                   "\" has rank ", highest, " in its list of contributors, but epoch ",
                   answer.epoch, " has ", *world_size, " members"));
}

absl::Status DataPlane::OnUpdate(const UpdateFrame& update, std::shared_ptr<const void> memory) {
  std::shared_ptr<GroupRounds> rounds;
  {
    MutexLock lock(mutex_);
    auto found = groups_.find(update.header.group);
    if (found == groups_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("answer for unknown group ", ToNumber(update.header.group)));
    }
    rounds = found->second;
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckRanks(rounds->plan(), update.header));
  return rounds->OnUpdate(update, std::move(memory));
}

absl::Status DataPlane::CheckIdle() const {
  for (const std::shared_ptr<GroupRounds>& rounds : Groups()) {
    absl::Status status = rounds->CheckIdle();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<GroupRound> DataPlane::Progress() const {
  std::vector<GroupRound> progress;
  for (const std::shared_ptr<GroupRounds>& rounds : Groups()) {
    const std::optional<Round> round = rounds->Progress();
    if (round.has_value()) progress.push_back({rounds->plan().id, *round});
  }
  return progress;
}

void DataPlane::Fail(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
  }
  for (const std::shared_ptr<GroupRounds>& rounds : Groups()) rounds->Fail(status);
}

void DataPlane::Close() {
  for (const std::shared_ptr<ServerLink>& link : links_) link->Stop();
}

void DataPlane::AwaitClosed() {
  for (const std::shared_ptr<ServerLink>& link : links_) link->AwaitStopped();
  for (const std::shared_ptr<GroupRounds>& rounds : Groups())
    rounds->AwaitReleased(absl::InfiniteFuture());
}

void DataPlane::Explain(const GroupRounds& rounds, const std::vector<ServerIndex>& servers,
                        absl::Duration timeout, std::function<void(std::string)> answer) {
  const GroupId group = rounds.plan().id;
  const Round round = rounds.round();
  for (ServerIndex server : servers) {
    const ServerLink& link = *links_[ToNumber(server)];
    const std::string name = absl::StrCat("server ", ToNumber(server), " at ", link.address());
    const absl::Status trouble = link.Trouble();
    if (!trouble.ok()) {
      answer(absl::StrCat(name, " is not available: ", trouble.message()));
      continue;
    }
    transport_.Explain(
        link.address(), options_.hello.job, options_.hello.token, group, timeout,
        [answer, name, group, round](absl::StatusOr<std::vector<RoundWait>> waits) {
          if (!waits.ok()) {
            answer(absl::StrCat(name, " did not report the reason: ", waits.status().message()));
            return;
          }
          std::vector<std::string> texts;
          for (const RoundWait& wait : *waits) {
            if (wait.group == group && wait.round == round) texts.push_back(ToString(wait));
          }
          answer(
              texts.empty()
                  ? absl::StrCat(name,
                                 " is not waiting for any worker: the contribution or the result "
                                 "is being sent")
                  : absl::StrJoin(texts, "; "));
        });
  }
}

std::vector<std::unique_ptr<OptimizerReader>> DataPlane::OpenOptimizer(const GroupPlan& plan,
                                                                       Round round,
                                                                       absl::Duration timeout) {
  const OptimizerRequest request{options_.hello.job, options_.hello.token, options_.generation,
                                 plan.id, round};
  const std::set<ServerIndex> servers(plan.servers.begin(), plan.servers.end());
  std::vector<std::unique_ptr<OptimizerReader>> readers;
  for (const ServerIndex server : servers) {
    readers.push_back(
        transport_.OpenOptimizer(links_[ToNumber(server)]->address(), request, timeout));
    if (readers.back() == nullptr) return {};
  }
  return readers;
}

void DataPlane::Send(ServerIndex server, const ChunkKey& key, uint64_t made_in,
                     std::shared_ptr<const OutgoingMessage> message) {
  links_[ToNumber(server)]->Send(key, made_in, std::move(message));
}

void DataPlane::Forget(ServerIndex server, const ChunkKey& key) {
  links_[ToNumber(server)]->Forget(key);
}

SharedBuffers* DataPlane::SharedWith(ServerIndex server) {
  if (memory_.empty() || !memory_[ToNumber(server)]->is_shared()) return nullptr;
  return options_.shared;
}

void DataPlane::OnCodecReplaced(const std::string& notice) {
  if (options_.on_codec_replaced) options_.on_codec_replaced(notice);
}

void DataPlane::OfferShared() {
  for (const std::shared_ptr<MemoryLink>& memory : memory_) memory->Offer();
}

void DataPlane::AwaitShared(absl::Time deadline) const {
  for (const std::shared_ptr<MemoryLink>& memory : memory_) memory->AwaitSettled(deadline);
}

}  // namespace syncgrads::client
