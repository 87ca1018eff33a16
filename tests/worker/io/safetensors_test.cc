#include "worker/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/base/string_list.h"

namespace syncgrads {
namespace {

const TensorSpec kMatrix = {"dense1/kernel", DType::kF32, {2, 3}};
const TensorSpec kScalar = {"step", DType::kI64, {}};

absl::string_view BytesOf(const void* data, size_t size) {
  return {static_cast<const char*>(data), size};
}

// Makes a file with this header and `data` bytes of data.
std::string FileOf(const std::string& header, size_t data) {
  return EncodeNumber(header.size()) + header + std::string(data, 'x');
}

void ExpectDamaged(const std::string& contents, std::initializer_list<std::string> texts) {
  SCOPED_TRACE(contents);
  ExpectError(Safetensors::Parse(contents, "m.safetensors"), absl::StatusCode::kDataLoss, texts);
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat("{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}");
}

TEST(SafetensorsTest, WhatIsWrittenIsRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/m.safetensors";
  const float matrix[] = {1, 2, 3, 4, 5, 6};
  const int64_t scalar = -7;
  SYNCGRADS_ASSERT_OK(WriteSafetensors(
      path, {{kMatrix, BytesOf(matrix, sizeof(matrix))}, {kScalar, BytesOf(&scalar, 8)}},
      {{"classes", "a\nb"}}));
  const auto file = Safetensors::Read(path);
  SYNCGRADS_ASSERT_OK(file);
  ASSERT_EQ(file->specs().size(), 2u);
  EXPECT_EQ(file->specs()[0], kMatrix);
  EXPECT_EQ(file->specs()[1], kScalar);
  EXPECT_EQ(file->metadata().at("classes"), "a\nb");
  const auto bytes = file->Find(kMatrix);
  SYNCGRADS_ASSERT_OK(bytes);
  EXPECT_EQ(*bytes, BytesOf(matrix, sizeof(matrix)));
  const auto number = file->Find(kScalar);
  SYNCGRADS_ASSERT_OK(number);
  EXPECT_EQ(std::memcmp(number->data(), &scalar, 8), 0);
}

TEST(SafetensorsTest, APipeIsRefusedWithoutAWait) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ExpectError(Safetensors::Read(path).status(), absl::StatusCode::kInvalidArgument,
              {path, "is not a regular file"});
}

// The file must have the bytes that the format's specification requires.
TEST(SafetensorsTest, WritesTheFormatThatOthersRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/m.safetensors";
  SYNCGRADS_ASSERT_OK(WriteSafetensors(path, {{{"b", DType::kF32, {1}}, "wxyz"}}, {}));
  const auto contents = ReadFile(path, 1000);
  SYNCGRADS_ASSERT_OK(contents);
  const std::string header = "{\"b\":{\"data_offsets\":[0,4],\"dtype\":\"F32\",\"shape\":[1]}}";
  const size_t padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(*contents,
            EncodeNumber(padded) + header + std::string(padded - header.size(), ' ') + "wxyz");
}

TEST(SafetensorsTest, AnotherDtypeOrShapeIsNamedWithBoth) {
  const auto file = Safetensors::Parse(FileOf("{\"step\":" + Entry("F32", "[2]", "[0,8]") + "}", 8),
                                       "m.safetensors");
  SYNCGRADS_ASSERT_OK(file);
  ExpectError(file->Find(kScalar), absl::StatusCode::kInvalidArgument,
              {"m.safetensors", "\"step\"", "f32[2]", "i64[]"});
  ExpectError(file->Find(kMatrix), absl::StatusCode::kNotFound, {"dense1/kernel"});
}

TEST(SafetensorsTest, EveryTruncationOfAFileIsDamaged) {
  const std::string whole = FileOf("{\"a\":" + Entry("F32", "[2]", "[0,8]") + "}", 8);
  SYNCGRADS_ASSERT_OK(Safetensors::Parse(whole, "m"));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(Safetensors::Parse(whole.substr(0, length), "m").status().code(),
              absl::StatusCode::kDataLoss)
        << length;
  }
  ExpectDamaged(whole + "y", {"should have 8 bytes, but 9 follow"});
}

TEST(SafetensorsTest, EveryChangedByteOfAHeaderIsDamagedOrAnotherHeader) {
  const std::string whole = FileOf("{\"a\":" + Entry("F32", "[2]", "[0,8]") + "}", 8);
  for (size_t at = 0; at + 8 < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      const auto file = Safetensors::Parse(changed, "m");
      if (file.ok()) {
        for (const TensorSpec& spec : file->specs()) SYNCGRADS_EXPECT_OK(file->Find(spec));
      }
    }
  }
}

TEST(SafetensorsTest, BadHeadersAreNamed) {
  ExpectDamaged(EncodeNumber(~uint64_t{0}) + "{}", {"18446744073709551615"});
  ExpectDamaged(FileOf("[]", 0), {"not a JSON object"});
  ExpectDamaged(FileOf("{", 0), {"not a JSON object"});
  ExpectDamaged(FileOf(std::string(100000, '['), 0), {"not a JSON object"});
  ExpectDamaged(FileOf("{\"a\":3}", 0), {"\"a\" does not have dtype"});
  const std::string nested = std::string(1 << 17, '[') + std::string(1 << 17, ']');
  ExpectDamaged(FileOf("{\"a\":{\"data_offsets\":[0,0],\"shape\":[],\"dtype\":" + nested + "}}", 0),
                {"\"a\" has unknown dtype array"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F99", "[1]", "[0,4]") + "}", 4), {"\"a\"", "F99"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F32", "[3]", "[0,8]") + "}", 8),
                {"\"a\" has 8 bytes, but its shape [3] of F32 needs 12"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F32", "[-2]", "[0,8]") + "}", 8), {"whole numbers"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F32", "[4611686018427387904,4]", "[0,0]") + "}", 0),
                {"too many"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F32", "[2]", "[8,0]") + "}", 8), {"not a valid range"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F32", "[2]", "[8,16]") + "}", 16), {"begins at 8"});
  ExpectDamaged(FileOf("{\"a\":" + Entry("F32", "[2]", "[0,8]") +
                           ",\"b\":" + Entry("F32", "[2]", "[4,12]") + "}",
                       12),
                {"\"b\" begins at 4", "ends at 8"});
  ExpectDamaged(FileOf("{\"__metadata__\":{\"k\":1}}", 0), {"\"k\" is not a string"});
}

}  // namespace
}  // namespace syncgrads
