#include "client/psctl/commands.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"

namespace syncgrads::client {

const char kCommandUsage[] =
    "looks into a running job, and asks it for things.\n"
    "  psctl --server=HOST:PORT status                 the jobs of a server\n"
    "  psctl --server=HOST:PORT --job=NAME waits       what its steps wait for on this server\n"
    "and at server 0:\n"
    "  psctl --server=HOST:PORT --job=NAME checkpoint  asks for one, and waits until it is there\n"
    "  psctl --server=HOST:PORT --job=NAME evict WORKER [REASON]";

namespace {

// How often the server is asked whether a checkpoint is there.
constexpr absl::Duration kPoll = absl::Milliseconds(50);

void Print(const v1::JobStatus& job, std::ostream& out) {
  const auto& members = job.epoch().members();
  out << "job \"" << job.job() << "\", generation " << job.generation() << ", epoch "
      << job.epoch().number() << " of " << members.size() << " workers: "
      << absl::StrJoin(members, ", ",
                       [](std::string* text, const v1::Member& member) { *text += member.name(); })
      << "\n";
  for (const v1::GroupStatus& group : job.groups()) {
    out << "  group " << group.group() << " \"" << group.name() << "\": " << group.chunks()
        << " chunks here, round " << group.open_round() << " is open, "
        << group.late_contributions() << " contributions came too late\n";
  }
  if (!job.has_checkpoints()) return;
  const v1::CheckpointStatus& checkpoints = job.checkpoints();
  out << "  checkpoints: " << checkpoints.written() << " written";
  if (checkpoints.written() > 0) {
    out << ", the last after step " << checkpoints.last_step() << ": " << checkpoints.last_path();
  }
  out << "; " << checkpoints.failed() << " failed";
  if (checkpoints.failed() > 0) out << ", the last: " << checkpoints.last_error();
  out << "\n";
}

absl::Status PrintStatus(Admin& admin, std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::GetStatusReply reply, admin.GetStatus());
  out << "server " << reply.server_index() << ", protocol " << reply.protocol_version() << ", "
      << reply.jobs_size() << " jobs\n";
  for (const v1::JobStatus& job : reply.jobs()) Print(job, out);
  return absl::OkStatus();
}

absl::Status PrintWaits(Admin& admin, std::ostream& out) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::ExplainReply reply, admin.Explain());
  for (const v1::RoundWait& wait : reply.waits()) out << wait.text() << "\n";
  if (reply.waits().empty()) out << "nothing waits on this server\n";
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointStatus> CheckpointsOf(Admin& admin) {
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::GetStatusReply reply, admin.GetStatus());
  for (const v1::JobStatus& job : reply.jobs()) {
    if (job.job() == admin.options().job) return job.checkpoints();
  }
  return absl::NotFoundError(absl::StrCat("server at ", admin.options().server, ": no job \"",
                                          admin.options().job, "\" is open here"));
}

absl::Status TakeCheckpoint(Admin& admin, std::ostream& out) {
  const absl::Time deadline = absl::Now() + admin.options().timeout;
  SYNCGRADS_ASSIGN_OR_RETURN(const v1::CheckpointStatus before, CheckpointsOf(admin));
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t workers, admin.AskForCheckpoint());
  out << workers << " workers have been asked" << std::endl;
  while (absl::Now() < deadline) {
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
  return absl::DeadlineExceededError(
      absl::StrCat("none of the ", workers, " workers of job \"", admin.options().job,
                   "\" has said what became of the checkpoint within ",
                   absl::FormatDuration(admin.options().timeout)));
}

absl::Status Evict(const std::vector<std::string>& words, Admin& admin, std::ostream& out) {
  const std::string reason = words.size() > 2 ? words[2] : "by hand";
  SYNCGRADS_RETURN_IF_ERROR(admin.Evict(words[1], reason));
  out << "worker \"" << words[1] << "\" is dropped\n";
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCommand(const std::vector<std::string>& words, Admin& admin, std::ostream& out) {
  if (words.empty()) return absl::InvalidArgumentError("a command is missing; see --help");
  const std::string& command = words[0];
  if (!absl::c_linear_search(std::vector<std::string>{"status", "waits", "checkpoint", "evict"},
                             command)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", command, "\" is no command: status, waits, checkpoint, evict"));
  }
  if (command != "status" && admin.options().job.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(command, ": --job is missing"));
  }
  const size_t least = command == "evict" ? 2 : 1;
  const size_t most = command == "evict" ? 3 : 1;
  if (words.size() < least) return absl::InvalidArgumentError("evict: which worker?");
  if (words.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(command, ": \"", words[most], "\" is too much"));
  }
  if (command == "status") return PrintStatus(admin, out);
  if (command == "waits") return PrintWaits(admin, out);
  if (command == "checkpoint") return TakeCheckpoint(admin, out);
  return Evict(words, admin, out);
}

}  // namespace syncgrads::client
