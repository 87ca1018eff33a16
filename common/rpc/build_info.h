// What a program was built from, and the answers of every program to --version and --help.

#ifndef SYNCGRADS_COMMON_RPC_BUILD_INFO_H_
#define SYNCGRADS_COMMON_RPC_BUILD_INFO_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncgrads {

struct BuildInfo {
  std::string version;  // the content of the file VERSION, such as "0.1.0"
  std::string commit;   // the first digits of the commit's hash, or "unknown"
  std::string cuda;     // the version of the CUDA toolkit, such as "13.0", or "no"
  std::string grpc;     // the version of the gRPC library that this process has loaded
};

// The commit is known in programs of ./dev install and ./dev dist only. Other builds leave it out,
// so that a new commit does not run their tests again.
BuildInfo ThisBuild();

// Returns one line: "ps-server 0.1.0, commit 1fb4471a2b3c, CUDA no, gRPC 1.51.1".
std::string VersionLine(absl::string_view program);

// Returns the names and the values of the labels of the metric syncgrads_build_info: the program,
// its version and commit, and the version of gRPC.
std::vector<std::pair<std::string, std::string>> BuildLabels(absl::string_view program);

// From now on, --version prints VersionLine(program), and --help prints the flags of the program's
// main file. Must be called before absl::ParseCommandLine.
void AnswerVersionAndHelp(absl::string_view program);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_BUILD_INFO_H_
