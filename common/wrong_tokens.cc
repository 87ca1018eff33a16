#include "common/wrong_tokens.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/address.h"

namespace syncgrads {
namespace {

// A network may send this many wrong tokens at once, and one more each second.
constexpr double kWrongTokens = 50;
// The number of networks whose allowance is kept.
constexpr size_t kMaxAllowances = 4096;

}  // namespace

WrongTokens::WrongTokens(std::function<void(const std::string& line)> warn, const Clock& clock)
    : warn_(std::move(warn)), clock_(clock), lines_(clock) {}

WrongTokens::Allowance& WrongTokens::AllowanceOfLocked(const std::string& network) {
  const absl::Time now = clock_.Now();
  if (allowances_.size() >= kMaxAllowances && !allowances_.contains(network)) {
    // A network that has sent no wrong token for a while begins anew.
    std::erase_if(allowances_, [now](const auto& entry) {
      return entry.second.since + absl::Seconds(kWrongTokens) <= now;
    });
    if (allowances_.size() >= kMaxAllowances) {
      allowances_.erase(std::min_element(
          allowances_.begin(), allowances_.end(),
          [](const auto& a, const auto& b) { return a.second.since < b.second.since; }));
    }
  }
  const auto [entry, is_new] = allowances_.try_emplace(network, Allowance{kWrongTokens, now});
  Allowance& allowance = entry->second;
  allowance.left =
      std::min(kWrongTokens, allowance.left + absl::ToDoubleSeconds(now - allowance.since));
  allowance.since = now;
  return allowance;
}

absl::Status WrongTokens::CheckAllowance(const std::string& peer) {
  const std::string network = NetworkOf(peer);
  MutexLock lock(mutex_);
  if (!allowances_.contains(network) || AllowanceOfLocked(network).left >= 1) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("too many wrong tokens have come from ", network,
                                             "; no token from there is looked at for a second"));
}

void WrongTokens::Note(const std::string& peer) {
  ++count_;
  {
    MutexLock lock(mutex_);
    AllowanceOfLocked(NetworkOf(peer)).left -= 1;
  }
  const std::optional<uint64_t> lines = lines_.Pass("wrong token");
  if (!lines.has_value()) return;
  std::string line = absl::StrCat("a wrong token has come from ", peer);
  if (*lines > 1) {
    absl::StrAppend(&line, " (and ", *lines - 1, " others since the last such warning)");
  }
  warn_(line);
}

}  // namespace syncgrads
