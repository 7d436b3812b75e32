// driver.cpp - a libcuda.so.1 without a GPU: the CUDA driver's calls on the CPU, for tests.
//
// PyCUDA's own code runs on it. A module is the library that emulate/build.py makes of the kernels,
// device memory is memory of this process, and what is given to a stream waits in its queue until
// somebody synchronises, so that a copy nobody waited for has not happened.
//
//   stream   queue of work ──── run by cuStreamSynchronize, cuEventSynchronize, or whoever waits
//   event    number of its last record; "wait" in a queue runs the other stream up to it
//   graph    a list of work, put into a queue as one
//   memory   poisoned (0xA5), a page that nobody may touch behind it, capped
//
// Stricter than a GPU: asynchronous copies want pinned memory; whatever a capture forbids is refused.
//
//   FAKE_CUDA   settings, comma separated: no_device  old_driver  no_kernels  sm=90  memory_mib=1024
//               order=0|1|2 (of a block's threads)   and faults that begin when a file is there:
//               full_if=PATH (out of memory)  launch_error_if=PATH  lost_if=PATH (off the bus)
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum Result {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INSUFFICIENT_DRIVER = 35, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209,
    NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900, UNKNOWN = 999,
};
using Address = unsigned long long;
using Work = std::function<void()>;
using Kernel = int (*)(const char *, const unsigned *, size_t, int);
constexpr size_t PAGE = 4096, MIB = 1 << 20, PLAIN_SHARED = 48 << 10;
constexpr int POISON = 0xA5;

struct Stream {
    std::deque<Work> queue;
    std::vector<Work> *drawing = nullptr;  // a capture writes here
};
struct Event {
    Stream *stream = nullptr;
    uint64_t recorded = 0, done = 0;  // numbers of records
    double ms = 0;
};
struct Module {
    void *library;
};
struct Function {
    Kernel kernel;
    size_t most_shared = PLAIN_SHARED;
};
struct Piece {
    size_t bytes;
    void *map;
    size_t map_bytes;
};

std::recursive_mutex lock;
Stream null_stream;
std::vector<Stream *> streams{&null_stream};
std::map<Address, Piece> memory, pinned;
size_t used_bytes;
int failed;  // once a kernel has failed, everything does
int context_of_all;
thread_local std::vector<void *> contexts;

std::string setting(const char *name) {
    const char *all = getenv("FAKE_CUDA");
    std::string text = "," + std::string(all ? all : "") + ",", key = "," + std::string(name);
    for (size_t at = 0; (at = text.find(key, at)) != std::string::npos; at++) {
        const size_t end = at + key.size();
        if (text[end] == ',') return "1";
        if (text[end] == '=') return text.substr(end + 1, text.find(',', end) - end - 1);
    }
    return "";
}
long number(const char *name, long otherwise) {
    const std::string text = setting(name);
    return text.empty() ? otherwise : atol(text.c_str());
}
bool happens(const char *name) {
    static std::map<std::string, std::string> paths;
    auto found = paths.find(name);
    if (found == paths.end()) found = paths.emplace(name, setting(name)).first;
    return !found->second.empty() && access(found->second.c_str(), F_OK) == 0;
}
size_t total_bytes() { return (size_t)number("memory_mib", 1024) * MIB; }
double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// What is wrong with the device, before a call does anything.
int broken() {
    if (happens("lost_if")) failed = UNKNOWN;
    return failed;
}
Stream *of(Stream *stream) { return stream ? stream : &null_stream; }
void run_one(Stream *stream) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (!failed) work();
}
void run_all(Stream *stream) {
    while (!stream->queue.empty()) run_one(stream);
}
void run_everything() {
    for (Stream *stream : streams) run_all(stream);
}
void run_until(Event *event, uint64_t record) {
    while (event->done < record && !event->stream->queue.empty()) run_one(event->stream);
}
int give(Stream *stream, Work work) {
    stream = of(stream);
    if (stream->drawing) stream->drawing->push_back(std::move(work));
    else stream->queue.push_back(std::move(work));
    return SUCCESS;
}
bool lies_in(const std::map<Address, Piece> &pieces, Address begin, size_t bytes) {
    auto after = pieces.upper_bound(begin);
    if (after == pieces.begin()) return false;
    --after;
    return begin + bytes <= after->first + after->second.bytes;
}
bool on_device(Address begin, size_t bytes) { return lies_in(memory, begin, bytes); }
bool is_pinned(const void *begin, size_t bytes) { return lies_in(pinned, (Address)begin, bytes); }

