/** @file
 * What a device can do at best, measured: rates of its units, bandwidth and latency of its
 * memories. headrace.h has the conventions.
 */
#ifndef HEADRACE_ROOFLINE_H_
#define HEADRACE_ROOFLINE_H_

#include "headrace/headrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What the value of a ceiling counts. */
typedef enum headrace_ceiling_kind {
  HEADRACE_CEILING_COMPUTE = 0,   /**< operations per second; a multiply-add is 2, an exp2 is 1 */
  HEADRACE_CEILING_BANDWIDTH = 1, /**< bytes per second, those read plus those written */
  HEADRACE_CEILING_LATENCY = 2    /**< seconds of one dependent load, or of one launch */
} headrace_ceiling_kind;

/** How ceilings are measured. */
typedef struct headrace_ceiling_options {
  size_t struct_size;   /**< sizeof this struct, set by the init function */
  int32_t num_rounds;   /**< rounds of each measurement after a warm-up, 1 to 1000; default 9 */
  int32_t reserved;     /**< 0 */
  double round_seconds; /**< a round takes at least half of it, 0 to 10; default 0.02 */
} headrace_ceiling_options;

/** headrace_ceiling_options_init() for bindings that cannot use this header: struct_size is the
 * sizeof of their declaration. */
HEADRACE_API headrace_status headrace_ceiling_options_init_sized(headrace_ceiling_options* options,
                                                                 size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_ceiling_options_init(headrace_ceiling_options* options) {
  return headrace_ceiling_options_init_sized(options, sizeof *options);
}

/** One ceiling. */
typedef struct headrace_ceiling {
  size_t struct_size;    /**< sizeof this struct, set by the caller */
  int32_t kind;          /**< headrace_ceiling_kind */
  int32_t num_units;     /**< threads or multiprocessors at work */
  const char* resource;  /**< compute: instruction set ("avx512") or unit ("tensor core", "FMA",
                            "MUFU"); else a memory level ("L1", "L2", "L3", "DRAM", "shared"),
                            "PCIe" or "launch". The strings are valid as long as the list */
  const char* operation; /**< compute: operands ("f32", "bf16", "int8"), bandwidth: "read", "write",
                            "copy" (half of its bytes read, half written), latency: "load" */
  double value;          /**< median of the rounds; the unit is that of `kind` */
  double best;           /**< best round */
  double clock_hz;       /**< core clock during the measurement; 0: not known */
  double watts;          /**< power of the device during the measurement; 0: not known */
  int64_t bytes;         /**< working set of all units together; 0: none */
} headrace_ceiling;

/** The ceilings of a device; immutable. */
typedef struct headrace_ceilings headrace_ceilings;

/** Measures a device of this process, which should be idle: other work lowers the values. Takes 5
 * to 60 seconds, and of host and device memory up to an eighth each. CPU: on device->num_units
 * threads and on one, in each supported instruction set, which may be above device->cpu_isa; each
 * thread is pinned to a CPU for the time. CUDA: on device->device_id, on streams of its own.
 * `options` may be NULL. invalid_argument: a field of `device` or `options`; unsupported: a build
 * without CUDA; device_error: CUDA failed; out_of_memory. */
HEADRACE_API headrace_status headrace_ceilings_measure(const headrace_device_info* device,
                                                       const headrace_ceiling_options* options,
                                                       headrace_ceilings** ceilings);
/** Number of ceilings; NULL: 0. */
HEADRACE_API int64_t headrace_ceilings_count(const headrace_ceilings* ceilings);
/** Fills `ceiling`. invalid_argument: bad index or struct_size. */
HEADRACE_API headrace_status headrace_ceilings_get(const headrace_ceilings* ceilings, int64_t index,
                                                   headrace_ceiling* ceiling);
HEADRACE_API void headrace_ceilings_destroy(headrace_ceilings* ceilings); /**< NULL is allowed */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_ROOFLINE_H_ */
