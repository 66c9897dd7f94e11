/* Kernel launches. nvcc's host code registers each kernel's stub under its mangled name; the emulation of the same
 * source registers a function of that name. Both meet here. */
#include <cxxabi.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <map>
#include <string>
#include <vector>

#include "block.h"
#include "cudart.h"
#include "fiber.h"
#include "mem.h"
#include "schedule.h"

namespace standin {

constexpr size_t SHARED_MAX = 163 << 10; /* what a block may have on compute capability 8.0, after asking for it */
constexpr size_t SHARED_DEFAULT = 48 << 10;

struct Stub {
    std::string name; /* mangled */
    emu::Kernel *emulation;
};

static std::map<const void *, Stub> &stubs() {
    static auto &s = *new std::map<const void *, Stub>;
    return s;
}

static std::map<std::string, emu::Kernel *> &emulations() {
    static auto &e = *new std::map<std::string, emu::Kernel *>;
    return e;
}

static std::map<const emu::Kernel *, size_t> &shared_limits() {
    static auto &l = *new std::map<const emu::Kernel *, size_t>;
    return l;
}

static void load_library(const std::string &path) {
    if (!path.empty() && dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
        fault("DM_STANDIN_KERNELS: %s", dlerror());
}

/* Once, before the first launch: every kernel of the program must have its emulation, launched or not. */
static void load_emulations() {
    static bool loaded;
    if (loaded)
        return;
    loaded = true;
    const char *list = getenv("DM_STANDIN_KERNELS");
    const std::string paths = list != nullptr ? list : "";
    for (size_t begin = 0; begin < paths.size();) {
        const size_t end = std::min(paths.find(':', begin), paths.size());
        load_library(paths.substr(begin, end - begin));
        begin = end + 1;
    }
    for (auto &entry : stubs()) {
        auto found = emulations().find(entry.second.name);
        if (found == emulations().end())
            fault("DM_STANDIN_KERNELS=%s has no emulation of kernel %s", paths.c_str(), entry.second.name.c_str());
        entry.second.emulation = found->second;
    }
}

static emu::Kernel *emulation_of(const void *stub) {
    load_emulations();
    auto found = stubs().find(stub);
    if (found == stubs().end())
        fault("launch of %p, which is no kernel", stub);
    return found->second.emulation;
}

struct KernelOp : Op {
    emu::Kernel *kernel = nullptr;
    dim3 grid, block;
    size_t nbytes_shared = 0;
    std::vector<unsigned char> values;
    std::vector<void *> arguments;
    void copy_arguments(void **from);
    Step step() override;
};

/* The device sees the arguments as they are at the launch. */
void KernelOp::copy_arguments(void **from) {
    constexpr size_t unit = 16;
    std::vector<size_t> offset;
    size_t nbytes = 0;
    for (int i = 0; i < kernel->narguments; i++) {
        offset.push_back(nbytes);
        nbytes += (kernel->size[i] + unit - 1) / unit * unit;
    }
    values.resize(nbytes + unit);
    unsigned char *base = values.data() + (unit - (uintptr_t)values.data() % unit) % unit;
    for (int i = 0; i < kernel->narguments; i++) {
        memcpy(base + offset[(size_t)i], from[i], kernel->size[i]);
        arguments.push_back(base + offset[(size_t)i]);
        if (kernel->is_pointer[i] != 0)
            check_kernel_pointer(this, i, *(void *const *)from[i]);
        else
            check_kernel_words(this, i, from[i], kernel->size[i]);
    }
}

static void *dynamic_shared(size_t nbytes) {
    static void *memory = aligned_alloc(1024, SHARED_MAX);
    if (nbytes != 0)
        memset(memory, 0xff, nbytes);
    return memory;
}

/* Blocks run in the order of their numbers or against it, from a random one on. */
Step KernelOp::step() {
    if (settings().skip_kernels)
        return Step::DONE;
    emu::Context &c = emu::context;
    c.block_dim = {block.x, block.y, block.z};
    c.grid_dim = {grid.x, grid.y, grid.z};
    c.nthreads = block.x * block.y * block.z;
    const uint64_t nblocks = (uint64_t)grid.x * grid.y * grid.z;
    const bool shuffled = settings().seed != 0;
    const uint64_t first = shuffled ? random_u64() % nblocks : 0;
    const bool backwards = shuffled && random_u64() % 2 == 1;
    for (uint64_t i = 0; i < nblocks; i++) {
        const uint64_t b = (first + (backwards ? nblocks - 1 - i : i)) % nblocks;
        c.block = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)};
        c.dynamic_shared = dynamic_shared(nbytes_shared);
        emu::run_block(kernel, arguments.data());
    }
    return Step::DONE;
}

static bool is_legal(const emu::Kernel *kernel, dim3 grid, dim3 block, size_t nbytes_shared) {
    const uint64_t nthreads = (uint64_t)block.x * block.y * block.z;
    auto limit = shared_limits().find(kernel);
    return nthreads >= 1 && nthreads <= 1024 && block.z <= 64 && grid.x >= 1 && grid.y >= 1 && grid.z >= 1 &&
           grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535 &&
           nbytes_shared <= (limit != shared_limits().end() ? limit->second : SHARED_DEFAULT);
}

