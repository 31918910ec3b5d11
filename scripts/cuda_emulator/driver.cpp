// An emulated CUDA driver: the functions of libcuda, cuBLAS, cuRAND and NVRTC that Tealight and Candle call, on the
// emulator. A build with `--features cuda` runs on it without a GPU, slowly. scripts/emulate_cuda.sh FOLDER builds it.
//
// It is stricter than a GPU:
// - Work stays in its queue until a result is requested, so that host memory that is freed too early is found.
// - Memory is NaN when it is allocated and when it is freed. Fences around it detect writes beside an allocation.
// - It refuses calls that CUDA refuses: a copy to the host during a capture, more shared memory than a kernel may have.
//
// TEALIGHT_EMULATED_CUDA_CALLS prints each call and its count at exit. TEALIGHT_EMULATED_CUDA_IDLE computes nothing and
// returns arbitrary numbers: the run then takes the time that the host needs to submit the work.
// TEALIGHT_EMULATED_CUDA_DEVICES is the number of GPUs (1), for processes that have one each.

#include "emulator.hpp"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <random>
#include <set>
#include <thread>
#include <utility>

extern "C" const char* tealight_emulate(const char*, unsigned, const unsigned*, unsigned, unsigned, unsigned,
                                        const unsigned*, void**);

namespace {

enum : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_FOUND = 500,
    NOT_READY = 600,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
};

using Work = std::function<void()>;
const bool is_idle = getenv("TEALIGHT_EMULATED_CUDA_IDLE");
std::recursive_mutex one_at_a_time;
#define ALONE std::lock_guard<std::recursive_mutex> lock(one_at_a_time)

[[noreturn]] void stop(const std::string& what) {
    fprintf(stderr, "emulated CUDA: %s\n", what.c_str());
    abort();
}

// The count of each call, printed at exit.
struct Calls {
    std::map<std::string, uint64_t> counts;
    ~Calls() {
        if (!getenv("TEALIGHT_EMULATED_CUDA_CALLS")) return;
        for (auto& [name, n] : counts) fprintf(stderr, "emulated CUDA: %12llu %s\n", (unsigned long long)n, name.c_str());
    }
} calls;

void count(const std::string& what, uint64_t n = 1) { calls.counts[what] += n; }

// --- Memory: each allocation lies between two fences, which no write may change.

constexpr size_t FENCE = 256;
constexpr unsigned char OF_FENCE = 0xa5, UNKNOWN = 0xff;
constexpr uint64_t TOTAL = uint64_t(16) << 30;

struct Memory {
    std::map<uint64_t, size_t> sizes;
    uint64_t held = 0;

    uint64_t take(size_t n) {
        size_t whole = (n + FENCE - 1) / FENCE * FENCE + 2 * FENCE;
        auto* bytes = static_cast<unsigned char*>(aligned_alloc(FENCE, whole));
        if (!is_idle) memset(bytes, OF_FENCE, whole);
        uint64_t address = reinterpret_cast<uint64_t>(bytes) + FENCE;
        sizes[address] = n;
        held += n;
        return address;
    }

    void forget(uint64_t address) const {
        if (!is_idle) memset(reinterpret_cast<void*>(address), UNKNOWN, sizes.at(address));
    }

    void check(uint64_t address) const {
        if (is_idle) return;
        auto* bytes = reinterpret_cast<unsigned char*>(address);
        size_t n = sizes.at(address), end = (n + FENCE - 1) / FENCE * FENCE + FENCE;
        for (size_t i = 0; i < FENCE; i++)
            if (bytes[int64_t(i) - int64_t(FENCE)] != OF_FENCE) stop("something wrote before an allocation");
        for (size_t i = n; i < end; i++)
            if (bytes[i] != OF_FENCE) stop("something wrote behind an allocation");
    }

    void give_back(uint64_t address) {
        check(address);
        forget(address);
        held -= sizes.at(address);
        sizes.erase(address);
        free(reinterpret_cast<void*>(address - FENCE));
    }

    // Whether these bytes lie within one allocation.
    bool has(uint64_t address, size_t n) const {
        auto next = sizes.upper_bound(address);
        if (next == sizes.begin()) return false;
        auto [start, size] = *std::prev(next);
        return address + n <= start + size;
    }
} memory;

std::map<uint64_t, size_t> pinned;

