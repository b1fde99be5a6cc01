#include "backends/cuda/gemm/cublaslt.h"

#include <dlfcn.h>

#include <map>
#include <tuple>

#include "backends/cuda/backend.h"
#include "backends/cuda/gemm/cublaslt_api.h"
#include "backends/cuda/runtime/device.cuh"

namespace headrace::cuda {
namespace {

using cublaslt::Api;
using cublaslt::Code;
using cublaslt::Object;

// ---- the library

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Api& api) {
  return find(library, "cublasLtCreate", api.create) &&
         find(library, "cublasLtDestroy", api.destroy) &&
         find(library, "cublasLtMatmulDescCreate", api.desc_create) &&
         find(library, "cublasLtMatmulDescSetAttribute", api.desc_set) &&
         find(library, "cublasLtMatmulDescDestroy", api.desc_destroy) &&
         find(library, "cublasLtMatrixLayoutCreate", api.layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", api.layout_destroy) &&
         find(library, "cublasLtMatmulPreferenceCreate", api.preference_create) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", api.preference_set) &&
         find(library, "cublasLtMatmulPreferenceDestroy", api.preference_destroy) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", api.heuristic) &&
         find(library, "cublasLtMatmul", api.multiply);
}

// Loaded once; never unloaded.
Result<const Api*> load() {
  struct Found {
    Api api{};
    bool has_all = false;
  };
  static const Found found = [] {
    Found f;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr)
        if (f.has_all = find_all(library, f.api); f.has_all) break;
    return f;
  }();
  if (found.has_all) return &found.api;
  return unsupported(
      "fast=1: libcublasLt.so.13 and libcublasLt.so.12 cannot be loaded; install cuBLAS, add its "
      "folder to LD_LIBRARY_PATH, or pass fast=0");
}

Status status_of(Code code, const char* doing) {
  if (code == 0) return std::nullopt;
  return Failure{ErrorCode::device_error, format_text("cuBLASLt: {} gives error {}", doing, code)};
}

int real_type(DType dtype) {
  if (dtype == DType::f32) return cublaslt::kReal32F;
  return dtype == DType::bf16 ? cublaslt::kReal16BF : cublaslt::kReal16F;
}

// ---- the plan of a product

// Destroyed by the library.
class OwnedObject {
 public:
  OwnedObject() = default;
  OwnedObject(OwnedObject&& other) noexcept { swap(other); }
  OwnedObject& operator=(OwnedObject&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OwnedObject() {
    if (object_ != nullptr) destroy_(object_);
  }
  Object* address(Code (*destroy)(Object)) {
    destroy_ = destroy;
    return &object_;
  }
  Object get() const { return object_; }

 private:
  void swap(OwnedObject& other) {
    std::swap(object_, other.object_);
    std::swap(destroy_, other.destroy_);
  }
  Object object_ = nullptr;
  Code (*destroy_)(Object) = nullptr;
};

// Of one matrix: weights [rows, columns].
struct Shape {
  std::int64_t rows, columns, num_tokens, x_stride, out_stride;
  DType dtype, out_dtype;
  std::uint32_t w_alignment, x_alignment, out_alignment;  // in bytes
  auto operator<=>(const Shape&) const = default;
};

// The largest power of two, up to the library's default, that divides an address and a stride.
std::uint32_t alignment_of(const void* data, std::int64_t stride, DType dtype) {
  constexpr std::uint64_t kMost = 256;
  const std::uint64_t bits = kMost | reinterpret_cast<std::uintptr_t>(data) |
                             static_cast<std::uint64_t>(stride) * dtype_bytes(dtype);
  return static_cast<std::uint32_t>(bits & -bits);
}

// The library's matrices have contiguous columns: D [rows, tokens] = transpose(W [columns, rows]) *
// X [columns, tokens].
struct Planned {
  OwnedObject desc, w, x, out;
  cublaslt::Algorithm algorithm{};
};

constexpr std::size_t kMaxPlans = 512;  // a bound on memory: prompts have any number of tokens

}  // namespace

class CublasLt {
 public:
  explicit CublasLt(const Api& api) : api_(api) {}
  ~CublasLt() {
    const DeviceScope scope(device_id_);
    plans_.clear();
    if (handle_ != nullptr) api_.destroy(handle_);
  }

  Status make(int device_id) {
    device_id_ = device_id;
    const DeviceScope scope(device_id);
    if (scope.status()) return scope.status();
    return status_of(api_.create(&handle_), "cublasLtCreate");
  }

