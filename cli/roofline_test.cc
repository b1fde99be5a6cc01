// headrace roofline: the bound of a call, the cache of ceilings, the plot, and the program.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "call_bound.h"
#include "roofline_plot.h"
#include "tests/support/ceilings.h"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

using testing::content_of;
using testing::run_program;

CeilingsKey key() { return {.device = "CPU \"X\"", .num_units = 2, .software = "headrace 0.1.0"}; }

std::string reason_of(const std::string& text) {
  std::string reason;
  EXPECT_FALSE(parse_ceilings(text, key(), reason)) << text;
  EXPECT_NE(reason, "") << text;
  return reason;
}

TEST(CeilingsCache, ReadsWhatItWrote) {
  const MeasuredCeilings ours = round_ceilings();
  std::string reason;
  const auto read = parse_ceilings(ceilings_text(key(), ours), key(), reason);
  ASSERT_TRUE(read) << reason;
  EXPECT_EQ(read->date, ours.date);
  ASSERT_EQ(read->ceilings.size(), ours.ceilings.size());
  for (std::size_t i = 0; i < ours.ceilings.size(); ++i) {
    EXPECT_EQ(read->ceilings[i].kind, ours.ceilings[i].kind);
    EXPECT_EQ(read->ceilings[i].resource, ours.ceilings[i].resource);
    EXPECT_EQ(read->ceilings[i].operation, ours.ceilings[i].operation);
    EXPECT_EQ(read->ceilings[i].value, ours.ceilings[i].value);
    EXPECT_EQ(read->ceilings[i].bytes, ours.ceilings[i].bytes);
  }
}

TEST(CeilingsCache, RefusesForeignAndDamagedFiles) {
  const std::string good = ceilings_text(key(), round_ceilings());
  EXPECT_EQ(reason_of(""), "it is no JSON object");
  EXPECT_EQ(reason_of("[1, 2]"), "it is no JSON object");
  EXPECT_EQ(reason_of("{}"), "another version of Headrace wrote it");
  EXPECT_EQ(reason_of(std::string((1 << 20) + 1, ' ')), "it is larger than 1 MiB");
  EXPECT_EQ(reason_of(std::string(100000, '[')), "it is no JSON object") << "deep nesting";
  for (std::size_t size = 0; size + 2 < good.size(); size += 7) reason_of(good.substr(0, size));
  CeilingsKey other = key();
  other.num_units = 3;
  EXPECT_EQ(reason_of(ceilings_text(other, round_ceilings())),
            "it is that of another device, driver or version");
  MeasuredCeilings partial = round_ceilings();
  partial.ceilings.resize(1);
  EXPECT_EQ(reason_of(ceilings_text(key(), partial)),
            "its list of ceilings has no memory or no peak");
  const std::string damaged = "one of its ceilings is damaged";
  const auto with = [&](const char* name, const nlohmann::json& value) {
    auto json = nlohmann::ordered_json::parse(good);
    json["ceilings"][1][name] = value;
    return json.dump();
  };
  EXPECT_EQ(reason_of(with("value", -1)), damaged);
  EXPECT_EQ(reason_of(with("value", "1")), damaged);
  EXPECT_EQ(reason_of(with("value", 1e300)), damaged);
  EXPECT_EQ(reason_of(with("value", nullptr)), damaged);
  EXPECT_EQ(reason_of(with("kind", 3)), damaged);
  EXPECT_EQ(reason_of(with("kind", 0.5)), damaged);
  EXPECT_EQ(reason_of(with("num_units", 1e30)), damaged);
  EXPECT_EQ(reason_of(with("resource", "a\nb")), damaged);
  EXPECT_EQ(reason_of(with("resource", "\x1b[2J")), damaged);
  EXPECT_EQ(reason_of(with("operation", std::string(101, 'a'))), damaged);
  EXPECT_EQ(reason_of(with("operation", "")), damaged);
}