// Memory that ends, but for its rounding to 256 bytes, where a page begins that nobody may touch.
Address take(std::map<Address, Piece> &pieces, size_t bytes) {
    const size_t room = (bytes + 255) & ~(size_t)255, pages = (room + PAGE - 1) / PAGE * PAGE;
    char *map = (char *)mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return 0;
    mprotect(map + pages, PAGE, PROT_NONE);
    char *begin = map + pages - room;
    pieces[(Address)begin] = Piece{bytes, map, pages + PAGE};
    return (Address)begin;
}
int give_back(std::map<Address, Piece> &pieces, Address begin) {
    run_everything();
    auto found = pieces.find(begin);
    if (found == pieces.end()) return INVALID_VALUE;
    munmap(found->second.map, found->second.map_bytes);
    pieces.erase(found);
    return SUCCESS;
}

}  // namespace

#define LOCKED std::lock_guard<std::recursive_mutex> held(lock)
#define CHECKED                              \
    LOCKED;                                  \
    if (int wrong = broken()) return wrong
#define NO_CAPTURE(stream) \
    if (of(stream)->drawing) return CAPTURE_UNSUPPORTED

API cuInit(unsigned) {
    if (!setting("no_device").empty()) return NO_DEVICE;
    return setting("old_driver").empty() ? SUCCESS : INSUFFICIENT_DRIVER;
}
API cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
API cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
API cuDeviceGet(int *device, int index) { return *device = 0, index ? INVALID_DEVICE : SUCCESS; }
API cuDeviceGetName(char *name, int size, int) {
    return snprintf(name, size, "GPU emulated on the CPU"), SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = total_bytes(), SUCCESS; }
