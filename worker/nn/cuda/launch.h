// Launches kernels: with one thread for each element, or with fewer threads that loop over the
// elements.

#ifndef SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_
#define SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace syncgrads::cuda {

inline constexpr int64_t kThreads = 256;  // in a block
// The most blocks of a launch: they fill the largest device several times over.
inline constexpr int64_t kMostBlocks = 4096;

inline int64_t BlocksFor(int64_t places, int64_t threads) {
  const int64_t blocks = (places + threads - 1) / threads;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

template <typename Function>
__global__ void VisitNumbers(int64_t count, Function function) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    function(i);
  }
}

template <typename Function>
__global__ void VisitPlaces(int64_t rows, int columns, Function function) {
  const int64_t row_step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  const int column_step = static_cast<int>(gridDim.x * blockDim.x);
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += row_step) {
    for (int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); column < columns;
         column += column_step) {
      function(row, column);
    }
  }
}

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Calls function(i) for each i from 0 to below `count`, in any order.
template <typename Function>
cudaError_t ForEach(cudaStream_t stream, int64_t count, Function function) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(BlocksFor(count, kThreads)));
  return Launch(stream, grid, dim3(static_cast<unsigned>(kThreads)), VisitNumbers<Function>, count,
                function);
}

// Calls function(row, column) for each element of a matrix, in any order. Neighbouring threads
// have neighbouring columns of a row.
template <typename Function>
cudaError_t ForEachPlace(cudaStream_t stream, int64_t rows, int64_t columns, Function function) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  int64_t width = 1;
  while (width < columns && width < kThreads) width *= 2;
  const int64_t height = kThreads / width;
  const int64_t across = (columns + width - 1) / width;
  const int64_t down = (rows + height - 1) / height;
  const int64_t most_down = across < kMostBlocks ? kMostBlocks / across : 1;
  const dim3 block(static_cast<unsigned>(width), static_cast<unsigned>(height));
  const dim3 grid(static_cast<unsigned>(across < kMostBlocks ? across : kMostBlocks),
                  static_cast<unsigned>(down < most_down ? down : most_down));
  return Launch(stream, grid, block, VisitPlaces<Function>, rows, static_cast<int>(columns),
                function);
}

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_
