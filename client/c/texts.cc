#include "client/c/texts.h"

#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/contract/figures.h"
#include "common/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/text_format.h"
#include "proto/client.pb.h"
#include "proto/figures.pb.h"
#include "proto/types.pb.h"

namespace syncgrads::c {
namespace {

// Keeps the first error of a text.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  // Lines and columns count from 0; -1 stands for the text as a whole.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!first_.empty()) return;
    first_ = absl::StrCat(line < 0 ? 1 : line + 1, ":", column < 0 ? 1 : column + 1, ": ", message);
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber, const std::string&) override {}

  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

absl::Status Parse(const char* text, const char* what, google::protobuf::Message& message) {
  if (text == nullptr) return absl::InvalidArgumentError(absl::StrCat(what, " are null"));
  google::protobuf::io::ArrayInputStream stream(text, static_cast<int>(std::strlen(text)));
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  if (parser.Parse(&stream, &message)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ", ", error.first()));
}

// Converts a number of seconds. `field` names it in the error.
absl::StatusOr<absl::Duration> DurationOf(double seconds, const char* field) {
  if (seconds >= 0 && std::isfinite(seconds)) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat("the options' ", field, " is ", seconds, ", must be finite and not negative"));
}

absl::Status CheckNotEmpty(const std::string& value, const char* field) {
  if (!value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the options have no ", field));
}

}  // namespace

absl::StatusOr<ClientOptions> ParseOptions(const char* text) {
  v1::ClientOptions proto;
  SYNCGRADS_RETURN_IF_ERROR(Parse(text, "the options", proto));
  SYNCGRADS_RETURN_IF_ERROR(CheckNotEmpty(proto.coordinator(), "coordinator"));
  SYNCGRADS_RETURN_IF_ERROR(CheckNotEmpty(proto.job(), "job"));
  ClientOptions options;
  options.coordinator = proto.coordinator();
  options.job = proto.job();
  options.token = proto.token();
  options.tls = {.certificate = proto.tls().certificate(),
                 .key = proto.tls().key(),
                 .ca = proto.tls().ca(),
                 .client_ca = "",
                 .server_name = proto.tls().server_name()};
  options.name = proto.name();
  if (proto.has_rank()) options.rank = proto.rank();
  if (proto.world_size() > 0) options.world_size = proto.world_size();
  options.max_workers = proto.max_workers();
  options.min_workers = proto.min_workers();
  SYNCGRADS_ASSIGN_OR_RETURN(options.step_timeout,
                             DurationOf(proto.step_timeout_s(), "step_timeout_s"));
  options.only_running = proto.only_running();
  if (proto.has_server_timeout_s()) {
    SYNCGRADS_ASSIGN_OR_RETURN(options.server_timeout,
                               DurationOf(proto.server_timeout_s(), "server_timeout_s"));
  }
  if (proto.connections_per_server() > 0) {
    options.connections_per_server = static_cast<int>(proto.connections_per_server());
  }
  options.congestion_control = proto.congestion_control();
  options.autotune = proto.autotune();
  if (proto.has_shared_memory()) options.shared_memory = proto.shared_memory();
  if (proto.has_unix_socket()) options.unix_socket = proto.unix_socket();
  return options;
}

absl::StatusOr<GroupSpec> ParseGroup(const char* text) {
  v1::GroupSpec proto;
  SYNCGRADS_RETURN_IF_ERROR(Parse(text, "the group's fields", proto));
  return FromProto(proto);
}

absl::StatusOr<TrainingFigures> ParseFigures(const char* text) {
  v1::TrainingFigures proto;
  SYNCGRADS_RETURN_IF_ERROR(Parse(text, "the figures", proto));
  return FromProto(proto);
}

}  // namespace syncgrads::c
