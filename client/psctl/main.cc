// psctl: shows the state of running jobs and servers, and sends them requests.

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/psctl/commands.h"
#include "client/psctl/escaped_output.h"
#include "common/net/address.h"
#include "common/process_setup.h"
#include "common/rpc/build_info.h"
#include "common/rpc/credentials.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/tls/tls_flags.h"
#include "common/tls/tls_options.h"

ABSL_FLAG(std::string, server, "127.0.0.1:7000",
          "HOST:PORT of any server; status, top, doctor, events and trace query the other servers "
          "too");
ABSL_FLAG(std::string, job, "", "name of the job; events: only this job's");
ABSL_FLAG(
    std::string, token, "",
    "your token, or that of the job if the servers have no --tokens_file. Other users can read "
    "a command line: prefer --token_file, or SYNCGRADS_TOKEN in the environment");
ABSL_FLAG(std::string, token_file, "", "file with the token in its first line");
ABSL_FLAG(
    std::string, server_token, "",
    "secret token of the servers, if they have one; for drain. Prefer --server_token_file, or "
    "SYNCGRADS_SERVER_TOKEN in the environment");
ABSL_FLAG(std::string, server_token_file, "", "file with the server token in its first line");
ABSL_FLAG(std::optional<absl::Duration>, timeout, std::nullopt,
          "timeout of each call, and of a requested checkpoint; default: 30s; for status, top, "
          "doctor and events 2s for each server");
ABSL_FLAG(std::optional<absl::Duration>, interval, std::nullopt,
          "top: refresh interval, by default 1s; status: query twice, this long apart, and "
          "show rates");
ABSL_FLAG(
    uint64_t, count, 0,
    "top: number of refreshes; events: number of events to print, and with -f of new ones; 0: "
    "no limit");
ABSL_FLAG(bool, f, false, "events: wait for new events, and print them, until it is interrupted");
ABSL_FLAG(std::string, o, "text", "output: text or json");
ABSL_FLAG(std::optional<double>, seconds, std::nullopt,
          "trace: how long to record, at most and with `trace start` by default 60, otherwise by "
          "default 5");
ABSL_FLAG(std::string, output, "trace.json", "trace: the file to write");
ABSL_FLAG(absl::Duration, max_latency, syncgrads::client::DoctorLimits().max_latency,
          "doctor: report servers that take longer than this to answer");
ABSL_FLAG(double, min_bandwidth, syncgrads::client::DoctorLimits().min_bandwidth,
          "doctor: report links that carry fewer bytes per second than this");

namespace {

// Returns what is wrong with a flag. ParseCommandLine would end the program with exit code 1.
//
// Errors:
//   InvalidArgument  there is no such flag, its value is missing, or it cannot have this value
absl::Status CheckFlags(absl::Span<char* const> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view text = arguments[i];
    if (text == "--") break;
    if (!absl::ConsumePrefix(&text, "-")) continue;
    absl::ConsumePrefix(&text, "-");
    // ParseCommandLine has these, which are no CommandLineFlag.
    if (absl::StartsWith(text, "help") || text == "version") continue;
    const size_t equals = text.find('=');
    const absl::string_view name = text.substr(0, equals);
    absl::string_view positive = name;
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr && absl::ConsumePrefix(&positive, "no")) {
      flag = absl::FindCommandLineFlag(positive);
      if (flag != nullptr && !flag->IsOfType<bool>()) flag = nullptr;
    }
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no flag \"", arguments[i], "\"; see --help"));
    }
    absl::string_view value;
    if (equals != absl::string_view::npos) {
      value = text.substr(equals + 1);
    } else if (flag->IsOfType<bool>()) {
      continue;
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": the value is missing"));
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", error));
    }
  }
  return absl::OkStatus();
}

int ExitCodeOf(const absl::Status& status, bool is_doctor) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 128;
    default:
      return is_doctor ? 3 : 1;
  }
}

absl::Status ReadSecrets(syncgrads::client::CommandOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      options.token,
      syncgrads::ReadSecret({"token", absl::GetFlag(FLAGS_token), absl::GetFlag(FLAGS_token_file),
                             std::getenv("SYNCGRADS_TOKEN")}));
  SYNCGRADS_ASSIGN_OR_RETURN(
      options.server_token,
      syncgrads::ReadSecret({"server_token", absl::GetFlag(FLAGS_server_token),
                             absl::GetFlag(FLAGS_server_token_file),
                             std::getenv("SYNCGRADS_SERVER_TOKEN")}));
  return absl::OkStatus();
}

// Where `trace start` and `trace stop` meet.
std::string RecorderDirectory() {
  const char* const of_user = std::getenv("XDG_RUNTIME_DIR");
  if (of_user != nullptr && of_user[0] != '\0') return absl::StrCat(of_user, "/syncgrads");
  return absl::StrCat("/tmp/syncgrads-psctl-", geteuid());
}

}  // namespace

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();
  syncgrads::RequireTls13();
  syncgrads::AnswerVersionAndHelp("psctl");
  absl::SetProgramUsageMessage(syncgrads::client::kCommandUsage);
  if (const absl::Status flags = CheckFlags(absl::MakeConstSpan(argv + 1, argc - 1)); !flags.ok()) {
    syncgrads::client::EscapedOutput(std::cerr) << "psctl: " << flags << "\n";
    return ExitCodeOf(flags, /*is_doctor=*/false);
  }
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  const std::vector<std::string> words(rest.begin() + 1, rest.end());
  syncgrads::client::CommandOptions options;
  options.server = absl::GetFlag(FLAGS_server);
  options.job = absl::GetFlag(FLAGS_job);
  options.tls = syncgrads::TlsFromFlags();
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.interval = absl::GetFlag(FLAGS_interval);
  options.count = absl::GetFlag(FLAGS_count);
  options.follow = absl::GetFlag(FLAGS_f);
  options.output = absl::GetFlag(FLAGS_o);
  if (const std::optional<double> seconds = absl::GetFlag(FLAGS_seconds)) {
    options.length = absl::Seconds(*seconds);
  }
  options.recorder_directory = RecorderDirectory();
  options.path = absl::GetFlag(FLAGS_output);
  options.is_terminal = isatty(STDOUT_FILENO) != 0;
  options.limits.max_latency = absl::GetFlag(FLAGS_max_latency);
  options.limits.min_bandwidth = absl::GetFlag(FLAGS_min_bandwidth);
  if (const absl::Status read = ReadSecrets(options); !read.ok()) {
    syncgrads::client::EscapedOutput(std::cerr) << "psctl: " << read << "\n";
    return 2;
  }
  absl::Status status = syncgrads::CheckServerAddress("--server", options.server);
  if (status.ok()) status = syncgrads::CheckTls(options.tls, syncgrads::TlsSide::kConnects);
  if (status.ok()) status = syncgrads::client::RunCommand(words, options, std::cout);
  std::cout.flush();
  if (!status.ok()) {
    syncgrads::client::EscapedOutput(std::cerr) << "psctl: " << status << "\n";
  }
  std::cerr.flush();
  // Without shutting gRPC down: each of its threads would have to wait for a processor.
  std::_Exit(ExitCodeOf(status, !words.empty() && words[0] == "doctor"));
}
