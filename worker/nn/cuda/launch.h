// Launches kernels: with one thread for each element, or with fewer threads that loop over the
// elements.

#ifndef SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_
#define SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace syncgrads::cuda {

inline constexpr int64_t kThreads = 256;  // in a block
// The most blocks of a launch: they fill the largest device several times over.
inline constexpr int64_t kMostBlocks = 4096;
// The most blocks of ChangeColumns. Two or three at a time on each multiprocessor of an H100, which
// has 132, leave no rest.
inline constexpr int64_t kMostChangeBlocks = 792;

// `n` neighbouring numbers of a type of storage, which a thread loads and stores at once. The
// address must be a multiple of their size, or of 16 bytes if they are longer.
template <typename S, int n>
struct alignas(n * sizeof(S) < 16 ? n * sizeof(S) : 16) Pack {
  S at[n];
};

// Numbers of 2 bytes are copied in words of two. Otherwise each number would take a register.
template <int n, typename S>
__device__ inline Pack<S, n> LoadPack(const S* from) {
  if constexpr (sizeof(S) == 2 && n % 2 == 0) {
    const Pack<uint32_t, n / 2> words = *reinterpret_cast<const Pack<uint32_t, n / 2>*>(from);
    Pack<S, n> pack;
    std::memcpy(&pack, &words, sizeof(pack));
    return pack;
  } else {
    return *reinterpret_cast<const Pack<S, n>*>(from);
  }
}

template <int n, typename S>
__device__ inline void StorePack(const Pack<S, n>& pack, S* to) {
  if constexpr (sizeof(S) == 2 && n % 2 == 0) {
    Pack<uint32_t, n / 2> words;
    std::memcpy(&words, &pack, sizeof(pack));
    *reinterpret_cast<Pack<uint32_t, n / 2>*>(to) = words;
  } else {
    *reinterpret_cast<Pack<S, n>*>(to) = pack;
  }
}

// The numbers in a full pack: 16 bytes, or 32 of double.
template <typename S>
inline constexpr int kPackSize = sizeof(S) == 2 ? 8 : 4;

// A number of numbers in a Pack, as an argument of a generic function.
template <int n>
struct PackSize {
  static constexpr int value = n;
};

// Calls function(PackSize<n>()) if rows of `columns` numbers at each of `addresses` can be read in
// packs of n (null is allowed), otherwise function(PackSize<1>()).
template <typename S, int n = kPackSize<S>, typename Function, typename... Addresses>
cudaError_t WithPacks(int64_t columns, Function function, const Addresses*... addresses) {
  const bool aligned = (... && (reinterpret_cast<uintptr_t>(addresses) % 16 == 0));
  if (aligned && columns % n == 0) return function(PackSize<n>());
  return function(PackSize<1>());
}

inline int64_t BlocksFor(int64_t places, int64_t threads) {
  const int64_t blocks = (places + threads - 1) / threads;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

template <typename Function>
__device__ inline void VisitOwnNumbers(int64_t count, const Function& function) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    function(i);
  }
}

template <typename Make>
__device__ inline void VisitOwnColumns(int64_t rows, int columns, const Make& make) {
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

template <typename Function>
__global__ void VisitNumbers(int64_t count, Function function) {
  VisitOwnNumbers(count, function);
}

template <typename Make>
__global__ void VisitColumns(int64_t rows, int columns, Make make) {
  VisitOwnColumns(rows, columns, make);
}

// Kernels whose threads have many loads in flight. Two blocks fit on a multiprocessor: without this
// bound, the compiler delays loads, to save registers for more blocks.
#define SYNCGRADS_LOADS_AHEAD __global__ void __launch_bounds__(kThreads, 2)

template <typename Function>
SYNCGRADS_LOADS_AHEAD VisitNumbersAhead(int64_t count, Function function) {
  VisitOwnNumbers(count, function);
}

template <typename Make>
SYNCGRADS_LOADS_AHEAD VisitColumnsAhead(int64_t rows, int columns, Make make) {
  VisitOwnColumns(rows, columns, make);
}

// The rows that a thread of ChangeColumns loads before it stores the first of them: fewer if it
// loads more than 32 bytes of each, because they would not fit into registers.
inline constexpr int kChangedRows = 4;

template <typename Make>
SYNCGRADS_LOADS_AHEAD ChangeColumns(int64_t rows, int columns, Make make) {
  const int64_t row_step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  const int column_step = static_cast<int>(gridDim.x * blockDim.x);
  for (int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); column < columns;
       column += column_step) {
    const auto change = make(column);
    using Loaded = decltype(change.Load(0));
    constexpr int k = sizeof(Loaded) > 32 ? kChangedRows / 2 : kChangedRows;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
         row += k * row_step) {
      Loaded loaded[k];
#pragma unroll
      for (int j = 0; j < k; ++j) {
        if (row + j * row_step < rows) loaded[j] = change.Load(row + j * row_step);
      }
#pragma unroll
      for (int j = 0; j < k; ++j) {
        if (row + j * row_step < rows) change.Store(loaded[j], row + j * row_step);
      }
    }
  }
}

