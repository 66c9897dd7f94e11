/* Graphs of one stream's work, recorded and launched. Stricter than CUDA: no work of other streams, no events, no
 * copies from or to the host; a graph is not destroyed before what it queued has run; memory that it names is alive
 * when it is launched. */
#include "graph.h"

#include <pthread.h>
#include <memory>

#include "cudart.h"
#include "mem.h"

namespace standin {

constexpr uint64_t GRAPH_MAGIC = 0x4752415048ull, EXEC_MAGIC = 0x45584543ull;

using Ops = std::vector<std::shared_ptr<Op>>;

struct Graph {
    uint64_t magic;
    int id;
    Ops ops;
};

struct Exec {
    uint64_t magic;
    int id;     /* of its graph */
    int queued; /* of its operations, in all launches */
    Ops ops;
};

struct Recording {
    Graph *graph;
    pthread_t thread;
    cudaStreamCaptureMode mode;
};

static int ngraphs;

struct ReplayOp : Op {
    std::shared_ptr<Op> recorded;
    Exec *exec;

    ReplayOp(Exec *of, const std::shared_ptr<Op> &op) : recorded(op), exec(of) {
        ranges = op->ranges;
        describe("%s of graph %d", op->what, of->id);
        exec->queued++;
    }
    ~ReplayOp() override {
        exec->queued--;
    }
    Step step() override {
        return recorded->step();
    }
};

static bool is_mine(const Recording *recording) {
    return pthread_equal(recording->thread, pthread_self()) != 0;
}

void record(Stream *stream, Op *op) {
    if (!is_mine(stream->recording))
        fault("%s on stream %d, which another thread records", op->what, stream->id);
    if (!op->repeats)
        fault("%s on stream %d, which records: a graph may not hold it", op->what, stream->id);
    stream->recording->graph->ops.emplace_back(op);
}

void check_not_recording(const char *api) {
    for (const Stream *s : all_streams()) {
        const Recording *recording = s->recording;
        if (recording != nullptr && (is_mine(recording) || recording->mode == cudaStreamCaptureModeGlobal))
            fault("%s while stream %d records", api, s->id);
    }
}

void check_recordings_ended() {
    for (const Stream *s : all_streams()) {
        if (s->recording != nullptr)
            fault("exit while stream %d records", s->id);
    }
}

static Exec *exec_of(cudaGraphExec_t handle, const char *api) {
    Exec *e = (Exec *)handle;
    if (e == nullptr || e->magic != EXEC_MAGIC)
        fault("%s: the executable graph was destroyed, or is none", api);
    return e;
}

static Graph *graph_of(cudaGraph_t handle, const char *api) {
    Graph *g = (Graph *)handle;
    if (g == nullptr || g->magic != GRAPH_MAGIC)
        fault("%s: the graph was destroyed, or is none", api);
    return g;
}

static void check_memory(const Exec *exec) {
    for (const auto &op : exec->ops) {
        for (const Range &r : op->ranges) {
            const Allocation *a = find_allocation(r.begin);
            if (a != nullptr && !a->live)
                fault("cudaGraphLaunch: %s of graph %d names allocation #%d, which was freed", op->what, exec->id,
                      a->id);
        }
    }
}

} // namespace standin

using namespace standin;

STANDIN_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    API_CALL(cudaErrorUnknown);
    Stream *s = stream_of(handle, __func__);
    if (handle == nullptr)
        fault("cudaStreamBeginCapture of the default stream");
    if (s->recording != nullptr)
        fault("cudaStreamBeginCapture: stream %d records already", s->id);
    s->recording = new Recording{new Graph{GRAPH_MAGIC, ++ngraphs, {}}, pthread_self(), mode};
    leak_count("graphs", 1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    API_CALL(cudaErrorUnknown);
    Stream *s = stream_of(handle, __func__);
    if (s->recording == nullptr)
        fault("cudaStreamEndCapture: stream %d does not record", s->id);
    if (!is_mine(s->recording))
        fault("cudaStreamEndCapture: another thread records stream %d", s->id);
    *graph = (cudaGraph_t)s->recording->graph;
    delete s->recording;
    s->recording = nullptr;
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    API_CALL(cudaErrorMemoryAllocation);
    const Graph *g = graph_of(graph, __func__);
    *exec = (cudaGraphExec_t) new Exec{EXEC_MAGIC, g->id, 0, g->ops};
    leak_count("executable graphs", 1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
    API_CALL(cudaErrorLaunchFailure);
    Exec *exec = exec_of(handle, __func__);
    if (stream_of(stream, __func__)->recording != nullptr)
        fault("cudaGraphLaunch on stream %d, which records", stream_of(stream, __func__)->id);
    check_memory(exec);
    count_launch("graph");
    for (const auto &op : exec->ops)
        enqueue(stream, new ReplayOp(exec, op), __func__);
    return cudaSuccess;
}

/* Handles are not reused, so that one that was destroyed is known for what it is. */
STANDIN_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    const Lock lock;
    Exec *exec = exec_of(handle, __func__);
    if (exec->queued != 0)
        fault("cudaGraphExecDestroy: graph %d still has work queued", exec->id);
    exec->magic = 0;
    exec->ops.clear();
    leak_count("executable graphs", -1);
    return cudaSuccess;
}

STANDIN_API cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
    const Lock lock;
    Graph *g = graph_of(handle, __func__);
    g->magic = 0;
    g->ops.clear();
    leak_count("graphs", -1);
    return cudaSuccess;
}
