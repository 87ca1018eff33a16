#include "client/psctl/commands.h"

#include <google/protobuf/util/json_util.h>
#include <pwd.h>
#include <unistd.h>

#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/psctl/admin.h"
#include "client/psctl/cluster_query.h"
#include "client/psctl/escaped_output.h"
#include "client/psctl/events.h"
#include "client/psctl/job_view.h"
#include "client/psctl/recorder.h"
#include "client/psctl/status_text.h"
#include "client/psctl/trace.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/rpc/credentials.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"

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
    "  psctl --server=HOST:PORT --job=NAME trace start\n"
    "                                                  begins to record, and does not wait\n"
    "  psctl --server=HOST:PORT --job=NAME trace stop\n"
    "                                                  ends this recording, and waits for its "
    "file\n"
    "  psctl --server=HOST:PORT --job=NAME waits       what its steps wait for on this server\n"
    "--server is server 0:\n"
    "  psctl --server=HOST:PORT --job=NAME checkpoint  takes a checkpoint and waits for it\n"
    "  psctl --server=HOST:PORT --job=NAME set learning-rate-factor FACTOR\n"
    "                                                  multiplies the job's learning rate by "
    "FACTOR from\n"
    "                                                  the next step on; 1: as the job file has "
    "it\n"
    "  psctl --server=HOST:PORT --job=NAME set learning-rate RATE\n"
    "                                                  sets the factor with which the present "
    "rate is RATE\n"
    "  psctl --server=HOST:PORT --job=NAME evict WORKER [REASON]\n"
    "                                                  drops a worker and does not let it rejoin\n"
    "  psctl --server=HOST:PORT --job=NAME readmit WORKER\n"
    "                                                  lets an evicted worker join again\n"
    "  psctl --server=HOST:PORT drain                  refuses new jobs until it is restarted\n"
    "\n"
    "Exit codes:\n"
    "  0    success; doctor has found no problem\n"
    "  1    the request was refused\n"
    "  2    a wrong command or flag\n"
    "  3    doctor has found a problem\n"
    "  128  a server could not be reached, did not answer in time, or has ended during events -f;\n"
    "       or a worker is missing from a trace";

namespace {

// The names of the settings that can be set.
constexpr char kLearningRateFactor[] = "learning-rate-factor";
constexpr char kLearningRate[] = "learning-rate";

// The interval at which the server is polled until the checkpoint is written, or the setting is in
// use.
constexpr absl::Duration kPoll = absl::Milliseconds(50);

// The time that a server has to answer if there is no --timeout.
constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr absl::Duration kTimeoutForEach = absl::Seconds(2);

constexpr absl::Duration kTraceLength = absl::Seconds(5);

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

// Prints a message, in one line unless it is `indented`.
absl::Status PrintJson(const google::protobuf::Message& message, bool indented, std::ostream& out) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = indented;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  out << json << (indented ? "" : "\n");
  return absl::OkStatus();
}

absl::Status RunStatus(const CommandOptions& options, const Caller& caller, std::ostream& out) {
  ClusterQuery query(options.server, options.timeout.value_or(kTimeoutForEach), caller);
  std::optional<std::vector<Answer>> before;
  if (options.interval.has_value()) {
    before = query.Ask();
    absl::SleepFor(*options.interval);
  }
  const std::vector<Answer> answers = query.Ask();
  if (options.output == "json") {
    SYNCGRADS_RETURN_IF_ERROR(PrintJson(ToProto(answers), /*indented=*/true, out));
  } else {
    PrintStatus(answers, before.has_value() ? &*before : nullptr, out);
  }
  return CheckAnswers(answers);
}

absl::Status RunTop(const CommandOptions& options, const Caller& caller, EscapedOutput& out) {
  ClusterQuery query(options.server, options.timeout.value_or(kTimeoutForEach), caller);
  const bool json = options.output == "json";
  std::optional<std::vector<Answer>> before;
  for (uint64_t block = 1;; ++block) {
    std::vector<Answer> answers = query.Ask();
    if (json) {
      SYNCGRADS_RETURN_IF_ERROR(PrintJson(ToProto(answers), /*indented=*/false, out));
    } else {
      if (options.is_terminal) {
        out.WriteUnescaped(kClear);
      } else if (block > 1) {
        out << "\n";
      }
      PrintTop(answers, before.has_value() ? &*before : nullptr, out);
    }
    out.flush();
    if (block == options.count || !out) return CheckAnswers(answers);
    before = std::move(answers);
    absl::SleepFor(options.interval.value_or(absl::Seconds(1)));
  }
}

