#include "common/rpc/build_info.h"

#include <grpcpp/grpcpp.h>

#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/build_constants.h"

namespace syncgrads {

BuildInfo ThisBuild() {
  BuildInfo info;
  info.version = kBuildVersion;
  info.commit = kBuildCommit;
  info.cuda = "no";
  if (kBuildCudaVersion > 0) {
    info.cuda = absl::StrCat(kBuildCudaVersion / 1000, ".", kBuildCudaVersion % 1000 / 10);
  }
  info.grpc = grpc::Version();
  return info;
}

std::string VersionLine(absl::string_view program) {
  const BuildInfo info = ThisBuild();
  return absl::StrCat(program, " ", info.version, ", commit ", info.commit, ", CUDA ", info.cuda,
                      ", gRPC ", info.grpc);
}

std::vector<std::pair<std::string, std::string>> BuildLabels(absl::string_view program) {
  BuildInfo info = ThisBuild();
  return {{"program", std::string(program)},
          {"version", std::move(info.version)},
          {"commit", std::move(info.commit)},
          {"grpc_version", std::move(info.grpc)}};
}

void AnswerVersionAndHelp(absl::string_view program) {
  absl::FlagsUsageConfig config;
  // By default, Abseil looks for a source file that is named exactly like the program.
  config.contains_help_flags = config.contains_helpshort_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "main.cc") || absl::EndsWith(file, "_flags.cc");
  };
  config.version_string = [program = std::string(program)] {
    return absl::StrCat(VersionLine(program), "\n");
  };
  absl::SetFlagsUsageConfig(config);
}

}  // namespace syncgrads
