#include "core/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "base/env.h"

namespace headrace {
namespace {

// Sets an environment variable for its lifetime.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnv() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Device, ThisCpuMakesSense) {
  const DeviceInfo device = cpu_info().value();
  EXPECT_FALSE(check_device(device).has_value());
  EXPECT_EQ(device.device_type, HEADRACE_CPU);
  EXPECT_GE(device.num_units, 1);
  EXPECT_GE(device.l2_bytes, 64 * 1024);
  EXPECT_GT(std::strlen(device.name), 0u);
  if (device.cpu_isa & HEADRACE_ISA_AVX512) {
    EXPECT_TRUE(device.cpu_isa & HEADRACE_ISA_AVX2);
  }
}

#if defined(__x86_64__)
// Compares with the vendor and the flags of /proc/cpuinfo.
TEST(Device, DotProductsOfBf16AreFastOnAmd) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  const bool has_bf16 = text.find(" avx512_bf16") != std::string::npos;
  const bool is_amd = text.find("AuthenticAMD") != std::string::npos;
  const std::uint32_t isa = detected_cpu_isa();
  EXPECT_EQ((isa & HEADRACE_ISA_AVX512_BF16) != 0, has_bf16);
  EXPECT_EQ((isa & HEADRACE_ISA_AVX512_BF16_FAST) != 0, has_bf16 && is_amd);
  const ScopedEnv cap("HEADRACE_CPU_ISA", "avx512_bf16");
  EXPECT_EQ(cpu_info().value().cpu_isa, isa & ~std::uint32_t{HEADRACE_ISA_AVX512_BF16_FAST});
}
#endif

TEST(Device, EnvironmentLimitsTheInstructionSet) {
  const ScopedEnv isa("HEADRACE_CPU_ISA", "scalar");
  const ScopedEnv threads("HEADRACE_NUM_THREADS", "3");
  EXPECT_EQ(cpu_info().value().cpu_isa, 0u);
  EXPECT_EQ(cpu_info().value().num_units, 3);
  EXPECT_EQ(device_from_text("cpu").value().num_units, 3);
}

TEST(Device, EnvironmentCapsGpus) {
  const DeviceInfo h200 = device_from_text("h200").value();
  EXPECT_EQ(capped_gpu(h200).value().sm, 90);
  const struct {
    const char* cap;
    int sm;
    std::uint32_t smem_kib;
  } cases[] = {{"80", 80, 163}, {"86", 86, 99}, {"90", 90, 227}, {"100", 90, 227}};
  for (const auto& c : cases) {
    const ScopedEnv cap("HEADRACE_CUDA_SM", c.cap);
    const DeviceInfo capped = capped_gpu(h200).value();
    EXPECT_EQ(capped.sm, c.sm) << c.cap;
    EXPECT_EQ(capped.smem_bytes, c.smem_kib * 1024) << c.cap;
    EXPECT_EQ(capped.l2_bytes, h200.l2_bytes) << c.cap;
  }
}

TEST(Device, InvalidEnvironmentVariablesAreErrors) {
  for (const char* value : {"79", "sm80", "-80", "1000", "8.0"}) {
    const ScopedEnv cap("HEADRACE_CUDA_SM", value);
    auto device = capped_gpu(device_from_text("sm90:132").value());
    ASSERT_FALSE(device.ok()) << value;
    EXPECT_NE(device.failure().message.find("must be 80 to 999"), std::string::npos);
  }
  {
    const ScopedEnv isa("HEADRACE_CPU_ISA", "sse9");
    auto device = cpu_info();
    ASSERT_FALSE(device.ok());
    EXPECT_NE(device.failure().message.find("HEADRACE_CPU_ISA=\"sse9\": must be scalar, avx2"),
              std::string::npos);
  }
  for (const char* value : {"0", "-1", "1025", "4x", "99999999999999"}) {
    const ScopedEnv threads("HEADRACE_NUM_THREADS", value);
    EXPECT_FALSE(cpu_info().ok()) << value;
  }
}

