#include "client/client.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/api/operation.h"
#include "client/chunk_trials.h"
#include "client/collectives/collectives.h"
#include "client/grpc/grpc_connections.h"
#include "client/grpc/grpc_transport.h"
#include "client/link/timers.h"
#include "client/session/session.h"
#include "common/clock.h"
#include "common/net/address.h"
#include "common/random_number.h"
#include "common/rpc/credentials.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace syncgrads {

std::shared_ptr<client::Connections> MakeConnections(const TlsOptions& tls,
                                                     const std::string& token) {
  return std::make_shared<client::Connections>(ChannelSecurity(tls, token));
}

Pending::Pending(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

bool Pending::Ready() const { return operation_->Ready(); }

absl::StatusOr<uint32_t> Pending::Wait(absl::Duration timeout) { return operation_->Wait(timeout); }

namespace {

Incarnation DrawIncarnation() { return Incarnation{DrawRandomNumber()}; }

absl::StatusOr<uint32_t> Await(client::Collectives::Started started, absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(started.status());
  return (*started)->Wait(timeout);
}

}  // namespace

Client::Client(ClientOptions options)
    : local_rank_(options.local_rank),
      session_(std::make_unique<client::Session>(
          options,
          client::Dependencies{
              client::NewGrpcTransport(options.congestion_control,
                                       options.connections != nullptr
                                           ? options.connections
                                           : MakeConnections(options.tls, options.token)),
              std::make_unique<client::ThreadTimers>(), DrawIncarnation(), DrawSecret()})) {
  collectives_ = std::make_unique<client::Collectives>(*session_);
}

Client::~Client() = default;

absl::Status Client::Join(absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckServerAddress("the address of the coordinator", session_->options().coordinator));
  return session_->Join(timeout);
}
absl::Status Client::Leave(absl::Duration timeout) { return session_->Leave(timeout); }
void Client::Abandon() { session_->Abandon(); }
absl::Status Client::status() const { return session_->status(); }
bool Client::is_newcomer() const { return session_->is_newcomer(); }
uint32_t Client::rank() const { return session_->rank(); }
uint32_t Client::world_size() const { return session_->world_size(); }
std::string Client::name() const { return session_->name(); }

bool Client::TakeCheckpointRequest() { return session_->TakeCheckpointRequest(); }

void Client::ReportCheckpoint(uint64_t step, const absl::StatusOr<std::string>& path) {
  session_->ReportCheckpoint(step, path);
}

absl::Status Client::ReportFigures(TrainingFigures figures) {
  return session_->ReportFigures(std::move(figures));
}

absl::Status Client::SetLearningRateFactor(double factor, absl::Duration timeout) {
  return session_->SetLearningRateFactor(factor, timeout);
}

absl::StatusOr<Group*> Client::Register(const GroupSpec& spec, absl::Duration timeout) {
  const client::Session& session = *session_;
  if (!session.options().autotune || spec.chunk_bytes != 0 || session.is_newcomer() ||
      session.HasRegistered(spec.name)) {
    return session_->Register(spec, timeout);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const GroupSpec tuned, Tune(spec, timeout));
  return session_->Register(tuned, timeout);
}

absl::StatusOr<GroupSpec> Client::Tune(GroupSpec spec, absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(session_->CheckMember());
  SYNCGRADS_RETURN_IF_ERROR(Validate(spec));
  const absl::StatusOr<client::ChunkChoice> choice = client::TuneChunks(
      session_->options(), rank(), world_size(), spec, [this] { return status(); },
      MonotonicNow() + timeout / 2);
  // If a trial failed on any worker, all workers use 0: the coordinator chooses the chunk size.
  // The operation shares this memory, because it continues after a timeout.
  const auto agreed = std::make_shared<int64_t>(choice.ok() ? choice->best.chunk_bytes : 0);
  const Array array = MutableArrayOf(absl::MakeSpan(agreed.get(), 1));
  SYNCGRADS_RETURN_IF_ERROR(Await(collectives_->AllReduce(absl::StrCat("autotune/", spec.name),
                                                          array, array, Reduction::kMin, agreed),
                                  timeout / 2)
                                .status());
  spec.chunk_bytes = static_cast<uint32_t>(*agreed);
  std::string found;
  if (!choice.ok()) {
    found = absl::StrCat("chunk size: the default; trials failed: ", choice.status().message());
  } else if (*agreed == 0) {
    found = "chunk size: the default; trials failed on another worker";
  } else {
    found = choice->ToString();
  }
  if (session_->options().on_tuned) session_->options().on_tuned(found);
  return spec;
}

absl::StatusOr<void*> Client::AllocateGradients(size_t bytes) {
  return session_->AllocateGradients(bytes);
}