AttentionShape shape_of(std::int64_t seqlen_q, std::int64_t seqlen_k, DType dtype) {
  AttentionShape shape{{}, {seqlen_q}, {seqlen_k}};
  headrace_problem_init(&shape.problem);
  shape.problem.batch = 1;
  shape.problem.seqlen_q = seqlen_q;
  shape.problem.seqlen_k = seqlen_k;
  shape.problem.num_heads = shape.problem.num_kv_heads = 8;
  shape.problem.head_dim = shape.problem.head_dim_v = 64;
  shape.problem.dtype = static_cast<std::int32_t>(dtype);
  return shape;
}

TEST(CallBound, IsTheSlowestOfBytesAndOperations) {
  const std::vector<Ceiling> ceilings = round_ceilings().ceilings;
  // A decode reads K and V once: 2 x 1000 x 8 x 64 elements, q and out beside them.
  const CallBound decode = bound_of(shape_of(1, 1000, DType::f32), "cpu_avx2_fwd", ceilings);
  EXPECT_EQ(decode.bound, "DRAM read");
  EXPECT_DOUBLE_EQ(decode.work.bytes, 4. * 8 * 64 * (2 * 1000 + 2));
  EXPECT_DOUBLE_EQ(decode.seconds, decode.work.bytes / 1e11);
  EXPECT_DOUBLE_EQ(decode.exps, 8 * 1000);
  const CallBound prefill = bound_of(shape_of(1000, 1000, DType::f32), "cpu_avx2_fwd", ceilings);
  EXPECT_EQ(prefill.bound, "avx2 f32");
  EXPECT_DOUBLE_EQ(prefill.seconds, 4. * 64 * 8 * 1e6 / 1e12);
  // bf16 dot products only in the kernel that has them.
  const AttentionShape bf16 = shape_of(1000, 1000, DType::bf16);
  EXPECT_EQ(bound_of(bf16, "cpu_avx512bf16_fwd", ceilings).bound, "avx512_bf16 bf16");
  EXPECT_EQ(bound_of(bf16, "cpu_avx2_fwd", ceilings).bound, "avx2 f32");
  EXPECT_EQ(bound_of(bf16, "cpu_avx2_fwd", {}).bound, "");
}

TEST(CallBound, OnAGpuCountsExponentials) {
  const auto ceiling = [](CeilingKind kind, const char* resource, const char* operation,
                          double value) {
    return Ceiling{kind, 132, resource, operation, value, value, 0, 0, 0};
  };
  const std::vector<Ceiling> ceilings = {
      ceiling(CeilingKind::bandwidth, "DRAM", "read", 4e12),
      ceiling(CeilingKind::compute, "tensor core", "bf16", 800e12),
      ceiling(CeilingKind::compute, "tensor core", "tf32", 400e12),
      ceiling(CeilingKind::compute, "MUFU", "exp2", 1e12)};
  const AttentionShape shape = shape_of(4096, 4096, DType::bf16);
  const CallBound bound = bound_of(shape, "cuda_sm90_fwd", ceilings);
  EXPECT_EQ(bound.bound, "MUFU exp2");  // 8 x 4096^2 / 1e12 s; the products take a third of it
  EXPECT_DOUBLE_EQ(bound.seconds, 8. * 4096 * 4096 / 1e12);
  const CallBound f32 = bound_of(shape_of(4096, 4096, DType::f32), "cuda_sm80_fwd", ceilings);
  EXPECT_EQ(f32.bound, "tensor core tf32");
  EXPECT_DOUBLE_EQ(f32.seconds, 3 * f32.work.flops / 400e12);
  EXPECT_EQ(compute_roofs(ceilings).size(), 2u) << "exp2 is no FLOP";
}

// Every element is closed in order and every value of an attribute quoted; '&' begins an entity.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  std::size_t num_elements = 0;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const std::string entity = xml.substr(at, xml.find(';', at) - at + 1);
      ASSERT_TRUE(entity == "&amp;" || entity == "&lt;" || entity == "&gt;" || entity == "&quot;");
    }
    if (xml[at++] != '<') continue;
    const std::size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at, end - at);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(0, tag.find(' '));
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ('/' + open.back(), tag);
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
    ++num_elements;
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
  EXPECT_GT(num_elements, 20u);
}