API cuDeviceComputeCapability(int *major, int *minor, int) {
    const long sm = number("sm", 90);
    return *major = sm / 10, *minor = sm % 10, SUCCESS;
}
API cuDeviceGetAttribute(int *value, int attribute, int) {
    const long sm = number("sm", 90);
    switch (attribute) {
        case 10: *value = 32; break;                                          // WARP_SIZE
        case 1: *value = 1024; break;                                         // threads of a block
        case 16: *value = 2; break;                                           // multiprocessors
        case 75: *value = sm / 10; break;                                     // capability
        case 76: *value = sm % 10; break;
        case 97: *value = (sm == 86 || sm == 89 ? 99 : sm == 80 ? 163 : 227) << 10; break;
        default: *value = 1;
    }
    return SUCCESS;
}
API cuGetErrorString(int result, const char **text) {
    static const std::map<int, const char *> known{
        {INVALID_VALUE, "invalid argument"}, {OUT_OF_MEMORY, "out of memory"},
        {INSUFFICIENT_DRIVER, "CUDA driver version is insufficient for CUDA runtime version"},
        {NO_DEVICE, "no CUDA-capable device is detected"}, {LAUNCH_FAILED, "unspecified launch failure"},
        {NO_BINARY, "no kernel image is available for execution on the device"},
        {CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
        {UNKNOWN, "unknown error"}, {801, "operation not supported"}};
    auto found = known.find(result);
    return *text = found == known.end() ? "an error of the emulated driver" : found->second, SUCCESS;
}

API cuDevicePrimaryCtxRetain(void **context, int) { return *context = &context_of_all, SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxPushCurrent_v2(void *context) { return contexts.push_back(context), SUCCESS; }
API cuCtxPopCurrent_v2(void **context) {
    if (contexts.empty()) return INVALID_CONTEXT;
    if (context) *context = contexts.back();
    return contexts.pop_back(), SUCCESS;
}
API cuCtxAttach(void **context, unsigned) { return *context = &context_of_all, SUCCESS; }
API cuCtxDetach(void *) { return SUCCESS; }
API cuCtxGetDevice(int *device) { return *device = 0, contexts.empty() ? INVALID_CONTEXT : SUCCESS; }
API cuCtxGetApiVersion(void *, unsigned *version) { return *version = 13000, SUCCESS; }
API cuCtxSynchronize() {
    CHECKED;
    run_everything();
    return failed;
}

API cuMemGetInfo_v2(size_t *free, size_t *total) {
    CHECKED;
    return *total = total_bytes(), *free = *total - used_bytes, SUCCESS;
}
API cuMemAlloc_v2(Address *address, size_t bytes) {
    CHECKED;
    if (contexts.empty()) return INVALID_CONTEXT;
    if (!bytes) return INVALID_VALUE;
    if (happens("full_if") || used_bytes + bytes > total_bytes()) return OUT_OF_MEMORY;
    if (!(*address = take(memory, bytes))) return OUT_OF_MEMORY;
    memset((void *)*address, POISON, bytes);
    return used_bytes += bytes, SUCCESS;
}
API cuMemFree_v2(Address address) {
    LOCKED;
    auto found = memory.find(address);
    if (found != memory.end()) used_bytes -= found->second.bytes;
    return give_back(memory, address);
}
API cuMemHostAlloc(void **address, size_t bytes, unsigned) {
    CHECKED;
    *address = (void *)take(pinned, bytes);
    return *address ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void *address) {
    LOCKED;
    return give_back(pinned, (Address)address);
}

API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream *stream) {
    CHECKED;
    if (!on_device(to, bytes) || !is_pinned(from, bytes)) return INVALID_VALUE;
    return give(stream, [=] { memcpy((void *)to, from, bytes); });
}
API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream *stream) {
    CHECKED;
    if (!on_device(from, bytes) || !is_pinned(to, bytes)) return INVALID_VALUE;
    return give(stream, [=] { memcpy(to, (void *)from, bytes); });
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream *stream) {
    CHECKED;
    if (!on_device(to, bytes) || !on_device(from, bytes)) return INVALID_VALUE;
    return give(stream, [=] { memmove((void *)to, (void *)from, bytes); });
}
API cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream *stream) {
    CHECKED;
    if (!on_device(to, bytes)) return INVALID_VALUE;
    return give(stream, [=] { memset((void *)to, value, bytes); });
}

API cuStreamCreate(Stream **stream, unsigned) {
    CHECKED;
    return streams.push_back(*stream = new Stream), SUCCESS;
}
API cuStreamDestroy_v2(Stream *stream) {
    LOCKED;
    run_all(stream);
    std::erase(streams, stream);
    return delete stream, SUCCESS;
}
API cuStreamSynchronize(Stream *stream) {
    CHECKED;
    NO_CAPTURE(stream);
    run_all(of(stream));
    return failed;
}
API cuStreamQuery(Stream *stream) {
    CHECKED;
    return of(stream)->queue.empty() ? SUCCESS : NOT_READY;
}
API cuEventCreate(Event **event, unsigned) {
    CHECKED;
    return *event = new Event, SUCCESS;
}
API cuEventDestroy_v2(Event *event) {
    LOCKED;
    run_everything();
    return delete event, SUCCESS;
}
API cuEventRecord(Event *event, Stream *stream) {
    CHECKED;
    NO_CAPTURE(stream);
    if (event->stream && event->stream != of(stream)) run_until(event, event->recorded);
    event->stream = of(stream);
    const uint64_t record = ++event->recorded;
    return give(stream, [=] { event->done = record, event->ms = now_ms(); });
}
API cuEventSynchronize(Event *event) {
    CHECKED;
    run_until(event, event->recorded);
    return failed;
}
API cuEventQuery(Event *event) {
    CHECKED;
    return event->done == event->recorded ? SUCCESS : NOT_READY;
}
API cuEventElapsedTime_v2(float *ms, Event *begin, Event *end) {
    CHECKED;
    if (begin->done != begin->recorded || end->done != end->recorded) return NOT_READY;
    return *ms = (float)(end->ms - begin->ms), SUCCESS;
}
API cuEventElapsedTime(float *ms, Event *begin, Event *end) {
    return cuEventElapsedTime_v2(ms, begin, end);
}
API cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
    CHECKED;
    NO_CAPTURE(stream);
    const uint64_t record = event->recorded;
    return give(stream, [=] { run_until(event, record); });
}

