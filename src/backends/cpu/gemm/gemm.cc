#include "backends/cpu/gemm/gemm.h"

#include <algorithm>
#include <string_view>

#include "backends/cpu/gemm/arena.h"
#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/gemm/pack.h"
#include "backends/cpu/thread_pool.h"
#include "base/math.h"

namespace headrace::cpu {
namespace {

using gemm::ActivationGroup;
using gemm::Instance;
using gemm::kGroup;
using gemm::kTokenTile;
using gemm::PairProducts;
using gemm::Stored;
using std::int64_t;

constexpr std::size_t kLineBytes = 64;

struct Target {
  std::string_view name;
  std::uint32_t isa;
  const Instance& instance;
  const PairProducts* pairs = nullptr;  // null: bf16 is converted to float
};
constexpr Target kTargets[] = {
// in order of preference
#if defined(__x86_64__)
    {"avx512vnni", HEADRACE_ISA_AVX512 | HEADRACE_ISA_AVX512_VNNI | HEADRACE_ISA_AVX512_BF16,
     gemm::avx512vnni::kInstance, &gemm::avx512bf16::kPairs},
    {"avx512vnni", HEADRACE_ISA_AVX512 | HEADRACE_ISA_AVX512_VNNI, gemm::avx512vnni::kInstance},
    {"avx2", HEADRACE_ISA_AVX2, gemm::avx2::kInstance},
#elif defined(__aarch64__)
    {"neon", HEADRACE_ISA_NEON, gemm::neon::kInstance},
#endif
    {"scalar", 0, gemm::scalar::kInstance},
};

const Target& target_of(std::uint32_t cpu_isa) {
  const Target* target = kTargets;
  while ((cpu_isa & target->isa) != target->isa) ++target;
  return *target;
}

// Weight::layout: the instruction set that the panels are for, and whether they hold floats.
constexpr std::uint32_t kExactLayout = std::uint32_t{1} << 31;

const Target& target_of(const Weight& m) { return target_of(m.layout & ~kExactLayout); }
MatmulMode mode_of(const Weight& m) {
  return (m.layout & kExactLayout) != 0 ? MatmulMode::exact : MatmulMode::normal;
}
const Instance& instance_of(const Weight& m) { return target_of(m).instance; }

Stored stored_form(WeightType type, MatmulMode mode, const Target& target) {
  if (mode == MatmulMode::exact && gemm::is_quantised(type)) return {WeightType::f32};
  return {type, mode == MatmulMode::normal && type == WeightType::bf16 && target.pairs != nullptr};
}
Stored stored_form(const Weight& m) { return stored_form(m.format, mode_of(m), target_of(m)); }

int panel_rows(const Target& target, const Stored& stored) {
  if (stored.is_paired) return target.pairs->rows;
  return gemm::is_quantised(stored.type) ? target.instance.quantised_rows
                                         : target.instance.float_rows;
}
int panel_rows(const Weight& m) { return panel_rows(target_of(m), stored_form(m)); }
int64_t num_panels(const Weight& m) { return ceil_div<int64_t>(m.rows, panel_rows(m)); }

struct Packing {
  const Weight& matrix;
  const std::byte* weights;
};

void pack_one_panel(void* context, int64_t panel, int) {
  const Packing& p = *static_cast<const Packing*>(context);
  const Weight& m = p.matrix;
  const WeightTypeInfo& info = info_of(m.format);
  const int rows = panel_rows(m);
  const int64_t first = panel * rows;
  const Stored stored = stored_form(m);
  gemm::pack_panel(m.format, stored, rows, std::min<int64_t>(rows, m.rows - first), m.columns,
                   p.weights + first * (m.columns / info.block_elements) * info.block_bytes,
                   m.data.data() + panel * gemm::panel_bytes(stored, rows, m.columns));
}

// ---- multiply ----

// The tasks of a matmul: token tiles times runs of panels over all matrices.
struct Work {
  const Product& product;
  ActivationGroup* activations;  // per tile: [groups, tokens of the tile]
  float* pairs;                  // [tokens, num_pairs]: bf16, two in a float's bits
  int64_t columns, num_groups, num_pairs, num_panels, num_tiles;
  int64_t panels_per_run, num_runs;

