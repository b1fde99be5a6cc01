#include "backends/cpu/gemm/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "base/math.h"

namespace headrace::cpu::gemm {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kPieceBytes = 16 << 20;
constexpr std::size_t kLineBytes = 64;

// Mapped but untouched memory: unused parts of a piece only cost address space.
class Piece {
 public:
  static std::shared_ptr<Piece> make(std::size_t bytes) {
    const std::size_t mapped = round_up(bytes, kHugePage) + kHugePage;
    void* memory =
        mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
    madvise(memory, mapped, MADV_HUGEPAGE);  // only a hint
#endif
    return std::make_shared<Piece>(memory, mapped);
  }
  Piece(void* memory, std::size_t mapped) : memory_(memory), mapped_(mapped) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const std::size_t skipped = round_up<std::uintptr_t>(address, kHugePage) - address;
    begin_ = static_cast<std::byte*>(memory) + skipped;
    left_ = mapped - skipped;
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  ~Piece() { munmap(memory_, mapped_); }

  std::byte* take(std::size_t bytes) {
    bytes = round_up(bytes, kLineBytes);
    if (bytes > left_) return nullptr;
    std::byte* taken = begin_;
    begin_ += bytes;
    left_ -= bytes;
    return taken;
  }

 private:
  void* memory_;
  std::size_t mapped_;
  std::byte* begin_;
  std::size_t left_;
};

std::mutex g_mutex;
std::weak_ptr<Piece> g_piece;  // the piece being filled, while a matrix in it exists

}  // namespace

std::shared_ptr<std::byte> allocate_in_arena(std::size_t bytes) {
  const std::lock_guard lock(g_mutex);
  std::shared_ptr<Piece> piece = g_piece.lock();
  std::byte* data = piece == nullptr ? nullptr : piece->take(bytes);
  if (data == nullptr) {
    piece = Piece::make(std::max(bytes, kPieceBytes));
    if (piece == nullptr) return nullptr;
    data = piece->take(bytes);
    g_piece = piece;
  }
  return {piece, data};
}

}  // namespace headrace::cpu::gemm