TraceOptions TraceOptionsOf(const CommandOptions& options, absl::Duration length) {
  return {.server = options.server,
          .job = options.job,
          .caller = {},
          .timeout = options.timeout.value_or(kTimeout),
          .length = options.length.value_or(length),
          .path = options.path};
}

RecorderOptions RecorderOptionsOf(const CommandOptions& options) {
  return {options.recorder_directory, TraceOptionsOf(options, kMaxTraceLength),
          options.output == "json"};
}

absl::Status RunTrace(const CommandOptions& options, const Caller& caller, std::ostream& out) {
  TraceOptions trace = TraceOptionsOf(options, kTraceLength);
  trace.caller = caller;
  const bool json = options.output == "json";
  SYNCGRADS_ASSIGN_OR_RETURN(const TraceSummary summary,
                             RecordTimeline(trace, [&](const std::string& job) {
                               if (json) return;
                               out << "recording job \"" << job << "\" for "
                                   << absl::FormatDuration(trace.length) << std::endl;
                             }));
  out << (json ? JsonOf(summary) : TextOf(summary));
  return CheckComplete(summary);
}

// Where a command prints its result: a text, or an object in JSON.
struct Printer {
  std::ostream& out;
  bool json = false;

  void Print(absl::string_view text, absl::string_view object) const {
    out << (json ? object : text) << std::endl;
  }
};

absl::Status Drain(Admin& admin, const std::string& server_token, const Printer& printer) {
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t jobs, admin.Drain(server_token));
  printer.Print(absl::StrCat("new jobs are refused until server 0 is restarted; open jobs: ", jobs),
                absl::StrCat("{\"open_jobs\":", jobs, "}"));
  return absl::OkStatus();
}

absl::Status PrintWaits(Admin& admin, const Printer& printer) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::ExplainReply reply, admin.Explain());
  if (printer.json) return PrintJson(reply, /*indented=*/true, printer.out);
  for (const v1::RoundWait& wait : reply.waits()) printer.out << wait.text() << "\n";
  if (reply.waits().empty()) printer.out << "no step is waiting on this server\n";
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

absl::Status TakeCheckpoint(Admin& admin, const Printer& printer) {
  const absl::Time deadline = MonotonicNow() + admin.options().timeout;
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::CheckpointStatus before, CheckpointsOf(admin));
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t workers, admin.RequestCheckpoint());
  if (!printer.json) {
    printer.out << "a checkpoint was requested from " << workers << " workers" << std::endl;
  }
  while (MonotonicNow() < deadline) {
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::CheckpointStatus now, CheckpointsOf(admin));
    if (now.written() > before.written()) {
      printer.Print(absl::StrCat("checkpoint after step ", now.last_step(), ": ", now.last_path()),
                    absl::StrCat("{\"workers\":", workers, ",\"step\":", now.last_step(),
                                 ",\"path\":", JsonString(now.last_path()), "}"));
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

absl::StatusOr<double> ParseNumber(const std::vector<std::string>& words) {
  double number = 0;
  if (absl::SimpleAtod(words[2], &number)) return number;
  return absl::InvalidArgumentError(
      absl::StrCat("set ", words[1], ": \"", words[2], "\" is not a number"));
}

absl::StatusOr<v1::JobStatus> StatusOf(Admin& admin) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::GetStatusReply reply, admin.GetStatus());
  return FindJob(reply, admin);
}

// Returns the newest figures with a learning rate that a worker of the job has reported; null if
// there are none.
const v1::TrainingFigures* NewestRate(const v1::JobStatus& job) {
  const v1::TrainingFigures* newest = nullptr;
  for (const v1::MemberStatus& member : job.members()) {
    if (member.gone() || !member.figures().has_learning_rate()) continue;
    if (newest == nullptr || member.figures().step() > newest->step()) newest = &member.figures();
  }
  return newest;
}

// Whether every step from now on uses the job's present factor: those from which it applies have
// closed.
bool IsFactorInUse(const v1::JobStatus& job) {
  for (const v1::GroupRound& first : job.epoch().learning_rate().since()) {
    for (const v1::GroupStatus& group : job.groups()) {
      if (group.group() == first.group() && group.open_round() <= first.round()) return false;
    }
  }
  return true;
}