#undef SYNCGRADS_LOADS_AHEAD

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Calls function(i) for each i from 0 to below `count`, in any order. Here and below, `loads_ahead`
// is for functions that have many loads in flight.
template <bool loads_ahead = false, typename Function>
cudaError_t ForEach(cudaStream_t stream, int64_t count, Function function) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(BlocksFor(count, kThreads)));
  const dim3 block(static_cast<unsigned>(kThreads));
  if constexpr (loads_ahead) {
    return Launch(stream, grid, block, VisitNumbersAhead<Function>, count, function);
  } else {
    return Launch(stream, grid, block, VisitNumbers<Function>, count, function);
  }
}

// The blocks and threads for a matrix. Neighbouring threads have neighbouring columns of a row, and
// a thread has at least `least_rows` rows, if there are as many. There are at most `most_blocks`
// blocks.
struct ColumnGrid {
  dim3 grid, block;
  ColumnGrid(int64_t rows, int64_t columns, int64_t least_rows, int64_t most_blocks) {
    const int64_t width = columns < kThreads ? columns : kThreads;
    const int64_t height = kThreads / width;
    const int64_t across = (columns + width - 1) / width;
    const int64_t down = (rows + least_rows * height - 1) / (least_rows * height);
    const int64_t most_down = across < most_blocks ? most_blocks / across : 1;
    block = dim3(static_cast<unsigned>(width), static_cast<unsigned>(height));
    grid = dim3(static_cast<unsigned>(across < most_blocks ? across : most_blocks),
                static_cast<unsigned>(down < most_down ? down : most_down));
  }
};

// Visits each element of a matrix, in any order. `make(column)` returns a function, which is
// called with rows of that column; what depends on the column only is computed once.
template <bool loads_ahead = false, typename Make>
cudaError_t ForEachColumn(cudaStream_t stream, int64_t rows, int64_t columns, Make make) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const ColumnGrid shape(rows, columns, 1, kMostBlocks);
  const int width = static_cast<int>(columns);
  if constexpr (loads_ahead) {
    return Launch(stream, shape.grid, shape.block, VisitColumnsAhead<Make>, rows, width, make);
  } else {
    return Launch(stream, shape.grid, shape.block, VisitColumns<Make>, rows, width, make);
  }
}

// Changes each element of a matrix, in any order. `make(column)` returns an object for that column:
// Store(Load(row), row) changes a row. Several rows are loaded before the first of them is stored.
template <typename Make>
cudaError_t ChangeEachColumn(cudaStream_t stream, int64_t rows, int64_t columns, Make make) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const ColumnGrid shape(rows, columns, kChangedRows, kMostChangeBlocks);
  return Launch(stream, shape.grid, shape.block, ChangeColumns<Make>, rows,
                static_cast<int>(columns), make);
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
template <bool loads_ahead = false, typename Function>
cudaError_t ForEachPlace(cudaStream_t stream, int64_t rows, int64_t columns, Function function) {
  return ForEachColumn<loads_ahead>(stream, rows, columns, EachPlace<Function>{function});
}

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_LAUNCH_H_
