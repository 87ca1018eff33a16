#include "client/psctl/events.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/psctl/admin.h"
#include "client/psctl/cluster_query.h"
#include "common/mutex.h"

namespace syncgrads::client {
namespace {

std::string JsonOf(const v1::Event& event) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(event, &json, options);
  return printed.ok() ? json : absl::StrCat("{\"error\":\"", printed.ToString(), "\"}");
}

// The line has the form of the server's log.
std::string TextOf(const v1::Event& event) {
  const absl::Time date = absl::FromUnixMillis(static_cast<int64_t>(event.date_ms()));
  return absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3S", date, absl::LocalTimeZone()), " ",
                      event.warning() ? "W" : "I", " server ", event.server(), ": ", event.text());
}

// The calls to one server.
struct Source {
  explicit Source(const Admin::Options& options) : admin(options) {}

  Admin admin;
  // The number of the newest event that was received.
  uint64_t newest = 0;
  absl::Status status;
  // Of the call that waits for new events.
  grpc::ClientContext following;
};

class EventPrinter {
 public:
  EventPrinter(const EventsOptions& options, std::ostream& out) : options_(options), out_(out) {}

  // Prints what the servers keep, and then what they send until the limit is reached or no
  // connection is left.
  absl::Status Run() {
    FindServers();
    PrintKept();
    if (options_.follow) Follow();
    for (const std::unique_ptr<Source>& source : sources_) {
      if (!source->status.ok()) errors_.push_back(source->status);
    }
    return Summary();
  }

 private:
  void FindServers() {
    for (const Answer& answer :
         ClusterQuery(options_.server, options_.timeout, options_.caller).Ask()) {
      if (!answer.reply.ok()) {
        errors_.push_back(absl::UnavailableError(
            absl::StrCat(NameOf(answer), ": ", answer.reply.status().message())));
        continue;
      }
      sources_.push_back(std::make_unique<Source>(Admin::Options{.server = answer.address,
                                                                 .job = "",
                                                                 .caller = options_.caller,
                                                                 .timeout = options_.timeout,
                                                                 .wait_for_connection = false}));
    }
  }

  v1::EventsRequest RequestAfter(uint64_t number) const {
    v1::EventsRequest request;
    request.set_job(options_.job);
    request.set_after(number);
    return request;
  }

  void PrintKept() {
    std::vector<v1::Event> kept;
    for (const std::unique_ptr<Source>& source : sources_) {
      grpc::ClientContext context;
      source->status =
          source->admin.Events(RequestAfter(0), context, [&kept, &source](v1::Event event) {
            source->newest = event.number();
            kept.push_back(std::move(event));
          });
    }
    std::stable_sort(kept.begin(), kept.end(), [](const v1::Event& a, const v1::Event& b) {
      return a.date_ms() < b.date_ms();
    });
    const bool is_limited = !options_.follow && options_.count > 0;
    const size_t first =
        is_limited && kept.size() > options_.count ? kept.size() - options_.count : 0;
    for (size_t i = first; i < kept.size(); ++i) Print(kept[i]);
  }

  void Follow() {
    std::vector<std::thread> threads;
    for (const std::unique_ptr<Source>& source : sources_) {
      if (!source->status.ok()) continue;
      threads.emplace_back([this, &source = *source] {
        v1::EventsRequest request = RequestAfter(source.newest);
        request.set_follow(true);
        const absl::Status ended = source.admin.Events(
            request, source.following, [this](const v1::Event& event) { PrintNew(event); });
        // The calls are cancelled when enough is printed.
        if (!IsDone()) source.status = ended;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Print(const v1::Event& event) {
    out_ << (options_.json ? JsonOf(event) : TextOf(event)) << std::endl;
  }

  void PrintNew(const v1::Event& event) {
    MutexLock lock(mutex_);
    if (IsDoneLocked()) return;
    Print(event);
    ++new_;
    if (!IsDoneLocked()) return;
    for (const std::unique_ptr<Source>& source : sources_) source->following.TryCancel();
  }

  bool IsDone() {
    MutexLock lock(mutex_);
    return IsDoneLocked();
  }
  bool IsDoneLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (options_.count > 0 && new_ >= options_.count) || !out_;
  }

  // One error for all servers: Unavailable if one was not reachable.
  absl::Status Summary() const {
    if (errors_.empty()) return absl::OkStatus();
    absl::StatusCode code = errors_.front().code();
    for (const absl::Status& error : errors_) {
      if (absl::IsUnavailable(error)) code = error.code();
    }
    return absl::Status(
        code, absl::StrJoin(errors_, "; ", [](std::string* text, const absl::Status& error) {
          absl::StrAppend(text, error.message());
        }));
  }

  const EventsOptions& options_;
  std::ostream& out_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<absl::Status> errors_;

  Mutex mutex_;
  // The number of new events that were printed.
  uint64_t new_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::Status PrintEvents(const EventsOptions& options, std::ostream& out) {
  return EventPrinter(options, out).Run();
}

}  // namespace syncgrads::client
