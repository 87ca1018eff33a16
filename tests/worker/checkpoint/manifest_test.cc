#include "worker/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/checkpoint/example_manifest.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

TEST(ManifestTest, WhatIsWrittenIsRead) {
  const auto read = ParseManifest(ToJson(ExampleManifest()), "m");
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_EQ(*read, ExampleManifest());
  const auto empty = ParseManifest(ToJson(Manifest()), "m");
  SYNCGRADS_ASSERT_OK(empty);
  EXPECT_EQ(*empty, Manifest());
}

TEST(ManifestTest, AScoreThatIsNotFiniteIsLeftOut) {
  Manifest manifest = ExampleManifest();
  manifest.score = std::numeric_limits<double>::quiet_NaN();
  const auto read = ParseManifest(ToJson(manifest), "m");
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_FALSE(read->score.has_value());
}

TEST(ManifestTest, AnEvaluationThatIsNotFiniteIsLeftOut) {
  Manifest manifest = ExampleManifest();
  manifest.evaluation["loss"] = std::numeric_limits<double>::quiet_NaN();
  const auto read = ParseManifest(ToJson(manifest), "m");
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_EQ(read->evaluation, (std::map<std::string, double>{{"accuracy", 1.0}}));
}

// A flipped bit may also leave the meaning of the text unchanged, for example in white space. Then
// the manifest that is read must equal the one that was written.
TEST(ManifestTest, NoTurnedBitIsTakenForWhatWasWritten) {
  const std::string json = ToJson(ExampleManifest());
  int found = 0;
  for (size_t bit = 0; bit < json.size() * 8; ++bit) {
    std::string turned = json;
    turned[bit / 8] = static_cast<char>(turned[bit / 8] ^ (1 << bit % 8));
    const auto read = ParseManifest(turned, "m");
    if (read.ok()) {
      EXPECT_EQ(*read, ExampleManifest()) << "bit " << bit;
    } else {
      ExpectError(read, absl::StatusCode::kDataLoss, {"m: "});
      ++found;
    }
  }
  EXPECT_GT(found, static_cast<int>(json.size()) * 4);
}

TEST(ManifestTest, NoBeginningIsTakenForTheWhole) {
  const std::string json = ToJson(ExampleManifest());
  for (size_t length = 0; length + 1 < json.size(); ++length) {
    ExpectError(ParseManifest(json.substr(0, length), "m"), absl::StatusCode::kDataLoss, {"m: "});
  }
}

TEST(ManifestTest, ErrorsSayWhatIsWrong) {
  const auto expect = [](const std::string& json, std::initializer_list<std::string> texts) {
    ExpectError(ParseManifest(json, "DIR/manifest.json"), absl::StatusCode::kDataLoss, texts);
  };
  expect("[]", {"DIR/manifest.json", "is not a manifest (2 bytes)"});
  expect(R"({"checkpoint": {}})", {"has no \"xxh3\""});
  expect(R"({"checkpoint": {}, "xxh3": "0000000000000001"})",
         {"has checksum ", "but records 0000000000000001"});
}

TEST(ManifestTest, StepsOfNoWorkersOrWithoutRowsAreRefused) {
  for (const DataSegment& segment : {DataSegment{0, 8, 20}, DataSegment{2, 0, 20}}) {
    Manifest manifest = ExampleManifest();
    manifest.data[1] = segment;
    ExpectError(ParseManifest(ToJson(manifest), "DIR/manifest.json"), absl::StatusCode::kDataLoss,
                {"DIR/manifest.json: has steps of ", "at least 1"});
  }
}

TEST(ManifestTest, AFileOutsideOfTheDirectoryIsRefused) {
  for (const std::string name : {"../secret", "/etc/passwd", "a/b", "..", ".", ""}) {
    Manifest manifest = ExampleManifest();
    manifest.files[1].name = name;
    ExpectError(ParseManifest(ToJson(manifest), "DIR/manifest.json"), absl::StatusCode::kDataLoss,
                {"DIR/manifest.json", "\"" + name + "\"", "not in the checkpoint's directory"});
  }
}

TEST(ManifestTest, ADeeplyNestedTextIsRefused) {
  const std::string nested = std::string(1 << 17, '[') + std::string(1 << 17, ']');
  ExpectError(ParseManifest("{\"xxh3\": \"0\", \"checkpoint\": {\"job\": " + nested + "}}", "m"),
              absl::StatusCode::kDataLoss, {"m: ", "nested more than 16 deep"});
}

TEST(ManifestTest, ANumberOfMoreBitsThanItsFieldIsRefused) {
  const std::string body = R"({"data":[],"dtype":"","evaluation":{},"files":[],"format":1,)"
                           R"("job":"","optimizer":"","place":"","seed":0,"shards":0,"step":0,)"
                           R"("workers":4294967297,"written_at":""})";
  const std::string checksum = absl::StrCat(absl::Hex(ChecksumOf({body}), absl::kZeroPad16));
  ExpectError(ParseManifest(R"({"checkpoint":)" + body + R"(,"xxh3":")" + checksum + "\"}", "m"),
              absl::StatusCode::kDataLoss, {"\"workers\"", "32 bits", "4294967297"});
}

}  // namespace
}  // namespace syncgrads
