#include "client/psctl/cluster_query.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/signals/protocol.h"

namespace syncgrads::client {
namespace {

constexpr char kNeverConnected[] =
    "it has never connected to the coordinator, so that its address is not known";

// Returns answers.end() if there is no answer of the server with this index.
template <typename Answers>
auto Find(Answers& answers, uint32_t index) {
  return std::find_if(answers.begin(), answers.end(),
                      [index](const Answer& answer) { return answer.index == index; });
}

bool Has(const std::vector<Answer>& answers, const std::string& address) {
  return std::any_of(answers.begin(), answers.end(),
                     [&address](const Answer& answer) { return answer.address == address; });
}

// Returns the answer that stands for `count` servers that are not asked; `index` and `address` are
// those of the first one.
Answer LeftOut(std::optional<uint32_t> index, const std::string& address, size_t count) {
  Answer answer;
  answer.index = index;
  answer.address = address;
  answer.was_asked = false;
  answer.reply = absl::ResourceExhaustedError(
      absl::StrCat("it is not asked, nor are ", count - 1, " others: there are more than ",
                   kMostServers, " servers, the most that psctl asks"));
  return answer;
}

}  // namespace

std::vector<Answer> ClusterQuery::Ask() {
  if (known_.empty()) known_.push_back({std::nullopt, address_});
  received_ = 0;
  std::vector<Answer> answers;
  std::vector<Target> next = known_, left_out;
  for (int round = 0; round < kMostRounds && !next.empty(); ++round) {
    for (Answer& answer : AskAll(next)) {
      const auto known = answer.index.has_value() ? Find(answers, *answer.index) : answers.end();
      if (known == answers.end()) {
        answers.push_back(std::move(answer));
      } else if (!known->reply.ok()) {
        *known = std::move(answer);
      }
    }
    next = Unasked(answers);
    left_out = TakeExcess(answers, next);
  }
  if (!left_out.empty()) {
    answers.push_back(LeftOut(left_out[0].index, left_out[0].address, left_out.size()));
  }
  std::stable_sort(answers.begin(), answers.end(), [](const Answer& a, const Answer& b) {
    return a.index.value_or(~uint32_t{0}) < b.index.value_or(~uint32_t{0});
  });
  Remember(answers);
  return answers;
}

void ClusterQuery::Remember(const std::vector<Answer>& answers) {
  known_.clear();
  std::set<std::string> addresses;
  for (const Answer& answer : answers) {
    if (answer.address.empty() || !answer.was_asked) continue;
    known_.push_back({answer.index, answer.address});
    addresses.insert(answer.address);
  }
  std::erase_if(admins_, [&addresses](const auto& one) { return !addresses.contains(one.first); });
}

Admin& ClusterQuery::AdminOf(const std::string& address) {
  std::unique_ptr<Admin>& admin = admins_[address];
  if (admin == nullptr) {
    admin = std::make_unique<Admin>(Admin::Options{.server = address,
                                                   .job = "",
                                                   .caller = caller_,
                                                   .timeout = timeout_,
                                                   .wait_for_connection = false});
  }
  return *admin;
}

Answer ClusterQuery::AskOne(Admin& admin) {
  Answer answer;
  const absl::Time begun = MonotonicNow();
  const absl::Time date = absl::Now();
  answer.reply = admin.GetStatus();
  answer.at = MonotonicNow();
  answer.took = answer.at - begun;
  answer.date = date + answer.took / 2;
  if (!answer.reply.ok()) return answer;
  if (received_ += answer.reply->SpaceUsedLong(); received_ > kMostBytes) {
    answer.reply = absl::ResourceExhaustedError(
        absl::StrCat("its answer is discarded: the answers of all servers take more than ",
                     kMostBytes, " bytes"));
  }
  return answer;
}

std::vector<Answer> ClusterQuery::AskAll(const std::vector<Target>& targets) {
  std::vector<Answer> answers(targets.size());
  std::vector<std::pair<Admin*, Answer*>> calls;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].address.empty()) {
      answers[i].reply = absl::UnavailableError(kNeverConnected);
      continue;
    }
    calls.emplace_back(&AdminOf(targets[i].address), &answers[i]);
  }
  std::atomic<size_t> begun = 0;
  const auto make_calls = [this, &calls, &begun] {
    for (size_t call = begun++; call < calls.size(); call = begun++) {
      *calls[call].second = AskOne(*calls[call].first);
    }
  };
  std::vector<std::thread> threads;
  while (threads.size() < std::min(calls.size(), kMostAtOnce)) threads.emplace_back(make_calls);
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < targets.size(); ++i) {
    answers[i].address = targets[i].address;
    if (!answers[i].reply.ok()) {
      // The error does not name the server, because the output does (NameOf).
      const absl::Status& error = answers[i].reply.status();
      answers[i].reply = absl::Status(
          error.code(),
          absl::StripPrefix(error.message(), absl::StrCat("server at ", targets[i].address, ": ")));
    }
    answers[i].index = targets[i].index;
    if (!answers[i].index.has_value() && answers[i].reply.ok()) {
      answers[i].index = answers[i].reply->server_index();
    }
  }
  return answers;
}

