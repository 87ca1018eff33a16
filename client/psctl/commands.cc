#include "client/psctl/commands.h"

#include <google/protobuf/util/json_util.h>
#include <pwd.h>
#include <unistd.h>

#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/psctl/admin.h"
#include "client/psctl/cluster_query.h"
#include "client/psctl/events.h"
#include "client/psctl/job_view.h"
#include "client/psctl/status_text.h"
#include "client/psctl/trace.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace syncgrads::client {

const char kCommandUsage[] =
    "shows the state of running jobs and servers, and controls them.\n"
    "--server is any of the servers:\n"
    "  psctl --server=HOST:PORT status                 all servers, their jobs and workers\n"
    "  psctl --server=HOST:PORT top                    the same again and again, slowest worker "
    "first\n"
    "  psctl --server=HOST:PORT doctor                 what is wrong, and what to change\n"
    "  psctl --server=HOST:PORT events                 what has happened; with -f, also what "
    "happens\n"
    "  psctl --server=HOST:PORT --job=NAME trace       records a timeline to --output\n"
    "  psctl --server=HOST:PORT --job=NAME waits       what its steps wait for on this server\n"
    "--server is server 0:\n"
    "  psctl --server=HOST:PORT --job=NAME checkpoint  takes a checkpoint and waits for it\n"
    "  psctl --server=HOST:PORT --job=NAME set learning-rate-factor FACTOR\n"
    "                                                  multiplies the job's learning rate by "
    "FACTOR "
    "from\n"
    "                                                  the next step on; 1: as the job file has "
    "it\n"
    "  psctl --server=HOST:PORT --job=NAME evict WORKER [REASON]\n"
    "                                                  drops a worker and does not let it rejoin\n"
    "  psctl --server=HOST:PORT --job=NAME readmit WORKER\n"
    "                                                  lets an evicted worker join again\n"
    "  psctl --server=HOST:PORT drain                  refuses new jobs until it is restarted";

namespace {

// The name of the setting that can be set.
constexpr char kLearningRateFactor[] = "learning-rate-factor";

// The interval at which the server is polled until the checkpoint is written, or the setting is in
// use.
constexpr absl::Duration kPoll = absl::Milliseconds(50);

// The time that a server has to answer if there is no --timeout.
constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr absl::Duration kTimeoutForEach = absl::Seconds(2);

// Moves a terminal's cursor to the top left, and clears the terminal.
constexpr char kClear[] = "\x1b[H\x1b[2J";

// OK if all servers have answered.
absl::Status CheckAnswers(const std::vector<Answer>& answers) {
  std::vector<std::string> silent;
  for (const Answer& answer : answers) {
    if (!answer.reply.ok()) silent.push_back(NameOf(answer));
  }
  if (silent.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(silent.size(), " of ", answers.size(),
                   " servers did not answer: ", absl::StrJoin(silent, "; ")));
}

absl::Status PrintJson(const std::vector<Answer>& answers, std::ostream& out) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed =
      google::protobuf::util::MessageToJsonString(ToProto(answers), &json, options);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  out << json;
  return absl::OkStatus();
}

absl::Status RunStatus(const CommandOptions& options, std::ostream& out) {
  ClusterQuery query(options.server, options.timeout.value_or(kTimeoutForEach), options.caller);
  std::optional<std::vector<Answer>> before;
  if (options.interval.has_value()) {
    before = query.Ask();
    absl::SleepFor(*options.interval);
  }
  const std::vector<Answer> answers = query.Ask();
  if (options.output == "json") {
    SYNCGRADS_RETURN_IF_ERROR(PrintJson(answers, out));
  } else {
    PrintStatus(answers, before.has_value() ? &*before : nullptr, out);
  }
  return CheckAnswers(answers);
}

absl::Status RunTop(const CommandOptions& options, std::ostream& out) {
  ClusterQuery query(options.server, options.timeout.value_or(kTimeoutForEach), options.caller);
  std::optional<std::vector<Answer>> before;
  for (uint64_t block = 1;; ++block) {
    std::vector<Answer> answers = query.Ask();
    if (options.is_terminal) {
      out << kClear;
    } else if (block > 1) {
      out << "\n";
    }
    PrintTop(answers, before.has_value() ? &*before : nullptr, out);
    out.flush();
    if (block == options.count || !out) return CheckAnswers(answers);
    before = std::move(answers);
    absl::SleepFor(options.interval.value_or(absl::Seconds(1)));
  }
}

