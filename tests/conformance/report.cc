// Reports as text, csv, json and markdown.
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "conformance/suites.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::string text_report(const Report& report, bool is_markdown) {
  std::string text;
  const auto line = [&](const std::string& s) { text += (is_markdown ? "- " : "") + s + "\n"; };
  if (is_markdown) text += "## " + report.suite + "\n\n";
  for (const std::string& note : report.notes) line(note);
  for (const auto& [name, k] : report.kernels) {
    line(format_text("{}: {} cases, {} refused, {} failed, {} rows judged", name, k.num_cases,
                     k.num_refused, k.num_failed, k.num_rows));
    line(format_text("  pairs of axis values: {} of {} ran", k.seen.num_covered(),
                     k.seen.num_required()));
    const std::string largest_error =
        k.max_ratio > 0 ? ", of maximum errors " + number(k.max_ratio) : "";
    line(format_text("  R1 mean rule in {} cases, largest ratio {}{}; R2 in {}", k.num_mean_judged,
                     number(k.mean_ratio), largest_error, k.num_nmse_judged));
    line(format_text(
        "  R3 largest fraction of the bound {}, before the last rounding {} ({}), of lse {}",
        number(k.utilisation), number(k.calculation), k.calculation_case,
        number(k.lse_utilisation)));
    line(format_text("  R6 mostly zero {}, one-hot {}, changed inputs {}", k.num_mostly_zero,
                     k.num_one_hot, k.num_swaps));
    for (const auto& [keys, stored] : k.stored_keys)
      line(format_text("  keys {}: {} cases, {} refused", keys, stored.num_cases,
                       stored.num_refused));
    std::string table;
    for (const auto& row : k.seen.by_axis())
      table +=
          format_text("{}{} {}/{}", table.empty() ? "" : ", ", row.axis, row.covered, row.required);
    line("  pairs by axis: " + table);
  }
  for (const NamedCheck& check : report.checks)
    line(format_text("{} {} {}: {}", check.id, check.kernel, check.title, check.status));
  for (const FailedCheck& f : report.failures)
    line(format_text("FAILED {} [{}] {}\n  replay: {}", f.kernel, f.name, f.text, f.replay));
  line(format_text("{}: {} failures, {} s", report.suite, report.failures.size(),
                   number(report.seconds)));
  return text;
}

std::string csv_report(const Report& report) {
  std::string text =
      "suite,kernel,cases,refused,failed,rows,pairs_ran,pairs,bound_share,lse_share\n";
  for (const auto& [name, k] : report.kernels)
    text += format_text("{},{},{},{},{},{},{},{},{},{}\n", report.suite, name, k.num_cases,
                        k.num_refused, k.num_failed, k.num_rows, k.seen.num_covered(),
                        k.seen.num_required(), k.utilisation, k.lse_utilisation);
  if (!report.checks.empty()) text += "suite,id,kernel,title,status\n";
  for (const NamedCheck& check : report.checks)
    text += format_text("{},{},{},\"{}\",{}\n", report.suite, check.id, check.kernel, check.title,
                        check.status);
  return text;
}

Json kernel_json(const KernelReport& k) {
  Json pairs = Json::object();
  for (const auto& row : k.seen.by_axis())
    pairs[row.axis] = {{"ran", row.covered}, {"required", row.required}};
  Json stored = Json::object();
  for (const auto& [keys, counts] : k.stored_keys)
    stored[keys] = {{"cases", counts.num_cases}, {"refused", counts.num_refused}};
  return {{"cases", k.num_cases},
          {"refused", k.num_refused},
          {"failed", k.num_failed},
          {"rows", k.num_rows},
          {"pairs_ran", k.seen.num_covered()},
          {"pairs_required", k.seen.num_required()},
          {"pairs_by_axis", pairs},
          {"mean_rule_cases", k.num_mean_judged},
          {"largest_mean_ratio", k.mean_ratio},
          {"largest_error_ratio", k.max_ratio},
          {"nmse_cases", k.num_nmse_judged},
          {"largest_bound_share", k.utilisation},
          {"largest_bound_share_before_rounding", k.calculation},
          {"largest_lse_bound_share", k.lse_utilisation},
          {"mostly_zero", k.num_mostly_zero},
          {"one_hot", k.num_one_hot},
          {"changed_inputs", k.num_swaps},
          {"stored_keys", stored}};
}

std::string json_report(const Report& report) {
  Json json = {{"suite", report.suite}, {"seconds", report.seconds}, {"ok", report.ok()}};
  json["notes"] = report.notes;
  json["kernels"] = Json::object();
  for (const auto& [name, k] : report.kernels) json["kernels"][name] = kernel_json(k);
  json["checks"] = Json::array();
  for (const NamedCheck& c : report.checks)
    json["checks"].push_back(
        {{"id", c.id}, {"kernel", c.kernel}, {"title", c.title}, {"status", c.status}});
  json["failures"] = Json::array();
  for (const FailedCheck& f : report.failures)
    json["failures"].push_back(
        {{"kernel", f.kernel}, {"case", f.name}, {"text", f.text}, {"replay", f.replay}});
  return json.dump(2) + "\n";
}

}  // namespace

std::string replay_line(const std::string& kernel, const CaseName& name, KeyStorage keys) {
  char id[32];
  std::snprintf(id, sizeof id, "0x%016" PRIx64, case_id(name.values, name.seed));
  return std::string("headrace_conformance --case ") + id +
         (kernel.empty() ? "" : " --kernel " + kernel) +
         (keys == KeyStorage::whole
              ? std::string()
              : std::string(" --keys ") + kKeyStorages[static_cast<int>(keys)]);
}

std::string format_report(const Report& report, const std::string& format) {
  if (format == "json") return json_report(report);
  if (format == "csv") return csv_report(report);
  return text_report(report, format == "md");
}

}  // namespace headrace::testing