// --- Queues (streams), and graphs of the work that was submitted to one.

// The kinds of nodes, by CUDA's numbers.
enum Kind { KERNEL_NODE = 0, COPY_NODE = 1, FILL_NODE = 2, HOST_NODE = 3, ALLOCATION_NODE = 10, FREE_NODE = 11 };
enum Side { HOST = 1, DEVICE_SIDE = 2 };

struct Node {
    Work work;
    Kind kind;
    Side from = DEVICE_SIDE, to = DEVICE_SIDE; // of a copy
};

struct Graph {
    std::vector<Node> nodes;
    std::vector<uint64_t> memory;
    std::multimap<size_t, uint64_t> free; // freed memory by size, for later allocations of the graph
};

struct Queue {
    std::vector<Work> waiting;
    uint64_t n_given = 0, n_done = 0;
    Graph* captured = nullptr;
    bool is_invalid = false; // the capture contains a call that graphs cannot repeat

    void run(uint64_t up_to) {
        std::vector<Work> now;
        size_t n = up_to > n_done ? up_to - n_done : 0;
        n = std::min(n, waiting.size());
        now.assign(waiting.begin(), waiting.begin() + n);
        waiting.erase(waiting.begin(), waiting.begin() + n);
        for (auto& work : now) {
            work();
            n_done++;
        }
    }

    void finish() { run(n_given); }

    void give(Work work, Kind kind = KERNEL_NODE, Side from = DEVICE_SIDE, Side to = DEVICE_SIDE) {
        if (captured) return captured->nodes.push_back({std::move(work), kind, from, to});
        if (is_idle) return;
        waiting.push_back(std::move(work));
        n_given++;
        if (waiting.size() > 20000) run(n_done + 10000);
    }
};

// Addresses that graphs allocate when they are launched for the first time.
std::set<uint64_t> to_come;

std::set<Queue*> made;
Queue* const PER_THREAD = reinterpret_cast<Queue*>(2);

Queue& queue_of(void* stream) {
    static Queue default_queue;
    static std::map<std::thread::id, Queue> of_threads;
    if (!stream) return default_queue;
    if (stream == PER_THREAD) return of_threads[std::this_thread::get_id()];
    return *static_cast<Queue*>(stream);
}

struct Event {
    Queue* queue = nullptr;
    uint64_t at = 0;
};

// --- Modules. The first line of this NVRTC's PTX states the number type.

const char* const FIRST_LINE = "// NUMBER_BITS=";

struct Module {
    std::string ptx;
    unsigned bits = 0; // 0: Candle's kernels
};

struct Function {
    std::string name;
    unsigned bits;
    unsigned shared_bytes = 48 * 1024;
};

int attribute(int which) {
    switch (which) {
    case 1: return 1024;         // threads of a block
    case 8: return 48 * 1024;    // shared memory of a block
    case 10: return 32;          // threads of a warp
    case 16: return 1;           // multiprocessors
    case 75: return 9;           // capability
    case 76: return 0;
    case 97: return 227 * 1024;  // shared memory that a kernel may ask for
    case 115: return 1;          // memory pools
    default: return 0;
    }
}

} // namespace

