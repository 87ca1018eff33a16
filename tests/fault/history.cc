#include "tests/fault/history.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace syncgrads::fault {
namespace {

using Json = nlohmann::json;

Step ParseStep(const Json& event) {
  Step step;
  step.number = event.at("step").get<uint64_t>();
  step.epoch = event.at("epoch").get<uint64_t>();
  step.members = event.at("members").get<std::vector<std::string>>();
  step.contributors = event.at("contributors").get<std::vector<std::string>>();
  if (event.contains("parts")) {
    step.parts = event.at("parts").get<std::vector<std::vector<std::string>>>();
  }
  for (const Json& row : event.at("rows")) {
    step.rows.emplace_back(row.at(0).get<uint32_t>(), row.at(1).get<uint64_t>());
  }
  return step;
}

// Throws Json::exception if the event is malformed.
absl::Status AddEvent(History& history, const Json& event) {
  const std::string kind = event.at("event").get<std::string>();
  const std::string worker = event.at("worker").get<std::string>();
  std::vector<Stint>& stints = history[worker];
  if (kind == "begins") {
    Stint stint;
    stint.worker = worker;
    stint.first = event.at("step").get<uint64_t>();
    stint.newcomer = event.at("newcomer").get<bool>();
    stints.push_back(std::move(stint));
    return absl::OkStatus();
  }
  if (stints.empty()) {
    return absl::DataLossError(absl::StrCat(worker, " has a \"", kind, "\" before it begins"));
  }
  if (kind == "step") {
    stints.back().steps.push_back(ParseStep(event));
  } else if (kind == "checkpoint") {
    // Checkpoints are verified on the disk and not here.
  } else if (kind == "ends") {
    stints.back().end = event.at("step").get<uint64_t>();
  } else {
    return absl::DataLossError(absl::StrCat("there is no event \"", kind, "\""));
  }
  return absl::OkStatus();
}

std::string List(const std::vector<std::string>& names) {
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

bool Has(const std::vector<std::string>& names, const std::string& name) {
  return absl::c_linear_search(names, name);
}

absl::Status CheckStint(const Stint& stint, uint64_t steps, Waits waits) {
  uint64_t next = stint.first;
  for (const Step& step : stint.steps) {
    if (step.number != next && (waits == Waits::kForAll || step.number < next)) {
      return absl::DataLossError(absl::StrCat(stint.worker, " has made step ", step.number,
                                              ", and the next was step ", next));
    }
    next = step.number + 1;
    if (!Has(step.members, stint.worker)) {
      return absl::DataLossError(absl::StrCat(stint.worker, " has made step ", step.number,
                                              ", whose members are ", List(step.members)));
    }
    if (waits == Waits::kForAll && !step.rows.empty() && !Has(step.contributors, stint.worker)) {
      return absl::DataLossError(absl::StrCat(stint.worker, " contributed to step ", step.number,
                                              ", which counted ", List(step.contributors)));
    }
  }
  if (stint.end.has_value() && (*stint.end != steps || next != steps + 1)) {
    return absl::DataLossError(absl::StrCat(stint.worker, " has ended after step ", *stint.end,
                                            ", its last is ", next - 1, ", and there are ", steps));
  }
  return absl::OkStatus();
}

absl::Status CheckWorker(const std::vector<Stint>& stints, uint64_t steps, Waits waits) {
  uint64_t last = 0;
  for (const Stint& stint : stints) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStint(stint, steps, waits));
    if (stint.first <= last) {
      return absl::DataLossError(absl::StrCat(stint.worker, " begins again at step ", stint.first,
                                              ", and had made step ", last));
    }
    if (!stint.newcomer && stint.first != 1) {
      return absl::DataLossError(
          absl::StrCat(stint.worker, " is no newcomer, and begins at step ", stint.first));
    }
    if (!stint.steps.empty()) last = stint.steps.back().number;
  }
  return absl::OkStatus();
}

absl::Status CheckContributors(const Step& step, const std::vector<std::string>& contributors) {
  std::set<std::string> seen;
  for (const std::string& name : contributors) {
    if (Has(step.members, name) && seen.insert(name).second) continue;
    return absl::DataLossError(absl::StrCat("step ", step.number, " counted ", List(contributors),
                                            ", its members are ", List(step.members)));
  }
  return absl::OkStatus();
}

std::string Described(const Step& step) {
  return absl::StrCat(
      "epoch ", step.epoch, ", members ", List(step.members), ", contributors ",
      List(step.contributors),
      step.parts.empty()
          ? ""
          : absl::StrCat(", by chunk ",
                         absl::StrJoin(step.parts, " ", [](std::string* out, const auto& part) {
                           *out += List(part);
                         })));
}

}  // namespace

absl::Status AddTo(History& history, const std::string& log) {
  std::vector<std::string> lines = absl::StrSplit(log, '\n');
  lines.pop_back();  // the incomplete line after the last newline
  for (const std::string& line : lines) {
    absl::Status added;
    try {
      added = AddEvent(history, Json::parse(line));
    } catch (const Json::exception& error) {
      added = absl::DataLossError(error.what());
    }
    if (!added.ok()) return absl::DataLossError(absl::StrCat(added.message(), ": ", line));
  }
  return absl::OkStatus();
}

absl::Status CheckHistory(const History& history, uint64_t steps, Waits waits) {
  struct Seen {
    const Step* step;
    std::string worker;
  };
  std::map<uint64_t, Seen> seen;
  for (const auto& [worker, stints] : history) {
    SYNCGRADS_RETURN_IF_ERROR(CheckWorker(stints, steps, waits));
    for (const Stint& stint : stints) {
      for (const Step& step : stint.steps) {
        const auto [first, is_new] = seen.try_emplace(step.number, Seen{&step, worker});
        if (is_new || Described(*first->second.step) == Described(step)) continue;
        return absl::DataLossError(absl::StrCat("of step ", step.number, " ", first->second.worker,
                                                " says ", Described(*first->second.step), ", and ",
                                                worker, " says ", Described(step)));
      }
    }
  }
  uint64_t next = 1, epoch = 0;
  for (const auto& [number, view] : seen) {
    if (number != next++) {
      return absl::DataLossError(absl::StrCat("nobody has seen step ", next - 1));
    }
    if (view.step->epoch < epoch) {
      return absl::DataLossError(absl::StrCat("step ", number, " is one of epoch ",
                                              view.step->epoch, ", the one before of ", epoch));
    }
    epoch = view.step->epoch;
    SYNCGRADS_RETURN_IF_ERROR(CheckContributors(*view.step, view.step->contributors));
    for (const std::vector<std::string>& part : view.step->parts) {
      SYNCGRADS_RETURN_IF_ERROR(CheckContributors(*view.step, part));
    }
  }
  if (next != steps + 1) {
    return absl::DataLossError(
        absl::StrCat("the last step that was seen is ", next - 1, ", and there are ", steps));
  }
  return absl::OkStatus();
}

std::vector<const Step*> StepsOf(const History& history) {
  std::map<uint64_t, const Step*> steps;
  for (const auto& [worker, stints] : history) {
    for (const Stint& stint : stints) {
      for (const Step& step : stint.steps) steps.try_emplace(step.number, &step);
    }
  }
  std::vector<const Step*> ordered;
  for (const auto& [number, step] : steps) ordered.push_back(step);
  return ordered;
}

}  // namespace syncgrads::fault
