// Formats a plan as text.
#include "attention/select.h"
#include "core/device.h"
#include "core/features.h"

namespace headrace {
namespace {

std::string bytes_text(std::size_t bytes) {
  if (bytes < 10 * 1024) return format_text("{} bytes", bytes);
  if (bytes < 10 * 1024 * 1024) return format_text("{} KiB", bytes / 1024);
  return format_text("{} MiB", bytes / (1024 * 1024));
}

std::string window_text(std::int64_t window) {
  return window < 0 ? "open" : std::to_string(window);
}

// The value of a feature that has one, behind its name.
std::string value_text(const Problem& p, Feature feature) {
  switch (feature) {
    case Feature::codes:
      return format_text(" {}/{}", dtype_name(k_dtype_of(p)), dtype_name(v_dtype_of(p)));
    case Feature::recent:
      return format_text(" in groups of {}", p.recent_group);
    case Feature::causal:
      return p.causal == HEADRACE_CAUSAL_TOP_LEFT ? " top-left" : " bottom-right";
    case Feature::window:
      return format_text(" {}/{}", window_text(p.window_left), window_text(p.window_right));
    case Feature::softcap:
      return format_text(" {}", p.softcap);
    case Feature::dropout:
      return format_text(" {}", p.dropout_p);
    case Feature::bias:
      return format_text(" {}", dtype_name(static_cast<DType>(p.bias_dtype)));
    case Feature::num_splits:
      return format_text(" {}", p.num_splits);
    default:
      return {};
  }
}

// ", softcap 30, mask"
std::string features_text(const Problem& p, FeatureKind kind) {
  std::string text;
  for (const FeatureInfo& f : kFeatures)
    if (f.kind == kind && f.is_used(p))
      text += format_text(", {}{}", f.name, value_text(p, f.feature));
  return text;
}

std::string kernels_text(const Plan& plan) {
  std::string text;
  int position = 0;
  const auto add = [&](std::string_view name, std::string_view verdict) {
    text += format_text("{}{}. {}: {}\n", position == 0 ? "kernels   " : "          ", position + 1,
                        name, verdict);
    ++position;
  };
  for (const RefusedKernel& kernel : plan.refused) add(kernel.name, "refuses, " + kernel.reason);
  add(plan.kernel->name, plan.is_fallback ? "-> selected (slow fallback)" : "-> selected");
  const auto list = kernels_of(plan.device.device_type, plan.problem.phase);
  bool is_later = false;
  for (const Kernel& kernel : list) {
    if (is_later) add(kernel.name, "not tried");
    is_later = is_later || &kernel == plan.kernel;
  }
  return text;
}

std::string schedule_text(const Schedule& s) {
  std::string text = "schedule  ";
  if (s.tile_m > 0) text += format_text("tile_m {}, ", s.tile_m);
  if (s.tile_n > 0) text += format_text("tile_n {}, ", s.tile_n);
  if (s.max_splits > 1)
    text += format_text("up to {} splits of {} keys, ", s.max_splits, s.split_keys);
  else
    text += "1 split, ";
  if (s.num_ctas > 0)
    text += format_text("{} CTAs, workspace {}\n", s.num_ctas, bytes_text(s.workspace_bytes));
  else
    text += format_text("{} thread{}, workspace {}\n", s.num_threads, s.num_threads == 1 ? "" : "s",
                        bytes_text(s.workspace_bytes));
  if (!s.note.empty()) text += format_text("          {}\n", s.note);
  return text;
}

std::string tuning_text(const Plan& plan) {
  return plan.tuning.empty() ? std::string() : format_text("tuning    {}\n", plan.tuning);
}

bool is_exact_about_nans(std::string_view kernel) {
  return kernel.ends_with("reference") || kernel.ends_with("simple");
}

std::string backward_promises_text(const Plan& plan) {
  return std::string(
             is_exact_about_nans(plan.kernel->name)
                 ? "nan       a NaN or infinity reaches exactly the gradients that depend "
                   "on it\n"
                 : "nan       a NaN or infinity reaches every gradient that depends on it and may "
                   "reach others of the same sequence and KV head, but never another sequence\n") +
         (plan.schedule.has_fixed_bits
              ? "bits      identical from run to run and for any number of threads\n"
              : "bits      dk, dv, dbias and dsinks are identical from run to run; dq only with "
                "deterministic=1\n");
}

std::string promises_text(const Plan& plan) {
  if (is_backward(plan.problem)) return backward_promises_text(plan);
  std::string text =
      is_exact_about_nans(plan.kernel->name)
          ? "nan       a NaN or infinity reaches exactly the rows that see it\n"
          : "nan       in q or k: reaches exactly the rows that see it; in v: reaches every row "
            "that sees it and may reach rows of the same sequence and tile that mask it, but never "
            "another head or sequence\n";
  text +=
      plan.problem.num_splits > 0
          ? format_text(
                "bits      identical from run to run and for any number of threads; "
                "num_splits={} is given, so they may differ from those of the default split\n",
                plan.problem.num_splits)
          : "bits      identical from run to run, for any number of threads and any other batch "
            "entries: splits depend only on the sequence's own lengths\n";
  if (plan.problem.strict_rows)
    text += "          strict_rows: also for any seqlen_q (a prefill row equals its decode row)\n";
  return text;
}

}  // namespace

std::string problem_text(const Problem& p) {
  const char* max_k = has_device_lengths(p) ? "max_" : "";
  std::string text = format_text(
      "{} {}batch {}, {}seqlen_q {}, {}seqlen_k {}, {} heads ({} kv), head_dim {}",
      dtype_name(dtype_of(p)), p.is_ragged ? "ragged " : "", p.batch, p.is_ragged ? "max_" : "",
      p.seqlen_q, max_k, p.seqlen_k, p.num_heads, p.num_kv_heads, p.head_dim);
  if (p.head_dim_v != p.head_dim) text += format_text(", head_dim_v {}", p.head_dim_v);
  if (p.is_ragged) text += format_text(", total_q {}", p.total_q);
  if (has_ragged_keys(p)) text += format_text(", total_k {}", p.total_k);
  if (has_pages(p))
    text += format_text(", {} pages of {} keys, at most {} of a sequence", p.num_pages, p.page_size,
                        p.max_pages);
  else if (p.has_seqused_k)
    text += ", seqused_k";
  if (p.max_shared_prefix > 0)
    text += format_text(", up to {} shared by neighbours", p.max_shared_prefix);
  text += features_text(p, FeatureKind::keys);
  text += features_text(p, FeatureKind::visible_keys);
  text += format_text(", scale {}", p.softmax_scale);
  text += features_text(p, FeatureKind::scores) + features_text(p, FeatureKind::rows);
  if (is_backward(p)) text += ", backward";
  text += features_text(p, FeatureKind::gradients) + features_text(p, FeatureKind::splits);
  if (p.alignment < kWholeAlignment) text += format_text(", aligned to {} bytes", p.alignment);
  if (p.has_negative_strides) text += ", negative strides";
  return text;
}

std::string explain(const Plan& plan) {
  return format_text("problem   {}\ndevice    {}\n", problem_text(plan.problem),
                     device_text(plan.device)) +
         kernels_text(plan) + schedule_text(plan.schedule) + tuning_text(plan) +
         promises_text(plan);
}

}  // namespace headrace
