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

/* ---- what a plan costs, and how long it will take ---- */

/** The prediction of a plan; immutable. */
typedef struct headrace_prediction headrace_prediction;

/** Predicts the time of a plan's call by a small model of its kernel, which docs/roofline.md
 * describes and judges. Sequences count with the lengths of the plan's problem, the longest that a
 * call may have. `ceilings`: `num_ceilings` ceilings of the plan's device, of equal struct_size;
 * NULL and 0: those that the library knows of the device, from its name ("h100" and "h200" of
 * headrace_device_from_text()). Measures nothing and needs no device. invalid_argument: `plan`,
 * `ceilings` or `prediction`. A kernel or device without a model is no error: seconds is 0 then. */
HEADRACE_API headrace_status headrace_plan_predict(const headrace_plan* plan,
                                                   const headrace_ceiling* ceilings,
                                                   int64_t num_ceilings,
                                                   headrace_prediction** prediction);

/** What headrace_prediction_get() returns. The strings are valid as long as the prediction. */
typedef struct headrace_prediction_info {
  size_t struct_size; /**< sizeof this struct, set by the caller */
  double seconds;     /**< predicted time; 0: none, `reason` says why */
  double flops;       /**< FLOP that the call needs */
  double bytes;       /**< bytes: every input that it needs and every output, once */
  double exps;        /**< exponentials: one per visible (query, key) pair and head */
  int64_t num_tiles;  /**< work tiles; 0: not known */
  int64_t num_slots;  /**< CTAs that are resident at the same time, or threads */
  double balance;     /**< mean work of a slot over that of the one that ends last, 0 to 1 */
  int32_t ctas;       /**< resident CTAs of a multiprocessor; 0: CPU, or not known */
  int32_t num_parts;  /**< parts of `seconds` */
  const char*
      limit; /**< what limits `ctas`: "threads", "registers", "shared memory", several; or "" */
  const char* bound;    /**< the part that takes longest; "": no prediction */
  const char* ceilings; /**< where the ceilings come from; "": none are known */
  const char* reason;   /**< why there is no prediction; "": there is one */
  const char* text;     /**< all of it as lines that continue headrace_plan_explain() */
} headrace_prediction_info;

/** A part of a predicted time: seconds is constant times unit_seconds. */
typedef struct headrace_prediction_part {
  size_t struct_size;  /**< sizeof this struct, set by the caller */
  const char* name;    /**< "tensor cores", "memory"; valid as long as the prediction */
  double unit_seconds; /**< the time of its work at a ceiling, or a count of microseconds */
  double constant;     /**< fitted to measurements */
} headrace_prediction_part;

/** Fills `info`. invalid_argument: `prediction` or struct_size. */
HEADRACE_API headrace_status headrace_prediction_get(const headrace_prediction* prediction,
                                                     headrace_prediction_info* info);
/** Fills `part`. invalid_argument: `prediction`, a bad index or struct_size. */
HEADRACE_API headrace_status headrace_prediction_get_part(const headrace_prediction* prediction,
                                                          int64_t index,
                                                          headrace_prediction_part* part);
HEADRACE_API void headrace_prediction_destroy(
    headrace_prediction* prediction); /**< NULL is allowed */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_ROOFLINE_H_ */
