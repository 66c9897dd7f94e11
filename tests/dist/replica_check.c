/* Arguments: configuration, KIND (weights, matrices, norms, moments or none), then overrides. Builds a session, lets
 * the last rank change one bit of one of its pieces, and looks whether the comparison of the replicas says so. Prints
 * the trail on rank 0. */
#include "dist.h"

#include "train/replicas.h"

typedef struct Target {
    const Session *session;
    const char *kind;
    StatePiece piece;
} Target;

static void keep_last(void *arg, const StatePiece *piece) {
    Target *target = arg;
    const Param *param = &target->session->params.row[piece->param];
    const char *kind = target->kind;
    const bool wanted = strcmp(kind, "moments") == 0 ? piece->kind == STATE_EXP_AVG_SQ : piece->kind == STATE_WEIGHT;
    if (wanted && (strcmp(kind, "matrices") != 0 || param->role == ROLE_MUON) &&
        (strcmp(kind, "norms") != 0 || param->ndim == 1))
        target->piece = *piece;
}

static void change_a_bit(Session *s, const char *kind) {
    Target target = {.session = s, .kind = kind};
    Stream *compute = device_stream(s->device, STREAM_COMPUTE);
    uint32_t last;
    store_visit(parallel_store(s->parallel), keep_last, &target);
    CHECK(target.piece.ptr != NULL, "no piece of %s", kind);
    float *at = target.piece.ptr + target.piece.count - 1;
    device_copy_to_host(compute, &last, at, sizeof last);
    last ^= 1;
    device_copy_from_host(compute, at, &last, sizeof last);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3, "usage: replica_check CONFIG KIND [key=value ...]");
    dist_begin(&argc, &argv, 20.0, 0);
    Session session;
    const SessionOptions options = {
        .config_path = argv[1], .overrides = argv + 3, .override_count = argc - 3, .purpose = PURPOSE_TRAIN};
    Status status = session_open(&session, &world, &options);
    CHECK(status == STATUS_OK, "%s", status_trail());
    status = replicas_check(&session);
    CHECK(status == STATUS_OK, "%s", status_trail());
    const bool changes = strcmp(argv[2], "none") != 0;
    if (changes && world.rank == world.size - 1)
        change_a_bit(&session, argv[2]);
    status = replicas_check(&session);
    CHECK(status == (changes ? STATUS_COMM : STATUS_OK), "status %s", status_name(status));
    if (changes && world.rank == 0)
        printf("%s\n", status_trail());
    session_close(&session);
    return dist_end();
}
