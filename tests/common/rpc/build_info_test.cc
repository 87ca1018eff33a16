#include "common/rpc/build_info.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using ::testing::Pair;

TEST(BuildInfoTest, TheVersionIsTheLineOfTheFileVersion) {
  std::ifstream file("VERSION");
  std::string version;
  ASSERT_TRUE(std::getline(file, version));
  EXPECT_EQ(ThisBuild().version, version);
}

TEST(BuildInfoTest, EveryFieldHasAValue) {
  const BuildInfo info = ThisBuild();
  EXPECT_THAT(info.commit, MatchesRegex("unknown|[0-9a-f]+(-changed)?"));
  EXPECT_THAT(info.cuda, MatchesRegex("no|[0-9]+[.][0-9]+"));
  EXPECT_THAT(info.grpc, MatchesRegex("[0-9]+[.][0-9.]+"));
}

TEST(BuildInfoTest, OneLineHasAllFields) {
  const BuildInfo info = ThisBuild();
  EXPECT_EQ(VersionLine("psctl"), absl::StrCat("psctl ", info.version, ", commit ", info.commit,
                                               ", CUDA ", info.cuda, ", gRPC ", info.grpc));
}

TEST(BuildInfoTest, TheLabelsNameTheProgramAndItsVersions) {
  const BuildInfo info = ThisBuild();
  EXPECT_THAT(BuildLabels("psctl"),
              ElementsAre(Pair("program", "psctl"), Pair("version", info.version),
                          Pair("commit", info.commit), Pair("grpc_version", info.grpc)));
}

}  // namespace
}  // namespace syncgrads
