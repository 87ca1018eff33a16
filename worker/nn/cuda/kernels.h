// The kernels of a CUDA device: all operations except matrix products. Activations, gradients by
// them, and im2col rows are stored as S: float, double or Bf16. Kernels compute with Computed<S>
// (T), and sum in it or in double. Parameters, their gradients and statistics are T.
//
// Each function queues its kernels on `stream` and returns CUDA's result of doing so. Device
// (worker/nn/device.h) describes what the operations compute. No result depends on the order in
// which threads run: each number is set by one thread, which adds in a fixed order. Long sums are
// trees of such sums, whose shape depends on the sizes only.

#ifndef SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_
#define SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/update_rule.h"
#include "worker/nn/activation.h"
#include "worker/nn/cuda/bf16.h"
#include "worker/nn/loss_kind.h"
#include "worker/nn/operands.h"

namespace syncgrads::cuda {

// Divides by a constant with a multiplication and a shift (Granlund and Montgomery 1994). The
// dividend must be below 2^31.
class Divisor {
 public:
  Divisor() = default;
  // `divisor` is from 1 to below 2^31.
  explicit Divisor(int64_t divisor) {
    while ((int64_t{1} << shift_) < divisor) ++shift_;
    const uint64_t rest = (uint64_t{1} << shift_) - static_cast<uint64_t>(divisor);
    factor_ = static_cast<uint32_t>((rest << 32) / static_cast<uint64_t>(divisor) + 1);
  }

  SYNCGRADS_HOST_DEVICE uint32_t Quotient(uint32_t dividend) const {
    const auto high = static_cast<uint32_t>((uint64_t{dividend} * factor_) >> 32);
    return (high + dividend) >> shift_;
  }

