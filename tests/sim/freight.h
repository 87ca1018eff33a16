// The messages that are sent over the simulated network.

#ifndef SYNCGRADS_TESTS_SIM_FREIGHT_H_
#define SYNCGRADS_TESTS_SIM_FREIGHT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "common/wire/frame.h"
#include "tests/sim/network.h"

namespace syncgrads::sim {

inline std::string BytesOf(const Pieces& pieces) {
  std::string bytes;
  for (const absl::Span<const std::byte>& piece : pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return bytes;
}

inline absl::Span<const std::byte> SpanOf(const std::string& bytes) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
}

// A frame of the data plane. Its payload stays in the sender's memory and is read only when the
// frame is delivered, so a write to this memory in the meantime is detected.
class Frame : public Freight {
 public:
  // `owner` keeps the payload's memory alive.
  Frame(std::string header, Pieces payload, std::shared_ptr<const void> owner)
      : header_(std::move(header)),
        payload_(std::move(payload)),
        owner_(std::move(owner)),
        at_first_(header_ + BytesOf(payload_)) {}

  void Keep() override {
    if (owner_ == nullptr) return;
    kept_ = header_ + BytesOf(payload_);
    payload_.clear();
    owner_ = nullptr;
  }

  // Bytes() returns the frame's present bytes. at_first() returns the bytes at the time of sending.
  std::string Bytes() const { return owner_ == nullptr ? kept_ : header_ + BytesOf(payload_); }
  const std::string& at_first() const { return at_first_; }

 private:
  const std::string header_;
  Pieces payload_;
  std::shared_ptr<const void> owner_;
  std::string kept_;
  const std::string at_first_;
};

// A message of the control plane or the follow plane.
template <typename Message>
class Signal : public Freight {
 public:
  explicit Signal(Message message) : message(std::move(message)) {}
  const Message message;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_FREIGHT_H_
