#include "client/psctl/cluster_query.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/clock.h"

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

Answer AskOne(Admin& admin) {
  Answer answer;
  const absl::Time begun = MonotonicNow();
  const absl::Time date = absl::Now();
  answer.reply = admin.GetStatus();
  answer.at = MonotonicNow();
  answer.took = answer.at - begun;
  answer.date = date + answer.took / 2;
  return answer;
}

}  // namespace

std::vector<Answer> ClusterQuery::Ask() {
  if (known_.empty()) known_.push_back({std::nullopt, address_});
  std::vector<Answer> answers;
  for (std::vector<Target> next = known_; !next.empty(); next = Unasked(answers)) {
    for (Answer& answer : AskAll(next)) {
      const auto known = answer.index.has_value() ? Find(answers, *answer.index) : answers.end();
      if (known == answers.end()) {
        answers.push_back(std::move(answer));
      } else if (!known->reply.ok()) {
        *known = std::move(answer);
      }
    }
  }
  std::stable_sort(answers.begin(), answers.end(), [](const Answer& a, const Answer& b) {
    return a.index.value_or(~uint32_t{0}) < b.index.value_or(~uint32_t{0});
  });
  known_.clear();
  for (const Answer& answer : answers) {
    if (!answer.address.empty()) known_.push_back({answer.index, answer.address});
  }
  return answers;
}

std::vector<Answer> ClusterQuery::AskAll(const std::vector<Target>& targets) {
  std::vector<Answer> answers(targets.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].address.empty()) {
      answers[i].reply = absl::UnavailableError(kNeverConnected);
      continue;
    }
    std::unique_ptr<Admin>& admin = admins_[targets[i].address];
    if (admin == nullptr) {
      admin = std::make_unique<Admin>(Admin::Options{.server = targets[i].address,
                                                     .job = "",
                                                     .caller = caller_,
                                                     .timeout = timeout_,
                                                     .wait_for_connection = false});
    }
    threads.emplace_back([&answers, i, &admin = *admin] { answers[i] = AskOne(admin); });
  }
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
    for (const v1::ServerAddress& one : server.servers()) {
      const auto known = Find(answers, one.index());
      // A server may have been restarted at another address.
      const bool has_moved = known != answers.end() && !known->reply.ok() &&
                             !one.address().empty() && !Has(answers, one.address());
      if (known == answers.end() || has_moved) unasked.push_back({one.index(), one.address()});
    }
    if (!server.coordinator().empty() && Find(answers, 0) == answers.end() &&
        !Has(answers, server.coordinator())) {
      unasked.push_back({0, server.coordinator()});
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
