#include "server/service/calls/unary_answers.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/net/address.h"
#include "common/status_macros.h"

namespace syncgrads::server {

// The place of one call.
class UnaryAnswers::Place {
 public:
  Place(UnaryAnswers& answers, std::string network)
      : answers_(answers), network_(std::move(network)) {}
  ~Place() { answers_.Ended(network_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  UnaryAnswers& answers_;
  const std::string network_;
};

absl::Status UnaryAnswers::Count(RequestCall& call, const std::string& peer) {
  std::string network = NetworkOf(peer);
  SYNCGRADS_RETURN_IF_ERROR(Begin(network));
  call.KeepUntilOver(std::make_shared<const Place>(*this, std::move(network)));
  return absl::OkStatus();
}

absl::Status UnaryAnswers::Begin(const std::string& network) {
  MutexLock lock(mutex_);
  const auto refused = [](size_t calls, absl::string_view whose, size_t most) {
    return absl::ResourceExhaustedError(absl::StrCat(calls, " answers", whose,
                                                     " have not been read yet, of at most ", most,
                                                     ": retry when one has been read"));
  };
  if (calls_ >= kMaxAnswers) return refused(calls_, "", kMaxAnswers);
  if (const size_t calls = calls_of_network_.Of(network); calls >= kMaxAnswersOfNetwork) {
    return refused(calls, absl::StrCat(" to ", network), kMaxAnswersOfNetwork);
  }
  ++calls_;
  calls_of_network_.Up(network);
  return absl::OkStatus();
}

void UnaryAnswers::Ended(const std::string& network) {
  MutexLock lock(mutex_);
  --calls_;
  calls_of_network_.Down(network);
}

}  // namespace syncgrads::server
