#include "stress/repeated_call.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "base/math.h"
#include "headrace/tensor.hpp"

namespace headrace::testing {
namespace {

float largest_of(const Output& x) {
  const auto dtype = static_cast<DType>(x.view.dtype);
  std::vector<unsigned char> host(static_cast<std::size_t>(x.bytes));
  require(cudaMemcpy(host.data(), x.expected.get(), host.size(), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
  double largest = 0;
  for (std::int64_t i = 0; i < x.rows * x.dim; ++i)
    largest = std::max(largest, std::abs(load_as_double(dtype, host.data(), i)));
  return static_cast<float>(largest);
}

}  // namespace

void require(cudaError_t error, const char* doing) {
  if (error != cudaSuccess)
    throw std::runtime_error(format_text("{}: {}", doing, cudaGetErrorName(error)));
}
void require(const Status& status, const char* doing) {
  if (status) throw std::runtime_error(format_text("{}: {}", doing, status->message));
}

DeviceMemory allocate(std::int64_t bytes) {
  void* data = nullptr;
  // Padding, because copies may read a few bytes past an output.
  require(cudaMalloc(&data, static_cast<std::size_t>(bytes) + 16), "cudaMalloc");
  return DeviceMemory(data);
}

std::int64_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::int64_t>(dtype_bytes(dtype)) * count;
}

headrace_tensor on_device(headrace_tensor view) {
  view.device_type = HEADRACE_CUDA;
  return view;
}

Output make_output(const char* name, headrace_tensor view, int dim, bool has_fixed_bits) {
  const std::int64_t count = TensorView(view).num_elements();
  // Whole words are compared.
  const std::int64_t bytes =
      round_up<std::int64_t>(bytes_of(static_cast<DType>(view.dtype), count), 4);
  Output x{name, view, bytes, count / dim, dim, has_fixed_bits, allocate(bytes), allocate(bytes),
           0};
  x.view.data = x.got.get();
  return x;
}

void poison(const Output& x) {
  require(cudaMemset(x.got.get(), 0xFF, static_cast<std::size_t>(x.bytes)), "cudaMemset");
}

void keep_as_expected(Output& x) {
  require(cudaMemcpy(x.expected.get(), x.got.get(), static_cast<std::size_t>(x.bytes),
                     cudaMemcpyDeviceToDevice),
          "cudaMemcpy");
  poison(x);
  if (!x.has_fixed_bits) x.largest = largest_of(x);
}

std::string compare_with_exact(const Output& x, const void* exact, DType dtype) {
  // A correct row is within a few roundings of its norm; a row that used a wrong tile is off by
  // about its norm. The conformance suites have the sharp bounds.
  const double limit = dtype == DType::bf16 ? 0x1p-4 : dtype == DType::f16 ? 0x1p-6 : 0x1p-12;
  const DeviceMemory memory = allocate(sizeof(RowError));
  auto* error = static_cast<RowError*>(memory.get());
  require(cudaMemset(error, 0, sizeof *error), "cudaMemset");
  measure_rows(x.expected.get(), static_cast<DType>(x.view.dtype),
               static_cast<const double*>(exact), x.rows, x.dim, error, nullptr);
  RowError host;
  require(cudaMemcpy(&host, error, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
  const auto worst = std::bit_cast<double>(static_cast<std::uint64_t>(host.worst));
  if (worst <= limit) return {};
  return format_text("row {} of {} is off by {} of its norm, {} allowed, in the first call",
                     host.row, x.name, worst, limit);
}

std::string RepeatedCall::describe(const Difference* differences) const {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (differences[i].num_wrong == 0) continue;
    const Output& x = outputs_[i];
    const auto per_unit =
        x.has_fixed_bits ? 4 / dtype_bytes(static_cast<DType>(x.view.dtype)) : std::size_t{1};
    std::int64_t index = static_cast<std::int64_t>(differences[i].first * per_unit);
    std::string place;
    for (int axis = x.view.rank - 1; axis >= 0; index /= x.view.shape[axis], --axis)
      place = format_text("{}{}{}", index % x.view.shape[axis], place.empty() ? "" : ", ", place);
    return format_text("{} words of {} differ from the first call, the first at [{}]",
                       differences[i].num_wrong, x.name, place);
  }
  return {};
}

}  // namespace headrace::testing
