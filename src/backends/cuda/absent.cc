// The CUDA backend in a build without CUDA.
#include "backends/cuda/backend.h"

namespace headrace::cuda {
namespace {

Failure absent() {
  return unsupported(
      "this build has no CUDA kernels: build with CUDA (nvcc on PATH, HEADRACE_CUDA=ON) or pass "
      "tensors in CPU memory");
}

}  // namespace

std::span<const Kernel> forward_kernels() { return {}; }
std::span<const Kernel> backward_kernels() { return {}; }
std::string architectures() { return "none"; }
Result<int> num_devices() { return absent(); }
Result<DeviceInfo> device_info(int) { return absent(); }
Result<std::unique_ptr<Device>> make_device(int) { return absent(); }
Status run(const Plan&, const AttentionArgs&, Workspace, Stream) { return absent(); }
void FreeScratch::operator()(void*) const {}
Result<Scratch> allocate_scratch(std::size_t, int, Stream) { return absent(); }
Result<HostLengths> read_lengths(const Plan&, const AttentionArgs&, Stream) { return absent(); }
Status softmax_forward(const SoftmaxForwardArgs&, int, Stream) { return absent(); }
Status softmax_backward(const SoftmaxBackwardArgs&, int, Stream) { return absent(); }
Status kv_append(const KvAppendArgs&, int, Stream) { return absent(); }
Status merge_states(const MergeStatesArgs&, int, Stream) { return absent(); }
std::size_t sparq_workspace_bytes(const SparqArgs&) { return 0; }
Status sparq_attention(const SparqArgs&, int, void*, Stream) { return absent(); }
Status sparq_append(const SparqAppendArgs&, int, Stream) { return absent(); }
Status multiply(const Product&, const DeviceInfo&, Stream) { return absent(); }
void FreeCublasLt::operator()(CublasLt*) const {}
Result<OwnedCublasLt> make_cublaslt(int) { return absent(); }
Status multiply_by_cublaslt(CublasLt&, const Product&, Stream) { return absent(); }
Status gather_rows(const GatherRows&, int, Stream) { return absent(); }
Status rope_angles(const RopeAngles&, int, Stream) { return absent(); }
Status rms_norm(const RmsNorm&, int, Stream) { return absent(); }
Status swiglu(const SwiGlu&, int, Stream) { return absent(); }
Status to_bf16(const ToBf16&, int, Stream) { return absent(); }
Status edit_logits(const EditLogitsArgs&, int, Stream) { return absent(); }
Status summarise_logits(const SummariseLogitsArgs&, int, Stream) { return absent(); }
Status gather_logits(const GatherLogitsArgs&, int, Stream) { return absent(); }
Status draw_tokens(const DrawTokensArgs&, int, Stream) { return absent(); }
void DestroyStream::operator()(void*) const {}
Result<OwnedStream> make_stream(int) { return absent(); }
void DestroyGraph::operator()(void*) const {}
Status begin_capture(int, Stream) { return absent(); }
Result<Graph> end_capture(int, Stream) { return absent(); }
Status launch_graph(const Graph&, Stream) { return absent(); }
void DestroyEvent::operator()(void*) const {}
Result<Event> make_event(int) { return absent(); }
Status record(const Event&, Stream) { return absent(); }
Status wait_on(Stream, const Event&) { return absent(); }
Status wait(const Event&) { return absent(); }
void DestroyTimer::operator()(void*) const {}
Result<Timer> make_timer(int) { return absent(); }
Status start_timer(const Timer&, Stream) { return absent(); }
Result<double> stop_timer(const Timer&, Stream) { return absent(); }
Status check(int, Stream) { return absent(); }

}  // namespace headrace::cuda
