#include "worker/launch/console.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

constexpr absl::string_view kEraseLine = "\r\x1b[K";

// The first `columns` characters of UTF-8 text.
absl::string_view Cut(absl::string_view text, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins_character = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins_character && ++characters > columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

Console::Console(Sink out, Sink err) : out_(std::move(out)), err_(std::move(err)) {}

Console::~Console() {
  if (!status_.empty()) out_.write("\n");
}

void Console::PrintLine(Stream stream, absl::string_view prefix, absl::string_view line) {
  const Sink& sink = stream == Stream::kOut ? out_ : err_;
  const bool crosses_status = !status_.empty() && sink.columns > 0;
  if (crosses_status) out_.write(kEraseLine);
  sink.write(absl::StrCat(prefix, line, "\n"));
  if (crosses_status) out_.write(status_);
}

void Console::SetStatus(absl::string_view prefix, absl::string_view text) {
  if (columns() == 0) return;
  const std::string whole = absl::StrCat(prefix, text);
  std::string status;
  // One column stays free: terminals wrap when the last one is written.
  if (!text.empty()) status = std::string(Cut(whole, columns() - 1));
  if (status == status_) return;
  status_ = std::move(status);
  out_.write(absl::StrCat(kEraseLine, status_));
}

}  // namespace syncgrads