std::vector<ClusterQuery::Target> ClusterQuery::Unasked(const std::vector<Answer>& answers) {
  std::vector<Target> unasked;
  for (const Answer& answer : answers) {
    if (!answer.reply.ok()) continue;
    const v1::ServerStatus& server = answer.reply->server();
    if (!server.coordinator().empty() && Find(answers, 0) == answers.end() &&
        !Has(answers, server.coordinator())) {
      unasked.push_back({0, server.coordinator()});
    }
    // Only the coordinator has this list. Those of others could lead on for ever.
    if (answer.index != 0) continue;
    for (const v1::ServerAddress& one : server.servers()) {
      const auto known = Find(answers, one.index());
      // A server may have been restarted at another address.
      const bool has_moved = known != answers.end() && !known->reply.ok() &&
                             !one.address().empty() && !Has(answers, one.address());
      if (known == answers.end() || has_moved) unasked.push_back({one.index(), one.address()});
    }
  }
  // Two servers may name the same one.
  std::stable_sort(unasked.begin(), unasked.end(),
                   [](const Target& a, const Target& b) { return a.index < b.index; });
  unasked.erase(std::unique(unasked.begin(), unasked.end(),
                            [](const Target& a, const Target& b) { return a.index == b.index; }),
                unasked.end());
  return unasked;
}

std::vector<ClusterQuery::Target> ClusterQuery::TakeExcess(const std::vector<Answer>& answers,
                                                           std::vector<Target>& targets) {
  std::vector<Target> fitting, excess;
  size_t room = kMostServers - answers.size();
  for (Target& target : targets) {
    // A server that has moved replaces its own earlier answer.
    const bool is_new = Find(answers, *target.index) == answers.end();
    if (is_new && room == 0) {
      excess.push_back(std::move(target));
      continue;
    }
    if (is_new) --room;
    fitting.push_back(std::move(target));
  }
  targets = std::move(fitting);
  return excess;
}

const Answer* FindAnswer(const std::vector<Answer>* answers, const Answer& now) {
  if (answers == nullptr || !now.index.has_value()) return nullptr;
  const auto found = Find(*answers, *now.index);
  return found == answers->end() || !found->reply.ok() ? nullptr : &*found;
}

v1::ClusterStatus ToProto(const std::vector<Answer>& answers) {
  v1::ClusterStatus cluster;
  for (const Answer& answer : answers) {
    v1::ServerAnswer& one = *cluster.add_servers();
    if (answer.index.has_value()) one.set_index(*answer.index);
    one.set_address(answer.address);
    if (answer.reply.ok()) {
      *one.mutable_status() = *answer.reply;
    } else {
      one.set_error(std::string(answer.reply.status().message()));
    }
  }
  return cluster;
}

std::string NameOf(const Answer& answer) {
  const std::string address = answer.address.empty() ? "" : absl::StrCat(", ", answer.address);
  return answer.index.has_value() ? absl::StrCat("server ", *answer.index, address)
                                  : absl::StrCat("the server at ", answer.address);
}

}  // namespace syncgrads::client
