// Row-major matrices on the host, with a row for each sample of a batch. T is float or double.

#ifndef SYNCGRADS_WORKER_NN_MATRIX_H_
#define SYNCGRADS_WORKER_NN_MATRIX_H_

#include <eigen3/Eigen/Core>

namespace syncgrads {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MATRIX_H_
