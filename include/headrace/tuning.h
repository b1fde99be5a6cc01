/** @file
 * Tuned choices: tiles and schedules that were measured on the device for the shapes of a program.
 * They change no bits. headrace.h has the conventions.
 */
#ifndef HEADRACE_TUNING_H_
#define HEADRACE_TUNING_H_

#include "headrace/headrace.h"
#include "headrace/roofline.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The tuned choices of one device, by call. No two functions may use a table at the same time. */
typedef struct headrace_tuning headrace_tuning;

/** An empty table for a device. */
HEADRACE_API headrace_status headrace_tuning_create(const headrace_device_info* device,
                                                    headrace_tuning** tuning);
/** A table from headrace_tuning_text(), whose bytes may have been changed by anybody. `source`:
 * where the text is from, a file's name, for headrace_plan_explain() and errors; NULL: "a table of
 * the program". invalid_argument, with the reason in headrace_last_error(): the text is damaged or
 * truncated, or belongs to another device or another version of Headrace. */
HEADRACE_API headrace_status headrace_tuning_parse(const headrace_device_info* device,
                                                   const char* text, size_t text_bytes,
                                                   const char* source, headrace_tuning** tuning);
/** The table as text, zero-terminated, valid until the table changes; NULL or out of memory: "". */
HEADRACE_API const char* headrace_tuning_text(const headrace_tuning* tuning);
HEADRACE_API void headrace_tuning_destroy(headrace_tuning* tuning); /**< NULL is allowed */

/** Makes later plans for the table's device take its choices, in this process: for a problem that
 * was tuned and is equal but for the values of softmax_scale, softcap and dropout_p and the numbers
 * of pages. Copies the table; replaces the one of the same device. NULL: no plan takes tuned
 * choices any more. invalid_argument: tables of 64 devices are in use. */
HEADRACE_API headrace_status headrace_tuning_use(const headrace_tuning* tuning);

/** Is called before a call that is timed, on the calling thread; its work is not timed. `stream` is
 * that of headrace_plan_tune(). */
typedef void (*headrace_before_call_fn)(void* user, void* stream);

/** How a call is tuned. */
typedef struct headrace_tune_options {
  size_t struct_size; /**< sizeof this struct, set by the init function */
  int32_t num_rounds; /**< that decide between two choices, in turn, 1 to 1000; default 15 */
  int32_t reserved;   /**< 0 */
  double
      round_seconds; /**< a round takes about as long, at least one call, 0 to 10; default 0.01 */
  int64_t num_ceilings;                /**< of the following; default 0 */
  const headrace_ceiling* ceilings;    /**< of the device, of equal struct_size: choices that are
                                          predicted to be slow are not timed. NULL: those that the
                                          library knows of the device; without any, all are timed */
  headrace_before_call_fn before_call; /**< for example to evict caches; NULL: the calls of a round
                                          follow each other */
  void* user;                          /**< of before_call */
} headrace_tune_options;

/** headrace_tune_options_init() for bindings that cannot use this header: struct_size is the sizeof
 * of their declaration. */
HEADRACE_API headrace_status headrace_tune_options_init_sized(headrace_tune_options* options,
                                                              size_t struct_size);
/** Sets the defaults and struct_size. */
static inline headrace_status headrace_tune_options_init(headrace_tune_options* options) {
  return headrace_tune_options_init_sized(options, sizeof *options);
}

/** A tuned call. The strings are valid until the table changes. */
typedef struct headrace_tuned_call {
  size_t struct_size; /**< sizeof this struct, set by the caller */
  const char* kernel; /**< "cuda_sm90_fwd" */
  const char* call; /**< "batch=8 seqlen_q=1 seqlen_k=4096": what differs from a default problem */
  const char* config; /**< "tile_m=128 section_heads=8"; "": the kernel's own choices are fastest */
  double seconds;     /**< of a call with `config`, the median of the rounds */
  double own_seconds; /**< of a call with the kernel's own choices, in the same rounds */
  int32_t num_configs; /**< choices that the kernel offers, its own among them; 0: not known, as the
                          table was parsed */
  int32_t num_timed;   /**< choices that were timed: the others are predicted to be slow */
} headrace_tuned_call;

/** Measures a plan's call and adds the fastest choices of its kernel to the table. Other choices
 * than the kernel's own must be 1 % faster and win three rounds of four. Runs the call some hundred
 * times with the caller's tensors and a workspace that is allocated for it: the outputs are those
 * of one call, bit for bit (a backward on a GPU without `deterministic` varies from run to run
 * anyway). `gradients`: of a backward plan, else NULL. `options`: as in headrace_plan_run(), may be
 * NULL. `tune_options` and `call` may be NULL. Waits for the stream. Errors: those of
 * headrace_plan_run(); invalid_argument: the table is of another device, or full (2048 calls). */
HEADRACE_API headrace_status headrace_plan_tune(const headrace_plan* plan,
                                                const headrace_attention_tensors* tensors,
                                                const headrace_attention_gradients* gradients,
                                                const headrace_run_options* options,
                                                const headrace_tune_options* tune_options,
                                                void* stream, headrace_tuning* tuning,
                                                headrace_tuned_call* call);
/** Number of calls; NULL: 0. */
HEADRACE_API int64_t headrace_tuning_count(const headrace_tuning* tuning);
/** Fills `call`. invalid_argument: bad index or struct_size. */
HEADRACE_API headrace_status headrace_tuning_get(const headrace_tuning* tuning, int64_t index,
                                                 headrace_tuned_call* call);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADRACE_TUNING_H_ */
