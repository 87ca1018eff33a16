#include "worker/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

Manifest Example() {
  Manifest manifest;
  manifest.job = "iris \"two\"\n";
  manifest.step = 120;
  manifest.dtype = "F32";
  manifest.place = "SERVERS";
  manifest.optimizer = "adam { }";
  manifest.seed = std::numeric_limits<uint64_t>::max();
  manifest.workers = 3;
  manifest.shards = 6;
  manifest.data = {{3, 8, 100}, {2, 8, 20}};
  manifest.evaluation = {{"loss", 0.1}, {"accuracy", 1.0}};
  manifest.score = -0.1;
  manifest.written_at = "2026-01-02T03:04:05Z";
  manifest.files = {{"model.safetensors", 1234, 0x0123456789abcdef}, {"empty", 0, 1}};
  return manifest;
}

TEST(ManifestTest, WhatIsWrittenIsRead) {
  const auto read = ParseManifest(ToJson(Example()), "m");
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_EQ(*read, Example());
  const auto empty = ParseManifest(ToJson(Manifest()), "m");
  SYNCGRADS_ASSERT_OK(empty);
  EXPECT_EQ(*empty, Manifest());
}

TEST(ManifestTest, AnEvaluationThatIsNotFiniteIsLeftOut) {
  Manifest manifest = Example();
  manifest.evaluation["loss"] = std::numeric_limits<double>::quiet_NaN();
  const auto read = ParseManifest(ToJson(manifest), "m");
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_EQ(read->evaluation, (std::map<std::string, double>{{"accuracy", 1.0}}));
}

// A bit may also be turned in white space, or in a way that leaves the text as it
// means: then what is read is what was written.
TEST(ManifestTest, NoTurnedBitIsTakenForWhatWasWritten) {
  const std::string json = ToJson(Example());
  int found = 0;
  for (size_t bit = 0; bit < json.size() * 8; ++bit) {
    std::string turned = json;
    turned[bit / 8] = static_cast<char>(turned[bit / 8] ^ (1 << bit % 8));
    const auto read = ParseManifest(turned, "m");
    if (read.ok()) {
      EXPECT_EQ(*read, Example()) << "bit " << bit;
    } else {
      ExpectError(read, absl::StatusCode::kDataLoss, {"m: "});
      ++found;
    }
  }
  EXPECT_GT(found, static_cast<int>(json.size()) * 4);
}

TEST(ManifestTest, NoBeginningIsTakenForTheWhole) {
  const std::string json = ToJson(Example());
  for (size_t length = 0; length + 1 < json.size(); ++length) {
    ExpectError(ParseManifest(json.substr(0, length), "m"), absl::StatusCode::kDataLoss, {"m: "});
  }
}

TEST(ManifestTest, ErrorsSayWhatIsWrong) {
  const auto expect = [](const std::string& json, std::initializer_list<std::string> texts) {
    ExpectError(ParseManifest(json, "DIR/manifest.json"), absl::StatusCode::kDataLoss, texts);
  };
  expect("[]", {"DIR/manifest.json", "is no manifest (2 bytes)"});
  expect(R"({"checkpoint": {}})", {"has no \"xxh3\""});
  expect(R"({"checkpoint": {}, "xxh3": "0000000000000001"})",
         {"has checksum ", "it says 0000000000000001"});
}

}  // namespace
}  // namespace syncgrads
