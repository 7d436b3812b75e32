// threads.h - runs a CUDA kernel's source on the CPU: block by block, a block's threads as fibers.
//
//   launch     every block of the grid, in order
//   block      its threads run in turn; one goes on until it meets a barrier or a warp exchange
//   exchange   lanes put values into their warp's mailbox, wait for all, then read: two mailboxes
//              in turn, so a fast lane's next value cannot overwrite what a slow one still reads
//
//   order      0 forward, 1 backward, 2 shuffled anew after every round: a kernel that lacks a
//              barrier gives other bits in one of them
//   memory     shared memory is poisoned (0xA5...) before each block; asynchronous copies happen
//              when they are waited for, not before
//
// A barrier that some threads never reach is reported, not waited for. x86-64 and GCC only.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace emulate {

// No power of two: the tops of all stacks would share a few lines of the cache.
constexpr size_t STACK_BYTES = (32 << 10) + 320, SHARED_BYTES = 228 << 10, WORDS = 2;
constexpr int OK = 0, STUCK = 1, POISON = 0xA5;

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    int group;
};

struct Thread {
    void *stack;  // its stack pointer while it does not run
    dim3 index;
    int warp, lane, group;  // group: of asynchronous copies, the one that is being filled
    bool done;
    std::vector<Copy> copies;
};

struct Warp {
    uint64_t turn;
    int arrived, live;
    uint64_t mail[2][32][WORDS];
    int8_t a[2][16][32], b[2][8][32];  // operands of one integer tile product
};

struct Block {
    dim3 grid, size, index;
    void (*entry)(void *);
    void *arguments, *scheduler;
    Thread *now;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<std::pair<const void *, char *>> shared;  // by the place that declares it
    uint64_t turn;
    int arrived, live;
    size_t shared_used, dynamic_bytes;
    alignas(128) char memory[SHARED_BYTES];
};

inline Block *block;  // the one that runs; launch() lets in one caller at a time

