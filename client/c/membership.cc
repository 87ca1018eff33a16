// syncgrads.h: the library and membership.

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/c/handles.h"
#include "client/c/texts.h"
#include "client/c/version.h"
#include "client/placement/placement.h"
#include "common/status_macros.h"

using syncgrads::c::Answer;
using syncgrads::c::CallWithoutSignals;
using syncgrads::c::CheckNotNull;
using syncgrads::c::CheckUsable;
using syncgrads::c::CopyOut;
using syncgrads::c::CopyText;
using syncgrads::c::TimeoutOf;
using syncgrads::c::ValueOf;

const char* sg_version(void) { return syncgrads::c::kVersion; }

const char* sg_code_name(int code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  return code < SG_OK || code > SG_UNAUTHENTICATED ? "UNKNOWN" : kNames[code];
}

int sg_find_placement(sg_placement* placement, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_ASSIGN_OR_RETURN(const syncgrads::Placement found,
                               syncgrads::DetectPlacement([](const char* name) -> const char* {
                                 return std::getenv(name);
                               }));
    sg_placement out = {};
    out.rank = found.rank.has_value() ? *found.rank : int64_t{-1};
    out.world_size = found.world_size.has_value() ? *found.world_size : int64_t{-1};
    out.local_rank = found.local_rank.has_value() ? *found.local_rank : int64_t{-1};
    CopyText(found.source, out.launcher, sizeof(out.launcher));
    return CopyOut(out, placement);
  });
}

int sg_open(const char* options, sg_client** client, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(client, "client"));
    SYNCGRADS_ASSIGN_OR_RETURN(syncgrads::ClientOptions parsed,
                               syncgrads::c::ParseOptions(options));
    CallWithoutSignals([&] { *client = new sg_client(std::move(parsed)); });
    return absl::OkStatus();
  });
}

int sg_join(sg_client* client, double timeout, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    absl::Status joined;
    CallWithoutSignals([&] { joined = client->client->Join(limit); });
    return joined;
  });
}

int sg_leave(sg_client* client, double timeout, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    absl::Status left;
    CallWithoutSignals([&] { left = client->client->Leave(limit); });
    return left;
  });
}

void sg_abandon(sg_client* client) {
  Answer(nullptr, 0, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    CallWithoutSignals([&] { client->client->Abandon(); });
    return absl::OkStatus();
  });
}

void sg_close(sg_client* client) {
  // The threads that the destructor waits for do not exist in a process that was forked.
  if (client == nullptr || client->process != getpid()) return;
  Answer(nullptr, 0, [&]() -> absl::Status {
    CallWithoutSignals([&] { delete client; });
    return absl::OkStatus();
  });
}

int sg_status(const sg_client* client, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    return client->client->status();
  });
}

int sg_get_member(const sg_client* client, sg_member* member, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    sg_member out = {};
    out.rank = client->client->rank();
    out.world_size = client->client->world_size();
    out.newcomer = client->client->is_newcomer();
    CopyText(client->client->name(), out.name, sizeof(out.name));
    return CopyOut(out, member);
  });
}

int sg_take_notice(sg_client* client, char* notice, size_t size) {
  return Answer(nullptr, 0, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    const std::optional<std::string> line = client->notices.Take();
    if (!line.has_value()) return absl::NotFoundError("there is no notice");
    CopyText(*line, notice, size);
    return absl::OkStatus();
  });
}

int sg_take_checkpoint_request(sg_client* client) {
  return ValueOf(0, [&] {
    return CheckUsable(client).ok() && client->client->TakeCheckpointRequest() ? 1 : 0;
  });
}

int sg_report_checkpoint(sg_client* client, uint64_t step, int code, const char* text,
                         char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(text, "text"));
    if (code == SG_OK) {
      client->client->ReportCheckpoint(step, std::string(text));
    } else {
      client->client->ReportCheckpoint(step,
                                       absl::Status(static_cast<absl::StatusCode>(code), text));
    }
    return absl::OkStatus();
  });
}

int sg_report_figures(sg_client* client, const char* figures, char* message, size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_ASSIGN_OR_RETURN(syncgrads::TrainingFigures parsed,
                               syncgrads::c::ParseFigures(figures));
    return client->client->ReportFigures(std::move(parsed));
  });
}

int sg_set_learning_rate_factor(sg_client* client, double factor, double timeout, char* message,
                                size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::Duration limit, TimeoutOf(timeout));
    absl::Status set;
    CallWithoutSignals([&] { set = client->client->SetLearningRateFactor(factor, limit); });
    return set;
  });
}

int sg_allocate_gradients(sg_client* client, size_t bytes, void** memory, char* message,
                          size_t message_size) {
  return Answer(message, message_size, [&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckUsable(client));
    SYNCGRADS_RETURN_IF_ERROR(CheckNotNull(memory, "memory"));
    SYNCGRADS_ASSIGN_OR_RETURN(*memory, client->client->AllocateGradients(bytes));
    return absl::OkStatus();
  });
}