absl::Status Drain(Admin& admin, const std::string& server_token, std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t jobs, admin.Drain(server_token));
  out << "new jobs are refused until server 0 is restarted; open jobs: " << jobs << "\n";
  return absl::OkStatus();
}

absl::Status PrintWaits(Admin& admin, std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::ExplainReply reply, admin.Explain());
  for (const v1::RoundWait& wait : reply.waits()) out << wait.text() << "\n";
  if (reply.waits().empty()) out << "no step is waiting on this server\n";
  return absl::OkStatus();
}

absl::StatusOr<v1::JobStatus> FindJob(const v1::GetStatusReply& reply, const Admin& admin) {
  for (const v1::JobStatus& job : reply.jobs()) {
    if (job.job() == admin.options().job) return job;
  }
  return absl::NotFoundError(absl::StrCat("server at ", admin.options().server, ": no job \"",
                                          admin.options().job, "\" is open here"));
}

absl::StatusOr<v1::CheckpointStatus> CheckpointsOf(Admin& admin) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::GetStatusReply reply, admin.GetStatus());
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(reply, admin));
  return job.checkpoints();
}

absl::Status TakeCheckpoint(Admin& admin, std::ostream& out) {
  const absl::Time deadline = MonotonicNow() + admin.options().timeout;
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::CheckpointStatus before, CheckpointsOf(admin));
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t workers, admin.RequestCheckpoint());
  out << "a checkpoint was requested from " << workers << " workers" << std::endl;
  while (MonotonicNow() < deadline) {
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::CheckpointStatus now, CheckpointsOf(admin));
    if (now.written() > before.written()) {
      out << "checkpoint after step " << now.last_step() << ": " << now.last_path() << "\n";
      return absl::OkStatus();
    }
    if (now.failed() > before.failed()) {
      return absl::AbortedError(absl::StrCat("no checkpoint: ", now.last_error()));
    }
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "none of the ", workers, " workers of job \"", admin.options().job,
      "\" has reported a checkpoint within ", absl::FormatDuration(admin.options().timeout)));
}

// What the begin of an epoch waits for, for people to read.
std::string FindHindrance(const v1::GetStatusReply& reply, Admin& admin) {
  std::vector<std::string> absent;
  for (const v1::ServerAddress& server : reply.server().servers()) {
    if (server.connected()) continue;
    absent.push_back(absl::StrCat("server ", server.index(), " at ", server.address(),
                                  ", which is not connected to the coordinator"));
  }
  if (!absent.empty()) return absl::StrJoin(absent, "; ");
  if (const auto waits = admin.Explain(); waits.ok()) {
    for (const v1::RoundWait& wait : waits->waits()) {
      if (!wait.held_for().empty()) return wait.held_for();
    }
  }
  return "a server that has not answered the coordinator";
}

std::string WhoAmI() {
  const struct passwd* const user = getpwuid(getuid());
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return absl::StrCat(user == nullptr ? absl::StrCat("user ", getuid()) : user->pw_name, "@", host);
}

absl::Status SetLearningRate(const std::string& text, Admin& admin, std::ostream& out) {
  double factor = 0;
  if (!absl::SimpleAtod(text, &factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("set ", kLearningRateFactor, ": \"", text, "\" is not a number"));
  }
  const absl::Time deadline = MonotonicNow() + admin.options().timeout;
  SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t epoch, admin.SetLearningRate(factor, WhoAmI()));
  while (true) {
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::GetStatusReply reply, admin.GetStatus());
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(reply, admin));
    if (job.epoch().number() >= epoch) {
      const double now = RateFactorOf(job);
      if (now != factor) {
        return absl::AbortedError(
            absl::StrCat("another request has set the learning rate factor to ", now,
                         ", after this one had set it to ", factor));
      }
      out << RateFactorText(job) << "\n";
      return absl::OkStatus();
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the learning rate factor ", factor, " of job \"", admin.options().job,
                       "\" is stored, but no step uses it yet, after ",
                       absl::FormatDuration(admin.options().timeout), "; it waits for ",
                       FindHindrance(reply, admin)));
    }
    absl::SleepFor(kPoll);
  }
}