extern "C" void emulate_switch(void **save, void *load);
asm(".text\n.weak emulate_switch\n.hidden emulate_switch\nemulate_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

inline Thread &self() { return *block->now; }
inline Warp &warp() { return block->warps[self().warp]; }
inline void pause() { emulate_switch(&block->now->stack, block->scheduler); }

// The last one to arrive opens the barrier; so does a thread's end, for those that wait.
inline void open_warp(Warp &w) {
    if (w.arrived && w.arrived == w.live) w.arrived = 0, w.turn++;
}
inline void open_block() {
    if (block->arrived && block->arrived == block->live) block->arrived = 0, block->turn++;
}

inline void wait_block() {
    const uint64_t turn = block->turn;
    block->arrived++;
    for (open_block(); block->turn == turn;) pause();
}

// Gives the mailbox that this exchange used.
inline int wait_warp() {
    Warp &w = warp();
    const uint64_t turn = w.turn;
    w.arrived++;
    for (open_warp(w); w.turn == turn;) pause();
    return turn & 1;
}

template <class T>
T exchange(T value, int from_lane) {
    static_assert(sizeof(T) <= 8 * WORDS);
    Warp &w = warp();
    memcpy(w.mail[w.turn & 1][self().lane], &value, sizeof(T));
    const int box = wait_warp();
    memcpy(&value, w.mail[box][from_lane & 31], sizeof(T));
    return value;
}

// One piece of shared memory for each declaration and block, the same for all its threads.
template <class T>
T *shared_array(const void *place, size_t count) {
    for (auto &[known, memory] : block->shared)
        if (known == place) return (T *)memory;
    const size_t begin = (block->shared_used + 127) & ~(size_t)127;
    block->shared_used = begin + count * sizeof(T);
    if (block->shared_used > SHARED_BYTES) abort();  // no device has so much
    memset(block->memory + begin, POISON, count * sizeof(T));
    block->shared.emplace_back(place, block->memory + begin);
    return (T *)(block->memory + begin);
}

inline void copies_until(int group) {
    auto &copies = self().copies;
    size_t kept = 0;
    for (auto &copy : copies)
        if (copy.group <= group) memcpy(copy.to, copy.from, copy.bytes);
        else copies[kept++] = copy;
    copies.resize(kept);
}

[[noreturn]] inline void thread_main() {
    block->entry(block->arguments);
    Thread &t = self();
    t.done = true;
    block->live--;
    Warp &w = warp();
    w.live--;
    open_warp(w);
    open_block();
    for (;;) pause();
}

inline void prepare(Block &b, char *stacks) {
    const int count = (int)b.threads.size();
    b.turn = b.arrived = 0;
    b.live = count;
    b.shared.clear();
    b.shared_used = b.dynamic_bytes;  // it lies first
    memset(b.memory, POISON, b.dynamic_bytes);
    for (int i = 0; i < (int)b.warps.size(); i++) {
        Warp &w = b.warps[i];
        w.turn = w.arrived = 0;
        w.live = count - 32 * i < 32 ? count - 32 * i : 32;
    }
    for (int i = 0; i < count; i++) {
        Thread &t = b.threads[i];
        const int row = i / (int)b.size.x;
        t.index = dim3(i % b.size.x, row % b.size.y, row / b.size.y);
        t.warp = i / 32, t.lane = i % 32, t.group = 0, t.done = false;
        t.copies.clear();
        void **top = (void **)(stacks + (i + 1) * STACK_BYTES);
        *--top = nullptr;  // so that the stack is aligned as after a call
        *--top = (void *)thread_main;
        for (int k = 0; k < 6; k++) *--top = nullptr;  // the registers of emulate_switch
        t.stack = top;
    }
}

inline uint64_t progress(const Block &b, int left) {
    uint64_t sum = b.turn - (uint64_t)left;
    for (auto &w : b.warps) sum += w.turn;
    return sum;
}

inline int run_block(Block &b, int order, uint32_t &seed, std::vector<int> &turn) {
    const int count = (int)b.threads.size();
    for (int i = 0; i < count; i++) turn[i] = order == 1 ? count - 1 - i : i;
    for (int left = count, stuck = 0; left;) {
        for (int i = count - 1; order == 2 && i > 0; i--) {
            seed = seed * 1664525u + 1013904223u;
            std::swap(turn[i], turn[(seed >> 8) % (i + 1)]);
        }
        const uint64_t before = progress(b, left);
        left = 0;
        for (int i : turn) {
            Thread &t = b.threads[i];
            if (t.done) continue;
            b.now = &t;
            emulate_switch(&b.scheduler, t.stack);
            left += !t.done;
        }
        stuck = progress(b, left) == before ? stuck + 1 : 0;
        if (stuck > 1) return STUCK;
    }
    return OK;
}

inline int launch(void (*entry)(void *), void *arguments, const unsigned *sizes, size_t shared,
                  int order) {
    static std::mutex one_at_a_time;
    static std::vector<char> stacks;
    static Block b;
    const std::lock_guard<std::mutex> alone(one_at_a_time);
    block = &b;
    b.grid = dim3(sizes[0], sizes[1], sizes[2]), b.size = dim3(sizes[3], sizes[4], sizes[5]);
    b.entry = entry, b.arguments = arguments, b.dynamic_bytes = shared;
    const size_t count = (size_t)b.size.x * b.size.y * b.size.z;
    b.threads.resize(count), b.warps.resize((count + 31) / 32);
    if (stacks.size() < count * STACK_BYTES + 64) stacks.resize(count * STACK_BYTES + 64);
    char *first = (char *)(((uintptr_t)stacks.data() + 63) & ~(uintptr_t)63);
    std::vector<int> turn(count);
    uint32_t seed = 1;
    for (unsigned z = 0; z < b.grid.z; z++)
        for (unsigned y = 0; y < b.grid.y; y++)
            for (unsigned x = 0; x < b.grid.x; x++) {
                b.index = dim3(x, y, z);
                prepare(b, first);
                if (run_block(b, order, seed, turn) != OK) return STUCK;
            }
    return OK;
}

// The next argument of a kernel from a driver's parameter buffer: each at its natural alignment.
template <class T>
T take(const char *&at) {
    at = (const char *)(((uintptr_t)at + alignof(T) - 1) & ~(uintptr_t)(alignof(T) - 1));
    T value;
    memcpy(&value, at, sizeof(T));
    at += sizeof(T);
    return value;
}

template <class... A>
struct Call {
    void (*kernel)(A...);
    std::tuple<std::remove_const_t<A>...> values;
    static void enter(void *call) { std::apply(((Call *)call)->kernel, ((Call *)call)->values); }
};

template <class... A>
int call(void (*kernel)(A...), const char *buffer, const unsigned *sizes, size_t shared,
         int order) {
    (void)buffer;
    Call<A...> one{kernel,
                   std::tuple<std::remove_const_t<A>...>{take<std::remove_const_t<A>>(buffer)...}};
    return launch(&Call<A...>::enter, &one, sizes, shared, order);
}

}  // namespace emulate