extern "C" {

int cuInit(unsigned) { return SUCCESS; }
int cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
int cuDeviceGetCount(int* n) {
    const char* text = getenv("TEALIGHT_EMULATED_CUDA_DEVICES");
    return *n = text ? atoi(text) : 1, SUCCESS;
}
int cuDeviceGet(int* device, int ordinal) {
    int n;
    cuDeviceGetCount(&n);
    return *device = ordinal, ordinal < n ? SUCCESS : 101;
}
int cuDeviceGetName(char* name, int n, int) { return snprintf(name, n, "Emulated GPU"), SUCCESS; }
int cuDeviceGetAttribute(int* value, int which, int) { return *value = attribute(which), SUCCESS; }
int cuDeviceTotalMem_v2(size_t* n, int) { return *n = TOTAL, SUCCESS; }
int cuDeviceGetDefaultMemPool(void** pool, int) { return *pool = &memory, SUCCESS; }
int cuMemPoolSetAttribute(void*, int, void*) { return SUCCESS; }
int cuMemPoolTrimTo(void*, size_t) { return SUCCESS; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &memory, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxSetCurrent(void*) { return SUCCESS; }
int cuCtxGetCurrent(void** context) { return *context = &memory, SUCCESS; }
int cuGetErrorName(int, const char** name) { return *name = "an error of the emulated driver", SUCCESS; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the emulated driver", SUCCESS; }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    ALONE;
    *free = TOTAL - memory.held;
    *total = TOTAL;
    return SUCCESS;
}

int cuMemAllocAsync(uint64_t* address, size_t n, void* stream) {
    ALONE;
    count("allocations");
    Queue& queue = queue_of(stream);
    if (Graph* graph = queue.captured; graph && graph->free.count(n)) {
        auto again = graph->free.find(n);
        *address = again->second;
        graph->free.erase(again);
    } else {
        if (memory.held + n > TOTAL) return 2;
        *address = memory.take(n);
        if (queue.captured) {
            queue.captured->memory.push_back(*address);
            to_come.insert(*address);
        }
    }
    queue.give([at = *address] { memory.forget(at); }, ALLOCATION_NODE);
    return SUCCESS;
}

int cuMemFreeAsync(uint64_t address, void* stream) {
    ALONE;
    if (!memory.sizes.count(address)) stop("memory is freed that is not allocated");
    Queue& queue = queue_of(stream);
    if (!queue.captured && to_come.count(address)) return INVALID_VALUE;
    if (is_idle && !queue.captured) return memory.give_back(address), SUCCESS;
    if (!queue.captured) return queue.give([=] { memory.give_back(address); }), SUCCESS;
    auto& own = queue.captured->memory;
    if (std::find(own.begin(), own.end(), address) == own.end()) stop("a graph frees memory that it did not allocate");
    queue.give([=] { memory.check(address), memory.forget(address); }, FREE_NODE);
    queue.captured->free.emplace(memory.sizes.at(address), address);
    return SUCCESS;
}

int cuMemHostAlloc(void** memory, size_t n, unsigned) {
    ALONE;
    count("pinned allocations");
    *memory = malloc(n);
    pinned[reinterpret_cast<uint64_t>(*memory)] = n;
    return SUCCESS;
}

int cuMemFreeHost(void* memory) {
    ALONE;
    // The memory stays allocated, so that a copy that runs later reads the fill value.
    memset(memory, UNKNOWN, pinned.at(reinterpret_cast<uint64_t>(memory)));
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, void* stream) {
    ALONE;
    if (!memory.has(to, n)) stop("a copy to the device writes outside of an allocation");
    Queue& queue = queue_of(stream);
    if (pinned.count(reinterpret_cast<uint64_t>(from))) {
        count("copies to the device, pinned");
        queue.give([=] { memcpy(reinterpret_cast<void*>(to), from, n); }, COPY_NODE, HOST);
        return SUCCESS;
    }
    count(n > 65536 ? "copies to the device, pageable, that wait" : "copies to the device, pageable, small");
    std::vector<char> now(static_cast<const char*>(from), static_cast<const char*>(from) + n);
    queue.give([=] { memcpy(reinterpret_cast<void*>(to), now.data(), n); }, COPY_NODE, HOST);
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, void* stream) {
    ALONE;
    if (!memory.has(from, n)) stop("a copy from the device reads outside of an allocation");
    Queue& queue = queue_of(stream);
    if (pinned.count(reinterpret_cast<uint64_t>(to))) {
        count("copies to the host, pinned");
        queue.give([=] { memcpy(to, reinterpret_cast<void*>(from), n); }, COPY_NODE, DEVICE_SIDE, HOST);
        return SUCCESS;
    }
    if (queue.captured) return queue.is_invalid = true, CAPTURE_UNSUPPORTED;
    count("copies to the host that wait");
    queue.finish();
    is_idle ? memset(to, 0x3f, n) : memcpy(to, reinterpret_cast<void*>(from), n);
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* stream) {
    ALONE;
    count("copies on the device");
    if (!memory.has(to, n) || !memory.has(from, n)) stop("a copy on the device is outside of an allocation");
    queue_of(stream).give([=] { memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n); }, COPY_NODE);
    return SUCCESS;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void* stream) {
    ALONE;
    count("fills");
    if (!memory.has(to, n)) stop("a fill writes outside of an allocation");
    queue_of(stream).give([=] { memset(reinterpret_cast<void*>(to), value, n); }, FILL_NODE);
    return SUCCESS;
}

// For the emulated NCCL (nccl.cpp).
int cuLaunchHostFunc(void* stream, void (*work)(void*), void* data) {
    ALONE;
    count("host functions");
    queue_of(stream).give([=] { work(data); }, HOST_NODE);
    return SUCCESS;
}

bool tealight_emulated_memory_has(uint64_t address, size_t n) {
    ALONE;
    return memory.has(address, n);
}

int cuStreamCreate(void** stream, unsigned) {
    ALONE;
    auto* queue = new Queue;
    made.insert(queue);
    return *stream = queue, SUCCESS;
}

int cuCtxSynchronize() {
    ALONE;
    for (Queue* queue : made) queue->finish();
    queue_of(nullptr).finish();
    queue_of(PER_THREAD).finish();
    return SUCCESS;
}

int cuStreamSynchronize(void* stream) {
    ALONE;
    Queue& queue = queue_of(stream);
    if (queue.captured) return queue.is_invalid = true, CAPTURE_UNSUPPORTED;
    if (!queue.waiting.empty()) count("waits for a queue");
    queue.finish();
    return SUCCESS;
}

int cuStreamDestroy_v2(void* stream) {
    ALONE;
    // Events may still refer to the queue: it is not freed.
    queue_of(stream).finish();
    return SUCCESS;
}

int cuEventCreate(void** event, unsigned) {
    ALONE;
    count("events made");
    return *event = new Event, SUCCESS;
}
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), SUCCESS; }