 private:
  uint32_t factor_ = 1;
  uint32_t shift_ = 0;
};

// A Window in 32-bit integers, which devices compute with faster. The numbers of the images, of
// the windows and of the im2col rows of a call must be below 2^31 each: see FitsIn32Bits.
struct Geometry {
  int channels;
  int height;
  int width;
  int window_height;
  int window_width;
  int stride;
  int padding;
  int output_height;
  int output_width;
  // Channels in the im2col rows.
  int row_channels;
  Divisor by_height, by_width, by_output_height, by_output_width, by_stride;
};

// The device's addresses of activations.
template <typename S, typename T>
S* As(Stored<T>* stored) {
  return reinterpret_cast<S*>(stored);
}
template <typename S, typename T>
const S* As(const Stored<T>* stored) {
  return reinterpret_cast<const S*>(stored);
}

// Converts numbers.
template <typename From, typename To>
cudaError_t Convert(cudaStream_t stream, int64_t count, const From* from, To* to);
// See Device::StorePixels.
template <typename S>
cudaError_t StorePixels(cudaStream_t stream, int64_t count, int64_t channels,
                        const unsigned char* pixels, const Computed<S>* numbers, S* to);
template <typename S>
cudaError_t Add(cudaStream_t stream, Activation activation, int64_t count, const S* a, const S* b,
                S* sum);
template <typename S>
cudaError_t ActivateBackward(cudaStream_t stream, Activation activation, int64_t count,
                             const S* outputs, S* gradient);
template <typename T>
cudaError_t UpdateMovingAverage(cudaStream_t stream, T weight, int64_t count, const T* values,
                                T* average);
template <typename S>
cudaError_t Dropout(cudaStream_t stream, uint64_t key, double rate, int64_t count, const S* input,
                    S* output);
// Multiplies by 2 / (maximum - minimum), or by 0 if the maximum is not above the minimum. With
// `shifts`, subtracts the minimum before that and 1 (or 0) after it.
template <typename S>
cudaError_t ScaleToRanges(cudaStream_t stream, const RangeScaling<Computed<S>>& layer, bool shifts,
                          const S* input, S* output);
template <typename S>
cudaError_t Transpose(cudaStream_t stream, int64_t count, int64_t rows, int64_t columns,
                      const S* from, S* to);

// Scratch memory, in doubles, of FindLoss, AddUp and TakePenalties.
int64_t LossScratch(int64_t rows);
inline constexpr int64_t kSumScratch = 256;
template <typename S>
cudaError_t FindLoss(cudaStream_t stream, RowLossRule rule, int64_t rows, int64_t columns,
                     const S* outputs, const double* targets, double divisor, double* scratch,
                     double* total, S* gradient);
// The penalties since the last TakePenalties are the sum of kPenaltyTerms numbers, which are zeros
// at first. TakePenalties adds that sum to *total and sets the terms to zeros.
inline constexpr int64_t kPenaltyTerms = 1 << 16;
template <typename T>
cudaError_t Penalise(cudaStream_t stream, double l2, int64_t count, const T* values, T* gradient,
                     double* terms);
cudaError_t TakePenalties(cudaStream_t stream, double* terms, double* scratch, double* total);

template <typename T>
cudaError_t Update(cudaStream_t stream, const Optimizer& rule, const ArrayUpdate<T>* arrays,
                   size_t count);

// im2col and col2im. Im2Col copies each window of `samples` images to a row of
// window_height * window_width * row_channels numbers; channels that the image does not have are
// zeros. Col2Im sets each number of the images to the sum of the row elements that Im2Col copies
// it to.
template <typename S>
cudaError_t Im2Col(cudaStream_t stream, const Geometry& geometry, int64_t samples, const S* images,
                   S* rows);
template <typename S>
cudaError_t Col2Im(cudaStream_t stream, const Geometry& geometry, int64_t samples, const S* rows,
                   S* images);
// PackWeights converts weights from [outputs, channels, area] to the order of the rows,
// [outputs, area, row_channels], with zeros for channels that do not exist. UnpackWeights does
// the reverse, for gradients.
template <typename S>
cudaError_t PackWeights(cudaStream_t stream, const Geometry& geometry, int64_t outputs,
                        const Computed<S>* weights, S* packed);
template <typename S>
cudaError_t UnpackWeights(cudaStream_t stream, const Geometry& geometry, int64_t outputs,
                          const S* packed, Computed<S>* weights);

template <typename S>
cudaError_t MaxPool(cudaStream_t stream, const Geometry& geometry, int64_t samples, const S* input,
                    S* output, int32_t* chosen);
template <typename S>
cudaError_t MaxPoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                            const int32_t* chosen, const S* output_gradient, S* input_gradient);
template <typename S>
cudaError_t AveragePool(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                        const S* input, S* output);
template <typename S>
cudaError_t AveragePoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                                const S* output_gradient, S* input_gradient);

// values = activation(values + bias[column]); `bias` may be null.
template <typename S>
cudaError_t AddBias(cudaStream_t stream, int64_t rows, int64_t columns, const Computed<S>* bias,
                    Activation activation, S* values);

// Scratch memory, in doubles, of the functions below, which sum the columns of a matrix.
int64_t ColumnScratch(int64_t rows, int64_t columns);
// ActivateBackward, and sets `sums` to the sums of the columns of the gradient.
template <typename S>
cudaError_t AddBiasBackward(cudaStream_t stream, int64_t rows, int64_t columns,
                            Activation activation, const S* outputs, S* gradient, double* scratch,
                            Computed<S>* sums);
template <typename S>
cudaError_t FindStatistics(cudaStream_t stream, int64_t rows, int64_t channels, const S* input,
                           double* scratch, const BatchStatistics<Computed<S>>& statistics);
template <typename S>
cudaError_t Normalise(cudaStream_t stream, const Normalisation<Computed<S>>& layer, const S* input,
                      S* output);
// `factors` is scratch memory for 3 * channels numbers.
template <typename S>
cudaError_t NormaliseBackward(cudaStream_t stream, const Normalisation<Computed<S>>& layer,
                              bool of_batch, const S* input, const S* output, S* output_gradient,
                              const LayerGradients<Computed<S>>& gradients, double* scratch,
                              Computed<S>* factors);

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_
