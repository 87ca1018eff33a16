#include "common/kernels/running_checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "common/kernels/reduce.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

std::vector<std::byte> RandomBytes(size_t count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count);
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), count - at));
  }
  return bytes;
}

TEST(RunningChecksumTest, IsTheLibrarysWhateverThePieces) {
  OnEveryTarget([] {
    std::mt19937_64 random(1);
    for (size_t bytes = RunningChecksum::kLeastBytes; bytes < 5000; bytes += 1 + bytes / 29) {
      const std::vector<std::byte> data = RandomBytes(bytes, random);
      RunningChecksum checksum(bytes);
      for (size_t at = 0; at < bytes;) {
        const size_t part = std::min<size_t>(bytes - at, random() % 300);
        checksum.Add(data.data() + at, part);
        at += part;
      }
      ASSERT_EQ(checksum.Finish(data.data() + bytes), XXH3_64bits(data.data(), bytes)) << bytes;
    }
  });
}

TEST(RunningChecksumTest, BlocksEndWhereTheLibrarysDo) {
  OnEveryTarget([] {
    std::mt19937_64 random(2);
    for (const size_t bytes : {1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 65536, 65537}) {
      const std::vector<std::byte> data = RandomBytes(bytes, random);
      RunningChecksum checksum(bytes);
      checksum.Add(data.data(), bytes);
      ASSERT_EQ(checksum.Finish(data.data() + bytes), XXH3_64bits(data.data(), bytes)) << bytes;
    }
  });
}

// Expects that a reduction with a checksum writes the same bits as one without, and that the
// checksum is that of the result.
void ExpectSummed(DType dtype, Reduction op, size_t sources, size_t count,
                  std::mt19937_64& random) {
  const size_t bytes = count * SizeOf(dtype);
  std::vector<std::vector<std::byte>> data;
  for (size_t i = 0; i < sources; ++i) data.push_back(RandomBytes(bytes, random));
  const bool weighted = random() % 2 == 0;
  std::vector<std::byte> plain(bytes);
  // Aligned, so that long results are written with non-temporal stores.
  std::vector<std::byte> memory(bytes + 64);
  std::byte* const out =
      memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  RunningChecksum checksum(bytes);
  for (size_t at = 0; at < count;) {
    // Reduces in one part or in several parts of any length.
    const size_t part = count % 2 == 0 ? count : std::min<size_t>(count - at, random() % 9000);
    std::vector<WeightedSource> parts;
    for (size_t i = 0; i < sources; ++i) {
      parts.push_back({data[i].data() + at * SizeOf(dtype), weighted ? 1.0 + i : 1.0});
    }
    Reduce(dtype, op, parts, part, plain.data() + at * SizeOf(dtype));
    ReduceFinite(dtype, op, parts, part, out + at * SizeOf(dtype), &checksum);
    at += part;
  }
  ASSERT_TRUE(std::equal(plain.begin(), plain.end(), out));
  ASSERT_EQ(checksum.Finish(out + bytes), XXH3_64bits(out, bytes))
      << NameOf(dtype) << ", " << count << " elements of " << sources << " sources";
}

TEST(RunningChecksumTest, ReductionsAreSummedWhileTheyAreMade) {
  OnEveryTarget([] {
    std::mt19937_64 random(3);
    for (const DType dtype :
         {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32}) {
      for (const Reduction op : {Reduction::kAverage, Reduction::kSum, Reduction::kMax}) {
        if (op == Reduction::kAverage && IsInteger(dtype)) continue;
        for (const size_t count : {256, 2049, 4160}) {
          for (const size_t sources : {1, 2, 9}) {
            ExpectSummed(dtype, op, sources, count, random);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(RunningChecksumTest, SoAreThoseThatGoPastTheCaches) {
  OnEveryTarget([] {
    std::mt19937_64 random(4);
    for (const size_t count : {66000, 70001}) {
      for (const size_t sources : {1, 3}) {
        ExpectSummed(DType::kF32, Reduction::kAverage, sources, count, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

}  // namespace
}  // namespace syncgrads