int cuEventRecord(void* event, void* stream) {
    ALONE;
    Queue& queue = queue_of(stream);
    if (queue.captured) return SUCCESS;
    *static_cast<Event*>(event) = {&queue, queue.n_given};
    return SUCCESS;
}

int cuEventSynchronize(void* event) {
    ALONE;
    auto [queue, at] = *static_cast<Event*>(event);
    if (!queue) return SUCCESS;
    if (queue->n_done < at) count("waits for an event");
    queue->run(at);
    return SUCCESS;
}

int cuEventQuery(void* event) {
    ALONE;
    auto [queue, at] = *static_cast<Event*>(event);
    return !queue || queue->n_done >= at ? SUCCESS : NOT_READY;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    ALONE;
    auto of = *static_cast<Event*>(event);
    if (of.queue) queue_of(stream).give([of] { of.queue->run(of.at); });
    return SUCCESS;
}

int cuStreamBeginCapture_v2(void* stream, int) {
    ALONE;
    queue_of(stream).captured = new Graph;
    return SUCCESS;
}

int cuStreamIsCapturing(void* stream, int* status) {
    ALONE;
    return *status = queue_of(stream).captured ? 1 : 0, SUCCESS;
}

int cuStreamEndCapture(void* stream, void** graph) {
    ALONE;
    Queue& queue = queue_of(stream);
    *graph = std::exchange(queue.captured, nullptr);
    return std::exchange(queue.is_invalid, false) ? CAPTURE_INVALIDATED : SUCCESS;
}

int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
    return *executable = graph, SUCCESS;
}
int cuGraphUpload(void*, void*) { return SUCCESS; }
int cuGraphExecDestroy(void*) { return SUCCESS; }

int cuGraphLaunch(void* executable, void* stream) {
    ALONE;
    count("launches of a graph");
    auto& graph = *static_cast<Graph*>(executable);
    for (auto& node : graph.nodes) queue_of(stream).give(node.work);
    for (uint64_t address : graph.memory) to_come.erase(address);
    return SUCCESS;
}

int cuGraphGetNodes(void* graph, void** nodes, size_t* n) {
    ALONE;
    auto& all = static_cast<Graph*>(graph)->nodes;
    for (size_t i = 0; nodes && i < *n && i < all.size(); i++) nodes[i] = &all[i];
    return *n = all.size(), SUCCESS;
}

int cuGraphNodeGetType(void* node, int* kind) { return *kind = static_cast<Node*>(node)->kind, SUCCESS; }

// The first fields of CUDA_MEMCPY3D: source and destination.
struct Copy {
    struct End {
        size_t x, y, z, level;
        int side;
        void* host;
        uint64_t device;
        void *array, *reserved;
        size_t pitch, height;
    } from, to;
};

