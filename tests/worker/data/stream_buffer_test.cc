#include "worker/data/stream_buffer.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "tests/testing/no_threads.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

class NoBatches : public BatchStream {
 public:
  absl::StatusOr<std::optional<StreamedBatch>> Next() override { return std::nullopt; }
};

TEST(StreamBufferTest, AThreadThatCannotBeStartedIsAnErrorOfTheFirstBatch) {
  const testing::NoThreads no_threads;
  StreamBuffer buffer("lines", std::make_unique<NoBatches>(), {.features = 1}, /*ahead=*/2,
                      absl::InfiniteDuration());
  EXPECT_EQ(buffer.RowsOf(0), 1u);
  EXPECT_FALSE(buffer.ended());
  ExpectError(buffer.Get(0), absl::StatusCode::kResourceExhausted, {"stream \"lines\""});
}

}  // namespace
}  // namespace syncgrads
