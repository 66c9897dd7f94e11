/* The safetensors container, both ways, and the specification of what we write: 8 bytes little-endian header length, a
 * JSON header
 * {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..., "__metadata__": {"format": "pt"}} padded
 * with spaces to a multiple of 8, then the data, contiguous, in the header's order, without gaps. */
#ifndef DMUON_CHECKPOINT_SAFETENSORS_H
#define DMUON_CHECKPOINT_SAFETENSORS_H

#include <stdint.h>

#include "base/status.h"

#define ST_PREFIX 8                /* bytes of the length                                        */
#define ST_HEADER_MAX (100L << 20) /* bytes of a header that we believe: some million tensors    */

typedef enum StDtype { ST_F32, ST_BF16, ST_F16, ST_DTYPE_COUNT } StDtype;

typedef struct StTensor {
    char name[160];
    StDtype dtype;
    int ndim;
    int64_t dim[4];
    int64_t begin, end; /* byte offsets in the file */
} StTensor;

const char *st_dtype_name(StDtype dtype); /* "F32", "BF16", "F16" */
int64_t st_dtype_nbytes(StDtype dtype);   /* per element          */
int64_t st_numel(const StTensor *tensor); /* from its extent: elements, 1 without dims */

/* Reading. Header is believed only after its sizes are: every arithmetic is 64-bit and overflow-checked; shape, dtype
 * and offsets must agree, data must be contiguous and end with the file, names unique and shorter than 160 bytes. */
typedef struct StFile {
    char path[1024];
    int fd;
    StTensor *tensor; /* owned */
    int count;
    int64_t nbytes;
} StFile;

DM_NODISCARD Status st_open(StFile *file, const char *path);
void st_close(StFile *file);
/* Parses a header (the bytes after the length) of a file of file_nbytes; for st_open and the fuzzer. file->path names
 * it in messages; on failure nothing is kept, on success file->tensor is in the order of the data. */
DM_NODISCARD Status st_parse(StFile *file, const char *header, uint64_t header_nbytes, int64_t file_nbytes);
const StTensor *st_find(const StFile *file, const char *name);
/* Elements [first, first + count) of the flattened tensor as f32. Exact for all three dtypes. */
DM_NODISCARD Status st_read_f32(const StFile *file, const StTensor *tensor, int64_t first, int64_t count, float *dst);

/* Writing: the caller lists tensors (name, dtype, dims), gets their offsets and the header, then pwrites the data where
 * it belongs. */
DM_NODISCARD Status st_layout(StTensor *tensors, int count, char **header, int64_t *header_nbytes,
                              int64_t *file_nbytes); /* header: heap, with the length prefix */
/* [n] f32 to the file's bytes of dtype F32 (a copy) or BF16 (rounded). dst must hold n * st_dtype_nbytes(dtype) bytes.
 */
void st_encode(StDtype dtype, const float *src, int64_t n, void *dst);

float st_bf16_to_f32(uint16_t x);
uint16_t st_f32_to_bf16(float x); /* round to nearest even; NaN stays NaN */
float st_f16_to_f32(uint16_t x);

#endif
