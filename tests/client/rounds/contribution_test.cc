#include "client/rounds/contribution.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;

std::vector<size_t> SizesOf(const OutgoingMessage& message) {
  std::vector<size_t> sizes;
  for (const absl::Span<const std::byte>& piece : message.payload()) sizes.push_back(piece.size());
  return sizes;
}

TEST(ContributionTest, CopiesShortSpansTogetherAndLeavesLongOnesWhereTheyAre) {
  std::vector<std::string> memory = {std::string(10, 'a'),   std::string(20, 'b'),
                                     std::string(5000, 'c'), std::string(30, 'd'),
                                     std::string(40, 'e'),   std::string(6000, 'f')};
  std::vector<absl::Span<const std::byte>> spans;
  std::string expected;
  for (const std::string& bytes : memory) {
    spans.push_back(SpanOf(bytes));
    expected += bytes;
  }
  int released = 0;
  auto message = MakeContribution(PushHeader(), spans, [&] { ++released; });
  EXPECT_THAT(SizesOf(*message), ElementsAre(30, 5000, 70, 6000));
  EXPECT_EQ(message->payload()[1].data(), spans[2].data());
  EXPECT_EQ(message->payload()[3].data(), spans[5].data());
  EXPECT_EQ(BytesOf(*message), EncodeHeader(PushHeader(), expected.size()) + expected);
  auto second = message;
  message = nullptr;
  EXPECT_EQ(released, 0);
  second = nullptr;
  EXPECT_EQ(released, 1);
}

TEST(ContributionTest, TakesNeighboursInMemoryAsOnePiece) {
  const std::string memory(9000, 'x');
  std::vector<absl::Span<const std::byte>> spans;
  for (size_t i = 0; i < 9000; i += 100) spans.push_back(SpanOf(memory).subspan(i, 100));
  const auto message = MakeContribution(PushHeader(), spans, nullptr);
  ASSERT_THAT(SizesOf(*message), ElementsAre(9000));
  EXPECT_EQ(message->payload()[0].data(), spans[0].data());
}

TEST(ContributionTest, OfAModelOfTenThousandSmallTensorsIsOnePiece) {
  std::vector<std::string> memory(10000, std::string(1024, 'x'));
  std::vector<absl::Span<const std::byte>> spans;
  // Every second string is used, so that no two spans are adjacent.
  for (size_t i = 0; i < memory.size(); i += 2) spans.push_back(SpanOf(memory[i]));
  EXPECT_LE(MakeContribution(PushHeader(), spans, nullptr)->payload().size(), 1u);
}

TEST(ScatterTest, CopiesAcrossPiecesAndPassesOverWhatIsNotWanted) {
  const std::string first = "abc", second = "", third = "defgh";
  const Pieces pieces = {SpanOf(first), SpanOf(second), SpanOf(third)};
  std::string a(2, '-'), b(4, '-');
  const Target targets[] = {{reinterpret_cast<std::byte*>(a.data()), 2},
                            {nullptr, 2},
                            {reinterpret_cast<std::byte*>(b.data()), 4}};
  Scatter(pieces, targets);
  EXPECT_EQ(a, "ab");
  EXPECT_EQ(b, "efgh");
}

}  // namespace
}  // namespace syncgrads::client
