/* Every collective of the NCCL stand-in on the whole job and on its halves, checked exactly; and a host that sits in
 * MPI while its peer needs what it has queued. */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include "tests/cuda_standin/selftest/check.h"

#define N 40000 /* more than a channel holds */

const char *planted = "";

typedef struct Ring {
    int rank, size;
    ncclComm_t comm;
    cudaStream_t stream;
    float *in, *out; /* device, [size][N] */
    float *host;     /* pinned, [size][N] */
} Ring;

static float value_of(int rank, int i) {
    return (float)((rank * 31 + i) % 101 - 50);
}

static void give(Ring *ring) {
    for (int i = 0; i < ring->size * N; i++)
        ring->host[i] = value_of(ring->rank, i);
    OK(cudaMemcpyAsync(ring->in, ring->host, (size_t)ring->size * N * sizeof(float), cudaMemcpyHostToDevice,
                       ring->stream));
    OK(cudaStreamSynchronize(ring->stream));
}

static void take(Ring *ring, int n) {
    OK(cudaMemcpyAsync(ring->host, ring->out, (size_t)n * sizeof(float), cudaMemcpyDeviceToHost, ring->stream));
    OK(cudaStreamSynchronize(ring->stream));
}

static int compare(const char *what, const Ring *ring, int i, float want) {
    if (ring->host[i] == want)
        return 0;
    fprintf(stderr, "WRONG: %s: rank %d of %d element %d: %g, not %g\n", what, ring->rank, ring->size, i,
            (double)ring->host[i], (double)want);
    return 1;
}

static float sum_of(const Ring *ring, int i) {
    float sum = 0.0f;
    for (int r = 0; r < ring->size; r++)
        sum += value_of(r, i);
    return sum;
}

static int check_moves(Ring *ring) {
    int wrong = 0;
    const int root = ring->size - 1;
    OK(ncclBroadcast(ring->in, ring->out, N, ncclFloat32, root, ring->comm, ring->stream));
    take(ring, N);
    for (int i = 0; i < N && wrong == 0; i++)
        wrong += compare("broadcast", ring, i, value_of(root, i));
    give(ring);
    OK(ncclAllGather(ring->in, ring->out, N, ncclFloat32, ring->comm, ring->stream));
    take(ring, ring->size * N);
    for (int i = 0; i < ring->size * N && wrong == 0; i++)
        wrong += compare("all-gather", ring, i, value_of(i / N, i % N));
    return wrong;
}

static int check_sums(Ring *ring) {
    int wrong = 0;
    give(ring);
    OK(ncclAllReduce(ring->in, ring->out, N, ncclFloat32, ncclSum, ring->comm, ring->stream));
    take(ring, N);
    for (int i = 0; i < N && wrong == 0; i++)
        wrong += compare("all-reduce", ring, i, sum_of(ring, i));
    give(ring);
    OK(ncclReduceScatter(ring->in, ring->out, N, ncclFloat32, ncclSum, ring->comm, ring->stream));
    take(ring, N);
    for (int i = 0; i < N && wrong == 0; i++)
        wrong += compare("reduce-scatter", ring, i, sum_of(ring, ring->rank * N + i));
    return wrong;
}

/* Rank 0 queues a send and waits in MPI for a message that rank 1 sends once it has received. */
static void check_silence(Ring *ring) {
    int token = 0;
    if (ring->rank == 0) {
        OK(ncclSend(ring->in, N, ncclFloat32, 1, ring->comm, ring->stream));
        MPI_Recv(&token, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (ring->rank == 1) {
        OK(ncclRecv(ring->out, N, ncclFloat32, 0, ring->comm, ring->stream));
        OK(cudaStreamSynchronize(ring->stream));
        MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
    OK(cudaStreamSynchronize(ring->stream));
}

static int check_all(Ring *ring) {
    ncclResult_t state = ncclInternalError;
    OK(cudaStreamCreateWithFlags(&ring->stream, cudaStreamNonBlocking));
    give(ring);
    const int wrong = check_moves(ring) + check_sums(ring);
    OK(ncclCommGetAsyncError(ring->comm, &state));
    OK(state);
    return wrong;
}

int main(int argc, char **argv) {
    Ring world = {0}, half = {0};
    ncclUniqueId id = {{0}};
    int wrong = 0;
    MPI_Init(&argc, &argv);
    planted = argc > 1 ? argv[1] : "";
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    OK(cudaSetDevice(world.rank));
    if (world.rank == 0)
        OK(ncclGetUniqueId(&id));
    MPI_Bcast(&id, (int)sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    OK(ncclCommInitRank(&world.comm, world.size, id, world.rank));
    const size_t nbytes = (size_t)world.size * N * sizeof(float);
    OK(cudaMalloc((void **)&world.in, nbytes));
    OK(cudaMalloc((void **)&world.out, nbytes));
    OK(cudaMallocHost((void **)&world.host, nbytes));
    wrong += check_all(&world);
    check_silence(&world);
    half = world;
    OK(ncclCommSplit(world.comm, world.rank % 2, -world.rank, &half.comm, NULL)); /* backwards by rank */
    OK(ncclCommCount(half.comm, &half.size));
    OK(ncclCommUserRank(half.comm, &half.rank));
    wrong += half.size != (world.size + 1 - world.rank % 2) / 2 || half.rank != half.size - 1 - world.rank / 2;
    wrong += check_all(&half);
    OK(ncclCommDestroy(half.comm));
    OK(ncclCommDestroy(world.comm));
    OK(cudaStreamDestroy(half.stream));
    OK(cudaStreamDestroy(world.stream));
    OK(cudaFree(world.in));
    OK(cudaFree(world.out));
    OK(cudaFreeHost(world.host));
    MPI_Finalize();
    return wrong != 0 ? WRONG_EXIT : 0;
}