// Returns the learning rate that the job would have now with a factor of 1.
absl::StatusOr<double> RateWithoutFactor(Admin& admin) {
  const absl::Time deadline = MonotonicNow() + admin.options().timeout;
  SYNCGRADS_ASSIGN_OR_RETURN(v1::JobStatus job, StatusOf(admin));
  const v1::TrainingFigures* rate = NewestRate(job);
  if (rate == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no worker of job \"", admin.options().job,
                                                      "\" has reported its learning rate: set ",
                                                      kLearningRateFactor, " instead"));
  }
  // A report may be from before the factor was set. One that is made after the factor was in use
  // is not.
  std::optional<uint64_t> used;
  while (job.epoch().has_learning_rate() && (!used.has_value() || rate->step() <= *used)) {
    if (!used.has_value() && IsFactorInUse(job)) used = rate->step();
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no worker of job \"", admin.options().job, "\" has reported a step with the present ",
          RateFactorText(job), " within ", absl::FormatDuration(admin.options().timeout)));
    }
    absl::SleepFor(kPoll);
    SYNCGRADS_ASSIGN_OR_RETURN(job, StatusOf(admin));
    rate = NewestRate(job);
    if (rate == nullptr) return absl::AbortedError("the workers have left");
  }
  if (!(rate->learning_rate() > 0)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the learning rate is ", rate->learning_rate(), " at step ", rate->step(),
        ", so that no factor gives another one: retry later, or set ", kLearningRateFactor));
  }
  return rate->learning_rate() / RateFactorOf(job);
}

// Prints the factor that the job has. `rate` is the rate that was requested, if there is one.
void PrintFactor(const v1::JobStatus& job, std::optional<double> rate, const Printer& printer) {
  if (!printer.json) {
    if (rate.has_value()) printer.out << "learning rate " << *rate << ": ";
    printer.out << RateFactorText(job) << "\n";
    return;
  }
  std::vector<std::string> since;
  for (const v1::GroupRound& first : job.epoch().learning_rate().since()) {
    since.push_back(absl::StrCat("{\"group\":", first.group(), ",\"step\":", first.round(), "}"));
  }
  printer.out << "{\"factor\":" << absl::StrCat(RateFactorOf(job));
  if (rate.has_value()) printer.out << ",\"learning_rate\":" << absl::StrCat(*rate);
  printer.out << ",\"epoch\":" << job.epoch().number() << ",\"since\":["
              << absl::StrJoin(since, ",") << "]}\n";
}

