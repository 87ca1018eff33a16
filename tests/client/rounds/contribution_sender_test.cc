#include "client/rounds/contribution_sender.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

constexpr size_t kElements = 16 << 10;
constexpr size_t kBytes = kElements * sizeof(float);

// Keeps the last message.
class LastMessage : public Outbox {
 public:
  void Send(ServerIndex, const ChunkKey&, uint64_t,
            std::shared_ptr<const OutgoingMessage> sent) override {
    message = std::move(sent);
  }
  void Forget(ServerIndex, const ChunkKey&) override {}
  SharedBuffers* SharedWith(ServerIndex) override { return shared; }

  std::shared_ptr<const OutgoingMessage> message;
  SharedBuffers* shared = nullptr;
};

GroupPlan OneChunk(const Compression& compression = {}) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {int64_t{kElements}}}};
  spec.compression = {compression};
  Layout layout = *Layout::Create(spec.tensors, kBytes, spec.compression);
  return {GroupId{3}, std::move(spec), std::move(layout), {ServerIndex{0}}};
}

class ContributionSenderTest : public testing::Test {
 protected:
  // Sends `values`, which may lie in several places, as the contribution to round 1.
  void Send(const GroupPlan& plan, const std::vector<absl::Span<const float>>& values) {
    Contribution contribution;
    contribution.header.group = plan.id;
    contribution.header.round = Round{1};
    for (const absl::Span<const float> part : values) {
      contribution.spans.push_back(absl::MakeConstSpan(
          reinterpret_cast<const std::byte*>(part.data()), part.size() * sizeof(float)));
    }
    Compressor compressor(plan);
    ContributionSender(plan, compressor, outbox_).Send(std::move(contribution), [this] {
      ++released_;
    });
    ASSERT_NE(outbox_.message, nullptr);
  }
  const void* payload() const { return outbox_.message->payload().front().data(); }

  const std::vector<float> values_ = std::vector<float>(kElements, 1);
  SharedBuffers buffers_;
  LastMessage outbox_;
  int released_ = 0;
};

TEST_F(ContributionSenderTest, ValuesAreSentRawFromTheirOwnMemory) {
  Send(OneChunk(), {values_});
  EXPECT_EQ(payload(), values_.data());
  EXPECT_FALSE(outbox_.message->by_reference().has_value());
  EXPECT_EQ(released_, 0);
  outbox_.message = nullptr;
  EXPECT_EQ(released_, 1);
}

TEST_F(ContributionSenderTest, SharedValuesAreSentByReferenceWithoutACopy) {
  outbox_.shared = &buffers_;
  const auto region = buffers_.Allocate(kBytes);
  ASSERT_TRUE(region.ok());
  auto* const shared = reinterpret_cast<float*>((*region)->memory->data());
  std::copy(values_.begin(), values_.end(), shared);
  Send(OneChunk(), {absl::MakeConstSpan(shared, kElements)});
  EXPECT_EQ(payload(), shared);
  EXPECT_TRUE(outbox_.message->by_reference().has_value());
}

TEST_F(ContributionSenderTest, OtherValuesAreCopiedToSharedMemoryFirst) {
  outbox_.shared = &buffers_;
  Send(OneChunk(), {values_});
  EXPECT_NE(payload(), values_.data());
  ASSERT_TRUE(outbox_.message->by_reference().has_value());
  EXPECT_TRUE(buffers_.Find(outbox_.message->payload().front()).has_value());
}

TEST_F(ContributionSenderTest, OnlyValuesOutsideOfSharedMemoryAreCopied) {
  outbox_.shared = &buffers_;
  const auto region = buffers_.Allocate(kBytes);
  ASSERT_TRUE(region.ok());
  auto* const shared = reinterpret_cast<float*>((*region)->memory->data());
  constexpr size_t kThird = kElements / 3;
  const absl::Span<const float> middle = absl::MakeConstSpan(values_).subspan(kThird, kThird);
  Send(OneChunk(),
       {absl::MakeConstSpan(shared, kThird), middle, absl::MakeConstSpan(shared + kThird, kThird)});
  const Pieces& payload = outbox_.message->payload();
  ASSERT_EQ(payload.size(), 3u);
  EXPECT_EQ(static_cast<const void*>(payload[0].data()), shared);
  EXPECT_EQ(static_cast<const void*>(payload[2].data()), shared + kThird);
  ASSERT_TRUE(outbox_.message->by_reference().has_value());
  EXPECT_TRUE(buffers_.Find(payload[1]).has_value());
  EXPECT_EQ(std::memcmp(payload[1].data(), middle.data(), kThird * sizeof(float)), 0);
}

TEST_F(ContributionSenderTest, ValuesInTooManyPiecesAreNotSentByReference) {
  outbox_.shared = &buffers_;
  const auto region = buffers_.Allocate(2 * kBytes);
  ASSERT_TRUE(region.ok());
  auto* const shared = reinterpret_cast<float*>((*region)->memory->data());
  std::fill(shared, shared + 2 * kElements, 1.0f);
  std::vector<absl::Span<const float>> pieces;
  // Every second value is used, so that no two are adjacent.
  for (size_t i = 0; i < kMaxSharedPieces; ++i) {
    pieces.push_back(absl::MakeConstSpan(shared + 2 * i, 1));
  }
  Send(OneChunk(), pieces);
  EXPECT_TRUE(outbox_.message->by_reference().has_value());
  pieces.push_back(absl::MakeConstSpan(values_).first(1));
  Send(OneChunk(), pieces);
  EXPECT_FALSE(outbox_.message->by_reference().has_value());
}

TEST_F(ContributionSenderTest, AShortContributionIsNotSharedBecauseItsReferenceCostsMore) {
  outbox_.shared = &buffers_;
  Send(OneChunk(), {absl::MakeConstSpan(values_).first(1024)});
  EXPECT_FALSE(outbox_.message->by_reference().has_value());
}

TEST_F(ContributionSenderTest, ACompressedContributionIsEncodedAndNeverShared) {
  outbox_.shared = &buffers_;
  Send(OneChunk({{Codec::kInt8}, {}}), {values_});
  EXPECT_EQ(HeaderOf(*outbox_.message).codec, Codec::kInt8);
  EXPECT_FALSE(outbox_.message->by_reference().has_value());
}

}  // namespace
}  // namespace syncgrads::client