  int64_t first_token(int64_t tile) const { return tile * kTokenTile; }
  int64_t tokens_of(int64_t tile) const {
    return std::min(kTokenTile, product.num_tokens - first_token(tile));
  }
};

const Instance* quantising_instance(const Product& product) {
  for (const Weight& m : product.matrices)
    if (gemm::is_quantised(stored_form(m).type)) return &instance_of(m);
  return nullptr;
}
const PairProducts* pair_products(const Product& product) {
  for (const Weight& m : product.matrices)
    if (stored_form(m).is_paired) return target_of(m).pairs;
  return nullptr;
}

// Converts the activations of a tile to the formats that the matrices need.
void convert_tile(void* context, int64_t tile, int) {
  const Work& work = *static_cast<const Work*>(context);
  const Product& p = work.product;
  const int64_t first = work.first_token(tile);
  if (const Instance* instance = quantising_instance(p))
    instance->quantise(p.x + first * p.x_stride, p.x_stride, work.tokens_of(tile), work.num_groups,
                       work.activations + first * work.num_groups);
  if (const PairProducts* pairs = pair_products(p))
    for (int64_t token = first; token < first + work.tokens_of(tile); ++token)
      pairs->round(p.x + token * p.x_stride, work.columns, work.pairs + token * work.num_pairs);
}

// Multiplies panels [first, last), counted over all matrices, with the tokens of a tile.
void multiply_run(const Work& work, int64_t tile, int64_t first, int64_t last) {
  const Product& p = work.product;
  const int64_t token = work.first_token(tile);
  int64_t row = 0;
  for (const Weight& m : p.matrices) {
    const int64_t panels = num_panels(m);
    const int64_t begin = std::max<int64_t>(first, 0), end = std::min(last, panels);
    if (begin < end) {
      const Stored stored = stored_form(m);
      gemm::PanelCall call = {.panels = m.data.data(),
                              .rows = m.rows,
                              .columns = m.columns,
                              .first_panel = begin,
                              .last_panel = end,
                              .num_tokens = work.tokens_of(tile),
                              .activations = work.activations + token * work.num_groups,
                              .x = p.x + token * p.x_stride,
                              .x_stride = p.x_stride,
                              .bias = p.bias == nullptr ? nullptr : p.bias + row,
                              .out = p.out + token * p.out_stride + row,
                              .out_stride = p.out_stride,
                              .add_to_out = p.add_to_out};
      if (stored.is_paired) {
        call.columns = call.x_stride = work.num_pairs;
        call.x = work.pairs + token * work.num_pairs;
        pair_products(p)->panels(call);
      } else {
        instance_of(m).panels[static_cast<int>(stored.type)](call);
      }
    }
    first -= panels;
    last -= panels;
    row += m.rows;
  }
}

void run_task(void* context, int64_t task, int) {
  const Work& work = *static_cast<const Work*>(context);
  const int64_t tile = task / work.num_runs, run = task % work.num_runs;
  multiply_run(work, tile, run * work.panels_per_run,
               std::min((run + 1) * work.panels_per_run, work.num_panels));
}

// Runs of panels: enough runs to balance the threads, long enough to stream, and of even length,
// because tiles process two panels.
void choose_runs(Work& work, int num_threads) {
  const int64_t tasks_per_thread = work.product.num_tokens == 1 ? 8 : 32;
  const int64_t wanted = ceil_div<int64_t>(tasks_per_thread * num_threads, work.num_tiles);
  work.panels_per_run = round_up<int64_t>(ceil_div(work.num_panels, wanted), 2);
  work.num_runs = ceil_div(work.num_panels, work.panels_per_run);
}

}  // namespace

Result<Weight> pack_matrix(WeightType type, int64_t rows, int64_t columns, const std::byte* weights,
                           MatmulMode mode, const DeviceInfo& device) {
  const WeightTypeInfo& info = info_of(type);
  if (columns % info.block_elements != 0)
    return unsupported(
        "columns={}: {} needs rows of whole blocks of {} elements; convert the "
        "tensor to a format with smaller blocks",
        columns, info.name, info.block_elements);
  const Target& target = target_of(device.cpu_isa);
  const Stored stored = stored_form(type, mode, target);
  const int panel = panel_rows(target, stored);
  Weight m{.format = type,
           .rows = rows,
           .columns = columns,
           .layout = target.isa | (mode == MatmulMode::exact ? kExactLayout : 0),
           .data = {}};
  const auto bytes = static_cast<std::size_t>(ceil_div<int64_t>(rows, panel) *
                                              gemm::panel_bytes(stored, panel, columns));
  m.data = {gemm::allocate_in_arena(bytes), bytes};
  if (m.data.data() == nullptr)
    return Failure{
        ErrorCode::out_of_memory,
        format_text("out of memory: {} bytes of packed weights ({} x {}, {}); close other "
                    "programs or use a smaller model",
                    bytes, rows, columns, info.name)};
  Packing packing{m, weights};
  if (auto failure =
          parallel_for(num_panels(m), std::max(device.num_units, 1), pack_one_panel, &packing))
    return std::move(*failure);
  return m;
}

void unpack_row(const Weight& m, int64_t row, float* out) {
  const int rows = panel_rows(m);
  const Stored stored = stored_form(m);
  gemm::unpack_panel_row(stored, rows, static_cast<int>(row % rows), m.columns,
                         m.data.data() + row / rows * gemm::panel_bytes(stored, rows, m.columns),
                         out);
}

std::string product_kernel(std::uint32_t cpu_isa, WeightType type, MatmulMode mode) {
  const Target& target = target_of(cpu_isa);
  const bool is_paired = stored_form(type, mode, target).is_paired;
  return format_text("cpu_{}_gemm", is_paired ? "avx512bf16" : target.name);
}

// Quantized activations, then pairs of bf16.
std::size_t multiply_scratch_bytes(int64_t columns, int64_t num_tokens) {
  const auto groups = static_cast<std::size_t>(ceil_div<int64_t>(columns, kGroup) * num_tokens);
  const auto pairs = static_cast<std::size_t>(ceil_div<int64_t>(columns, 2) * num_tokens);
  return groups * sizeof(ActivationGroup) + pairs * sizeof(float) + kLineBytes;
}

Status multiply(const Product& product, int num_threads, std::byte* scratch) {
  if (product.num_tokens <= 0 || product.matrices.empty()) return std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(scratch);
  const int64_t columns = product.matrices[0].columns;
  Work work{.product = product,
            .activations = reinterpret_cast<ActivationGroup*>(
                scratch + (kLineBytes - address % kLineBytes) % kLineBytes),
            .pairs = nullptr,
            .columns = columns,
            .num_groups = columns / kGroup,
            .num_pairs = ceil_div<int64_t>(columns, 2),
            .num_panels = 0,
            .num_tiles = ceil_div(product.num_tokens, kTokenTile),
            .panels_per_run = 0,
            .num_runs = 0};
  work.pairs = reinterpret_cast<float*>(work.activations +
                                        ceil_div<int64_t>(columns, kGroup) * product.num_tokens);
  for (const Weight& m : product.matrices) work.num_panels += num_panels(m);
  if (work.num_panels == 0) return std::nullopt;
  choose_runs(work, num_threads);
  if (quantising_instance(product) != nullptr || pair_products(product) != nullptr)
    if (auto bad = parallel_for(work.num_tiles, num_threads, convert_tile, &work)) return bad;
  return parallel_for(work.num_tiles * work.num_runs, num_threads, run_task, &work);
}

}  // namespace headrace::cpu