  Status multiply(const Product& p, Stream stream) {
    const DeviceScope scope(device_id_);
    if (scope.status()) return scope.status();
    if (workspace_ == nullptr) {  // ordered with the products of this stream alone
      Result<Scratch> workspace = allocate_scratch(cublaslt::kWorkspaceBytes, device_id_, stream);
      if (!workspace.ok()) return std::move(workspace.failure());
      workspace_ = std::move(workspace.value());
    }
    auto* out = static_cast<std::byte*>(p.out);
    for (const Matrix& matrix : p.matrices) {
      Result<const Planned*> planned =
          plan_of({.rows = matrix.rows,
                   .columns = p.columns,
                   .num_tokens = p.num_tokens,
                   .x_stride = p.x_stride,
                   .out_stride = p.out_stride,
                   .dtype = p.dtype,
                   .out_dtype = p.out_dtype,
                   .w_alignment = alignment_of(matrix.data, p.columns, p.dtype),
                   .x_alignment = alignment_of(p.x, p.x_stride, p.dtype),
                   .out_alignment = alignment_of(out, p.out_stride, p.out_dtype)});
      if (!planned.ok()) return std::move(planned.failure());
      const Planned& plan = *planned.value();
      const float alpha = 1, beta = p.adds_to_out ? 1.0f : 0.0f;
      HEADRACE_TRY(status_of(
          api_.multiply(handle_, plan.desc.get(), &alpha, matrix.data, plan.w.get(), p.x,
                        plan.x.get(), &beta, out, plan.out.get(), out, plan.out.get(),
                        &plan.algorithm, workspace_.get(), cublaslt::kWorkspaceBytes, stream),
          "cublasLtMatmul"));
      out += matrix.rows * static_cast<std::int64_t>(dtype_bytes(p.out_dtype));
    }
    return std::nullopt;
  }

 private:
  Result<const Planned*> plan_of(const Shape& shape) {
    if (const auto found = plans_.find(shape); found != plans_.end()) return &found->second;
    if (plans_.size() == kMaxPlans) plans_.clear();
    Planned planned;
    if (Status bad = plan(shape, planned)) return std::move(*bad);
    return &plans_.emplace(shape, std::move(planned)).first->second;
  }
  Status plan(const Shape& shape, Planned& planned);

  const Api& api_;
  int device_id_ = 0;
  cublaslt::Handle handle_ = nullptr;
  Scratch workspace_;
  std::map<Shape, Planned> plans_;
};

Status CublasLt::plan(const Shape& s, Planned& planned) {
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  const auto layout = [&](OwnedObject& to, DType dtype, std::int64_t rows, std::int64_t columns,
                          std::int64_t leading) {
    return status_of(api_.layout_create(to.address(api_.layout_destroy), real_type(dtype),
                                        size(rows), size(columns), leading),
                     "cublasLtMatrixLayoutCreate");
  };
  HEADRACE_TRY(status_of(api_.desc_create(planned.desc.address(api_.desc_destroy),
                                          cublaslt::kCompute32F, cublaslt::kReal32F),
                         "cublasLtMatmulDescCreate"));
  HEADRACE_TRY(status_of(api_.desc_set(planned.desc.get(), cublaslt::kTransA,
                                       &cublaslt::kTransposed, sizeof cublaslt::kTransposed),
                         "cublasLtMatmulDescSetAttribute"));
  HEADRACE_TRY(layout(planned.w, s.dtype, s.columns, s.rows, s.columns));
  HEADRACE_TRY(layout(planned.x, s.dtype, s.columns, s.num_tokens, s.x_stride));
  HEADRACE_TRY(layout(planned.out, s.out_dtype, s.rows, s.num_tokens, s.out_stride));

  OwnedObject preference;
  HEADRACE_TRY(status_of(api_.preference_create(preference.address(api_.preference_destroy)),
                         "cublasLtMatmulPreferenceCreate"));
  HEADRACE_TRY(
      status_of(api_.preference_set(preference.get(), cublaslt::kMaxWorkspaceBytes,
                                    &cublaslt::kWorkspaceBytes, sizeof cublaslt::kWorkspaceBytes),
                "cublasLtMatmulPreferenceSetAttribute"));
  HEADRACE_TRY(
      status_of(api_.preference_set(preference.get(), cublaslt::kReductionSchemes,
                                    &cublaslt::kFloatReductions, sizeof cublaslt::kFloatReductions),
                "cublasLtMatmulPreferenceSetAttribute"));
  int attribute = cublaslt::kMinAlignmentOfA;
  for (const std::uint32_t alignment :
       {s.w_alignment, s.x_alignment, s.out_alignment, s.out_alignment})
    HEADRACE_TRY(
        status_of(api_.preference_set(preference.get(), attribute++, &alignment, sizeof alignment),
                  "cublasLtMatmulPreferenceSetAttribute"));
  cublaslt::Heuristic found{};
  int count = 0;
  const Code code =
      api_.heuristic(handle_, planned.desc.get(), planned.w.get(), planned.x.get(),
                     planned.out.get(), planned.out.get(), preference.get(), 1, &found, &count);
  if (code != 0 || count == 0 || found.state != 0)
    return unsupported(
        "cuBLASLt has no kernel for a product of {} tokens with {} x {} weights (error {}); load "
        "the model with fast=0",
        s.num_tokens, s.rows, s.columns, code);
  planned.algorithm = found.algorithm;
  return std::nullopt;
}

void FreeCublasLt::operator()(CublasLt* library) const { delete library; }

Result<OwnedCublasLt> make_cublaslt(int device_id) {
  Result<const Api*> api = load();
  if (!api.ok()) return std::move(api.failure());
  OwnedCublasLt library(new CublasLt(*api.value()));
  if (Status bad = library->make(device_id)) return std::move(*bad);
  return library;
}

Status multiply_by_cublaslt(CublasLt& library, const Product& product, Stream stream) {
  return library.multiply(product, stream);
}

}  // namespace headrace::cuda
