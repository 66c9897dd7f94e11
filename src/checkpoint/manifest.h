/* Table of contents of a checkpoint set: `trainer.json`, and the specification of it. One JSON object with exactly the
 * members of Manifest (names and types in manifest_write.c), whose last member is "self": SHA-256, 64 lower-case hex
 * digits, of all bytes of the file before the comma that precedes "self" and whose last bytes are `,"self":"<64
 * digits>"}\n` with nothing between and nothing after them. Since it names bytes and SHA-256 of every other file of the
 * set, every byte of a set is covered. */
#ifndef DMUON_CHECKPOINT_MANIFEST_H
#define DMUON_CHECKPOINT_MANIFEST_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "config/config.h"
#include "mesh/mesh.h"

#define MANIFEST_NAME "trainer.json"
#define MANIFEST_FORMAT 1 /* version of the format, member "format" */

typedef struct ManifestFile {
    char name[128]; /* plain base name in the set's directory */
    int64_t nbytes;
    char sha256[65]; /* lower-case hex */
} ManifestFile;

typedef struct ManifestTensor {
    char name[160];
    uint64_t hash; /* manifest_tensor_hash of the whole tensor */
} ManifestTensor;

typedef struct Manifest {
    int64_t step;         /* completed steps                                               */
    int64_t samples;      /* consumed; the next one of the run has this number             */
    int64_t adamw_t;      /* applied updates                                               */
    int64_t tokens_total; /* trained so far                                                */
    int64_t seed;
    bool fast;         /* numerics.mode                                                 */
    int segments;      /* S, lowered                                                    */
    char products[96]; /* numerics.products: the algorithms of matrix products; "" and no member: exact ones */
    MeshShape mesh;    /* that wrote the set; any other may load it                     */
    DataParallel data_parallel;
    char run_id[33];     /* 32 lower-case hex digits                                      */
    char version[96];    /* of the program that wrote the set                             */
    char *config_yaml;   /* owned; the effective configuration                            */
    char *data_identity; /* owned; base name, bytes and hash of every training file       */
    ManifestFile *file;  /* owned; every file of the set but trainer.json                 */
    int file_count;
    ManifestTensor *tensor; /* owned; every tensor of every file                           */
    int tensor_count;
} Manifest;

void manifest_deinit(Manifest *manifest);

/* Elements [first, first + n) of the tensor add this to its hash (mod 2^64), so that any partition gives the same one:
 * hash_elements over the f32 bits with hash_bytes(name, strlen(name), 0). */
uint64_t manifest_tensor_hash(const char *name, int64_t first, const float *x, int64_t n);
/* SHA-256 and size of a file, read in pieces. */
DM_NODISCARD Status manifest_hash_file(const char *path, char sha256[65], int64_t *nbytes);

/* The members before "config": what the set is of. Into an object that is open. */
void manifest_write_head(JsonWriter *w, const Manifest *manifest);
/* Writes <dir>/trainer.json (the set's temporary directory: no rename of its own), checked and fsynced. */
DM_NODISCARD Status manifest_write(const char *dir, const Manifest *manifest);
/* Reads it back: "self" first, then every member with its type; nothing missing, nothing unknown. STATUS_CHECKPOINT
 * names the file and the reason. On failure nothing is kept. */
DM_NODISCARD Status manifest_read(const char *dir, Manifest *manifest);

/* The directory holds exactly the files listed, with the sizes listed. Cheap: reads no contents. */
DM_NODISCARD Status manifest_verify_listing(const char *dir, const Manifest *manifest);
/* The SHA-256 of file `index`. A mismatch names the file and, when it is a safetensors file and the hash of one of its
 * tensors tells, the tensor. */
DM_NODISCARD Status manifest_verify_file(const char *dir, const Manifest *manifest, int index);
/* The tensors listed are those of the files, by name: reads headers only, which are to be verified before. */
DM_NODISCARD Status manifest_verify_tensors(const char *dir, const Manifest *manifest);
/* All three, for all files. */
DM_NODISCARD Status manifest_verify_files(const char *dir, const Manifest *manifest);

/* The hash listed for a tensor; false when it is not listed. */
bool manifest_find_tensor(const Manifest *manifest, const char *name, uint64_t *hash);

#endif
