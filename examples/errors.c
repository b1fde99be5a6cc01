/* An invalid call returns a status, sets a message with argument, value, rule and remedy, and
 * leaves the outputs unchanged. */
#include <headrace/headrace.h>
#include <stdio.h>

static headrace_tensor view(float* data, int64_t heads) {
  headrace_tensor t = {0};
  t.data = data;
  t.dtype = HEADRACE_F32;
  t.rank = 4;
  t.shape[0] = 1, t.shape[1] = 2, t.shape[2] = heads,
  t.shape[3] = 4; /* [batch, seqlen, heads, head_dim] */
  t.strides[0] = 2 * heads * 4, t.strides[1] = heads * 4, t.strides[2] = 4, t.strides[3] = 1;
  return t;
}

int main(void) {
  float q[24] = {0}, k[16] = {0}, v[16] = {0}, out[24];
  headrace_attention_tensors tensors;
  headrace_attention_options options;
  for (int i = 0; i < 24; ++i) out[i] = 7;
  headrace_attention_tensors_init(&tensors);
  headrace_attention_options_init(&options);
  tensors.q = view(q, 3);
  tensors.k = view(k, 2);
  tensors.v = view(v, 2); /* 3 query heads cannot share 2 */
  tensors.out = view(out, 3);
  const headrace_status status = headrace_attention_forward(&tensors, &options, NULL, 0, NULL);
  printf("%s: %s\n", headrace_status_name(status), headrace_last_error());
  for (int i = 0; i < 24; ++i)
    if (out[i] != 7) return 1;
  return status == HEADRACE_INVALID_ARGUMENT ? 0 : 1;
}
