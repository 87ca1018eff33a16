// Trainer: unusable gradients, and checks between steps.

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kernels/finite.h"
#include "common/optim/clip.h"
#include "common/status_macros.h"
#include "worker/train/replicas.h"
#include "worker/train/trainer.h"

namespace syncgrads {
namespace {

template <typename T>
MutableTensor GradientOf(Parameter<T>& parameter) {
  return {DTypeOf<T>::value, reinterpret_cast<std::byte*>(parameter.gradient.data()),
          static_cast<size_t>(parameter.gradient.size())};
}

// Names the first gradient that is not finite: "; "dense1/kernel" is nan at index 3".
// Empty if all are finite.
template <typename T>
std::string WhereNotFinite(absl::Span<Parameter<T>* const> parameters) {
  for (Parameter<T>* parameter : parameters) {
    const MutableTensor gradient = GradientOf(*parameter);
    const size_t index = FirstNonFinite(gradient.dtype, gradient.data, gradient.elements);
    if (index == gradient.elements) continue;
    return absl::StrCat("; \"", parameter->name, "\" is ", parameter->gradient.data()[index],
                        " at index ", index);
  }
  return "";
}

}  // namespace

template <typename T>
absl::Status Trainer<T>::PushGradient(size_t i) {
  const Parameter<T>& parameter = *model_->parameters()[i];
  pushed_[i] = true;
  const PhaseClock::Scope pushes(phases_, &StepTimes::push);
  const Trace::Span span(trace(), Trace::Row::kGradients, push_names_[i]);
  return group_->Push(tensors_[i], parameter.gradient.data(), parameter.bytes(), ResultOf(i));
}

template <typename T>
absl::StatusOr<bool> Trainer<T>::AdmitGradient() {
  // No server checks a local step's gradient before the worker applies it. With best_of,
  // a worker whose model diverges only loses the comparison.
  if (!guard_.watches_norms() && !makes_local_steps()) return true;
  std::vector<MutableTensor> gradients;
  for (Parameter<T>* parameter : model_->parameters()) gradients.push_back(GradientOf(*parameter));
  const double norm = GlobalNorm(gradients);
  if (!guard_.watches_norms() && std::isfinite(norm)) return true;
  const absl::StatusOr<bool> admitted = guard_.Admit(norm);
  if (admitted.ok()) return admitted;
  return absl::Status(admitted.status().code(), absl::StrCat(admitted.status().message(),
                                                             WhereNotFinite(model_->parameters())));
}

template <typename T>
absl::Status Trainer<T>::PushOrSkip() {
  SYNCGRADS_ASSIGN_OR_RETURN(const bool admitted, AdmitGradient());
  if (!admitted) return SkipBatch();
  for (size_t i = tensors_.size(); i-- > 0;) SYNCGRADS_RETURN_IF_ERROR(PushGradient(i));
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::SkipRest(const std::vector<RowId>& rows, absl::string_view to_do) {
  // Frees memory: batches that have been read ahead, and the input that has been uploaded
  // ahead.
  ForgetPartsBefore(step_under_way() + 1);
  model_->ForgetAhead();
  // Results may be written where downloads still write gradients, so wait for these.
  device_->memory().ForgetExhaustion();
  SYNCGRADS_RETURN_IF_ERROR(device_->memory().Finish());
  downloads_.clear();
  SYNCGRADS_RETURN_IF_ERROR(model_->TakeLoss().status());
  SYNCGRADS_RETURN_IF_ERROR(FinishBefore(rows));
  guard_.NoteOutOfMemory(to_do);
  for (size_t i = 0; i < tensors_.size() && !trains_alone(); ++i) {
    if (!pushed_[i]) SYNCGRADS_RETURN_IF_ERROR(group_->Skip(tensors_[i], ResultOf(i)));
  }
  return absl::OkStatus();
}

template <typename T>
bool Trainer<T>::NoteLeftOut(absl::Span<const Contributors> contributors) {
  size_t tensors = 0;
  std::string first;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!contributors[ToNumber(tensors_[i])].left_out) continue;
    if (tensors++ == 0) first = model_->parameters()[i]->name;
  }
  if (tensors > 0) guard_.NoteLeftOut(first, tensors);
  return tensors > 0;
}

template <typename T>
void Trainer<T>::ClipGradients(absl::Span<const Contributors> contributors) {
  if (!(job_.clip_norm() > 0)) return;
  std::vector<MutableTensor> gradients;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (contributors[ToNumber(tensors_[i])].most == 0) continue;
    gradients.push_back(GradientOf(*model_->parameters()[i]));
  }
  ClipToNorm(gradients, job_.clip_norm());
}

template <typename T>
absl::Status Trainer<T>::CheckReplicas() {
  const uint64_t every = job_.check_replicas_every();
  if (every == 0 || steps_ % every != 0) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FetchValues());
  SYNCGRADS_ASSIGN_OR_RETURN(const ReplicaCheck check,
                             CompareReplicas(model_->parameters(), team_));
  if (check.identical()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("after step ", steps_, " ", ToString(check)));
}

// Instantiates the members that are defined in this file.
template absl::Status Trainer<float>::PushGradient(size_t);
template absl::Status Trainer<float>::PushOrSkip();
template absl::Status Trainer<float>::SkipRest(const std::vector<RowId>&, absl::string_view);
template absl::StatusOr<bool> Trainer<float>::AdmitGradient();
template bool Trainer<float>::NoteLeftOut(absl::Span<const Contributors>);
template void Trainer<float>::ClipGradients(absl::Span<const Contributors>);
template absl::Status Trainer<float>::CheckReplicas();

template absl::Status Trainer<double>::PushGradient(size_t);
template absl::Status Trainer<double>::PushOrSkip();
template absl::Status Trainer<double>::SkipRest(const std::vector<RowId>&, absl::string_view);
template absl::StatusOr<bool> Trainer<double>::AdmitGradient();
template bool Trainer<double>::NoteLeftOut(absl::Span<const Contributors>);
template void Trainer<double>::ClipGradients(absl::Span<const Contributors>);
template absl::Status Trainer<double>::CheckReplicas();

}  // namespace syncgrads
