#include "common/net/wrong_tokens.h"

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
// The same for all networks together, because one host may have addresses in many of them.
constexpr double kWrongTokensOfAll = 1000;
constexpr double kOfAllEachSecond = 20;
// The number of networks whose allowance is kept.
constexpr size_t kMaxAllowances = 4096;

}  // namespace

WrongTokens::WrongTokens(std::function<void(const std::string& line)> warn, const Clock& clock)
    : warn_(std::move(warn)),
      clock_(clock),
      of_all_{kWrongTokensOfAll, clock.Now()},
      lines_(clock) {}

bool WrongTokens::Take(Allowance& allowance, absl::Time now, double most, double each_second) {
  const double more = each_second * absl::ToDoubleSeconds(now - allowance.since);
  allowance.left = std::min(most, allowance.left + more);
  allowance.since = now;
  if (allowance.left < 1) return false;
  allowance.left -= 1;
  return true;
}

WrongTokens::Allowance& WrongTokens::AllowanceOfLocked(const std::string& network, absl::Time now) {
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
  return allowances_.try_emplace(network, Allowance{kWrongTokens, now}).first->second;
}

absl::Status WrongTokens::Refuse(const std::string& peer, absl::Status answer) {
  ++count_;
  const std::string network = NetworkOf(peer);
  std::string limited;
  {
    MutexLock lock(mutex_);
    const absl::Time now = clock_.Now();
    // A network without an allowance takes none of that of all.
    if (!Take(AllowanceOfLocked(network, now), now, kWrongTokens, 1)) {
      limited = absl::StrCat("from ", network);
    } else if (!Take(of_all_, now, kWrongTokensOfAll, kOfAllEachSecond)) {
      limited = "from all addresses together";
    }
  }
  if (const std::optional<uint64_t> lines = lines_.Pass("wrong token"); lines.has_value()) {
    std::string line = absl::StrCat("a wrong token has come from ", peer);
    if (*lines > 1) {
      absl::StrAppend(&line, " (and ", *lines - 1, " others since the last such warning)");
    }
    warn_(line);
  }
  if (limited.empty()) return answer;
  return absl::UnavailableError(
      absl::StrCat("too many wrong tokens have come ", limited, "; retry in a second"));
}

}  // namespace syncgrads