/* Where the list of arguments begins: a parenthesis that does not stand in a template's. */
static size_t arguments_at(const std::string &name) {
    int depth = 0;
    for (size_t i = 0; i < name.size(); i++) {
        if (name[i] == '<')
            depth++;
        else if (name[i] == '>')
            depth--;
        else if (name[i] == '(' && depth == 0)
            return i;
    }
    return name.size();
}

static std::string readable(const char *mangled) {
    int status = 0;
    char *text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    std::string name = text != nullptr ? text : mangled;
    free(text);
    if (name.compare(0, 5, "void ") == 0) /* a template's name comes with its type */
        name.erase(0, 5);
    return name.substr(0, arguments_at(name));
}

static cudaError_t launch(emu::Kernel *kernel, dim3 grid, dim3 block, size_t nbytes_shared, cudaStream_t stream,
                          void **arguments, const void *site) {
    const ApiCall call("cudaLaunchKernel", site);
    if (call.fails)
        return keep_error(cudaErrorLaunchFailure, "cudaLaunchKernel");
    if (!is_legal(kernel, grid, block, nbytes_shared))
        return keep_error(cudaErrorInvalidConfiguration, "cudaLaunchKernel");
    const std::string name = readable(kernel->name);
    KernelOp *op = new KernelOp;
    op->repeats = true;
    op->launch = name;
    op->kernel = kernel;
    op->grid = grid;
    op->block = block;
    op->nbytes_shared = nbytes_shared;
    op->describe("kernel %.120s", name.c_str());
    op->copy_arguments(arguments);
    enqueue(stream, op, "cudaLaunchKernel");
    return cudaSuccess;
}

struct Configuration {
    dim3 grid, block;
    size_t nbytes_shared;
    cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

} // namespace standin

using namespace standin;

void emu::register_kernel(Kernel *kernel) {
    Dl_info info;
    if (dladdr(kernel->function, &info) == 0 || info.dli_sname == nullptr || info.dli_saddr != kernel->function)
        fault("a kernel has no exported name: it is static, or in an unnamed namespace");
    kernel->name = info.dli_sname;
    emulations()[kernel->name] = kernel;
}

cudaError_t emu::launch_kernel(Kernel *kernel, dim3 grid, dim3 block, size_t nbytes_shared, cudaStream_t stream,
                               void **arguments) {
    return launch(kernel, grid, block, nbytes_shared, stream, arguments, kernel);
}

/* ---- what nvcc's host code calls (CUDA 13.0; undocumented) ------------------------------------------------------- */

STANDIN_API void **__cudaRegisterFatBinary(void *) {
    static void *handle[1];
    return handle;
}

STANDIN_API void __cudaRegisterFatBinaryEnd(void **) {
}

STANDIN_API void __cudaUnregisterFatBinary(void **) {
}

STANDIN_API char __cudaInitModule(void **) {
    return 1;
}

STANDIN_API void __cudaRegisterFunction(void **, const char *stub, char *, const char *name, int, uint3 *, uint3 *,
                                        dim3 *, dim3 *, int *) {
    stubs()[stub] = {name, nullptr};
}

STANDIN_API void __cudaRegisterVar(void **, char *, char *, const char *name, int, size_t, int, int) {
    fault("variable %s in device memory: the stand-in has none", name);
}

STANDIN_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t nbytes_shared, cudaStream_t stream) {
    configurations.push_back({grid, block, nbytes_shared, stream});
    return 0;
}

STANDIN_API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *nbytes_shared, void *stream) {
    if (configurations.empty())
        return cudaErrorMissingConfiguration;
    const Configuration c = configurations.back();
    configurations.pop_back();
    *grid = c.grid;
    *block = c.block;
    *nbytes_shared = c.nbytes_shared;
    *(cudaStream_t *)stream = c.stream;
    return cudaSuccess;
}

/* Called once per kernel; the stub keeps the answer, whatever it was. */
STANDIN_API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
    const Lock lock;
    *kernel = (cudaKernel_t)emulation_of(stub);
    return cudaSuccess;
}

STANDIN_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                           size_t nbytes_shared, cudaStream_t stream) {
    return launch((emu::Kernel *)kernel, grid, block, nbytes_shared, stream, arguments, kernel);
}

STANDIN_API cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments,
                                         size_t nbytes_shared, cudaStream_t stream) {
    cudaKernel_t kernel = nullptr;
    __cudaGetKernel(&kernel, stub);
    return launch((emu::Kernel *)kernel, grid, block, nbytes_shared, stream, arguments, kernel);
}

STANDIN_API cudaError_t cudaFuncSetAttribute(const void *stub, cudaFuncAttribute attribute, int value) {
    const ApiCall call("cudaFuncSetAttribute", __builtin_return_address(0));
    if (call.fails)
        return keep_error(cudaErrorUnknown, "cudaFuncSetAttribute");
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > SHARED_MAX)
        return keep_error(cudaErrorInvalidValue, "cudaFuncSetAttribute");
    shared_limits()[emulation_of(stub)] = (size_t)value;
    return cudaSuccess;
}
