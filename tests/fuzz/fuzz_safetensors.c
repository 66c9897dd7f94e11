/* libFuzzer entry: a safetensors header of arbitrary bytes. The first eight say how long the file is. What is accepted
 * must be consistent. */
#include <stdint.h>
#include <string.h>

#include "base/fatal.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    int64_t file_nbytes;
    if (nbytes < sizeof file_nbytes)
        return 0;
    memcpy(&file_nbytes, data, sizeof file_nbytes);
    StFile file = {.path = "fuzz.safetensors", .fd = -1};
    if (st_parse(&file, (const char *)data + sizeof file_nbytes, nbytes - sizeof file_nbytes, file_nbytes) !=
        STATUS_OK) {
        DM_ASSERT(file.tensor == NULL && status_trail()[0] != '\0');
        return 0;
    }
    int64_t at = ST_PREFIX + (int64_t)(nbytes - sizeof file_nbytes);
    for (int t = 0; t < file.count; t++) {
        const StTensor *tensor = &file.tensor[t];
        DM_ASSERT(tensor->begin == at && tensor->end >= at && tensor->end <= file_nbytes);
        DM_ASSERT(st_find(&file, tensor->name) == tensor &&
                  st_numel(tensor) * st_dtype_nbytes(tensor->dtype) == tensor->end - at);
        at = tensor->end;
    }
    DM_ASSERT(at == file_nbytes);
    st_close(&file);
    return 0;
}
