// psctl: shows the state of running jobs and servers, and sends them requests.
//
// Exit codes:
//   0    success; doctor has found no problem
//   1    the request was refused
//   2    a wrong command or flag
//   3    doctor has found a problem
//   128  a server could not be reached or did not answer in time, the connection of events -f
//   broke,
//        or a worker is missing from a trace; what the others have answered is printed or in the
//        file

#include <unistd.h>

#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/time/time.h"
#include "client/psctl/commands.h"
#include "common/net/address.h"
#include "common/rpc/build_info.h"

ABSL_FLAG(std::string, server, "127.0.0.1:7000",
          "HOST:PORT of any server; status, top, doctor, events and trace query the other servers "
          "too");
ABSL_FLAG(std::string, job, "", "name of the job; events: only this job's");
ABSL_FLAG(std::string, token, "", "secret token of the job, if it has one");
ABSL_FLAG(std::string, server_token, "",
          "secret token of the servers, if they have one; for drain");
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
ABSL_FLAG(std::string, o, "text", "output of status and events: text or json");
ABSL_FLAG(double, seconds, 5, "trace: how long to record, at most 60");
ABSL_FLAG(std::string, output, "trace.json", "trace: the file to write");
ABSL_FLAG(absl::Duration, max_latency, syncgrads::client::DoctorLimits().max_latency,
          "doctor: report servers that take longer than this to answer");
ABSL_FLAG(double, min_bandwidth, syncgrads::client::DoctorLimits().min_bandwidth,
          "doctor: report links that carry fewer bytes per second than this");

namespace {

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

}  // namespace

int main(int argc, char** argv) {
  syncgrads::AnswerVersionAndHelp("psctl");
  absl::SetProgramUsageMessage(syncgrads::client::kCommandUsage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  const std::vector<std::string> words(rest.begin() + 1, rest.end());
  syncgrads::client::CommandOptions options;
  options.server = absl::GetFlag(FLAGS_server);
  options.job = absl::GetFlag(FLAGS_job);
  options.token = absl::GetFlag(FLAGS_token);
  options.server_token = absl::GetFlag(FLAGS_server_token);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.interval = absl::GetFlag(FLAGS_interval);
  options.count = absl::GetFlag(FLAGS_count);
  options.follow = absl::GetFlag(FLAGS_f);
  options.output = absl::GetFlag(FLAGS_o);
  options.length = absl::Seconds(absl::GetFlag(FLAGS_seconds));
  options.path = absl::GetFlag(FLAGS_output);
  options.is_terminal = isatty(STDOUT_FILENO) != 0;
  options.limits.max_latency = absl::GetFlag(FLAGS_max_latency);
  options.limits.min_bandwidth = absl::GetFlag(FLAGS_min_bandwidth);
  absl::Status status = syncgrads::CheckServerAddress("--server", options.server);
  if (status.ok()) status = syncgrads::client::RunCommand(words, options, std::cout);
  std::cout.flush();
  if (!status.ok()) std::cerr << "psctl: " << status << "\n";
  return ExitCodeOf(status, !words.empty() && words[0] == "doctor");
}
