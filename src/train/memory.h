/* What a run will take, before it takes it: for --plan, --check and the start. */
#ifndef DMUON_TRAIN_MEMORY_H
#define DMUON_TRAIN_MEMORY_H

#include "checkpoint/tensors.h"
#include "model/model.h"
#include "parallel/parallel.h"

typedef struct MemoryLine {
    const char *what; /* "weights"            */
    const char *keys; /* the keys that lower it */
    size_t nbytes;
} MemoryLine;

#define MEMORY_LINES 10
#define MEMORY_DEVICE_LINES 9 /* the others are on the host, whatever the device */

/* The rank at `coord`; every line, also empty ones. `saved`: the tensors of a checkpoint set, NULL when none is saved.
 */
void memory_plan(const Plan *plan, const Config *config, const SetTensors *saved, MeshCoord coord,
                 MemoryLine lines[MEMORY_LINES]);
size_t memory_total(const MemoryLine lines[MEMORY_LINES]);
size_t memory_total_on_host(const MemoryLine lines[MEMORY_LINES]); /* of a device with memory of its own */
/* Bytes that this node has available now (the smaller of the kernel's estimate and the control group's room). */
size_t memory_available(void);
/* Refuses (STATUS_NO_MEMORY) when `node_nbytes` exceed 95 % of `available`, naming the largest lines and their keys. */
DM_NODISCARD Status memory_check(const char *config_path, size_t node_nbytes, int ranks,
                                 const MemoryLine lines[MEMORY_LINES]);
/* The same for a device with memory of its own, which `ranks` of them share. */
DM_NODISCARD Status memory_check_device(const char *config_path, size_t nbytes, int ranks, size_t available,
                                        const MemoryLine lines[MEMORY_LINES]);

#endif
