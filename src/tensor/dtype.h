/* Element types and their sizes. */
#ifndef DMUON_TENSOR_DTYPE_H
#define DMUON_TENSOR_DTYPE_H

#include <stddef.h>

typedef enum Dtype { DTYPE_F32, DTYPE_F64, DTYPE_U64, DTYPE_I32, DTYPE_U8, DTYPE_BF16 } Dtype;

size_t dtype_nbytes(Dtype dtype);
const char *dtype_name(Dtype dtype); /* "f32" */

#endif
