/* Named axes replicate x shard x tp. rank = (replicate*G + shard)*T + tp: tp neighbours are closest, then shard, then
 * replicate. */
#ifndef DMUON_MESH_MESH_H
#define DMUON_MESH_MESH_H

#include "base/json.h"
#include "base/str.h"
#include "comm/world.h"

typedef enum Axis { AXIS_REPLICATE, AXIS_SHARD, AXIS_TP, AXIS_DATA, AXIS_COUNT } Axis; /* data = replicate x shard */
const char *axis_name(Axis axis); /* "replicate", "shard", "tp", "data" */

typedef struct MeshShape {
    int replicate, shard, tp; /* R, G, T */
} MeshShape;

typedef struct MeshCoord {
    int replicate, shard, tp;
} MeshCoord;

static inline int mesh_size(MeshShape s) {
    return s.replicate * s.shard * s.tp;
}
static inline int mesh_rank(MeshShape s, MeshCoord c) {
    return (c.replicate * s.shard + c.shard) * s.tp + c.tp;
}
MeshCoord mesh_coord(MeshShape shape, int rank);
/* "replicate 2 x shard 2 x tp 1 = 4 ranks". */
void mesh_print(MeshShape shape, Str *out);
/* "mesh": {replicate, shard, tp}. */
void mesh_write(MeshShape shape, JsonWriter *w);

typedef struct Mesh {
    MeshShape shape;
    MeshCoord coord;        /* of this rank                                               */
    Comm *world;            /* borrowed                                                   */
    Comm *axis[AXIS_COUNT]; /* owned; rank within data = replicate*G + shard              */
} Mesh;

/* The world must have mesh_size(shape) ranks (STATUS_CONFIG otherwise, with both numbers and a mesh that would fit).
 * Collective. */
DM_NODISCARD Status mesh_create(Mesh *mesh, MeshShape shape, World *world);
void mesh_destroy(Mesh *mesh);

#endif