absl::Status Evict(const std::vector<std::string>& words, Admin& admin, std::ostream& out) {
  const std::string reason = words.size() > 2 ? words[2] : "by hand";
  SYNCGRADS_RETURN_IF_ERROR(admin.Evict(words[1], reason));
  out << "worker \"" << words[1] << "\" is dropped\n";
  return absl::OkStatus();
}

absl::Status Readmit(const std::vector<std::string>& words, Admin& admin, std::ostream& out) {
  SYNCGRADS_RETURN_IF_ERROR(admin.Readmit(words[1]));
  out << "worker \"" << words[1] << "\" may join again\n";
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCommand(const std::vector<std::string>& words, const CommandOptions& options,
                        std::ostream& out) {
  if (words.empty()) return absl::InvalidArgumentError("a command is missing; see --help");
  const std::string& command = words[0];
  const std::vector<std::string> commands = {"status", "top",     "doctor",     "events",
                                             "trace",  "waits",   "checkpoint", "set",
                                             "evict",  "readmit", "drain"};
  if (!absl::c_linear_search(commands, command)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", command, "\" is not a command: ", absl::StrJoin(commands, ", ")));
  }
  const bool has_json = command == "status" || command == "events" || command == "doctor";
  if (options.output != "text" && (options.output != "json" || !has_json)) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, " has no output \"", options.output,
                     "\": -o is text, or, with status, events and doctor, json"));
  }
  if (options.follow && command != "events") {
    return absl::InvalidArgumentError(absl::StrCat(command, " cannot follow: -f is for events"));
  }
  const bool is_of_servers = absl::c_linear_search(
      std::vector<std::string>{"status", "top", "doctor", "events", "drain", "trace"}, command);
  if (!is_of_servers && options.job.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(command, ": --job is missing"));
  }
  const bool names_worker = command == "evict" || command == "readmit";
  const bool sets = command == "set";
  const size_t least = sets ? 3 : names_worker ? 2 : 1;
  const size_t most = command == "evict" ? 3 : least;
  if (sets && words.size() > 1 && words[1] != kLearningRateFactor) {
    return absl::InvalidArgumentError(
        absl::StrCat("set: \"", words[1], "\" cannot be set: ", kLearningRateFactor));
  }
  if (words.size() < least) {
    return absl::InvalidArgumentError(
        sets ? absl::StrCat("set: needs ", kLearningRateFactor, " and a number")
             : absl::StrCat(command, ": the name of the worker is missing"));
  }
  if (words.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": unexpected argument \"", words[most], "\""));
  }
  if (command == "status") return RunStatus(options, out);
  if (command == "top") return RunTop(options, out);
  if (command == "events") {
    return PrintEvents({.server = options.server,
                        .job = options.job,
                        .caller = options.caller,
                        .timeout = options.timeout.value_or(kTimeoutForEach),
                        .follow = options.follow,
                        .count = options.count,
                        .json = options.output == "json"},
                       out);
  }
  if (command == "trace") {
    return RecordTimeline({.server = options.server,
                           .job = options.job,
                           .caller = options.caller,
                           .timeout = options.timeout.value_or(kTimeout),
                           .length = options.length,
                           .path = options.path},
                          out);
  }
  if (command == "doctor") {
    return RunDoctor(options.server, options.timeout.value_or(kTimeoutForEach), options.limits,
                     ReadHostFacts(), options.output == "json", out, options.caller);
  }
  Admin admin({.server = options.server,
               .job = options.job,
               .caller = options.caller,
               .timeout = options.timeout.value_or(kTimeout)});
  if (command == "waits") return PrintWaits(admin, out);
  if (command == "checkpoint") return TakeCheckpoint(admin, out);
  if (sets) return SetLearningRate(words[2], admin, out);
  if (command == "readmit") return Readmit(words, admin, out);
  if (command == "drain") return Drain(admin, options.server_token, out);
  return Evict(words, admin, out);
}

}  // namespace syncgrads::client