TEST(RooflinePlot, IsWellFormedAndInsideItsBox) {
  const RooflinePlot plot{
      .title = "Roofline of <A> & \"B\"",
      .subtitle = "\x01 control",
      .memories = {{"L1", 5e12}, {"DRAM", 1e11}},
      .peaks = {{"bf16 a name that is much longer than its margin", 2e12}, {"f32", 1e12}},
      .points = {{"1 < 2", 0.001, 1e3, 1e8}, {"far", 1e7, 9e12, 0}}};
  const std::string svg = roofline_svg(plot);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("Roofline of &lt;A&gt; &amp; &quot;B&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  for (std::size_t at = 0; (at = svg.find("cx=\"", at)) != std::string::npos; ++at) {
    const double x = std::stod(svg.substr(at + 4));
    EXPECT_TRUE(0 <= x && x <= 800) << x;
    const double y = std::stod(svg.substr(svg.find("cy=\"", at) + 4));
    EXPECT_TRUE(0 <= y && y <= 500) << y;
  }
  EXPECT_EQ(with_prefix(0.5), "0.5 ");
  EXPECT_EQ(with_prefix(999.4), "999 ");
  EXPECT_EQ(with_prefix(999.6), "1 k");
  EXPECT_EQ(with_prefix(1.234e12), "1.23 T");
}

TEST(Roofline, MeasuresOnceAndThenReadsTheCache) {
  const testing::TemporaryFolder folder;
  setenv("XDG_CACHE_HOME", folder.file("").c_str(), 1);
  const std::string command = "roofline --rounds 1 --min-time 0 --format json";
  const auto first = nlohmann::json::parse(run_program(command).out);
  EXPECT_EQ(first["meta"]["ceilings"], "measured now");
  const std::string path = ceilings_path(ceilings_key(cpu_info()));
  ASSERT_TRUE(std::filesystem::is_regular_file(path)) << path;
  const auto second = nlohmann::json::parse(run_program(command).out);
  EXPECT_EQ(second["meta"]["ceilings"], path);
  for (const char* table : {"compute", "bandwidth", "latency"}) {
    EXPECT_FALSE(first[table].empty());
    EXPECT_EQ(first[table], second[table]);
  }
  for (const auto& row : first["bandwidth"]) EXPECT_GT(row["gbytes"].get<double>(), 0) << row;
}

TEST(Roofline, IgnoresADamagedCacheWithAReason) {
  ceilings_folder();
  const std::string path = ceilings_path(ceilings_key(cpu_info()));
  replace_file(path, "{\"schema\": 1");
  const auto result = run_program("roofline --rounds 1 --min-time 0 2>&1");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("headrace: " + path + " is ignored: it is no JSON object"),
            std::string::npos)
      << result.out;
  std::string reason;
  EXPECT_TRUE(read_ceilings(path, ceilings_key(cpu_info()), reason)) << "it was written anew";
}

TEST(Roofline, PlotsCallsBelowTheirBounds) {
  const std::string file = ceilings_folder().file("plot.svg");
  const auto result = run_program("roofline --format json --svg " + file +
                                  " --call 'attention --seqlen 32,64 --causal bottom-right'"
                                  " --call 'attention --seqlen-q 1 --seqlen-k 99 --backward'");
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json["calls"].size(), 3u);
  EXPECT_EQ(json["calls"][0]["exps"].get<double>(), 8 * 32 * 33 / 2);
  EXPECT_EQ(json["calls"][2]["phase"], "backward");
  for (const auto& row : json["calls"]) EXPECT_GT(row["us"].get<double>(), 0) << row;
  expect_well_formed(content_of(file));
}

TEST(Roofline, BadInputIsAUsageError) {
  ceilings_folder();
  const auto error = [](const std::string& arguments) {
    const auto result = run_program("roofline " + arguments + " 2>&1");
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.out;
  };
  EXPECT_NE(error("--device sm90:132").find("\"sm90:132\" is no device of this machine"),
            std::string::npos);
  EXPECT_NE(error("--call 'matmul --seqlen 3'").find("\"matmul\" is no operator"),
            std::string::npos);
  EXPECT_NE(error("--call 'attention --seqlen x'").find("--seqlen"), std::string::npos);
  EXPECT_NE(error("--call 'attention --nonsense'").find("--nonsense"), std::string::npos);
  error("--call 'attention --help'");
  error("--rounds 0");
  EXPECT_EQ(run_program("roofline --svg /nonexistent/plot.svg").exit_code, 1);
}

