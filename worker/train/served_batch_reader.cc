#include "worker/train/served_batch_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
ServedBatchReader<T>::~ServedBatchReader() {
  for (const auto& [batch, begun] : begun_) data_.served->Forget(begun.asked);
}

template <typename T>
absl::Status ServedBatchReader<T>::Begin(uint64_t batch, const std::vector<RowId>& rows,
                                         const ImageUse& use) {
  if (begun_.contains(batch)) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(const uint64_t asked, data_.served->Ask(rows, use));
  begun_[batch] = {asked, rows};
  return absl::OkStatus();
}

template <typename T>
absl::Status ServedBatchReader<T>::Take(uint64_t batch, Matrix<T>& features,
                                        std::vector<double>& targets, DamagedImages* damaged) {
  const auto it = begun_.find(batch);
  if (it == begun_.end()) {
    return absl::InternalError(absl::StrCat("batch ", batch, " has not been started"));
  }
  const Begun begun = std::move(it->second);
  begun_.erase(it);
  SYNCGRADS_ASSIGN_OR_RETURN(const ServedBatch served, data_.served->Take(begun.asked));
  return FillServed(data_, begun.rows, served, features, targets, damaged);
}

template <typename T>
void ServedBatchReader<T>::ForgetBefore(uint64_t batch) {
  const auto end = begun_.lower_bound(batch);
  for (auto it = begun_.begin(); it != end; it = begun_.erase(it)) {
    data_.served->Forget(it->second.asked);
  }
}

template class ServedBatchReader<float>;
template class ServedBatchReader<double>;

}  // namespace syncgrads
