#include <atomic>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {
namespace {

__device__ std::uint32_t device_error_word;

Failure length_failure(std::uint32_t word, int device_id) {
  const std::uint32_t entry = word & kLengthErrorEntry;
  const auto kind = static_cast<LengthError>(word >> kLengthErrorShift);
  if (kind == LengthError::tree_mask)
    return invalid_argument(
        "tree_mask on cuda:{}: sequence {} has more queries than keys; the drafted queries are the "
        "last keys, so append their keys first; options.checked=1 shows the lengths",
        device_id, entry);
  if (kind == LengthError::seqused_k)
    return invalid_argument(
        "seqused_k on cuda:{}: entry {} (the first that was seen) was clamped to the keys that the "
        "sequence can have: it must be 0 to seqlen_k, max_seqlen_k or the rows of the sequence; "
        "options.checked=1 names the value before anything runs",
        device_id, entry);
  if (kind == LengthError::block_table)
    return invalid_argument(
        "block_table on cuda:{}: a used entry of sequence {} (the first that was seen), or of "
        "recent_table, is no page or none of those that page_indptr gives the sequence, and its "
        "keys were not read: it must be 0 to num_pages - 1, or to num_recent_pages - 1, and "
        "page_indptr prefix sums of the pages of seqused_k; options.checked=1 names the entry "
        "before anything runs",
        device_id, entry);
  if (kind == LengthError::slot_mapping)
    return invalid_argument(
        "slot_mapping on cuda:{}: the slot of token {} (the first that was seen) is none of the "
        "pages, and the token was not stored: it must be below num_pages * page_size, or negative "
        "for a token that is not stored; pass page * page_size + slot",
        device_id, entry);
  if (kind == LengthError::positions)
    return invalid_argument(
        "positions on cuda:{}: the position of token {} (the first that was seen) has no row in "
        "cos and sin, and nothing was written for the token: it must be 0 to max_positions - 1; "
        "pass tables of more positions",
        device_id, entry);
  const char* side = kind == LengthError::cu_seqlens_q ? "q" : "k";
  return invalid_argument(
      "cu_seqlens_{} on cuda:{}: the entries of sequence {} (the first that was seen) break a "
      "rule, and lengths were clamped to the buffer: they must start at 0, never decrease, differ "
      "by at most max_seqlen_{} and end at the rows of {}; options.checked=1 names the entry "
      "before anything runs",
      side, device_id, entry, side, side);
}

Status read_and_clear(int device_id, Stream stream, std::uint32_t* word) {
  DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  Result<std::uint32_t*> address = error_word(device_id);
  if (!address.ok()) return std::move(address.failure());
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  HEADRACE_TRY(cuda_status(
      cudaMemcpyAsync(word, address.value(), sizeof *word, cudaMemcpyDeviceToHost, cuda_stream),
      "reading the error word of cuda:{}", device_id));
  HEADRACE_TRY(cuda_status(cudaStreamSynchronize(cuda_stream),
                           "waiting for the stream {} of cuda:{}", stream, device_id));
  if (*word == 0) return std::nullopt;
  return cuda_status(cudaMemsetAsync(address.value(), 0, sizeof *word, cuda_stream),
                     "clearing the error word of cuda:{}", device_id);
}

}  // namespace

Result<std::uint32_t*> error_word(int device_id) {
  static std::atomic<std::uint32_t*> known[kMaxDevices];
  if (std::uint32_t* address = known[device_id]) return address;
  void* address = nullptr;
  if (Status bad = cuda_status(cudaGetSymbolAddress(&address, device_error_word),
                               "loading the library's kernels on cuda:{}", device_id))
    return std::move(*bad);
  known[device_id] = static_cast<std::uint32_t*>(address);
  return static_cast<std::uint32_t*>(address);
}

Status check(int device_id, Stream stream) {
  Result<DeviceInfo> device = device_info(device_id);
  if (!device.ok()) return std::move(device.failure());
  std::uint32_t word = 0;
  HEADRACE_TRY(read_and_clear(device_id, stream, &word));
  if (word == 0) return std::nullopt;
  return length_failure(word, device_id);
}

}  // namespace headrace::cuda
