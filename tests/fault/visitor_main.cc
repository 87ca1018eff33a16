// A client with a job of its own. It joins, registers a group, makes one step, and leaves. With
// --times it repeats this, each time with another job.
//
// Exit codes: 0 if everything succeeded; 10 if a server refused a request with RESOURCE_EXHAUSTED;
// 11 after any other error, which is printed and ends the program.

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/process_setup.h"
#include "common/status_macros.h"

ABSL_FLAG(std::string, server, "", "host:port of the coordinator");
ABSL_FLAG(std::string, job, "visit", "the job's name");
ABSL_FLAG(uint64_t, bytes, 1 << 16, "of the group");
ABSL_FLAG(uint64_t, most_pushed, 1 << 20, "a larger group makes no step");
ABSL_FLAG(int, times, 1, "how often, with a number behind the job's name");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(1), "of each call");

namespace syncgrads::fault {
namespace {

absl::Status Visit(int time) {
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  const uint64_t bytes = absl::GetFlag(FLAGS_bytes);
  const bool pushes = bytes <= absl::GetFlag(FLAGS_most_pushed);
  // Declared before the client, which may still read it when a call has failed.
  const std::vector<float> values(pushes ? bytes / 4 / sizeof(float) : 0, 1.0f);
  Client client({.coordinator = absl::GetFlag(FLAGS_server),
                 .job = absl::StrCat(absl::GetFlag(FLAGS_job), ".", time),
                 .rank = 0,
                 .world_size = 1});
  SYNCGRADS_RETURN_IF_ERROR(client.Join(timeout));
  GroupSpec spec{.name = "visit", .tensors = {}};
  // With this chunk size, the group has chunks on every server.
  if (pushes) spec.chunk_bytes = static_cast<uint32_t>(bytes / 4);
  for (const char* name : {"a", "b", "c", "d"}) {
    spec.tensors.push_back({name, DType::kF32, {static_cast<int64_t>(bytes / 4 / sizeof(float))}});
  }
  SYNCGRADS_ASSIGN_OR_RETURN(Group* const group, client.Register(spec, timeout));
  if (pushes) {
    for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
      SYNCGRADS_RETURN_IF_ERROR(
          group->Push(TensorId{t}, values.data(), values.size() * sizeof(float), nullptr));
    }
    SYNCGRADS_RETURN_IF_ERROR(group->WaitStep(timeout).status());
  }
  return client.Leave(timeout);
}

int Main() {
  bool refused = false;
  for (int time = 0; time < absl::GetFlag(FLAGS_times); ++time) {
    const absl::Status status = Visit(time);
    if (status.ok()) continue;
    std::cerr << "visit " << time << ": " << status << std::endl;
    if (!absl::IsResourceExhausted(status)) return 11;
    refused = true;
  }
  return refused ? 10 : 0;
}

}  // namespace
}  // namespace syncgrads::fault

int main(int argc, char** argv) {
  syncgrads::SetUpProcess();
  absl::ParseCommandLine(argc, argv);
  return syncgrads::fault::Main();
}
