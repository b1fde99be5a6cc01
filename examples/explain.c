/* Prints which kernel would run and why others are refused: for this machine, and for a problem
 * without tensors. */
#include <headrace/headrace.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  headrace_problem problem;
  headrace_device_info device = {.struct_size = sizeof device};
  headrace_plan* plan = NULL;
  headrace_problem_init(&problem);
  problem.batch = 1;
  problem.seqlen_q = problem.seqlen_k = 4096;
  problem.num_heads = 32;
  problem.num_kv_heads = 8;
  problem.head_dim = problem.head_dim_v = 128;
  problem.dtype = HEADRACE_BF16;
  problem.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  if (headrace_cpu_info(&device) != HEADRACE_OK ||
      headrace_plan_attention(&problem, &device, &plan) != HEADRACE_OK) {
    fprintf(stderr, "%s\n", headrace_last_error());
    return 1;
  }
  printf("%s\n", headrace_plan_explain(plan));
  const int is_named = strstr(headrace_plan_explain(plan), headrace_plan_kernel(plan)) != NULL;
  headrace_plan_destroy(plan);
  return is_named ? 0 : 1;
}