int cuGraphMemcpyNodeGetParams(void* node, Copy* copy) {
    auto& [work, kind, from, to] = *static_cast<Node*>(node);
    if (kind != COPY_NODE) return INVALID_VALUE;
    copy->from.side = from;
    copy->to.side = to;
    return SUCCESS;
}

int cuGraphDestroy(void* graph) {
    ALONE;
    // Queued work holds its own closures. The memory that the graph allocated is not freed.
    delete static_cast<Graph*>(graph);
    return SUCCESS;
}

int cuModuleLoadData(void** module, const void* image) {
    ALONE;
    auto* made = new Module{static_cast<const char*>(image)};
    if (made->ptx.rfind(FIRST_LINE, 0) == 0) made->bits = atoi(made->ptx.c_str() + strlen(FIRST_LINE));
    return *module = made, SUCCESS;
}
int cuModuleUnload(void*) { return SUCCESS; }

int cuModuleGetFunction(void** function, void* module, const char* name) {
    ALONE;
    static std::map<std::pair<void*, std::string>, Function> all;
    auto known = all.find({module, name});
    if (known != all.end()) return *function = &known->second, SUCCESS;
    auto& [ptx, bits] = *static_cast<Module*>(module);
    bool is_compiled = ptx.find(".entry") != std::string::npos;
    if (is_compiled && ptx.find(std::string(".entry ") + name + "(") == std::string::npos) return NOT_FOUND;
    if (!is_compiled && !emulator::kernels().count(std::string(name) + "_" + std::to_string(bits))) return NOT_FOUND;
    return *function = &all.emplace(std::make_pair(module, std::string(name)), Function{name, bits}).first->second, SUCCESS;
}

int cuFuncSetAttribute(void* function, int which, int value) {
    ALONE;
    if (which == 8) { // dynamic shared memory
        if (value > attribute(97)) return INVALID_VALUE;
        static_cast<Function*>(function)->shared_bytes = value;
    }
    return SUCCESS;
}

int cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void* stream, void** arguments, void**) {
    ALONE;
    auto& function = *static_cast<Function*>(handle);
    std::string name = function.name, full = name + "_" + std::to_string(function.bits);
    auto found = emulator::kernels().find(full);
    if (found == emulator::kernels().end()) stop("there is no kernel " + full + " to emulate");
    if (shared_bytes > function.shared_bytes || by != 1 || bz != 1) return INVALID_VALUE;
    if (gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535 || bx == 0 || bx > 1024) return INVALID_VALUE;
    count("kernels");
    count("kernels: " + full);
    if (is_idle) return SUCCESS;
    std::vector<std::vector<uint64_t>> words;
    for (size_t i = 0; i < found->second.sizes.size(); i++) {
        words.emplace_back((found->second.sizes[i] + 7) / 8);
        memcpy(words.back().data(), arguments[i], found->second.sizes[i]);
    }
    queue_of(stream).give([=, bits = function.bits]() mutable {
        std::vector<void*> own;
        std::vector<unsigned> n_words;
        for (auto& argument : words) {
            own.push_back(argument.data());
            n_words.push_back(argument.size());
        }
        unsigned grid[3] = {gx, gy, gz};
        auto begin = std::chrono::steady_clock::now();
        const char* error = tealight_emulate(name.c_str(), bits, grid, bx, shared_bytes, own.size(),
                                             n_words.data(), own.data());
        auto took = std::chrono::steady_clock::now() - begin;
        count("microseconds: " + full, std::chrono::duration_cast<std::chrono::microseconds>(took).count());
        if (error) stop(full + ": " + error);
    });
    return SUCCESS;
}

// --- cuBLAS

struct Blas { void* stream = nullptr; };

int cublasCreate_v2(void** handle) { return *handle = new Blas, SUCCESS; }
int cublasDestroy_v2(void* handle) { return delete static_cast<Blas*>(handle), SUCCESS; }
int cublasSetStream_v2(void* handle, void* stream) { return static_cast<Blas*>(handle)->stream = stream, SUCCESS; }
int cublasSetMathMode(void*, int) { return SUCCESS; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return SUCCESS; }

} // extern "C"

namespace {

struct Matrix {
    uint64_t address;
    int64_t leading, stride;
    bool is_transposed;

