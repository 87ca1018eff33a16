// ps-launch: starts the servers and workers of a job file on this machine.

#include <errno.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/log_level.h"
#include "common/process_setup.h"
#include "common/rpc/build_info.h"
#include "common/status_macros.h"
#include "worker/job/job_file.h"
#include "worker/launch/certificates.h"
#include "worker/launch/console.h"
#include "worker/launch/launch.h"
#include "worker/launch/state_folder.h"

ABSL_FLAG(std::string, job, "", "the job file; required");
ABSL_FLAG(int, servers, 0,
          "number of ps-servers to start; 0: the number in the job file, or else 1");
ABSL_FLAG(int, workers, 0,
          "number of ps-workers to start; 0: the number in the job file, or else 1");
ABSL_FLAG(std::string, server_program, "",
          "path of ps-server; empty: the one in the directory of ps-launch");
ABSL_FLAG(std::string, worker_program, "",
          "path of ps-worker; empty: the one in the directory of ps-launch");
ABSL_FLAG(
    std::vector<std::string>, server_args, {},
    "comma-separated flags for every ps-server, for example --lease=10s,--heartbeat_interval=1s");
ABSL_FLAG(
    bool, tls, false,
    "encrypt all connections and require certificates, which are made for this group and removed "
    "at its end");
ABSL_FLAG(syncgrads::LogLevel, log_level, syncgrads::LogLevel::kInfo,
          "how much all servers and workers print: debug, info or warning; passed to all of them");
ABSL_FLAG(bool, resume, false,
          "resume from the job's newest checkpoint, or start from the beginning if there is none");
ABSL_FLAG(
    std::string, on_worker_death, "continue",
    "if a worker is killed or exits with code 128 to 255: \"continue\" lets the other workers "
    "finish, \"restart\" restarts it (elastic jobs only), \"end\" stops all servers and workers");
ABSL_FLAG(std::string, on_server_death, "restart",
          "if a server is killed or exits with code 128 to 255: \"restart\" restarts it, and the "
          "job continues from its saved state; \"end\" stops all servers and workers");
ABSL_FLAG(absl::Duration, grace, absl::Seconds(15),
          "how long a server or worker may take to exit after a stop signal before it is killed");
ABSL_FLAG(absl::Duration, start_timeout, absl::Seconds(60),
          "how long to wait until all servers are listening");

