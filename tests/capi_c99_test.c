/* headrace.h from C99: one query, one key, so out is v. */
#include <stdio.h>
#include <string.h>

#include "headrace/headrace.h"

static headrace_tensor view(void* data, int64_t dim) {
  headrace_tensor t;
  int i;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = HEADRACE_F32;
  t.device_type = HEADRACE_CPU;
  t.rank = 4;
  for (i = 0; i < 4; ++i) t.shape[i] = 1;
  t.shape[3] = dim;
  for (i = 0; i < 4; ++i) t.strides[i] = i == 3 ? 1 : dim;
  return t;
}

int main(void) {
  float q[4] = {1, 2, 3, 4}, k[4] = {4, 3, 2, 1}, v[2] = {5, 6}, out[2] = {0, 0};
  headrace_attention_tensors tensors;
  headrace_attention_options options;
  headrace_attention_tensors_init(&tensors);
  headrace_attention_options_init(&options);
  tensors.q = view(q, 4);
  tensors.k = view(k, 4);
  tensors.v = view(v, 2);
  tensors.out = view(out, 2);
  if (headrace_attention_forward(&tensors, &options, NULL, 0, NULL) != HEADRACE_OK) {
    fprintf(stderr, "%s\n", headrace_last_error());
    return 1;
  }
  if (out[0] != 5 || out[1] != 6) return 2;
  tensors.out.shape[3] = 3;
  if (headrace_attention_forward(&tensors, &options, NULL, 0, NULL) != HEADRACE_INVALID_ARGUMENT)
    return 3;
  return strstr(headrace_last_error(), "out.shape[3]=3") == NULL ? 4 : 0;
}
