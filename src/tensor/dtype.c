/* The table of element types. */
#include "tensor/dtype.h"

#include "base/fatal.h"

typedef struct DtypeRow {
    const char *name;
    size_t nbytes;
} DtypeRow;

static const DtypeRow row[] = {[DTYPE_F32] = {"f32", 4}, [DTYPE_F64] = {"f64", 8}, [DTYPE_U64] = {"u64", 8},
                               [DTYPE_I32] = {"i32", 4}, [DTYPE_U8] = {"u8", 1},   [DTYPE_BF16] = {"bf16", 2}};

static const DtypeRow *row_of(Dtype dtype) {
    DM_ASSERT((size_t)dtype < sizeof row / sizeof row[0]);
    return &row[dtype];
}

size_t dtype_nbytes(Dtype dtype) {
    return row_of(dtype)->nbytes;
}

const char *dtype_name(Dtype dtype) {
    return row_of(dtype)->name;
}
