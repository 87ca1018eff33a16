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
// The blocks that fill a large device once (148 multiprocessors of 2,048 threads each).
inline constexpr int64_t kResidentBlocks = 1184;

// `n` neighbouring numbers of a type of storage, which a thread loads and stores at once. The
// address must be a multiple of their size, or of 16 bytes if they are longer.
template <typename S, int n>
struct alignas(n * sizeof(S) < 16 ? n * sizeof(S) : 16) Pack {
  S at[n];
};

template <int n, typename S>
__device__ inline Pack<S, n> LoadPack(const S* from) {
  return *reinterpret_cast<const Pack<S, n>*>(from);
}

template <int n, typename S>
__device__ inline void StorePack(const Pack<S, n>& pack, S* to) {
  *reinterpret_cast<Pack<S, n>*>(to) = pack;
}

// The numbers in a full pack: 16 bytes, or 32 of double.
template <typename S>
inline constexpr int kPackSize = sizeof(S) == 2 ? 8 : 4;

// A number of numbers in a Pack, as an argument of a generic function.
template <int n>
struct PackSize {
  static constexpr int value = n;
};

// Calls function(PackSize<kPackSize<S>>()) if rows of `columns` numbers at each of `addresses` can
// be read in full packs (null is allowed), otherwise function(PackSize<1>()).
template <typename S, typename Function, typename... Addresses>
cudaError_t WithPacks(int64_t columns, Function function, const Addresses*... addresses) {
  const bool aligned = (... && (reinterpret_cast<uintptr_t>(addresses) % 16 == 0));
  if (aligned && columns % kPackSize<S> == 0) return function(PackSize<kPackSize<S>>());
  return function(PackSize<1>());
}

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

template <typename Make>
__global__ void VisitColumns(int64_t rows, int columns, Make make) {
  const int64_t row_step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  const int column_step = static_cast<int>(gridDim.x * blockDim.x);
  for (int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); column < columns;
       column += column_step) {
    auto visit = make(column);
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
         row += row_step) {
      visit(row);
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

// Visits each element of a matrix, in any order. `make(column)` returns a function, which is
// called with rows of that column; what depends on the column only is computed once. Neighbouring
// threads have neighbouring columns of a row. At most `most_blocks` blocks run.
template <typename Make>
cudaError_t ForEachColumn(cudaStream_t stream, int64_t rows, int64_t columns, Make make,
                          int64_t most_blocks = kResidentBlocks) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const int64_t width = columns < kThreads ? columns : kThreads;
  const int64_t height = kThreads / width;
  const int64_t across = (columns + width - 1) / width;
  const int64_t down = (rows + height - 1) / height;
  const int64_t most_down = across < most_blocks ? most_blocks / across : 1;
  const dim3 block(static_cast<unsigned>(width), static_cast<unsigned>(height));
  const dim3 grid(static_cast<unsigned>(across < most_blocks ? across : most_blocks),
                  static_cast<unsigned>(down < most_down ? down : most_down));
  return Launch(stream, grid, block, VisitColumns<Make>, rows, static_cast<int>(columns), make);
}

// Adapts function(row, column) to ForEachColumn.
template <typename Function>
struct EachPlace {
  Function function;
  struct Visit {
    Function function;
    int column;
    __device__ void operator()(int64_t row) const { function(row, column); }
  };
  __device__ Visit operator()(int column) const { return {function, column}; }
};

// Calls function(row, column) for each element of a matrix, in any order. Neighbouring threads
// have neighbouring columns of a row.
template <typename Function>
cudaError_t ForEachPlace(cudaStream_t stream, int64_t rows, int64_t columns, Function function) {
  return ForEachColumn(stream, rows, columns, EachPlace<Function>{function}, kMostBlocks);
}

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_