    template <class T> T* at(int64_t batch, int64_t row, int64_t column) const {
        if (is_transposed) std::swap(row, column);
        return reinterpret_cast<T*>(address) + batch * stride + column * leading + row;
    }
};

struct Bf16 {
    uint16_t bits;
    operator float() const { return emulator::bf16(bits); }
    Bf16& operator=(float x) {
        uint32_t wide = emulator::read<uint32_t>(&x);
        return bits = (wide + 0x7fff + (wide >> 16 & 1)) >> 16, *this;
    }
};

template <class T, class Sum>
void multiply(Matrix a, Matrix b, Matrix c, int64_t m, int64_t n, int64_t k, int64_t n_batches, Sum alpha, Sum beta) {
    size_t of_a = ((n_batches - 1) * a.stride + (a.is_transposed ? m : k) * a.leading - a.leading + (a.is_transposed ? k : m)) * sizeof(T);
    size_t of_b = ((n_batches - 1) * b.stride + (b.is_transposed ? k : n) * b.leading - b.leading + (b.is_transposed ? n : k)) * sizeof(T);
    size_t of_c = ((n_batches - 1) * c.stride + n * c.leading - c.leading + m) * sizeof(T);
    if (!memory.has(a.address, of_a) || !memory.has(b.address, of_b) || !memory.has(c.address, of_c))
        stop("a product is outside of an allocation");
    std::vector<Sum> row(k), column(k);
    for (int64_t batch = 0; batch < n_batches; batch++)
        for (int64_t j = 0; j < n; j++) {
            for (int64_t l = 0; l < k; l++) column[l] = *b.at<T>(batch, l, j);
            for (int64_t i = 0; i < m; i++) {
                Sum sum = 0;
                if (a.is_transposed) {
                    const T* first = a.at<T>(batch, i, 0);
                    for (int64_t l = 0; l < k; l++) sum += Sum(first[l]) * column[l];
                } else {
                    for (int64_t l = 0; l < k; l++) sum += Sum(*a.at<T>(batch, i, l)) * column[l];
                }
                T& place = *c.at<T>(batch, i, j);
                place = alpha * sum + (beta == 0 ? Sum(0) : beta * Sum(place));
            }
        }
}

} // namespace

extern "C" {

int cublasGemmStridedBatchedEx(void* handle, int turn_a, int turn_b, int m, int n, int k, const void* alpha,
                               const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b,
                               int ldb, long long stride_b, const void* beta, void* c, int type_c, int ldc,
                               long long stride_c, int n_batches, int compute, int) {
    ALONE;
    enum { F32 = 0, F64 = 1, BF16 = 14 };
    count("products");
    if (type_a != type_b || type_a != type_c || (type_a != F32 && type_a != F64 && type_a != BF16)) return 15;
    if (lda < (turn_a ? k : m) || ldb < (turn_b ? n : k) || ldc < m) return 7;
    bool sums_in_f64 = compute == 70; // CUBLAS_COMPUTE_64F
    if (sums_in_f64 != (type_a == F64)) return 15;
    double scale = sums_in_f64 ? emulator::read<double>(const_cast<void*>(alpha)) : emulator::read<float>(const_cast<void*>(alpha));
    double keep = sums_in_f64 ? emulator::read<double>(const_cast<void*>(beta)) : emulator::read<float>(const_cast<void*>(beta));
    Matrix left{reinterpret_cast<uint64_t>(a), lda, stride_a, turn_a != 0};
    Matrix right{reinterpret_cast<uint64_t>(b), ldb, stride_b, turn_b != 0};
    Matrix result{reinterpret_cast<uint64_t>(c), ldc, stride_c, false};
    queue_of(static_cast<Blas*>(handle)->stream).give([=] {
        if (type_a == F32) multiply<float, float>(left, right, result, m, n, k, n_batches, scale, keep);
        if (type_a == F64) multiply<double, double>(left, right, result, m, n, k, n_batches, scale, keep);
        if (type_a == BF16) multiply<Bf16, float>(left, right, result, m, n, k, n_batches, scale, keep);
    });
    return SUCCESS;
}

int cublasGemmEx(void* handle, int turn_a, int turn_b, int m, int n, int k, const void* alpha, const void* a,
                 int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c,
                 int ldc, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, turn_a, turn_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0,
                                      beta, c, type_c, ldc, 0, 1, compute, algorithm);
}

