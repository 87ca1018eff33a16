#include "worker/nn/cuda/cublas_search.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// An empty directory in place of "/".
std::filesystem::path EmptyRoot() {
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) /
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  return root;
}

std::string Touch(const std::filesystem::path& path) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  return path.string();
}

TEST(CublasSearchTest, FindsToolkitsAndPackagesOfPipInOrder) {
  const std::filesystem::path root = EmptyRoot();
  const std::string packaged =
      Touch(root / "usr/local/lib/python3.12/dist-packages/nvidia/cublas/lib/libcublas.so.13");
  const std::string toolkit = Touch(root / "usr/local/cuda-13.0/lib64/libcublas.so.13");
  const std::string installed =
      Touch(root / "opt/bundle/lib/cublas/nvidia/cu13/lib/libcublas.so.13");
  EXPECT_THAT(FindCublas(13, root / "opt/bundle/bin", root),
              ElementsAre(installed, toolkit, packaged));
}

TEST(CublasSearchTest, IgnoresOtherVersions) {
  const std::filesystem::path root = EmptyRoot();
  Touch(root / "usr/local/cuda-12.4/lib64/libcublas.so.12");
  Touch(root / "usr/local/cuda-13.0/lib64/libcublasLt.so.13");
  EXPECT_THAT(FindCublas(13, root / "bin", root), IsEmpty());
}

TEST(CublasSearchTest, NamesACommandThatInstallsWhereItLooks) {
  EXPECT_EQ(CublasCommand(13, "/opt/bundle/bin"),
            "pip install --target=/opt/bundle/lib/cublas \"nvidia-cublas==13.*\"");
  EXPECT_EQ(CublasCommand(12, "/opt/bundle/bin"),
            "pip install --target=/opt/bundle/lib/cublas nvidia-cublas-cu12");
}

}  // namespace
}  // namespace syncgrads::cuda
