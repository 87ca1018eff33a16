// Where cuBLAS is looked for on a machine, beside the loader's own search path.

#ifndef SYNCGRADS_WORKER_NN_CUDA_CUBLAS_SEARCH_H_
#define SYNCGRADS_WORKER_NN_CUDA_CUBLAS_SEARCH_H_

#include <filesystem>
#include <string>
#include <vector>

namespace syncgrads::cuda {

// Existing files "libcublas.so.MAJOR" below the directory `root` ("/" for this machine), in the
// order in which they are to be tried:
//   1. what CublasCommand has installed for a program in the directory `program`
//   2. CUDA toolkits in /usr/local
//   3. packages of pip for all users
std::vector<std::string> FindCublas(int major, const std::filesystem::path& program,
                                    const std::filesystem::path& root);

// A command that installs cuBLAS where FindCublas finds it.
std::string CublasCommand(int major, const std::filesystem::path& program);

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_CUBLAS_SEARCH_H_