TEST(Device, ParsesDescriptions) {
  const DeviceInfo avx512 = device_from_text("cpu:avx512:16").value();
  EXPECT_EQ(avx512.cpu_isa, unsigned{HEADRACE_ISA_AVX2 | HEADRACE_ISA_AVX512});
  EXPECT_EQ(avx512.num_units, 16);
  EXPECT_STREQ(avx512.name, "cpu:avx512:16");
  EXPECT_EQ(device_from_text("cpu:scalar:1").value().cpu_isa, 0u);
  EXPECT_EQ(device_from_text("cpu:avx2").value().cpu_isa, unsigned{HEADRACE_ISA_AVX2});
  EXPECT_EQ(device_from_text("cpu:neon:8").value().cpu_isa, unsigned{HEADRACE_ISA_NEON});
  EXPECT_EQ(device_from_text("cpu:avx512_bf16:8").value().cpu_isa,
            unsigned{HEADRACE_ISA_AVX2 | HEADRACE_ISA_AVX512 | HEADRACE_ISA_AVX512_VNNI |
                     HEADRACE_ISA_AVX512_BF16});
  EXPECT_EQ(device_from_text("cpu:avx512_bf16_fast:8").value().cpu_isa,
            device_from_text("cpu:avx512_bf16:8").value().cpu_isa | HEADRACE_ISA_AVX512_BF16_FAST);
  EXPECT_EQ(device_from_text("cpu:avx512_vnni:8").value().cpu_isa,
            unsigned{HEADRACE_ISA_AVX2 | HEADRACE_ISA_AVX512 | HEADRACE_ISA_AVX512_VNNI});
  const DeviceInfo sm90 = device_from_text("sm90:132").value();
  EXPECT_EQ(sm90.device_type, HEADRACE_CUDA);
  EXPECT_EQ(sm90.sm, 90);
  EXPECT_EQ(sm90.num_units, 132);
  EXPECT_EQ(device_text(sm90), "cuda sm90, 132 multiprocessors, L2 51200 KiB (sm90:132)");
}

TEST(Device, RefusesOtherText) {
  for (const char* text :
       {"", "gpu", "cpu:", "cpu:avx3", "cpu:avx2:", "cpu:avx2:0", "cpu:avx2:x", "cpu:avx2:4:4",
        "cpu:avx2:1025", "sm", "sm90", "sm90:", "sm90:0", "smx:1", "sm9:1", "CPU"}) {
    auto device = device_from_text(text);
    ASSERT_FALSE(device.ok()) << text;
    EXPECT_EQ(device.failure().code, ErrorCode::invalid_argument);
    EXPECT_NE(device.failure().message.find(text), std::string::npos);
    for (const char* form : {"\"cpu\"", "cpu:ISA:THREADS", "avx512_bf16", "sm90:132"})
      EXPECT_NE(device.failure().message.find(form), std::string::npos) << text;
  }
}

TEST(Device, RejectsInvalidFields) {
  const DeviceInfo good = device_from_text("cpu:avx2:4").value();
  DeviceInfo device = good;
  device.device_type = 7;
  EXPECT_NE(check_device(device)->message.find("device_type=7"), std::string::npos);
  device = good;
  device.num_units = 0;
  EXPECT_NE(check_device(device)->message.find("num_units=0"), std::string::npos);
  device = good;
  device.cpu_isa = 1u << 20;
  EXPECT_NE(check_device(device)->message.find("cpu_isa=1048576"), std::string::npos);
  device = good;
  std::memset(device.name, 'x', sizeof device.name);
  EXPECT_NE(check_device(device)->message.find("device.name"), std::string::npos);
}

TEST(Env, EveryVariableHasANameAndAText) {
  for (const auto& variable : env::variables()) {
    EXPECT_STREQ(env::name_of(variable.variable), variable.name);
    EXPECT_TRUE(std::string_view(variable.name).starts_with("HEADRACE_"));
    EXPECT_GT(std::strlen(variable.text), 20u);
  }
  EXPECT_EQ(env::variables().size(), 4u);
}

}  // namespace
}  // namespace headrace