// ---- explain attention with ceilings

constexpr const char* kReport =
    R"({
 "compute": [{"resource": "avx2", "operation": "f32", "num_units": 2, "gops": 200}],
 "bandwidth": [{"resource": "DRAM", "operation": "read", "num_units": 2,
                "gbytes": 40, "bytes": 1e9}]})";

TEST(ExplainPredicts, FromAReportOfAnotherMachine) {
  const testing::TemporaryFolder folder;
  replace_file(folder.file("report.json"), kReport);
  const std::string command = "explain attention --device cpu:avx2:2 --seqlen 256,512 --ceilings " +
                              folder.file("report.json");
  const auto json = nlohmann::json::parse(run_program(command + " --format json").out);
  ASSERT_EQ(json["plans"].size(), 2u);
  std::vector<double> sums(2);
  for (const auto& part : json["parts"])
    sums[part["plan"].get<std::size_t>() - 1] += part["us"].get<double>();
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(json["plans"][i]["predicted_us"].get<double>(), 0);
    EXPECT_NEAR(json["plans"][i]["predicted_us"].get<double>(), sums[i], 1e-6 * sums[i]);
    EXPECT_EQ(json["plans"][i]["ceilings"], "measured");
    EXPECT_TRUE(json["plans"][i]["no_prediction"].is_null());
  }
  EXPECT_NE(run_program(command).out.find("predicted "), std::string::npos);
}

TEST(ExplainPredicts, FromTheCacheOfThisMachine) {
  ceilings_folder();
  const DeviceInfo device = cpu_info();
  std::vector<Ceiling> ceilings;
  for (const char* isa : {"avx2", "avx512"})
    ceilings.push_back({.kind = CeilingKind::compute,
                        .num_units = device.num_units,
                        .resource = isa,
                        .operation = "f32",
                        .value = 1e11,
                        .best = 1e11});
  ceilings.push_back({.kind = CeilingKind::bandwidth,
                      .num_units = device.num_units,
                      .resource = "DRAM",
                      .operation = "read",
                      .value = 1e10,
                      .best = 1e10});
  const CeilingsKey key = ceilings_key(device);
  replace_file(ceilings_path(key), ceilings_text(key, {"2026-01-01T00:00:00Z", ceilings}));
  const std::string command = "explain attention --seqlen 512 --dtype f32 --format json";
  const auto json = nlohmann::json::parse(run_program(command).out);
  const std::string kernel = json["plans"][0]["kernel"];
  if (kernel.starts_with("cpu_avx")) {
    EXPECT_GT(json["plans"][0]["predicted_us"].get<double>(), 0) << kernel;
  }
  replace_file(ceilings_path(key), "{");
  const auto result = run_program("explain attention --seqlen 512 --dtype f32 2>&1");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("is ignored: it is no JSON object"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("predicted no time: no ceilings"), std::string::npos) << result.out;
}

TEST(ExplainPredicts, ADamagedReportIsAnErrorWithAReason) {
  const std::string report = kReport;
  std::string reason;
  ASSERT_TRUE(parse_report(report, reason)) << reason;
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = report;
    text.replace(text.find(from), from.size(), to);
    const bool is_refused = !parse_report(text, reason);
    return is_refused && !reason.empty();
  };
  EXPECT_TRUE(refused("\"compute\"", "\"computes\""));
  EXPECT_TRUE(refused("\"avx2\"", "7"));
  EXPECT_TRUE(refused("200", "-200"));
  EXPECT_TRUE(refused("200", "\"200\""));
  EXPECT_TRUE(refused("1e9", "-1"));
  EXPECT_TRUE(refused("}]}", "}]"));
  EXPECT_TRUE(refused(": [{", ": [7, {"));
  for (std::size_t i = 0; i < report.size(); ++i) (void)parse_report(report.substr(0, i), reason);
  const auto missing = run_program("explain attention --ceilings /nonexistent 2>&1");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.out.find("/nonexistent: there is no such file"), std::string::npos);
}

}  // namespace
}  // namespace headrace::cli
