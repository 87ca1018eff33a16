// psctl: looks into a running job, and asks it for things.
//
// Exit codes: 0; 1, refused; 2, a wrong command or flag; 128, the server was not there,
// or did not answer in time.

#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"
#include "client/psctl/commands.h"

ABSL_FLAG(std::string, server, "127.0.0.1:7000", "HOST:PORT of a server");
ABSL_FLAG(std::string, job, "", "name of the job");
ABSL_FLAG(std::string, token, "", "the job's secret, if it has one");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(30), "of each call, and of a checkpoint");

namespace {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 128;
    default:
      return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(syncgrads::client::kCommandUsage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  syncgrads::client::Admin admin({.server = absl::GetFlag(FLAGS_server),
                                  .job = absl::GetFlag(FLAGS_job),
                                  .token = absl::GetFlag(FLAGS_token),
                                  .timeout = absl::GetFlag(FLAGS_timeout)});
  const absl::Status status =
      syncgrads::client::RunCommand({rest.begin() + 1, rest.end()}, admin, std::cout);
  if (!status.ok()) std::cerr << "psctl: " << status << "\n";
  return ExitCodeOf(status);
}