namespace syncgrads {
namespace {

// Finds a program beside ps-launch, where an installation has it, or in ../../`folder`,
// where the build has it.
absl::StatusOr<std::string> FindProgram(const std::string& flag, const std::string& name,
                                        const std::string& folder) {
  if (!flag.empty()) return flag;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = here / name;
  const std::filesystem::path built = (here / "../.." / folder / name).lexically_normal();
  for (const std::filesystem::path& path : {beside, built}) {
    if (access(path.c_str(), X_OK) == 0) return path.string();
  }
  return absl::NotFoundError(
      absl::StrCat(name, " not found: it is neither ", beside.string(), " nor ", built.string()));
}

absl::StatusOr<int> Count(int flag, uint32_t in_job_file, const char* what) {
  if (flag < 0) return absl::InvalidArgumentError(absl::StrCat("--", what, " is ", flag));
  if (flag > 0) return flag;
  return in_job_file > 0 ? static_cast<int>(in_job_file) : 1;
}

absl::StatusOr<OnWorkerDeath> ParseOnWorkerDeath(const std::string& flag) {
  if (flag == "continue") return OnWorkerDeath::kContinue;
  if (flag == "end") return OnWorkerDeath::kEndGroup;
  if (flag == "restart") return OnWorkerDeath::kRestart;
  return absl::InvalidArgumentError(absl::StrCat(
      "--on_worker_death is \"", flag, "\", must be \"continue\", \"restart\" or \"end\""));
}

absl::StatusOr<bool> ParseOnServerDeath(const std::string& flag) {
  if (flag == "restart") return true;
  if (flag == "end") return false;
  return absl::InvalidArgumentError(
      absl::StrCat("--on_server_death is \"", flag, "\", must be \"restart\" or \"end\""));
}

absl::StatusOr<LaunchPlan> PlanFromFlags() {
  LaunchPlan plan;
  plan.job_path = absl::GetFlag(FLAGS_job);
  if (plan.job_path.empty()) return absl::InvalidArgumentError("--job=FILE is missing");
  SYNCGRADS_ASSIGN_OR_RETURN(const Job job, LoadJobFile(plan.job_path));
  SYNCGRADS_ASSIGN_OR_RETURN(plan.servers,
                             Count(absl::GetFlag(FLAGS_servers), job.file.servers(), "servers"));
  SYNCGRADS_ASSIGN_OR_RETURN(plan.workers,
                             Count(absl::GetFlag(FLAGS_workers), job.file.workers(), "workers"));
  SYNCGRADS_ASSIGN_OR_RETURN(
      plan.server_program, FindProgram(absl::GetFlag(FLAGS_server_program), "ps-server", "server"));
  SYNCGRADS_ASSIGN_OR_RETURN(
      plan.worker_program, FindProgram(absl::GetFlag(FLAGS_worker_program), "ps-worker", "worker"));
  SYNCGRADS_ASSIGN_OR_RETURN(plan.on_worker_death,
                             ParseOnWorkerDeath(absl::GetFlag(FLAGS_on_worker_death)));
  if (plan.on_worker_death == OnWorkerDeath::kRestart && !job.file.has_elastic()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--on_worker_death is \"restart\", but job \"", job.file.name(),
                     "\" is not elastic: add elastic { } to the job file"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(plan.restart_servers,
                             ParseOnServerDeath(absl::GetFlag(FLAGS_on_server_death)));
  plan.log_level = absl::GetFlag(FLAGS_log_level);
  if (absl::GetFlag(FLAGS_resume)) plan.worker_args.push_back("--resume");
  plan.server_args = absl::GetFlag(FLAGS_server_args);
  plan.grace = absl::GetFlag(FLAGS_grace);
  plan.start_timeout = absl::GetFlag(FLAGS_start_timeout);
  return plan;
}

Console::Sink SinkTo(int fd) {
  Console::Sink sink;
  sink.write = [fd](absl::string_view text) {
    while (!text.empty()) {
      const ssize_t written = write(fd, text.data(), text.size());
      // The reader is gone: there is no place to report the error.
      if (written < 0 && errno != EINTR) return;
      text.remove_prefix(std::max<ssize_t>(written, 0));
    }
  };
  winsize size;
  if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0) sink.columns = size.ws_col;
  return sink;
}

int Main(std::vector<char*> args, std::vector<std::string> worker_args) {
  AnswerVersionAndHelp("ps-launch");
  absl::SetProgramUsageMessage(
      "starts the servers and workers of a job on this machine.\n\n"
      "  ps-launch --job=FILE [--servers=N] [--workers=N] [-- FLAGS OF EVERY WORKER]\n\n"
      "Exit codes:\n"
      "  0    all workers have ended with 0, or some of them, with --on_worker_death=continue or\n"
      "       restart\n"
      "  1    a flag or the job file is wrong, or a server has ended before it listened\n"
      "  N    that of the program that failed for good (see their --help); 128 + N if signal N "
      "has\n"
      "       ended that program, or this one");
  const std::vector<char*> rest = absl::ParseCommandLine(args.size(), args.data());
  absl::StatusOr<LaunchPlan> plan = PlanFromFlags();
  if (rest.size() > 1) {
    plan = absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", rest[1], "\"; flags for the workers come after --"));
  }
  if (!plan.ok()) {
    fprintf(stderr, "ps-launch: %s\n", std::string(plan.status().message()).c_str());
    return 1;
  }
  plan->worker_args.insert(plan->worker_args.end(), worker_args.begin(), worker_args.end());
  std::optional<StateFolder> folder;
  // If --server_args has --state, the user has decided where state is kept, if at all.
  if (std::none_of(plan->server_args.begin(), plan->server_args.end(),
                   [](const std::string& arg) { return absl::StartsWith(arg, "--state="); })) {
    absl::StatusOr<StateFolder> made = StateFolder::Make();
    if (!made.ok()) {
      fprintf(stderr, "ps-launch: %s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    folder.emplace(*std::move(made));
    plan->state = folder->path();
  }
  std::optional<StateFolder> certificates;
  if (absl::GetFlag(FLAGS_tls)) {
    absl::StatusOr<StateFolder> made = StateFolder::Make();
    absl::StatusOr<TlsFlags> flags =
        made.ok() ? MakeCertificates(made->path()) : absl::StatusOr<TlsFlags>(made.status());
    if (!flags.ok()) {
      fprintf(stderr, "ps-launch: %s\n", std::string(flags.status().message()).c_str());
      return 1;
    }
    certificates.emplace(*std::move(made));
    plan->server_args.insert(plan->server_args.begin(), flags->server.begin(), flags->server.end());
    plan->worker_args.insert(plan->worker_args.begin(), flags->worker.begin(), flags->worker.end());
    fprintf(stderr, "[launch] connections are encrypted; for psctl: %s\n",
            absl::StrJoin(flags->operate, " ").c_str());
  }
  Console console(SinkTo(STDOUT_FILENO), SinkTo(STDERR_FILENO));
  return Launch(*std::move(plan), console).Run();
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();
  std::vector<char*> args(argv, argv + argc);
  std::vector<std::string> worker_args;
  for (size_t i = 1; i < args.size(); ++i) {
    if (absl::string_view(args[i]) != "--") continue;
    worker_args.assign(args.begin() + i + 1, args.end());
    args.resize(i);
  }
  return syncgrads::Main(std::move(args), std::move(worker_args));
}