API cuModuleLoadDataEx(Module **module, const void *image, unsigned, int *, void **) {
    CHECKED;
    auto head = (const Elf64_Ehdr *)image;
    const bool is_library = !memcmp(head->e_ident, ELFMAG, SELFMAG) && head->e_machine == EM_X86_64;
    if (!is_library || !setting("no_kernels").empty()) return NO_BINARY;
    const size_t bytes = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    const int file = memfd_create("kernels", 0);
    const bool is_written = write(file, image, bytes) == (ssize_t)bytes;
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void *library = is_written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    close(file);
    if (!library) return INVALID_IMAGE;
    return *module = new Module{library}, SUCCESS;
}
API cuModuleLoadData(Module **module, const void *image) {
    return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}
API cuModuleUnload(Module *module) {
    LOCKED;
    run_everything();
    return delete module, SUCCESS;
}
API cuModuleGetFunction(Function **function, Module *module, const char *name) {
    CHECKED;
    void *kernel = dlsym(module->library, (std::string(name) + "__emulated").c_str());
    if (!kernel) return NOT_FOUND;
    return *function = new Function{(Kernel)kernel}, SUCCESS;
}
API cuFuncGetAttribute(int *value, int, Function *) { return *value = 0, SUCCESS; }
API cuFuncSetAttribute(Function *function, int attribute, int value) {
    CHECKED;
    int most;
    cuDeviceGetAttribute(&most, 97, 0);
    if (attribute == 8 && value > most) return INVALID_VALUE;
    if (attribute == 8) function->most_shared = value;
    return SUCCESS;
}
API cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, Stream *stream, void **, void **extra) {
    CHECKED;
    if (happens("full_if")) return OUT_OF_MEMORY;
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID_VALUE;
    if (shared > function->most_shared) return INVALID_VALUE;
    const char *begin = nullptr;
    size_t bytes = 0;
    for (; extra && *extra; extra += 2)
        if (*extra == (void *)1) begin = (const char *)extra[1];
        else if (*extra == (void *)2) bytes = *(const size_t *)extra[1];
    if (!begin) return INVALID_VALUE;
    std::vector<char> arguments(begin, begin + bytes);
    arguments.resize(bytes + 16);
    static const int order = (int)number("order", 0);
    return give(stream, [=, kernel = function->kernel] {
        const unsigned sizes[6] = {gx, gy, gz, bx, by, bz};
        const bool is_stuck = kernel(arguments.data(), sizes, shared, order);
        if (is_stuck || happens("launch_error_if")) failed = LAUNCH_FAILED;
    });
}

API cuStreamBeginCapture_v2(Stream *stream, int) {
    CHECKED;
    if (!stream || stream->drawing) return CAPTURE_UNSUPPORTED;
    return stream->drawing = new std::vector<Work>, SUCCESS;
}
API cuStreamEndCapture(Stream *stream, std::vector<Work> **graph) {
    LOCKED;
    *graph = stream->drawing;
    stream->drawing = nullptr;
    return *graph ? SUCCESS : CAPTURE_UNSUPPORTED;
}
API cuGraphInstantiateWithFlags(std::vector<Work> **made, std::vector<Work> *graph,
                                unsigned long long) {
    CHECKED;
    return *made = new std::vector<Work>(*graph), SUCCESS;
}
API cuGraphLaunch(std::vector<Work> *graph, Stream *stream) {
    CHECKED;
    if (happens("full_if")) return OUT_OF_MEMORY;
    return give(stream, [=] {
        for (auto &work : *graph)
            if (!failed) work();
    });
}
API cuGraphExecDestroy(std::vector<Work> *graph) {
    LOCKED;
    run_everything();
    return delete graph, SUCCESS;
}
API cuGraphDestroy(std::vector<Work> *graph) { return delete graph, SUCCESS; }