int cublasSgemmStridedBatched(void* handle, int turn_a, int turn_b, int m, int n, int k, const float* alpha,
                              const float* a, int lda, long long stride_a, const float* b, int ldb, long long stride_b,
                              const float* beta, float* c, int ldc, long long stride_c, int n_batches) {
    return cublasGemmStridedBatchedEx(handle, turn_a, turn_b, m, n, k, alpha, a, 0, lda, stride_a, b, 0, ldb, stride_b,
                                      beta, c, 0, ldc, stride_c, n_batches, 68, 0);
}

int cublasDgemmStridedBatched(void* handle, int turn_a, int turn_b, int m, int n, int k, const double* alpha,
                              const double* a, int lda, long long stride_a, const double* b, int ldb,
                              long long stride_b, const double* beta, double* c, int ldc, long long stride_c,
                              int n_batches) {
    return cublasGemmStridedBatchedEx(handle, turn_a, turn_b, m, n, k, alpha, a, 1, lda, stride_a, b, 1, ldb, stride_b,
                                      beta, c, 1, ldc, stride_c, n_batches, 70, 0);
}

// --- cuRAND: Candle creates a generator. Tealight does not use it: its random streams are equal on all devices.

int curandCreateGenerator(void** generator, int) { return *generator = &memory, SUCCESS; }
int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }
int curandSetStream(void*, void*) { return SUCCESS; }
int curandDestroyGenerator(void*) { return SUCCESS; }

// --- NVRTC. With TEALIGHT_REAL_NVRTC=libnvrtc.so.13 it calls that library, whose PTX must contain every kernel.

struct Program {
    std::string source, ptx, log;
};

} // extern "C"

namespace {

// Calls a function of the real NVRTC.
template <class... A> int call(const char* name, A... arguments) {
    static void* library = dlopen(getenv("TEALIGHT_REAL_NVRTC"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library) stop(std::string("no NVRTC: ") + dlerror());
    return reinterpret_cast<int (*)(A...)>(dlsym(library, name))(arguments...);
}

} // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
    if (getenv("TEALIGHT_REAL_NVRTC")) return call("nvrtcVersion", major, minor);
    return *major = *minor = -1, SUCCESS; // no other NVRTC may use the PTX that this one leaves in the cache
}
const char* nvrtcGetErrorString(int) { return "an error of the emulated NVRTC"; }

int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*, const char* const*) {
    return *program = new Program{source, "", ""}, SUCCESS;
}

static int compile(Program& program, int n, const char* const* options) {
    void* real = nullptr;
    size_t size = 0;
    call("nvrtcCreateProgram", &real, program.source.c_str(), (const char*)nullptr, 0, (const char* const*)nullptr,
         (const char* const*)nullptr);
    int status = call("nvrtcCompileProgram", real, n, options);
    call("nvrtcGetProgramLogSize", real, &size);
    program.log.resize(size);
    call("nvrtcGetProgramLog", real, program.log.data());
    if (status != SUCCESS) return status;
    if (size > 1) fprintf(stderr, "emulated CUDA: NVRTC says: %s\n", program.log.c_str());
    call("nvrtcGetPTXSize", real, &size);
    std::string ptx(size, 0);
    call("nvrtcGetPTX", real, ptx.data());
    program.ptx += ptx.c_str();
    return SUCCESS;
}

int nvrtcCompileProgram(void* handle, int n, const char* const* options) {
    ALONE;
    count("files compiled");
    auto& program = *static_cast<Program*>(handle);
    std::string bits = "0";
    for (int i = 0; i < n; i++)
        if (!strncmp(options[i], "-DNUMBER_BITS=", 14)) bits = options[i] + 14;
    program.ptx = FIRST_LINE + bits + "\n";
    return getenv("TEALIGHT_REAL_NVRTC") ? compile(program, n, options) : SUCCESS;
}

int nvrtcGetPTXSize(void* program, size_t* n) { return *n = static_cast<Program*>(program)->ptx.size() + 1, SUCCESS; }
int nvrtcGetPTX(void* program, char* ptx) { return strcpy(ptx, static_cast<Program*>(program)->ptx.c_str()), SUCCESS; }
int nvrtcGetProgramLogSize(void* program, size_t* n) {
    return *n = static_cast<Program*>(program)->log.size() + 1, SUCCESS;
}
int nvrtcGetProgramLog(void* program, char* log) {
    return strcpy(log, static_cast<Program*>(program)->log.c_str()), SUCCESS;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), SUCCESS; }

} // extern "C"
