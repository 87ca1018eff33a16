#include "worker/nn/models/model_input.h"

namespace syncgrads {

template <typename T>
void DeviceInput<T>::Bring(const ModelInput<T>& input) {
  if (input.numbers() != nullptr) {
    has_pixels_ = false;
    return matrix_.Bring(*input.numbers());
  }
  const Pixels<T>& pixels = *input.pixels();
  DeviceMemory& memory = device_->memory();
  if (memory.is_host()) {
    matrix_.Resize(pixels.rows, pixels.columns);
    return device_->StorePixels(pixels.size(), pixels.channels, pixels.pixels, pixels.numbers,
                                matrix_.data());
  }
  QueueUpload(pixels, &DeviceMemory::Upload);
  Arrive();
}

template <typename T>
void DeviceInput<T>::UploadBeside(const ModelInput<T>& input) {
  has_pixels_ = input.pixels() != nullptr;
  if (!has_pixels_) return matrix_.UploadBeside(*input.numbers());
  QueueUpload(*input.pixels(), &DeviceMemory::UploadBeside);
}

template <typename T>
void DeviceInput<T>::QueueUpload(const Pixels<T>& pixels, Upload upload) {
  DeviceMemory& memory = device_->memory();
  has_pixels_ = true;
  matrix_.Resize(pixels.rows, pixels.columns);
  pixels_.Resize(pixels.rows, pixels.columns);
  const std::vector<T> numbers(pixels.numbers, pixels.numbers + pixels.channels * kPixelValues);
  if (numbers != numbers_) {
    device_numbers_.Resize(pixels.channels, kPixelValues);
    memory.Upload(numbers.data(), device_numbers_.bytes(), device_numbers_.data());
    numbers_ = memory.status().ok() ? numbers : std::vector<T>();
  }
  (memory.*upload)(pixels.pixels, pixels_.bytes(), pixels_.data());
}

template <typename T>
void DeviceInput<T>::Arrive() {
  if (!has_pixels_) return matrix_.Arrive();
  device_->StorePixels(matrix_.size(), device_numbers_.rows(), pixels_.data(),
                       device_numbers_.data(), matrix_.data());
}

template class DeviceInput<float>;
template class DeviceInput<double>;

}  // namespace syncgrads