absl::StatusOr<uint32_t> Client::AllReduce(absl::string_view name, ConstArray input, Array output,
                                           Reduction reduction, absl::Duration timeout) {
  return Await(collectives_->AllReduce(name, input, output, reduction), timeout);
}

absl::StatusOr<Pending> Client::AllReduceAsync(absl::string_view name, ConstArray input,
                                               Array output, Reduction reduction) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started, collectives_->AllReduce(name, input, output, reduction));
  return Pending(std::move(started));
}

absl::StatusOr<uint32_t> Client::AllReduceSkip(absl::string_view name, Array output,
                                               Reduction reduction, absl::Duration timeout) {
  return Await(collectives_->AllReduceSkip(name, output, reduction), timeout);
}

absl::StatusOr<Pending> Client::AllReduceSkipAsync(absl::string_view name, Array output,
                                                   Reduction reduction) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started, collectives_->AllReduceSkip(name, output, reduction));
  return Pending(std::move(started));
}

absl::StatusOr<uint32_t> Client::AllReduceWith(absl::string_view name, ConstArray input,
                                               Array output, Fold fold, absl::Duration timeout) {
  return Await(collectives_->AllReduceWith(name, input, output, std::move(fold)), timeout);
}

absl::StatusOr<Pending> Client::AllReduceWithAsync(absl::string_view name, ConstArray input,
                                                   Array output, Fold fold) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started,
                             collectives_->AllReduceWith(name, input, output, std::move(fold)));
  return Pending(std::move(started));
}

absl::StatusOr<uint32_t> Client::AllReduceWithSkip(absl::string_view name, Array output, Fold fold,
                                                   absl::Duration timeout) {
  return Await(collectives_->AllReduceWithSkip(name, output, std::move(fold)), timeout);
}

absl::StatusOr<Pending> Client::AllReduceWithSkipAsync(absl::string_view name, Array output,
                                                       Fold fold) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started,
                             collectives_->AllReduceWithSkip(name, output, std::move(fold)));
  return Pending(std::move(started));
}

absl::StatusOr<uint32_t> Client::Reduce(absl::string_view name, ConstArray input, Array output,
                                        Reduction reduction, uint32_t root,
                                        absl::Duration timeout) {
  return Await(collectives_->Reduce(name, input, output, reduction, root), timeout);
}

absl::StatusOr<Pending> Client::ReduceAsync(absl::string_view name, ConstArray input, Array output,
                                            Reduction reduction, uint32_t root) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started,
                             collectives_->Reduce(name, input, output, reduction, root));
  return Pending(std::move(started));
}

absl::Status Client::Broadcast(absl::string_view name, Array values, uint32_t root,
                               absl::Duration timeout) {
  return Await(collectives_->Broadcast(name, values, root), timeout).status();
}

absl::StatusOr<Pending> Client::BroadcastAsync(absl::string_view name, Array values,
                                               uint32_t root) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started, collectives_->Broadcast(name, values, root));
  return Pending(std::move(started));
}

absl::Status Client::BroadcastAll(absl::string_view name, absl::Span<const NamedTensor> tensors,
                                  uint32_t root, absl::Duration timeout) {
  return Await(collectives_->BroadcastAll(name, tensors, root), timeout).status();
}

absl::StatusOr<Pending> Client::BroadcastAllAsync(absl::string_view name,
                                                  absl::Span<const NamedTensor> tensors,
                                                  uint32_t root) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started, collectives_->BroadcastAll(name, tensors, root));
  return Pending(std::move(started));
}

absl::StatusOr<uint32_t> Client::AllGather(absl::string_view name, ConstArray input, Array output,
                                           absl::Duration timeout) {
  return Await(collectives_->AllGather(name, input, output), timeout);
}

absl::StatusOr<Pending> Client::AllGatherAsync(absl::string_view name, ConstArray input,
                                               Array output) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started, collectives_->AllGather(name, input, output));
  return Pending(std::move(started));
}

absl::Status Client::Barrier(absl::string_view name, absl::Duration timeout) {
  return Await(collectives_->Barrier(name), timeout).status();
}

absl::StatusOr<Pending> Client::BarrierAsync(absl::string_view name) {
  SYNCGRADS_ASSIGN_OR_RETURN(auto started, collectives_->Barrier(name));
  return Pending(std::move(started));
}

absl::Status Client::PrintInOrder(std::ostream& stream, absl::string_view text,
                                  absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(session_->CheckMember());
  const absl::Time deadline = MonotonicNow() + timeout;
  const uint32_t size = world_size();
  for (uint32_t turn = 0; turn < size; ++turn) {
    if (turn == rank()) {
      stream << absl::FormatTime("%Y-%m-%dT%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()) << " ["
             << turn << " / " << size << "] " << text << std::endl;
    }
    SYNCGRADS_RETURN_IF_ERROR(Barrier("print_in_order", deadline - MonotonicNow()));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