absl::Status SetFactor(double factor, std::optional<double> rate, Admin& admin,
                       const Printer& printer) {
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
      PrintFactor(job, rate, printer);
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

absl::Status Set(const std::vector<std::string>& words, Admin& admin, const Printer& printer) {
  SYNCGRADS_ASSIGN_OR_RETURN(const double number, ParseNumber(words));
  if (words[1] == kLearningRateFactor) return SetFactor(number, std::nullopt, admin, printer);
  if (!(number > 0) || !std::isfinite(number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("set ", words[1], ": ", number, " is not more than 0 and finite"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const double rate, RateWithoutFactor(admin));
  return SetFactor(number / rate, number, admin, printer);
}

absl::Status Evict(const std::vector<std::string>& words, Admin& admin, const Printer& printer) {
  const std::string reason = words.size() > 2 ? words[2] : "by hand";
  SYNCGRADS_RETURN_IF_ERROR(admin.Evict(words[1], reason));
  printer.Print(absl::StrCat("worker \"", words[1], "\" is dropped"),
                absl::StrCat("{\"worker\":", JsonString(words[1]), "}"));
  return absl::OkStatus();
}

absl::Status Readmit(const std::vector<std::string>& words, Admin& admin, const Printer& printer) {
  SYNCGRADS_RETURN_IF_ERROR(admin.Readmit(words[1]));
  printer.Print(absl::StrCat("worker \"", words[1], "\" may join again"),
                absl::StrCat("{\"worker\":", JsonString(words[1]), "}"));
  return absl::OkStatus();
}

// Checks the times of the options: a command ends, and does not ask without a pause.
absl::Status CheckTimes(const CommandOptions& options) {
  static constexpr absl::Duration kLeast = absl::Milliseconds(1), kMost = absl::Hours(24);
  const auto check = [](absl::string_view flag, const std::optional<absl::Duration>& time) {
    if (!time.has_value() || (*time >= kLeast && *time <= kMost)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is ", absl::FormatDuration(*time), "; it must be from ",
                     absl::FormatDuration(kLeast), " to ", absl::FormatDuration(kMost)));
  };
  SYNCGRADS_RETURN_IF_ERROR(check("--timeout", options.timeout));
  return check("--interval", options.interval);
}

// Checks the arguments of a command.
absl::Status CheckWords(const std::vector<std::string>& words) {
  const std::string& command = words[0];
  const bool names_worker = command == "evict" || command == "readmit";
  const bool sets = command == "set";
  const size_t least = sets ? 3 : names_worker ? 2 : 1;
  const size_t most = command == "evict" ? 3 : command == "trace" ? 2 : least;
  if (sets && words.size() > 1 && words[1] != kLearningRateFactor && words[1] != kLearningRate) {
    return absl::InvalidArgumentError(absl::StrCat(
        "set: \"", words[1], "\" cannot be set: ", kLearningRateFactor, ", ", kLearningRate));
  }
  if (command == "trace" && words.size() > 1 && words[1] != "start" && words[1] != "stop") {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: \"", words[1], "\" is neither start nor stop"));
  }
  if (words.size() < least) {
    return absl::InvalidArgumentError(
        sets ? absl::StrCat("set: needs ", kLearningRateFactor, " or ", kLearningRate,
                            " and a number")
             : absl::StrCat(command, ": the name of the worker is missing"));
  }
  if (words.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": unexpected argument \"", words[most], "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCommand(const std::vector<std::string>& words, const CommandOptions& options,
                        std::ostream& terminal) {
  EscapedOutput out(terminal);
  if (words.empty()) return absl::InvalidArgumentError("a command is missing; see --help");
  const std::string& command = words[0];
  const std::vector<std::string> commands = {"status", "top",     "doctor",     "events",
                                             "trace",  "waits",   "checkpoint", "set",
                                             "evict",  "readmit", "drain"};
  if (!absl::c_linear_search(commands, command)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", command, "\" is not a command: ", absl::StrJoin(commands, ", ")));
  }
  if (options.output != "text" && options.output != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no output \"", options.output, "\": -o is text or json"));
  }
  if (options.follow && command != "events") {
    return absl::InvalidArgumentError(absl::StrCat(command, " cannot follow: -f is for events"));
  }
  const bool is_of_servers = absl::c_linear_search(
      std::vector<std::string>{"status", "top", "doctor", "events", "drain", "trace"}, command);
  if (!is_of_servers && options.job.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(command, ": --job is missing"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckWords(words));
  SYNCGRADS_RETURN_IF_ERROR(CheckTimes(options));
  const auto connect = [&options] {
    return Caller{ChannelSecurity(options.tls, options.token), options.token};
  };
  const std::string variant = command == "trace" && words.size() > 1 ? words[1] : "";
  // Before anything connects.
  if (variant == "start") return StartRecorder(RecorderOptionsOf(options), connect, out);
  const Caller caller = connect();
  if (variant == "stop") return StopRecorder(RecorderOptionsOf(options), caller, out);
  if (command == "trace") return RunTrace(options, caller, out);
  if (command == "status") return RunStatus(options, caller, out);
  if (command == "top") return RunTop(options, caller, out);
  const bool json = options.output == "json";
  if (command == "events") {
    return PrintEvents({.server = options.server,
                        .job = options.job,
                        .caller = caller,
                        .timeout = options.timeout.value_or(kTimeoutForEach),
                        .follow = options.follow,
                        .count = options.count,
                        .json = json},
                       out);
  }
  if (command == "doctor") {
    return RunDoctor(options.server, options.timeout.value_or(kTimeoutForEach), options.limits,
                     ReadHostFacts(), json, out, caller);
  }
  Admin admin({.server = options.server,
               .job = options.job,
               .caller = caller,
               .timeout = options.timeout.value_or(kTimeout)});
  const Printer printer{out, json};
  if (command == "waits") return PrintWaits(admin, printer);
  if (command == "checkpoint") return TakeCheckpoint(admin, printer);
  if (command == "set") return Set(words, admin, printer);
  if (command == "readmit") return Readmit(words, admin, printer);
  if (command == "drain") return Drain(admin, options.server_token, printer);
  return Evict(words, admin, printer);
}

}  // namespace syncgrads::client
